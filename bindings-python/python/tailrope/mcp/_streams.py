"""The two streams between the transport and the SDK's dispatcher."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import time
from collections import deque
from typing import TYPE_CHECKING, Any

import anyio

from tailrope._errors import TailropeError
from tailrope.mcp import _sdk

logger = logging.getLogger("tailrope")

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from mcp.shared.message import SessionMessage

    from tailrope._native import Session
    from tailrope.mcp._outcomes import Outcomes

MAX_INBOX = 256
"""Messages that may wait for the SDK's dispatcher before a POST has to wait, too."""

YIELD = -1
"""What the engine answers where the sender has to let the event loop turn (F-46)."""


class Inbox:
    """What clients sent, on its way to the SDK."""

    def __init__(self) -> None:
        self._items: deque[tuple[contextvars.Context, SessionMessage | Exception]] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._room: deque[asyncio.Future[None]] = deque()
        self._closed = False
        self.last_context: contextvars.Context | None = None
        """The context of the sender of the last item: auth and tracing reach handlers by it."""

    @property
    def has_room(self) -> bool:
        return len(self._items) < MAX_INBOX

    async def put(self, item: SessionMessage | Exception, context: contextvars.Context | None = None) -> None:
        """Hands one message over, with the context that its handler is to have: the running one, or the one given.

        Raises:
            ClosedResourceError: the session has ended.
        """
        while len(self._items) >= MAX_INBOX and not self._closed:
            room: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._room.append(room)
            try:
                await room
            except asyncio.CancelledError:
                # A sender that was woken and does not come passes its place on.
                if room.done() and not room.cancelled():
                    self._make_room()
                raise
        if self._closed:
            raise anyio.ClosedResourceError
        self._items.append((contextvars.copy_context() if context is None else context, item))
        _resolve(self._waiter)

    async def receive(self) -> SessionMessage | Exception:
        while not self._items:
            if self._closed:
                raise anyio.EndOfStream
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        self.last_context, item = self._items.popleft()
        self._make_room()
        return item

    def _make_room(self) -> None:
        """Wakes the next sender that still waits."""
        while self._room:
            room = self._room.popleft()
            if not room.done():
                room.set_result(None)
                return

    def close(self) -> None:
        self._closed = True
        _resolve(self._waiter)
        while self._room:
            self._make_room()

    async def aclose(self) -> None:
        self.close()

    def __aiter__(self) -> Inbox:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None

    async def __aenter__(self) -> Inbox:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc_val: BaseException | None, exc_tb: TracebackType | None
    ) -> None:
        self.close()


class Outbox:
    """What the server sends: stored by the engine before `send` returns."""

    def __init__(self, session: Session, outcomes: Outcomes | None, before_response: Callable[[], None]) -> None:
        self._session = session
        self._outcomes = outcomes
        self._before_response = before_response
        self._closed = False
        self._turned_at = 0.0
        self.on_response: Callable[[Any], None] | None = None
        """Is called with each response that was sent."""

    async def send(self, item: SessionMessage) -> None:
        """Stores one message on the stream that it belongs to.

        Raises:
            ClosedResourceError: the session has ended.
            TailropeError: the event store did not take a notification or a request. Never for a response:
                the engine answers the client for it.
            ValueError: a notification or a request cannot be written as JSON. Such a response is replaced by
                an error.
        """
        if self._closed:
            raise anyio.ClosedResourceError
        session = self._session
        kind, message, payload = _sdk.outgoing(item.message)
        try:
            if kind is _sdk.RESPONSE:
                self._before_response()
                number = session.respond(message.id, payload)
                if self.on_response is not None:
                    self.on_response(message)
            else:
                since_ms = int((time.monotonic() - self._turned_at) * 1_000)
                related = _sdk.related_request(item)
                if kind is _sdk.NOTIFICATION:
                    number = session.notify(related, payload, since_ms)
                else:
                    number = session.ask(message.id, related, payload, since_ms)
            if number == YIELD:
                await asyncio.sleep(0)
                self._turned_at = time.monotonic()
            elif number is not None and self._outcomes is not None:
                await self._outcomes.outcome(number, raises=kind is not _sdk.RESPONSE)
        except TailropeError as error:
            if error.code in ("session_ended", "closed"):
                raise anyio.ClosedResourceError from error
            raise
        except RuntimeError:
            if kind is not _sdk.RESPONSE:
                raise
            # A fault of ours. The SDK expects none here, and would end the session.
            logger.exception("the response to request %r cannot be sent", message.id)
            session.cancelled(message.id)

    def close(self) -> None:
        self._closed = True

    async def aclose(self) -> None:
        self.close()

    async def __aenter__(self) -> Outbox:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc_val: BaseException | None, exc_tb: TracebackType | None
    ) -> None:
        self.close()


def _resolve(future: asyncio.Future[None] | None) -> None:
    if future is not None and not future.done():
        future.set_result(None)
