"""Sessions that go on here because their own process is gone (I13).

The engine takes such a session over when a request for it waits. The SDK's session manager then makes a server for it
as for a new one, with a request that is made here. That server is told what the client has told the one before, and
serves what waits when it has answered.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import weakref
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import anyio
from mcp.shared.message import SessionMessage
from starlette.requests import Request

from tailrope._options import AdoptedSession
from tailrope.mcp import _sdk
from tailrope.mcp._answer import write_empty, write_refusal
from tailrope.mcp._posted import PLACE

if TYPE_CHECKING:
    from starlette.types import Message, Receive, Scope, Send

    from tailrope._native import Adopted, Offer, Session
    from tailrope._runtime import Loop, Runtime
    from tailrope.mcp._streams import Inbox

logger = logging.getLogger("tailrope")

_NOT_NOW = "session_unread"
"""What clients are answered when the session cannot go on here: that they are to come again."""

_SENDER = ("auth", "user")


class NotAdopted(Exception):
    """The server cannot go on with the session."""


class Adoption:
    """A session that this process has from now on, until its server serves it."""

    def __init__(self, runtime: Runtime, manager: Any, adopted: Adopted) -> None:
        self.runtime = runtime
        self.session_id = adopted.session_id
        self.session: Session = adopted.session
        self.is_claimed = False
        """A transport of the session is there."""
        self.is_settled = False
        """The server serves the session, or will not."""
        self.over = asyncio.Event()
        self._manager = manager
        self._adopted: Adopted | None = adopted
        self._name = adopted.name
        self._replay = adopted.replay
        self._awaited: tuple[int | str, asyncio.Future[Any]] | None = None
        self._refused: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def refuse(self, why: str, fault: str = _NOT_NOW, *, level: int = logging.WARNING, exc_info: bool = False) -> None:
        """Leaves the session to other processes, unless its server serves it."""
        adopted = self._settle()
        if adopted is None:
            return
        logger.log(level, "session %s is not adopted: %s", self._name, why, exc_info=exc_info)
        adopted.refuse(fault, "")
        if not self._refused.done():
            self._refused.set_result(None)

    def _settle(self) -> Adopted | None:
        """Takes the native half, once: it holds on to what the session was before."""
        adopted, self._adopted, self.is_settled = self._adopted, None, True
        return adopted

    def answered(self, response: Any) -> None:
        """The server has sent a response."""
        if self._awaited is not None and response.id == self._awaited[0] and not self._awaited[1].done():
            self._awaited[1].set_result(response)

    async def perform(self, inbox: Inbox, scope: Scope, receive: Receive, send: Send) -> None:
        """Tells the server what the client has told, and lets it serve what waits."""
        session_id = self.session_id.encode("ascii")
        going_on = asyncio.ensure_future(self._go_on(inbox, Request(scope, receive)))
        # Nobody may be left to hear of it.
        going_on.add_done_callback(lambda done: done.cancelled() or done.exception())
        try:
            # The engine gives up a server that is not ready in time, whatever it waits for.
            await asyncio.wait([going_on, self._refused], return_when=asyncio.FIRST_COMPLETED)
            if going_on.done():
                going_on.result()
        except NotAdopted as why:
            self.refuse(str(why), level=logging.ERROR, exc_info=why.__cause__ is not None)
        except BaseException:
            self.refuse("this server ends")
            raise
        finally:
            going_on.cancel()
        if self._settle() is None:
            await write_refusal(send, self.runtime.engine.refusal(_sdk.MAJOR, _NOT_NOW, ""), session_id)
            return
        self.session.accept_posted()
        await write_empty(send, 202, session_id)

    async def _go_on(self, inbox: Inbox, request: Request) -> None:
        await self._tell(inbox, request)
        await self._call_hook()

    async def _tell(self, inbox: Inbox, request: Request) -> None:
        """Each message when the one before it has its answer, as a client does."""
        for number, body in enumerate(self._replay):
            answer = await self._told(inbox, request, body)
            if number == 0 and hasattr(answer, "error"):
                msg = "its server answers the initialize of its client with an error"
                raise NotAdopted(msg)
            if self.session.has_ended:
                msg = "its server does not speak the revision that its client has"
                raise NotAdopted(msg)

    async def _told(self, inbox: Inbox, request: Request, body: bytes) -> Any:
        """The server's answer to a message, where it gives one."""
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        async def unanswered() -> None:
            if not answer.done():
                answer.set_result(None)

        try:
            message = _sdk.parse(body)
            request_id = getattr(_sdk.unwrap(message), "id", None)
            self._awaited = None if request_id is None else (request_id, answer)
            metadata = _sdk.metadata(request, json_response=self._manager.json_response, on_unanswered=unanswered)
            await inbox.put(SessionMessage(message, metadata=metadata))
        except (_sdk.ValidationError, anyio.ClosedResourceError) as error:
            msg = "its server does not take what its client has told"
            raise NotAdopted(msg) from error
        return None if request_id is None else await answer

    async def _call_hook(self) -> None:
        hook = self.runtime.on_adopted
        if hook is None:
            return
        try:
            called = hook(AdoptedSession(self.session_id, self._manager.app))
            if inspect.isawaitable(called):
                await called
        except Exception as error:
            msg = "on_adopted raised"
            raise NotAdopted(msg) from error


_wanted: ContextVar[weakref.ref[Adoption] | None] = ContextVar("tailrope_adoption", default=None)
"""The adoption for which the session manager is asked for a server, which keeps the context as long as it runs."""
_UNDER_WAY = "_tailrope_adoptions"
"""The member of a session manager that has its adoptions, by session id."""


def offer(runtime: Runtime, manager: Any, session: Session, here: Loop, scope: Scope) -> None:
    """Lets the manager adopt a session of another process, should that be gone, also when the client has left."""
    group = getattr(manager, "_task_group", None)
    if group is not None:
        head = {name: scope[name] for name in (*PLACE, *_SENDER) if name in scope}
        group.start_soon(_offered, runtime, manager, session.offer_adoption(here.waiters), here, head)


async def settled(manager: Any, scope: Scope) -> bool:
    """Waits while the manager adopts the session of a request. Whether it did."""
    adoptions = vars(manager).get(_UNDER_WAY)
    if not adoptions or scope["type"] != "http":
        return False
    adoption = adoptions.get(_sdk.header(scope, b"mcp-session-id") or "")
    if adoption is not None:
        await adoption.over.wait()
    return adoption is not None


def claim(runtime: Runtime) -> Adoption | None:
    """The adoption that a new transport is made for. None where its session is a new one."""
    wanted = _wanted.get()
    adoption = None if wanted is None else wanted()
    # What a handler makes later has the same context.
    if adoption is None or adoption.is_claimed or adoption.runtime is not runtime:
        return None
    adoption.is_claimed = True
    return adoption


async def discard(stock: Any, manager: Any, session_id: str, transport: Any) -> None:
    """Has the manager forget a session that has ended here. One that went on here meanwhile has another transport, and
    stays."""
    if getattr(manager, "_server_instances", {}).get(session_id, transport) is transport:
        await stock(session_id, transport)
    elif not transport.is_terminated:
        with anyio.CancelScope(shield=True):
            await transport.terminate()


async def _offered(*offered: Any) -> None:
    """Adopts in a task of the manager, which would end with all its sessions if that raised."""
    try:
        await _adopt_when_told(*offered)
    except Exception:
        logger.exception("a session cannot be offered for adoption")


async def _adopt_when_told(runtime: Runtime, manager: Any, offer: Offer, here: Loop, head: dict[str, Any]) -> None:
    while True:
        adopted = offer.take(here.waiters)
        if adopted is not None:
            await _adopt(runtime, manager, adopted, here, head)
            return
        if offer.is_over:
            return
        future: asyncio.Future[None] = here.loop.create_future()
        if here.waiters.park(offer.key, future):
            await future


async def _adopt(runtime: Runtime, manager: Any, adopted: Adopted, here: Loop, head: dict[str, Any]) -> None:
    adoption = Adoption(runtime, manager, adopted)
    adoptions = vars(manager).setdefault(_UNDER_WAY, {})
    adoptions[adoption.session_id] = adoption
    # Another session may have given way for it.
    here.arm(runtime, runtime.engine.due_in_ms())
    body = adopted.replay[0]
    scope = {
        "type": "http",
        "http_version": "1.1",
        "path": "/",
        "query_string": b"",
        **head,
        "method": "POST",
        "headers": [
            (b"accept", b"application/json, text/event-stream"),
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(body)),
        ],
    }

    async def receive() -> Message:
        return {"type": "http.request", "body": body, "more_body": False}

    status = 0

    async def send(message: Message) -> None:
        nonlocal status
        status = message.get("status", status)

    _wanted.set(weakref.ref(adoption))
    try:
        await manager.handle_request(scope, receive, send)
        is_full = status == 503 and not adoption.is_claimed
        adoption.refuse(f"its server was not made: {status}", "too_many_sessions" if is_full else _NOT_NOW)
    except Exception:
        # It must not end the manager's other sessions.
        adoption.refuse("its server was not made", level=logging.ERROR, exc_info=True)
    finally:
        adoption.refuse("this server ends")
        del adoptions[adoption.session_id]
        adoption.over.set()
