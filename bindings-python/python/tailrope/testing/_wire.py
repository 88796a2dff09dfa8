"""HTTP/1.1 over a socket of its own for each request: what a server put on one connection, and how that ended.

HTTP libraries reuse connections, and close them politely. A test has to reset them, and to know a body that was cut
from one that was complete.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from tailrope._errors import TailropeError


@dataclass(frozen=True)
class Block:
    """One block of an SSE body as it came. Comments stand alone."""

    id: str | None = None
    data: str | None = None
    retry_ms: int | None = None
    comment: str | None = None


class Decoder:
    """SSE from bytes: CR, LF and CRLF end a line, wherever the bytes are split."""

    def __init__(self) -> None:
        self._line = bytearray()
        self._after_cr = False
        self._id: str | None = None
        self._retry_ms: int | None = None
        self._data: list[str] = []

    def feed(self, chunk: bytes) -> list[Block]:
        blocks: list[Block] = []
        # Of bytes, this splits at CR, LF and CRLF alone.
        for piece in chunk.splitlines(keepends=True):
            text = piece.rstrip(b"\r\n")
            if self._after_cr and piece == b"\n":
                self._after_cr = False
                continue
            self._after_cr = piece.endswith(b"\r")
            self._line += text
            if len(text) < len(piece):
                line = self._line.decode("utf-8", "replace")
                self._line.clear()
                blocks += self._take(line)
        return blocks

    def _take(self, line: str) -> list[Block]:
        if line.startswith(":"):
            return [Block(comment=line[1:].removeprefix(" "))]
        if not line:
            known = self._id is not None or self._retry_ms is not None or self._data
            block = Block(self._id, "\n".join(self._data) if self._data else None, self._retry_ms)
            self._id = self._retry_ms = None
            self._data = []
            return [block] if known else []
        key, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if key == "data":
            self._data.append(value)
        elif key == "id":
            self._id = value
        elif key == "retry" and value.isdecimal():
            self._retry_ms = int(value)
        return []


class Broken(Exception):
    """The connection ended inside a body."""


@dataclass
class Answer:
    """One answer. Its body comes in pieces, b"" at its proper end."""

    status: int
    headers: dict[str, str]
    _reader: asyncio.StreamReader
    _writer: asyncio.StreamWriter
    _left: int | None = None
    _reading: asyncio.Task[bytes] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.status in (202, 204, 304) and "transfer-encoding" not in self.headers:
            self._left = 0
        if "content-length" in self.headers:
            self._left = int(self.headers["content-length"])

    @property
    def is_stream(self) -> bool:
        return self.headers.get("content-type", "").lower().startswith("text/event-stream")

    async def piece(self, wait_ms: float) -> bytes:
        """What comes next, within `wait_ms`. Raises `Broken`, and TailropeError `timed_out`."""
        # A read that is cancelled in the middle of a chunk would lose bytes, so it outlives the wait.
        if self._reading is None:
            self._reading = asyncio.ensure_future(self._piece())
        done, _ = await asyncio.wait([self._reading], timeout=wait_ms / 1000)
        if not done:
            raise TailropeError(f"nothing came for {wait_ms:.0f} ms", "timed_out")
        task, self._reading = self._reading, None
        return task.result()

    async def _piece(self) -> bytes:
        try:
            if self.headers.get("transfer-encoding", "").lower() == "chunked":
                size = int((await self._reader.readuntil(b"\r\n")).split(b";")[0], 16)
                return (await self._reader.readexactly(size + 2))[:-2]
            if self._left == 0:
                return b""
            data = await self._reader.read(65536 if self._left is None else min(self._left, 65536))
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, OSError, ValueError) as fault:
            raise Broken(str(fault)) from fault
        if self._left is not None:
            if not data:
                raise Broken("the body is shorter than its content-length")
            self._left -= len(data)
        return data

    async def body(self, wait_ms: float) -> bytes:
        """All of the body."""
        whole = bytearray()
        try:
            while data := await self.piece(wait_ms):
                whole += data
        except Broken as fault:
            raise TailropeError(f"the answer was cut: {fault}", "no_connection") from fault
        finally:
            self.close()
        return bytes(whole)

    def reset(self) -> None:
        """Cut the connection as a dying network path would, without a farewell."""
        found = self._writer.get_extra_info("socket")
        if found is not None:
            # The peer may have closed it already.
            with contextlib.suppress(OSError):
                found.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close()

    def close(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None
        self._writer.transport.abort()


async def send(url: str, method: str, headers: Mapping[str, str], body: bytes | None, wait_ms: float) -> Answer:
    """Send one request and wait for the head of its answer."""
    parts = urlsplit(url)
    secure = ssl.create_default_context() if parts.scheme == "https" else None
    host, port = parts.hostname or "", parts.port or (443 if secure else 80)
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    lines = [f"{method} {target} HTTP/1.1", f"Host: {parts.netloc.rpartition('@')[2]}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    if body is not None:
        lines.append(f"Content-Length: {len(body)}")
    head = "\r\n".join(lines).encode("utf-8", "surrogateescape") + b"\r\n\r\n"
    writer = None
    try:
        async with asyncio.timeout(wait_ms / 1000):
            reader, writer = await asyncio.open_connection(host, port, ssl=secure, limit=1 << 20)
            writer.write(head + (body or b""))
            await writer.drain()
            answer = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except BaseException as fault:
        if writer is not None:
            writer.transport.abort()
        if isinstance(fault, TimeoutError):
            raise TailropeError(f"{method} {url} was not answered within {wait_ms:.0f} ms", "timed_out") from fault
        if isinstance(fault, OSError | EOFError):
            raise TailropeError(f"{method} {url}: {fault or type(fault).__name__}", "no_connection") from fault
        raise
    status, *rest = answer.split("\r\n")[:-2]
    fields = (line.partition(":") for line in rest)
    return Answer(int(status.split()[1]), {name.lower(): value.strip() for name, _, value in fields}, reader, writer)
