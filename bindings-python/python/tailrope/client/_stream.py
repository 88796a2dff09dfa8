"""One stream that outlives its connections: drives the machine of the core with real connections.

It holds no decision about events, cursors, statuses or waits. There is one loop, and the reader's task turns it: while
nobody reads, nothing is read from the connection either. Nothing here is a task of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import random
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any, Protocol

import anyio

from tailrope.client._library import NotTaken, retry_after_ms
from tailrope.client._options import Gap, Resume

if TYPE_CHECKING:
    from tailrope._errors import ErrorCode
    from tailrope._native import ClientStream, _ClientOutput
    from tailrope.client._options import Settings

logger = logging.getLogger("tailrope.client")

MAX_REDIRECTS = 5
REDIRECTS = (301, 302, 303, 307, 308)

Connect = Callable[[str | None], Awaitable[Any]]
Delivery = bytes | tuple[str, str | None]


def now_ms() -> int:
    """The machine's clock."""
    return time.monotonic_ns() // 1_000_000


class Host(Protocol):
    """What a stream needs of the transport, or of something else that makes its connections."""

    settings: Settings
    library: Any

    async def connect(self, stream: Stream, last_event_id: str | None) -> Any:
        """The answer to a GET of this stream, its body unread."""

    def read_out(self, connection: Connection) -> None:
        """Read the rest of a connection that has no more to give, so that it can be used again."""

    def ended(self, stream: Stream) -> None:
        """The stream is done."""


class Connection:
    """One answer whose body is read piece by piece."""

    __slots__ = ("_chunks", "is_closed", "response")

    def __init__(self, response: Any) -> None:
        self.response = response
        self.is_closed = False
        self._chunks = response.aiter_bytes()

    async def read(self) -> bytes | None:
        """The next piece; None at the end."""
        return await anext(self._chunks, None)

    async def close(self) -> None:
        """Let go of it at once, also where the task is being cancelled: half closed it would keep its socket."""
        if self.is_closed:
            return
        self.is_closed = True
        with anyio.CancelScope(shield=True):
            with contextlib.suppress(Exception):
                await self._chunks.aclose()
            with contextlib.suppress(Exception):
                await self.response.aclose()


class Stream:
    """One stream at its client. `read` gives out what came until the stream is done."""

    __slots__ = (
        "__weakref__",
        "_alarm",
        "_at_ms",
        "_connect_to",
        "_connection",
        "_delay_ms",
        "_fault",
        "_host",
        "_is_connecting",
        "_ready",
        "_refusal",
        "_token",
        "_wake",
        "failure",
        "is_aborted",
        "is_first",
        "is_opened",
        "key",
        "machine",
        "request",
        "session_id",
    )

    def __init__(self, host: Host, machine: ClientStream, request: Any, session_id: str | None) -> None:
        self._host = host
        self.machine = machine
        self.request = request
        self.session_id = session_id
        self.key: tuple[str, str | None] = ("", session_id)
        self.is_opened = False
        # The next connection is the first of a stream that the SDK began with a GET.
        self.is_first = False
        self.is_aborted = False
        self.failure: tuple[str, ErrorCode] | None = None
        self._connection: Connection | None = None
        self._fault: Exception | None = None
        self._ready: list[Delivery] = []
        self._is_connecting = False
        self._connect_to: str | None = None
        self._refusal: Connection | None = None
        self._at_ms = now_ms()
        self._delay_ms: int | None = None
        self._alarm: asyncio.Timeout | None = None
        self._wake: asyncio.Future[None] | None = None
        self._token: str | None = None
        self._take(machine.start())
        self._asked()

    # The reader's side.

    def attach(self, response: Any) -> None:
        """The stream of a POST begins with the POST's own answer."""
        self.is_opened = True
        self._connection = Connection(response)

    async def open(self) -> Any:
        """Until the first answer of a stream that begins with a GET: that answer, or the refusal that the caller is to
        see. Raises what went wrong where there was never an answer."""
        try:
            while not self.is_opened and not self.machine.is_done:
                await self._turn()
        except BaseException:
            await self.aclose()
            raise
        if (found := self._connection or self._refusal) is not None:
            self._refusal = None
            return found.response
        if self._fault is not None:
            raise self._fault
        raise RuntimeError("the stream was closed before it was opened")

    async def read(self) -> Delivery | None:
        """What is to be handed over next; None at the end. A read that is cancelled ends the stream."""
        # The time in which nobody read was no silence of the server's.
        self._take(self.machine.bytes(b"", *self._moment()))
        try:
            while not self._asked() and not self.machine.is_done:
                await self._turn()
        except BaseException:
            await self.aclose()
            raise
        return self._ready.pop(0) if self._ready else None

    async def aclose(self) -> None:
        """Nobody waits for the stream any more. One that is done already has its connection read out elsewhere."""
        if not self.machine.is_done:
            self.is_aborted = True
            self._take(self.machine.abort(*self._moment()))
            self.interrupt()
        self._token = None
        self._host.ended(self)
        await self._let_go()

    def cancelled(self, request: int | str) -> None:
        """Nobody waits for this request any more."""
        self._take(self.machine.cancelled(request, *self._moment()))
        if self.machine.is_done:
            self.interrupt()

    def token(self) -> str | None:
        """What it takes to continue the stream elsewhere, after what the reader has taken; None while it has no cursor,
        or is done."""
        return self._token

    def _asked(self) -> bool:
        """The reader asks for more, or there is no more to ask for. Returns whether something is ready for it. If not,
        it has all that came, and the token follows. One that is ahead of it would lose what it has not taken."""
        if self._ready:
            return True
        self._token = self.machine.token(self.session_id, self.request.headers.get("mcp-protocol-version"))
        if self.machine.is_done:
            self._host.ended(self)
        return False

    def _moment(self) -> tuple[int, int]:
        """Time and randomness, which come in with each input."""
        self._at_ms = now_ms()
        return self._at_ms, random.getrandbits(32)

    def interrupt(self) -> None:
        """The task that turns the loop looks at it again."""
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)
        if self._alarm is not None:
            with contextlib.suppress(RuntimeError):
                self._alarm.reschedule(asyncio.get_running_loop().time())

    # The loop.

    async def _turn(self) -> None:
        if self._is_connecting:
            await self._connect()
        elif self._connection is not None:
            await self._read()
        else:
            await self._wait()

    async def _connect(self) -> None:
        self._is_connecting, last_event_id = False, self._connect_to
        await self._let_go()
        delay_ms, self._delay_ms = self._delay_ms, None
        if delay_ms is not None and (told := self._host.settings.on_resume) is not None:
            attempt = self.machine.attempts + 1
            self._tell(told, Resume(last_event_id, attempt, delay_ms, self.machine.requests))
        self._fault = None
        try:
            async with asyncio.timeout(self._left_s()) as self._alarm:
                response = await self._host.connect(self, last_event_id)
        except NotTaken:
            raise
        except Exception as fault:
            if self.machine.is_done:
                return
            is_late = isinstance(fault, TimeoutError)
            self._fault = self._host.library.ReadTimeout("no answer came") if is_late else fault
            if is_late and self._lost(self.machine.tick(*self._moment())):
                return
            logger.debug("no connection for a stream: %r", fault)
            self._lost(self.machine.broken(*self._moment()))
            return
        finally:
            self._alarm = None
        self._connection = Connection(response)
        if self.machine.is_done:
            await self._let_go()
            return
        was_opened = self.is_opened
        headers = response.headers
        head = (response.status_code, headers.get("content-type"), retry_after_ms(headers))
        is_dropped = self._lost(self.machine.head(*head, *self._moment()))
        if is_dropped and was_opened:
            await self._let_go()
        elif is_dropped:
            # May be what the caller is to see.
            self._connection, self._refusal = None, self._connection

    async def _read(self) -> None:
        connection = self._connection
        assert connection is not None
        try:
            async with asyncio.timeout(self._left_s()) as self._alarm:
                chunk = await connection.read()
        except Exception as fault:
            # What was interrupted cannot be read on, whatever the reason.
            await self._let_go()
            if self.machine.is_done or (
                isinstance(fault, TimeoutError) and self._lost(self.machine.tick(*self._moment()))
            ):
                return
            logger.debug("a connection of a stream broke: %r", fault)
            self._lost(self.machine.broken(*self._moment()))
            return
        finally:
            self._alarm = None
        if chunk is None:
            await self._let_go()
            self._lost(self.machine.end(*self._moment()))
        elif self._take(self.machine.bytes(chunk, *self._moment())):
            await self._let_go()

    def _left_s(self) -> float | None:
        """How long the machine waits for something to come, in seconds; None: however long it takes."""
        # Clocks are cut to whole milliseconds: one more is never too early.
        return None if (deadline := self.machine.deadline) is None else max(0, deadline - now_ms() + 1) / 1_000

    async def _wait(self) -> None:
        loop = asyncio.get_running_loop()
        wake = self._wake = loop.create_future()

        def fire() -> None:
            if not wake.done():
                wake.set_result(None)

        cancel: Callable[[], object] | None = None
        try:
            cancel = self._scheduled(loop, fire)
            await wake
        except Exception:
            # Nobody would ever wake it.
            logger.exception("schedule failed, and its stream with it")
            self._take(self.machine.abandon(*self._moment()))
        finally:
            self._wake = None
            if cancel is not None:
                try:
                    cancel()
                except Exception:
                    logger.exception("what cancels the schedule failed")
        self._take(self.machine.tick(*self._moment()))

    def _scheduled(self, loop: asyncio.AbstractEventLoop, fire: Callable[[], None]) -> Callable[[], object] | None:
        """Have the loop woken at the deadline. Returns what cancels that."""
        deadline = self.machine.deadline
        if deadline is None:
            return None
        # Clocks are cut to whole milliseconds: one more is never too early.
        delay_ms = max(0, deadline - now_ms()) + 1
        if (schedule := self._host.settings.schedule) is None:
            return loop.call_later(delay_ms / 1_000, fire).cancel
        return schedule(delay_ms, lambda: _from_any_thread(loop, fire))

    def _lost(self, output: _ClientOutput) -> bool:
        """As `_take`, for what may begin a wait: how long it is can be told only now."""
        is_dropped = self._take(output)
        if (is_dropped or self._connection is None) and (deadline := self.machine.deadline) is not None:
            self._delay_ms = max(0, deadline - self._at_ms)
        return is_dropped

    def _take(self, output: _ClientOutput) -> bool:
        """Note what is to be done. Returns whether the connection is to be let go of."""
        frames, steps = output
        if frames:
            self._ready.append(frames)
        is_dropped = False
        for step in steps:
            if step[0] == "deliver":
                self._ready.append((step[1], step[2]))
            elif step[0] == "connect":
                self._is_connecting, self._connect_to = True, step[1]
            elif step[0] == "opened":
                self.is_opened = True
            elif step[0] == "gap":
                self._gap(Gap(step[1], step[2]))
            elif step[0] == "cursor_lost":
                self._gap(Gap(None, None))
            elif step[0] == "disconnect":
                is_dropped = True
            elif step[0] == "finished":
                self._finished(is_dropped)
            else:
                self._failed(step[2], step[1])
        return is_dropped

    def _finished(self, is_dropped: bool) -> None:
        # One that is being read is let go of by its reader.
        if self._connection is not None and self._alarm is None and not is_dropped:
            connection, self._connection = self._connection, None
            self._host.read_out(connection)
        self._asked()

    def _failed(self, text: str, code: ErrorCode) -> None:
        self.failure = text, code
        logger.debug("a stream failed: %s: %s", code, text)
        self._asked()

    async def _let_go(self) -> None:
        connections, self._connection, self._refusal = (self._connection, self._refusal), None, None
        for connection in connections:
            if connection is not None:
                await connection.close()

    def _gap(self, gap: Gap) -> None:
        if (told := self._host.settings.on_gap) is not None:
            self._tell(told, gap)

    @staticmethod
    def _tell(told: Callable[[Any], object], what: Any) -> None:
        try:
            told(what)
        except Exception:
            # A stream does not end because somebody who watches it stumbles.
            logger.exception("%s failed", getattr(told, "__qualname__", told))


async def headers_of(settings: Settings) -> Iterable[tuple[str, str]]:
    """What the `headers` option has to say now."""
    headers = settings.headers
    if callable(headers):
        found = headers()
        headers = await found if inspect.isawaitable(found) else found
    return () if headers is None else tuple(headers.items())


def _from_any_thread(loop: asyncio.AbstractEventLoop, fire: Callable[[], None]) -> None:
    # Who wakes late finds the loop closed, and nobody there.
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(fire)
