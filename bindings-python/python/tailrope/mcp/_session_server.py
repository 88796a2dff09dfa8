"""One session on the engine, behind whichever class of the SDK stands in front of it."""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
from mcp.server.transport_security import TransportSecurityMiddleware
from mcp.shared.message import SessionMessage
from starlette.requests import ClientDisconnect, Request

from tailrope import _telemetry
from tailrope._native import Connection, Refusal
from tailrope.mcp import _arrivals, _hosts, _sdk, _server
from tailrope.mcp._answer import write_connection, write_empty, write_refusal
from tailrope.mcp._close import Closer
from tailrope.mcp._posted import Posts
from tailrope.mcp._principal import log_user, requester
from tailrope.mcp._streams import Inbox, Outbox
from tailrope.mcp._user_store import UserStore

if TYPE_CHECKING:
    import contextvars
    from collections.abc import AsyncGenerator, Iterator

    from mcp.server.transport_security import TransportSecuritySettings
    from starlette.types import Receive, Scope, Send

    from tailrope._native import Admission, Session
    from tailrope._runtime import Loop, Runtime
    from tailrope.mcp._adopting import Adoption
    from tailrope.mcp._outcomes import Outcomes

logger = logging.getLogger("tailrope")


class SessionServer:
    """Serves one session. The host ends it through `idle_scope`, where that is not None."""

    def __init__(
        self,
        runtime: Runtime,
        session_id: str,
        *,
        json_response: bool,
        security_settings: TransportSecuritySettings | None,
        retry_ms: int | None,
        idle_timeout: float | None,
        adoption: Adoption | None = None,
    ) -> None:
        self.runtime = runtime
        self._is_terminated = False
        self.idle_scope: anyio.CancelScope | None = None
        self.json_response = json_response
        self.session_id = session_id
        self._is_spanned = _sdk.spanned()
        self._server_name = _server.of_new_session(runtime)
        self._id_header = session_id.encode("ascii")
        self._security = TransportSecurityMiddleware(security_settings)
        self._retry_ms = retry_ms
        self._idle_timeout = idle_timeout
        self._here: Loop | None = None
        self._task: asyncio.Task[Any] | None = None
        self._session: Session | None = None
        self._has_place = False
        self._requests = 0
        self._inbox = Inbox()
        self._outcomes: Outcomes | None = None
        self._posts: Posts | None = None
        self._adoption = adoption
        self._transport: Any = None
        self.handed: _arrivals.Handed | None = None
        """What the front takes of its requests; None where the app gets them all."""

    @property
    def security(self) -> TransportSecurityMiddleware:
        """The SDK's checks of hosts and origins."""
        return self._security

    @property
    def has_room(self) -> bool:
        """Whether the SDK's dispatcher is given the next message without waiting."""
        return self._inbox.has_room

    @asynccontextmanager
    async def connect(self, transport: Any) -> AsyncGenerator[tuple[Any, Any], None]:
        """Opens the session, or goes on with one that is adopted: the streams for the SDK's dispatcher. What ends the
        session or closes a connection goes by the methods of the transport, as on the SDK's own."""
        self._transport = transport
        self._task = asyncio.current_task()
        runtime = self.runtime
        await runtime.ready()
        here = self._here = runtime.here()
        idle_ms = None
        if self._idle_timeout is not None:
            idle_ms = max(round(self._idle_timeout * 1_000), 1)
            self.idle_scope = anyio.CancelScope()
        if self._adoption is not None:
            session = self._session = self._adoption.session
            session.set_idle_ms(idle_ms)
        else:
            session = self._session = runtime.engine.open_session(
                self.session_id, self._server_name, _sdk.MAJOR, self._retry_ms, idle_ms, here.waiters
            )
        runtime.servers[session.name] = self
        _hosts.opened(session)
        try:
            # Retention needs the tick also where no connection ever waits.
            here.arm(runtime, runtime.engine.due_in_ms())
            if runtime.host_store is not None:
                self._outcomes = UserStore(runtime, session, here)
            elif runtime.answers_elsewhere:
                self._outcomes = self._posts = Posts(self, session, here)
                if self._adoption is None:
                    session.accept_posted()
            async with Outbox(session, self._outcomes, self._end_if_cancelled) as outbox:
                if self._adoption is not None:
                    outbox.on_response = self._adoption.answered
                yield self._inbox, outbox
        finally:
            self.handed = None
            self._inbox.close()
            self._task = None
            self._end(session)
            if self._outcomes is not None:
                self._outcomes.close()

    @property
    def is_terminated(self) -> bool:
        """Whether the session has ended, also where the engine has still to say so: see `become_idle`."""
        return self._is_terminated or (self._session is not None and self._session.has_ended)

    def terminate(self) -> None:
        """Ends the session. Requests in flight get an error, later ones are answered as for an unknown session.

        In a task that is cancelled, or runs a session manager, it is the server that ends: a store that outlives the
        process keeps the session.
        """
        self._is_terminated = True
        self._inbox.close()
        if self._session is not None:
            self._end(self._session)

    async def delete(self) -> None:
        """Ends the session for its client, who asks for it: whatever ends here besides."""
        if self._session is not None:
            self._session.delete()
        await self._transport.terminate()

    def _end(self, session: Session) -> None:
        """Ends the session for its client, unless only this server of it ends."""
        try:
            if self._adoption is not None:
                self._adoption.refuse("its server has ended")
            if _hosts.is_leaving():
                session.release()
            else:
                session.end()
        except RuntimeError:
            # The SDK's task would end every session of the manager.
            logger.exception("session %s could not be ended", session.name)

    def _end_if_cancelled(self) -> None:
        """Ends the session where its task is cancelled. The SDK answers for handlers that are cancelled with it, in its
        own words, and would be taken at its word."""
        if self._session is not None and self._task is not None and self._task.cancelling() > 0:
            self._end(self._session)

    def close_connection(self, request_id: int | str, retry_ms: int | None, hold_ms: int | None) -> bool:
        return self._session is not None and self._session.close_connection(request_id, retry_ms, hold_ms)

    def close_standalone(self, retry_ms: int | None, hold_ms: int | None) -> bool:
        return self._session is not None and self._session.close_standalone(retry_ms, hold_ms)

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one HTTP request of the session."""
        if self._session is None:
            msg = "the transport serves requests once its connect() is entered"
            raise RuntimeError(msg)
        if self._posts is not None:
            self._posts.note_place(scope)
        with self.request():
            if self._adoption is not None and not self._adoption.is_settled:
                await self._adoption.perform(self._inbox, scope, receive, send)
                return
            # Nothing of the request is held on to while its connection is open, for an hour maybe.
            here = self.runtime.here()
            connection = await self._admit(self._session, here, scope, receive, send)
            if connection is not None:
                await write_connection(connection, self.runtime, here, receive, send, self._id_header)

    @contextmanager
    def request(self) -> Iterator[None]:
        """While a request is served the session is not idle."""
        if self.idle_scope is not None and self.idle_scope.cancel_called:
            # The host is ending this session; nothing may be dispatched into it any more.
            self.terminate()
        self._requests += 1
        try:
            yield
        finally:
            self._requests -= 1

    def become_idle(self) -> None:
        """The engine says that nothing holds the session any more (I11), or that it has ended by itself. Called on any
        thread."""
        if self._here is not None:
            with suppress(RuntimeError):
                # Its loop may be closed.
                self._here.loop.call_soon_threadsafe(self._end_idle)

    def _end_idle(self) -> None:
        if self._session is None:
            return
        if self._session.has_ended:
            self.terminate()
        # A request that is still read, or is with the SDK, is not known to the engine.
        elif self.idle_scope is not None and self._requests == 0:
            # First, for its client: a task that is cancelled only leaves it.
            self._end(self._session)
            self.idle_scope.cancel()

    async def _admit(
        self, session: Session, here: Loop, scope: Scope, receive: Receive, send: Send
    ) -> Connection | None:
        """Answers a request that needs no stream; otherwise opens the connection that is to be written."""
        request = Request(scope, receive)
        method: str = scope["method"]
        # The SDK's own checks of hosts and origins, in its own words.
        refused = await self._security.validate_request(request, is_post=method == "POST")
        if refused is not None:
            await refused(scope, receive, send)
            return None
        if self.is_terminated:
            await self._refuse(send, "session_ended")
            return None
        who = requester(scope, self.runtime)
        try:
            body = await request.body() if method == "POST" else b""
        except ClientDisconnect:
            # It left in the middle of its own message (F-22).
            return None
        admission = session.admit(
            method,
            scope["headers"],
            body,
            self.json_response,
            _server.of_scope(self.runtime, scope),
            *who,
            log_user(scope, self.runtime),
        )
        if isinstance(admission, Refusal):
            await write_refusal(send, admission, self._id_header)
            return None
        if not self._has_place:
            self._has_place = True
            # The one that gave way for it is to be closed.
            here.arm(self.runtime, self.runtime.engine.due_in_ms())
            self.handed = _arrivals.offer(self, session, here, self._transport, scope)
        rewritten = admission.rewritten
        if rewritten is not None:
            body = rewritten
        opened: Connection | Refusal | None = None
        match admission.action:
            case "call":
                opened = await self._call(session, here, admission, request, body, send)
            case "message":
                await self._message(session, admission, request, body, send)
            case "delete":
                await self.delete()
                await write_empty(send, admission.status, self._id_header)
            case _:
                opened = session.open(admission, here.waiters, False)
        if isinstance(opened, Refusal):
            await write_refusal(send, opened, self._id_header)
            return None
        return opened

    async def _parse(self, body: bytes, send: Send) -> Any:
        """The SDK's message of a body; None where the SDK does not take it, and the client has been told."""
        try:
            return _sdk.parse(body)
        except _sdk.ValidationError as error:
            await self._refuse(send, "invalid_message", str(error))
            return None

    async def _call(
        self, session: Session, here: Loop, admission: Admission, request: Request, body: bytes, send: Send
    ) -> Connection | Refusal | None:
        message = await self._parse(body, send)
        if message is None:
            return None
        connection = session.open(admission, here.waiters, self.json_response)
        if isinstance(connection, Refusal):
            return connection
        try:
            await self.begin(session, request, message)
        except BaseException:
            connection.lost()
            raise
        return connection

    async def begin(
        self, session: Session, request: Request, message: Any, context: contextvars.Context | None = None
    ) -> None:
        """Gives the SDK a request that is in flight."""
        asked = _sdk.unwrap(message)
        closer = Closer(self._transport, asked.id)
        context = _telemetry.begin(session, asked.id, asked.params, self._is_spanned, context)
        can_poll = session.can_poll and not self.json_response
        metadata = _sdk.metadata(
            request,
            json_response=self.json_response,
            close=closer if can_poll else None,
            close_standalone=closer.standalone() if can_poll else None,
            on_unanswered=partial(self._unanswered, closer.request_id),
            context=context,
        )
        try:
            await self._inbox.put(SessionMessage(message, metadata=metadata), context)
        except anyio.ClosedResourceError:
            # The session ended in between; its end is on the connection.
            logger.debug("request for a session that has just ended")
        except BaseException:
            # Cancelled before the SDK has seen the request: nobody else would end it (I13).
            session.cancelled(closer.request_id)
            raise

    async def _unanswered(self, request_id: int | str) -> None:
        """The request settled without a response: it gets its terminal from the engine (I13)."""
        if self._session is not None:
            self._session.cancelled(request_id)

    async def _message(self, session: Session, admission: Admission, request: Request, body: bytes, send: Send) -> None:
        if not body:
            # Nothing of it is for the handlers: see `Admission.rewritten`.
            session.received(admission)
            await write_empty(send, admission.status, self._id_header)
            return
        message = await self._parse(body, send)
        if message is None:
            return
        try:
            # First, so that a client that sends faster than the SDK takes has to wait (I11).
            await self.pass_on(session, admission, request, message)
        except anyio.ClosedResourceError:
            await self._refuse(send, "session_ended")
            return
        await write_empty(send, admission.status, self._id_header)

    async def pass_on(
        self,
        session: Session,
        admission: Admission,
        request: Request,
        message: Any,
        context: contextvars.Context | None = None,
    ) -> None:
        """Gives the SDK a message that has no answer.

        Raises:
            ClosedResourceError: the session has ended.
        """
        session.received(admission)
        metadata = _sdk.metadata(request, json_response=self.json_response)
        await self._inbox.put(SessionMessage(message, metadata=metadata), context)
        session.dispatched(admission)

    async def _refuse(self, send: Send, fault: str, text: str = "") -> None:
        await write_refusal(send, self.runtime.engine.refusal(_sdk.MAJOR, fault, text), self._id_header)
