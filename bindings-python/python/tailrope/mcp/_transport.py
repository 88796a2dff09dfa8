"""The transport that takes the place of the SDK's `StreamableHTTPServerTransport`."""

from __future__ import annotations

import logging
import math
from contextlib import asynccontextmanager
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import anyio
from mcp.server.streamable_http import StreamableHTTPServerTransport as StockTransport
from mcp.shared.message import SessionMessage
from starlette.requests import ClientDisconnect, Request

from tailrope._native import Connection, Refusal, TailropeError
from tailrope.mcp import _engage, _hosts, _sdk
from tailrope.mcp._answer import write_connection, write_refusal, write_whole
from tailrope.mcp._close import Closer
from tailrope.mcp._hooks import Hooks
from tailrope.mcp._outcomes import Outcomes
from tailrope.mcp._principal import asker
from tailrope.mcp._streams import Inbox, Outbox
from tailrope.mcp._user_store import UserStore

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from mcp.server.streamable_http import EventStore
    from mcp.server.transport_security import TransportSecuritySettings
    from starlette.types import Receive, Scope, Send

    from tailrope._native import Admission, Session
    from tailrope._runtime import Loop, Runtime

logger = logging.getLogger("tailrope")

INVALID_PARAMS = -32602
"""What the SDKs answer to a body that is JSON but no message of theirs."""


class StreamableHTTPServerTransport(StockTransport):
    """Serves one session on the engine. Same arguments and methods as the SDK's class.

    Without a session id (stateless mode) it is the SDK's class: there is nothing to resume.
    """

    _explicit = True

    def __init__(
        self,
        mcp_session_id: str | None,
        is_json_response_enabled: bool = False,
        event_store: EventStore | None = None,
        security_settings: TransportSecuritySettings | None = None,
        retry_interval: int | None = None,
        idle_timeout: float | None = None,
    ) -> None:
        self._runtime: Runtime | None = None
        if mcp_session_id is not None:
            self._runtime = _engage.runtime_for(event_store, explicit=self._explicit)
            if self._runtime is None:
                event_store, retry_interval = _engage.hooks_for(event_store, mcp_session_id, retry_interval)
        super().__init__(
            mcp_session_id,
            is_json_response_enabled=is_json_response_enabled,
            event_store=event_store,
            security_settings=security_settings,
            retry_interval=retry_interval,
            idle_timeout=idle_timeout,
        )
        self._session: Session | None = None
        if mcp_session_id is None or self._runtime is None:
            return
        self._session_id = mcp_session_id.encode("ascii")
        self._is_refused = False
        self._inbox = Inbox()
        self._outcomes: Outcomes | None = None

    @asynccontextmanager
    async def connect(self) -> AsyncGenerator[tuple[Any, Any], None]:
        """The streams for the SDK's dispatcher, as from the SDK's class."""
        runtime = self._runtime
        if runtime is None:
            try:
                async with super().connect() as streams:
                    yield streams
            finally:
                hooks = self._event_store
                if isinstance(hooks, Hooks) and hooks.scope == self.mcp_session_id and not _hosts.is_leaving():
                    hooks.drop()
            return
        assert self.mcp_session_id is not None  # or no engine would serve it
        here = runtime.here()
        if self._idle_timeout is not None:
            self.idle_scope = anyio.CancelScope()
        try:
            session = self._session = runtime.engine.open_session(
                self.mcp_session_id, _sdk.MAJOR, self._retry_interval, here.waiters
            )
        except TailropeError as error:
            if error.code != "too_many_sessions":
                raise
            # Nothing but the refusal is served; the host discards the transport after it.
            logger.warning("refusing to open a new session: %s", error)
            self._is_refused = True
            async with super().connect() as streams:
                yield streams
            return
        _hosts.opened(session, runtime)
        try:
            # Retention needs the tick also where no connection ever waits.
            here.arm(runtime, runtime.engine.due_in_ms())
            if runtime.host_store is not None:
                self._outcomes = UserStore(runtime, session, here)
            elif runtime.engine.answers_elsewhere():
                self._outcomes = Outcomes(runtime, session, here)
            async with Outbox(session, runtime.engine.options(), self._outcomes, self._refresh_idle) as outbox:
                yield self._inbox, outbox
        finally:
            self._inbox.close()
            _end(session)
            if self._outcomes is not None:
                self._outcomes.close()

    async def terminate(self) -> None:
        """Ends the session. Requests in flight get an error, later ones are answered 404.

        In a task that is cancelled, or runs a session manager, it is the server that ends: a store that outlives the
        process keeps the session.
        """
        if self._session is None:
            await super().terminate()
            return
        self._terminated = True
        self._inbox.close()
        _end(self._session)

    def close_sse_stream(self, request_id: int | str, retry_ms: int | None = None, hold_ms: int | None = None) -> None:
        """Closes the connection of a request's stream without terminating the stream."""
        if self._runtime is None:
            super().close_sse_stream(request_id)
        elif self._session is not None:
            self._session.close_connection(request_id, retry_ms, hold_ms)

    def close_standalone_sse_stream(self, retry_ms: int | None = None, hold_ms: int | None = None) -> None:
        """Closes the connection of the standalone stream without terminating the stream."""
        if self._runtime is None:
            super().close_standalone_sse_stream()
        elif self._session is not None:
            self._session.close_standalone(retry_ms, hold_ms)

    async def handle_request(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one HTTP request of the session."""
        if self._runtime is None:
            await super().handle_request(scope, receive, send)
            return
        if self._session is None:
            if not self._is_refused:
                msg = "the transport serves requests once its connect() is entered"
                raise RuntimeError(msg)
            full = self._create_error_response(
                "Too many open sessions", HTTPStatus.SERVICE_UNAVAILABLE, _sdk.INTERNAL_ERROR
            )
            await full(scope, receive, send)
            return
        if self.idle_scope is not None:
            if self.idle_scope.cancel_called and not self._terminated:
                # The host is ending this session; nothing may be dispatched into it any more.
                await self.terminate()
            self.idle_scope.deadline = math.inf
        self._requests_in_flight += 1
        try:
            # Nothing of the request is held on to while its connection is open, for an hour maybe.
            here = self._runtime.here()
            connection = await self._admit(self._session, here, scope, receive, send)
            if connection is not None:
                await write_connection(connection, self._runtime, here, receive, send, self._session_id)
        finally:
            self._requests_in_flight -= 1
            self._refresh_idle()

    def _refresh_idle(self) -> None:
        """Sets when the host ends the session: the engine knows what holds it (I11)."""
        if self.idle_scope is None or self._idle_timeout is None or self._session is None or self._requests_in_flight:
            return
        idle_in_ms = self._session.idle_in_ms(round(self._idle_timeout * 1_000))
        self.idle_scope.deadline = math.inf if idle_in_ms is None else anyio.current_time() + idle_in_ms / 1_000

    async def _admit(
        self, session: Session, here: Loop, scope: Scope, receive: Receive, send: Send
    ) -> Connection | None:
        """Answers a request that needs no stream; otherwise opens the connection that is to be written."""
        request = Request(scope, receive)
        method: str = scope["method"]
        refused = await self._security.validate_request(request, is_post=method == "POST")
        if refused is not None:
            await refused(scope, receive, send)
            return None
        if self._terminated:
            await self._write_gone(scope, receive, send)
            return None
        assert self._runtime is not None  # it made the session
        who = asker(scope, self._runtime)
        try:
            body = await request.body() if method == "POST" else b""
        except ClientDisconnect:
            # It left in the middle of its own message (F-22).
            return None
        admission = session.admit(method, scope["headers"], body, self.is_json_response_enabled, *who)
        if isinstance(admission, Refusal):
            await write_refusal(send, admission, self._session_id)
            return None
        opened: Connection | Refusal | None
        match admission.operation:
            case "request":
                opened = await self._request(session, here, admission, request, body, send)
            case "message":
                await self._message(session, admission, request, body, send)
                opened = None
            case "listen":
                opened = session.listen(admission, here.waiters)
            case "resume":
                opened = session.resume(admission, here.waiters)
            case "delete":
                await self.terminate()
                await write_whole(send, 200, self._json_headers(), b"")
                opened = None
        if isinstance(opened, Refusal):
            await write_refusal(send, opened, self._session_id)
            return None
        return opened

    def _parse(self, body: bytes) -> tuple[Any, str | None]:
        try:
            return _sdk.parse(body), None
        except _sdk.ValidationError as error:
            return None, f"Validation error: {error}"

    async def _request(
        self, session: Session, here: Loop, admission: Admission, request: Request, body: bytes, send: Send
    ) -> Connection | Refusal | None:
        message, fault = self._parse(body)
        if fault is not None:
            await self._write_invalid(fault, request.scope, request.receive, send)
            return None
        json_response = self.is_json_response_enabled
        connection = session.call(admission, here.waiters, json_response)
        if isinstance(connection, Refusal):
            return connection
        closer = Closer(session, _sdk.unwrap(message).id)
        can_poll = session.can_poll and not json_response
        metadata = _sdk.metadata(
            request,
            json_response=json_response,
            close=closer if can_poll else None,
            close_standalone=closer.standalone() if can_poll else None,
            on_unanswered=partial(self._unanswered, closer.request_id),
        )
        try:
            await self._inbox.put(SessionMessage(message, metadata=metadata))
        except anyio.ClosedResourceError:
            # The session ended in between; its end is on the connection.
            logger.debug("request for a session that has just ended")
        except BaseException:
            # Cancelled before the SDK has seen the request: nobody else would end it (I13).
            connection.lost()
            session.cancelled(closer.request_id)
            raise
        return connection

    async def _unanswered(self, request_id: int | str) -> None:
        """The request settled without a response: it gets its terminal from the engine (I13)."""
        if self._session is not None:
            self._session.cancelled(request_id)
            self._refresh_idle()

    async def _message(self, session: Session, admission: Admission, request: Request, body: bytes, send: Send) -> None:
        message, fault = self._parse(body)
        if fault is not None:
            await self._write_invalid(fault, request.scope, request.receive, send)
            return
        session.received(admission)
        metadata = _sdk.metadata(request, json_response=self.is_json_response_enabled)
        try:
            # First, so that a client that sends faster than the SDK takes has to wait (I11).
            await self._inbox.put(SessionMessage(message, metadata=metadata))
        except anyio.ClosedResourceError:
            await self._write_gone(request.scope, request.receive, send)
            return
        if _sdk.CANCELS_SETTLE_HERE and (cancelled := admission.cancelled_request) is not None:
            session.cancelled(cancelled)
        await write_whole(send, 202, self._json_headers(), b"")

    async def _write_gone(self, scope: Scope, receive: Receive, send: Send) -> None:
        response = self._create_error_response("Not Found: Session has been terminated", HTTPStatus.NOT_FOUND)
        await response(scope, receive, send)

    async def _write_invalid(self, fault: str, scope: Scope, receive: Receive, send: Send) -> None:
        response = self._create_error_response(fault, HTTPStatus.BAD_REQUEST, INVALID_PARAMS)
        await response(scope, receive, send)

    def _json_headers(self) -> list[tuple[bytes, bytes]]:
        return [(b"content-type", b"application/json"), (b"mcp-session-id", self._session_id)]


def _end(session: Session) -> None:
    """Ends the session for its client, unless only this server of it ends."""
    if _hosts.is_leaving():
        session.release()
    else:
        session.end()
