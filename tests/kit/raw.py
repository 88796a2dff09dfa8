"""A small HTTP/1.1 client over asyncio streams that hides nothing.

The SDK clients reconnect, drop comments and swallow empty events, so they cannot show what a server put on one
connection. This one can: each `Reply` keeps the bytes of its own connection, in order, and nothing is retried.
Every wait is bounded by `WAIT_S`; a server that stays silent is a failed test, never a hung one.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import socket
import struct
import weakref
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any

# A busy machine with a slow disk is no fault; a stock server that hangs is to be found out soon.
WAIT_S = 4.0 if os.environ.get("TAILROPE_TEST_TRANSPORT") == "stock" else 60.0

ACCEPT = "application/json, text/event-stream"
LINE_END = re.compile(rb"\r\n|\r|\n")


class Truncated(Exception):
    """The connection ended in the middle of a body: not a clean end."""


@dataclass(frozen=True)
class Event:
    """One block of an SSE body. `data` is None when the block had no data line; comments stand alone."""

    id: str | None = None
    data: str | None = None
    retry: int | None = None
    name: str | None = None
    comment: str | None = None

    @property
    def message(self) -> Any:
        """The JSON-RPC message of the event, or None for priming events and comments."""
        return json.loads(self.data) if self.data else None

    @property
    def is_priming(self) -> bool:
        return self.data == "" and self.id is not None

    @property
    def is_terminal(self) -> bool:
        message = self.message
        return isinstance(message, dict) and "method" not in message


class Decoder:
    """Incremental SSE decoder: CR, LF and CRLF end a line, also when CRLF is split across chunks."""

    def __init__(self) -> None:
        self._pending = bytearray()
        self._skip_lf = False
        self._fields: dict[str, Any] = {}
        self._data: list[str] = []

    def feed(self, chunk: bytes) -> list[Event]:
        events: list[Event] = []
        start = 1 if self._skip_lf and chunk.startswith(b"\n") else 0
        for end in LINE_END.finditer(chunk, start):
            self._pending += chunk[start : end.start()]
            start = end.end()
            line = self._pending.decode("utf-8")
            self._pending.clear()
            event = self._line(line)
            if event is not None:
                events.append(event)
        self._pending += chunk[start:]
        if chunk:
            self._skip_lf = chunk.endswith(b"\r")
        return events

    @property
    def unfinished(self) -> bool:
        return bool(self._pending or self._fields or self._data)

    def _line(self, line: str) -> Event | None:
        if not line:
            if not self._fields and not self._data:
                return None
            data = "\n".join(self._data) if self._data else None
            event = Event(data=data, **self._fields)
            self._fields, self._data = {}, []
            return event
        if line.startswith(":"):
            return Event(comment=line[1:].removeprefix(" "))
        key, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if key == "data":
            self._data.append(value)
        elif key == "id":
            self._fields["id"] = value
        elif key == "event":
            self._fields["name"] = value
        elif key == "retry":
            self._fields["retry"] = int(value)
        return None


@dataclass
class Reply:
    """One answer on its own connection. SSE bodies are read event by event, others at once."""

    status: int
    headers: dict[str, str]
    _reader: asyncio.StreamReader
    _writer: asyncio.StreamWriter
    raw: bytearray = field(default_factory=bytearray)
    _decoder: Decoder = field(default_factory=Decoder)
    _ready: list[Event] = field(default_factory=list)
    _ended: bool = False
    _left: int | None = None
    _reading: asyncio.Task[bytes] | None = None

    def __post_init__(self) -> None:
        if self.status in (204, 304):
            self._left = 0
        elif "content-length" in self.headers:
            self._left = int(self.headers["content-length"])

    @property
    def is_sse(self) -> bool:
        return self.headers.get("content-type", "").startswith("text/event-stream")

    async def _chunk(self) -> bytes:
        """The next bytes of the body, b"" at its proper end. Raises Truncated where the connection just stops."""
        if self.headers.get("transfer-encoding", "").lower() == "chunked":
            try:
                size = int((await self._reader.readuntil(b"\r\n")).split(b";")[0], 16)
                data = await self._reader.readexactly(size + 2)
            except (asyncio.IncompleteReadError, ConnectionError) as fault:
                raise Truncated("connection ended inside a chunked body") from fault
            return data[:-2]
        if self._left is not None:
            if self._left == 0:
                return b""
            data = await self._reader.read(min(self._left, 65536))
            if not data:
                raise Truncated("connection ended before content-length bytes")
            self._left -= len(data)
            return data
        return await self._reader.read(65536)

    async def _more(self, wait_s: float) -> bytes:
        # The read survives a timeout: a cancelled read in the middle of a chunk would lose bytes.
        if self._reading is None:
            self._reading = asyncio.ensure_future(self._chunk())
        done, _ = await asyncio.wait([self._reading], timeout=wait_s)
        if not done:
            raise TimeoutError(f"no bytes in {wait_s} s; read so far: {bytes(self.raw[-400:])!r}")
        task, self._reading = self._reading, None
        data = task.result()
        self.raw += data
        return data

    async def body(self, wait_s: float = WAIT_S) -> bytes:
        while not self._ended:
            if not await self._more(wait_s):
                self._ended = True
        return bytes(self.raw)

    async def json(self) -> Any:
        return json.loads(await self.body())

    async def block(self, wait_s: float = WAIT_S) -> Event | None:
        """The next event or comment, None at a clean end."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_s
        while not self._ready:
            if self._ended:
                return None
            data = await self._more(max(0.0, deadline - loop.time()))
            if not data:
                self._ended = True
                assert not self._decoder.unfinished, f"body ends inside an event: {bytes(self.raw[-200:])!r}"
                return None
            self._ready += self._decoder.feed(data)
        return self._ready.pop(0)

    async def event(self, wait_s: float = WAIT_S) -> Event | None:
        """The next event, comments skipped; None at a clean end."""
        while True:
            block = await self.block(wait_s)
            if block is None or block.comment is None:
                return block

    async def some(self, count: int, wait_s: float = WAIT_S) -> list[Event]:
        """Exactly `count` events that carry a message; priming events and comments are left out."""
        events: list[Event] = []
        while len(events) < count:
            event = await self.event(wait_s)
            assert event is not None, f"ended after {len(events)} of {count} messages: {events}"
            if event.message is not None:
                events.append(event)
        return events

    async def blocks(self, wait_s: float = WAIT_S) -> AsyncIterator[Event]:
        while (block := await self.block(wait_s)) is not None:
            yield block

    async def rest(self, wait_s: float = WAIT_S) -> list[Event]:
        """All events up to the clean end of the connection."""
        return [block async for block in self.blocks(wait_s) if block.comment is None]

    async def until_terminal(self, wait_s: float = WAIT_S) -> list[Event]:
        """All events up to and with the response, whether the connection ends after it or not."""
        events: list[Event] = []
        while True:
            event = await self.event(wait_s)
            assert event is not None, f"ended without a response: {events}"
            events.append(event)
            if event.is_terminal:
                return events

    async def settle(self, quiet_s: float = 0.3) -> list[Event]:
        """All events until the connection ends or nothing has come for `quiet_s` seconds."""
        events: list[Event] = []
        with contextlib.suppress(TimeoutError):
            while (event := await self.event(quiet_s)) is not None:
                events.append(event)
        return events

    async def ends(self, wait_s: float = WAIT_S) -> None:
        """The connection ends cleanly, with no further event."""
        event = await self.event(wait_s)
        assert event is None, f"expected the end, got {event}"

    async def quiet(self, for_s: float) -> None:
        """Nothing but comments for `for_s` seconds, and the connection stays open."""
        try:
            event = await self.event(for_s)
        except TimeoutError:
            return
        raise AssertionError("connection ended" if event is None else f"unexpected {event}")

    def drop(self) -> None:
        """Cut the connection at once (RST), as a dying network path would."""
        self._stop_reading()
        sock = self._writer.get_extra_info("socket")
        if sock is not None:
            # The fd may already be closed by the peer's end of the connection.
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()

    def close(self) -> None:
        """Close the connection in the polite way (FIN)."""
        self._stop_reading()
        self._writer.close()

    def _stop_reading(self) -> None:
        self._ended = True
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None


_open: weakref.WeakSet[asyncio.StreamWriter] = weakref.WeakSet()


def hang_up() -> None:
    """Close whatever a test left open, so that one test's readers never hold a stream of the next."""
    for writer in list(_open):
        # One whose loop is closed is closed with it.
        with contextlib.suppress(RuntimeError):
            writer.transport.abort()
    _open.clear()


class Wire:
    """One TCP connection, usable for several requests as long as each body is read to its end."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        _open.add(writer)

    @classmethod
    async def open(cls, port: int, *, receive_buffer: int | None = None, limit: int = 1 << 16) -> Wire:
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        if receive_buffer is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        sock.setblocking(False)
        async with asyncio.timeout(WAIT_S):
            await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return cls(*await asyncio.open_connection(sock=sock, limit=limit))

    async def send(self, method: str, path: str, headers: Mapping[str, str], body: bytes | None) -> None:
        lines = [f"{method} {path} HTTP/1.1"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        if body is not None:
            lines.append(f"Content-Length: {len(body)}")
        head = "\r\n".join(lines) + "\r\n\r\n"
        self.writer.write(head.encode("utf-8", "surrogateescape") + (body or b""))
        await self.writer.drain()

    async def answer(self, wait_s: float = WAIT_S) -> Reply:
        async with asyncio.timeout(wait_s):
            head = await self.reader.readuntil(b"\r\n\r\n")
        status_line, *lines = head.decode("latin-1").split("\r\n")[:-2]
        headers: dict[str, str] = {}
        for line in lines:
            name, _, value = line.partition(":")
            headers[name.lower()] = value.strip()
        return Reply(int(status_line.split()[1]), headers, self.reader, self.writer)

    def close(self) -> None:
        self.writer.close()


async def request(
    port: int,
    method: str,
    path: str = "/mcp",
    headers: Mapping[str, str] | None = None,
    body: bytes | None = None,
    wait_s: float = WAIT_S,
    receive_buffer: int | None = None,
    limit: int = 1 << 16,
) -> Reply:
    """One request on a connection of its own."""
    wire = await Wire.open(port, receive_buffer=receive_buffer, limit=limit)
    try:
        await wire.send(method, path, {"Host": f"127.0.0.1:{port}", **(headers or {})}, body)
        return await wire.answer(wait_s)
    except BaseException:
        wire.close()
        raise
