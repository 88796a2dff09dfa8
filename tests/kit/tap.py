"""A TCP tap between a client and a server: it counts requests, holds them back, and cuts connections.

It forwards bytes and parses no more of HTTP than heads of requests and first lines of answers.
"""

from __future__ import annotations

import asyncio
import re
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Self

REQUEST = re.compile(rb"(GET|POST|DELETE) \S+ HTTP/1\.[01]\r\n(.*?\r\n)\r\n", re.DOTALL)
ANSWER = re.compile(rb"HTTP/1\.[01] (\d{3}) ")
CURSOR = re.compile(rb"^last-event-id: *(\S+)", re.IGNORECASE | re.MULTILINE)
SESSION = re.compile(rb"^mcp-session-id: *(\S+)", re.IGNORECASE | re.MULTILINE)

# How a connection is cut; each of them in the middle of an event.
RESET = "reset"  # both sides see a reset
END = "end"  # the client's side ends without the end of the body, the server's is reset
HALF_OPEN = "half-open"  # the client sees a reset, the server nothing at all: it takes the connection for alive
CUTS = (HALF_OPEN, RESET, END)

Pipe = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass
class Exchange:
    """One HTTP request of the client's and how it was answered."""

    method: str
    cursor: str | None
    status: int | None = None
    has_begun: bool = False
    """The first of its answer's body has come. A head alone may leave before the store knows of the reader."""

    @property
    def stream(self) -> str | None:
        """The part of its cursor that names a stream of ours."""
        return self.cursor[:17] if self.cursor else None


@dataclass
class Link:
    """One connection of the client's, with the one to the server that belongs to it."""

    down: Pipe
    up: Pipe
    waiting: list[Exchange] = field(default_factory=list)
    answered: Exchange | None = None
    silence: asyncio.TimerHandle | None = None


def reset(writer: asyncio.StreamWriter) -> None:
    """Close without a goodbye: what was not sent is thrown away, and the peer gets a reset."""
    sock = writer.get_extra_info("socket")
    with suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


class Tap:
    def __init__(
        self, port: int, life_s: float | Callable[[], float] | None = None, idle_s: float | None = None
    ) -> None:
        """With `life_s` every connection is reset after so long, with `idle_s` when nothing has come for so long."""
        self._upstream = port
        self._life_s = life_s
        self._idle_s = idle_s
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._kept: list[asyncio.StreamWriter] = []
        self._flows = asyncio.Event()
        self._flows.set()
        self._cut: tuple[re.Pattern[bytes], str] | None = None
        self.exchanges: list[Exchange] = []
        self.cuts = 0
        # How often each of these went to the client, on whatever connection.
        self.watched: dict[bytes, int] = {}
        self.session: str | None = None
        self.port = 0

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._server is not None:
            self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for writer in self._kept:
            writer.transport.abort()

    def gets(self) -> list[Exchange]:
        return [exchange for exchange in self.exchanges if exchange.method == "GET"]

    def resumes(self) -> int:
        """How often the client came back with a cursor, and a stream began for it."""
        return sum(get.cursor is not None and get.status == 200 and get.has_begun for get in self.gets())

    def listens(self) -> int:
        """How often the client opened its standalone stream anew."""
        return sum(get.cursor is None and get.status == 200 for get in self.gets())

    def cut(self, pattern: str, how: str) -> None:
        """Cut the next connection that carries these bytes to the client, behind them."""
        assert self._cut is None, "one cut at a time"
        self._cut = (re.compile(pattern.encode()), how)

    def hold(self) -> None:
        """Keep back every GET that comes from now on."""
        self._flows.clear()

    def release(self) -> None:
        self._flows.set()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve((reader, writer)))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, down: Pipe) -> None:
        try:
            link = Link(down, await asyncio.open_connection("127.0.0.1", self._upstream))
            if self._life_s is not None:
                life_s = self._life_s() if callable(self._life_s) else self._life_s
                asyncio.get_running_loop().call_later(life_s, self._end_life, link)
            async with asyncio.TaskGroup() as group:
                group.create_task(self._forward_requests(link))
                group.create_task(self._forward_answers(link))
        except* OSError:
            pass
        finally:
            down[1].close()

    async def _forward_requests(self, link: Link) -> None:
        seen = b""
        with suppress(ConnectionError):
            while data := await link.down[0].read(65536):
                self._hear(link)
                seen += data
                while found := REQUEST.search(seen):
                    seen = seen[found.end() :]
                    self._note_request(link, found[1].decode(), found[2])
                    if found[1] == b"GET":
                        await self._flows.wait()
                link.up[1].write(data)
                await link.up[1].drain()
        # Either the client has gone or the server has: half a connection is of no use to either.
        link.up[1].close()

    def _note_request(self, link: Link, method: str, head: bytes) -> None:
        cursor, session = CURSOR.search(head), SESSION.search(head)
        self.session = session[1].decode() if session else None
        exchange = Exchange(method, cursor[1].decode() if cursor else None)
        self.exchanges.append(exchange)
        link.waiting.append(exchange)

    async def _forward_answers(self, link: Link) -> None:
        tail = b""
        with suppress(ConnectionError):
            while data := await link.up[0].read(65536):
                self._hear(link)
                if self._cut is not None and (found := self._cut[0].search(tail + data)):
                    how, self._cut = self._cut[1], None
                    link.down[1].write(data[: max(0, found.end() - len(tail))])
                    await self._sever(link, how)
                    return
                for text in self.watched:
                    # What lies in the last bytes alone was counted with them.
                    self.watched[text] += (tail + data).count(text) - tail.count(text)
                tail = (tail + data)[-64:]
                self._note_answers(link, data)
                link.down[1].write(data)
                await link.down[1].drain()
        link.down[1].close()

    def _note_answers(self, link: Link, data: bytes) -> None:
        body = data
        for found in ANSWER.finditer(data):
            if link.waiting:
                link.answered = link.waiting.pop(0)
                link.answered.status = int(found[1])
                body = data[found.start() :].partition(b"\r\n\r\n")[2]
        if body and link.answered is not None:
            link.answered.has_begun = True

    def _hear(self, link: Link) -> None:
        if link.silence is not None:
            link.silence.cancel()
        if self._idle_s is not None:
            link.silence = asyncio.get_running_loop().call_later(self._idle_s, self._end_life, link)

    def _end_life(self, link: Link) -> None:
        if not link.down[1].is_closing():
            self.cuts += 1
            reset(link.up[1])
            reset(link.down[1])

    async def _sever(self, link: Link, how: str) -> None:
        await link.down[1].drain()
        self.cuts += 1
        if how == HALF_OPEN:
            self._kept.append(link.up[1])
        else:
            reset(link.up[1])
        if how == END:
            link.down[1].close()
        else:
            reset(link.down[1])


async def until(condition: Callable[[], bool], what: Callable[[], str], wait_s: float = 20) -> None:
    """Wait for a condition on what drivers and taps have seen; `what` is asked for the words of the failure."""
    deadline = asyncio.get_running_loop().time() + wait_s
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, what()
        await asyncio.sleep(0.01)
