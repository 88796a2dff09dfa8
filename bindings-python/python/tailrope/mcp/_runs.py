"""The SDK's handling of one POST, without the connection on which the POST came."""

from __future__ import annotations

import asyncio
import contextvars
import logging
from typing import TYPE_CHECKING, Any, NamedTuple

from starlette.requests import Request

from tailrope._native import is_of_message
from tailrope.mcp import _incoming, _posted, _sender
from tailrope.mcp._answer import content_type_of, until_disconnected

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping

    from starlette.types import ASGIApp, Message, Receive, Scope

    from tailrope._native import Relayed, TaskCall

logger = logging.getLogger("tailrope")

CALL = "tailrope.call"
"""The member of a run's scope that has its call."""


class Received:
    """The messages of a request that were read, and those that follow: to be called as ASGI's `receive`."""

    def __init__(self, messages: list[Message], rest: Receive | None) -> None:
        self._messages = messages
        self._next = 0
        self._rest = rest

    @classmethod
    async def of(cls, receive: Receive, max_bytes: int) -> Received | None:
        """Reads a body, and of a larger one the beginning. None where the client has left meanwhile."""
        messages: list[Message] = []
        size = 0
        while size <= max_bytes:
            message = await receive()
            if message["type"] != "http.request":
                return None
            messages.append(message)
            size += len(message.get("body", b""))
            if not message.get("more_body", False):
                break
        return cls(messages, receive)

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self._messages)

    async def __call__(self) -> Message:
        if self._next < len(self._messages):
            self._next += 1
            return self._messages[self._next - 1]
        if self._rest is None:
            # Nobody is there who could leave.
            await asyncio.get_running_loop().create_future()
        assert self._rest is not None
        return await self._rest()


def with_headers(headers: Iterable[tuple[bytes, bytes]], set_to: Mapping[bytes, bytes | None]) -> list[Any]:
    """The headers with these, and without those that are set to None."""
    others = [(name, value) for name, value in headers if bytes(name).lower() not in set_to]
    return others + [(name, value) for name, value in set_to.items() if value is not None]


def with_message(
    headers: Iterable[tuple[bytes, bytes]], of_message: Iterable[tuple[bytes, bytes]]
) -> list[tuple[bytes, bytes]]:
    """The headers of a request that brings another message, which has these."""
    return [(name, value) for name, value in headers if not is_of_message(bytes(name))] + [*of_message]


class Origin(NamedTuple):
    """A request that handlers can be run for."""

    scope: Scope
    context: contextvars.Context

    @classmethod
    def of(cls, scope: Scope) -> Origin:
        """The request that is being served."""
        return cls(scope, contextvars.copy_context())

    def relayed(self, relayed: Relayed) -> Origin:
        """A request for the same place that came to another process."""
        place = {name: self.scope[name] for name in _posted.PLACE if name in self.scope}
        # The SDK refuses requests for another host. The process to which this one came has asked it.
        host = [(name, value) for name, value in self.scope["headers"] if bytes(name).lower() == b"host"]
        scope = {
            "type": "http",
            "path": "/",
            "query_string": b"",
            **place,
            "method": "POST",
            "headers": [*host, *relayed.headers],
            **_sender.read(relayed.auth_json),
        }
        context = self.context.copy()
        context.run(_incoming.enter, Request(scope))
        return Origin(scope, context)


class Run:
    """One run of a call: the SDK is given it as a POST whose client is there until `gone` is set."""

    def __init__(
        self, number: int, call: TaskCall, changed: Callable[[], None], has_room: Callable[[], Awaitable[None]]
    ) -> None:
        self.number = number
        self.gone = asyncio.Event()
        self.answer: list[Message] | None = [] if number == 0 else None
        """The body that the SDK has sent, as long as it may have to be passed on."""
        self.fault: Exception | None = None
        """What the SDK raised instead."""
        self.leaving: tuple[Receive, Callable[[], None]] | None = None
        """The client of the call, as long as its leaving concerns the run, and what is told of that."""
        self.task: asyncio.Task[None] | None = None
        self._call = call
        self._changed = changed
        self._has_room = has_room
        self._is_answered = False

    def start(self, app: ASGIApp, scope: Scope, body: bytes, context: contextvars.Context) -> asyncio.Task[None]:
        work = self._perform(app, scope, body)
        self.task = asyncio.get_running_loop().create_task(work, context=context)
        return self.task

    def unlink(self) -> None:
        """The client's connection concerns the run no more."""
        self.answer = self.leaving = None

    def cancel(self) -> None:
        if self.task is not None:
            self.task.cancel()

    @property
    def is_over(self) -> bool:
        return self.task is None or self.task.done()

    async def _perform(self, app: ASGIApp, scope: Scope, body: bytes) -> None:
        unread = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> Message:
            if unread:
                return unread.pop()
            # By asking, the SDK watches the connection for us.
            if self.leaving is not None and await until_disconnected(self.leaving[0]) and self.leaving is not None:
                self.leaving[1]()
            await self.gone.wait()
            return {"type": "http.disconnect"}

        try:
            await app(scope, receive, self._send)
        except Exception as error:
            self.fault = error
            if self.answer is None:
                logger.exception("the server raised while it ran a task")
            if not self._is_answered:
                self._is_answered = True
                self._call.raised(self.number)
                self._changed()
        finally:
            self._end()
            # What the SDK leaves behind has this run, and is freed late.
            self.leaving = None
            del self._call, self._changed, self._has_room

    async def _send(self, message: Message) -> None:
        kind = message["type"]
        if self._is_answered or kind not in ("http.response.start", "http.response.body"):
            return
        is_start = kind == "http.response.start"
        if is_start and not self._call.begin(self.number, message["status"], content_type_of(message)):
            self.answer = None
        if self.answer is not None:
            self.answer.append(message)
        if is_start:
            return
        self._call.data(self.number, message.get("body", b""))
        if message.get("more_body", False):
            self._changed()
            await self._has_room()
        else:
            self._end()

    def _end(self) -> None:
        if not self._is_answered:
            self._is_answered = True
            self._call.ended(self.number)
            self._changed()
