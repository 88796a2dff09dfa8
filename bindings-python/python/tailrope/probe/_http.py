"""HTTP/1.1 that hides nothing: each request has a connection of its own, which is read as bytes come and can be cut at
any time, beside others. Knows nothing of MCP; nothing is retried."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from tailrope.probe._sse import Block, Decoder, parsed

MOST_BYTES = 32 << 20
PIECE_BYTES = 65_536


class NoAnswer(Exception):
    """There was no head of an answer: `silent`, `refused` (nobody listens) or `broken`."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


class Exchange:
    """One answer. `state` is `open`, `end` (the body is complete) or `broken`; one that we cut stays `open`, as we left
    it."""

    def __init__(self, status: int, headers: dict[str, str]) -> None:
        self.status, self.headers = status, headers
        self.blocks: list[Block] = []
        self.response: Block | None = None
        self.body = bytearray()
        self.state = "open"
        self._changed = asyncio.Event()
        self._pump: asyncio.Task[None] | None = None
        self._writer: asyncio.StreamWriter | None = None

    @property
    def content_type(self) -> str:
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    @property
    def is_stream(self) -> bool:
        return self.status == 200 and self.content_type == "text/event-stream"

    @property
    def is_over(self) -> bool:
        return self.state != "open"

    @property
    def events(self) -> list[Block]:
        return [block for block in self.blocks if block.comment is None]

    def pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, has_body: bool) -> None:
        """Read from now on, whoever waits for it or not, so that two connections can be compared by time."""
        self._writer = writer
        self._pump = asyncio.create_task(self._read(reader, writer, has_body))

    async def _read(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, has_body: bool) -> None:
        loop, decoder = asyncio.get_running_loop(), Decoder()
        taken = 0
        try:
            pieces = _pieces(reader, self.headers) if has_body else _nothing()
            async for piece in pieces:
                taken += len(piece)
                if taken > MOST_BYTES:
                    raise ConnectionError
                if self.is_stream:
                    for block in decoder.feed(piece):
                        block.at = loop.time()
                        self.blocks.append(block)
                        if self.response is None and block.is_response:
                            self.response = block
                else:
                    self.body += piece
                self._changed.set()
            self.state = "end"
        except (OSError, EOFError, ValueError, ssl.SSLError):
            self.state = "broken"
        finally:
            self._changed.set()
            # What is cut after that is closed already.
            writer.close()
            self._writer = None

    async def until(self, condition: Callable[[], bool], ms: float) -> bool:
        """Wait until the condition holds, for so long; whether it does."""
        loop = asyncio.get_running_loop()
        end = loop.time() + ms / 1_000
        while not condition():
            self._changed.clear()
            try:
                async with asyncio.timeout_at(end):
                    await self._changed.wait()
            except TimeoutError:
                return condition()
        return True

    def cut(self) -> None:
        """Reset the connection, as a path that dies."""
        if self._pump is not None:
            self._pump.cancel()
        if self._writer is not None:
            # It may be closed already; TLS lets go of its parts then.
            with contextlib.suppress(AttributeError, OSError, ValueError):
                sock = self._writer.get_extra_info("socket")
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self._writer.transport.abort()

    @property
    def json(self) -> dict[str, Any] | None:
        """A whole JSON body, or the response that a stream carries."""
        if self.is_stream:
            return self.response.message if self.response is not None else None
        return parsed(self.body.decode("utf-8", "replace"))


@dataclass
class Endpoint:
    """Where the server is, and what every request to it carries."""

    url: str
    headers: Mapping[str, str] = field(default_factory=dict)

    async def send(self, method: str, headers: Mapping[str, str], body: bytes | None, timeout_ms: float) -> Exchange:
        parts = urlsplit(self.url)
        is_tls = parts.scheme == "https"
        host, port = parts.hostname or "", parts.port or (443 if is_tls else 80)
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        lines = [f"{method} {target} HTTP/1.1", f"Host: {parts.netloc.rpartition('@')[2]}", "Accept-Encoding: identity"]
        for name, value in {**headers, **self.headers}.items():
            if any(char < " " or char == "\x7f" for char in value):
                raise NoAnswer("broken", f"{name} cannot be sent: there are control characters in it")
            lines.append(f"{name}: {value}")
        if body is not None:
            lines.append(f"Content-Length: {len(body)}")
        head = "\r\n".join([*lines, "Connection: close", "", ""]).encode("utf-8", "surrogateescape")
        writer = None
        try:
            async with asyncio.timeout(timeout_ms / 1_000):
                context = ssl.create_default_context() if is_tls else None
                reader, writer = await asyncio.open_connection(host, port, ssl=context)
                writer.write(head + (body or b""))
                await writer.drain()
                exchange = await _head(reader)
        except BaseException as fault:
            if writer is not None:
                writer.transport.abort()
            if isinstance(fault, TimeoutError):
                raise NoAnswer("silent", f"no answer within {timeout_ms:.0f} ms") from fault
            if writer is None and isinstance(fault, OSError):
                raise NoAnswer("refused", str(fault)) from fault
            if isinstance(fault, (OSError, EOFError, ValueError, asyncio.LimitOverrunError)):
                raise NoAnswer("broken", "the connection ended before an answer") from fault
            raise
        exchange.pump(reader, writer, has_body=exchange.status not in (204, 304))
        return exchange


async def _head(reader: asyncio.StreamReader) -> Exchange:
    while True:
        head = await reader.readuntil(b"\r\n\r\n")
        first, *lines = head.decode("utf-8", "replace").split("\r\n")[:-2]
        status = int(first.split()[1])
        if status >= 200:
            break
    headers: dict[str, str] = {}
    for line in lines:
        name, _, value = line.partition(":")
        headers[name.strip().lower()] = value.strip()
    return Exchange(status, headers)


async def _nothing() -> AsyncIterator[bytes]:
    return
    yield b""


async def _pieces(reader: asyncio.StreamReader, headers: Mapping[str, str]) -> AsyncIterator[bytes]:
    """The body, as it comes; raises where the connection ends before it."""
    if headers.get("transfer-encoding", "").lower() == "chunked":
        while size := int((await reader.readuntil(b"\r\n")).partition(b";")[0], 16):
            yield (await reader.readexactly(size + 2))[:-2]
        return
    left = int(headers["content-length"]) if "content-length" in headers else None
    while left is None or left > 0:
        piece = await reader.read(PIECE_BYTES if left is None else min(left, PIECE_BYTES))
        if not piece:
            if left is None:
                return
            raise EOFError
        if left is not None:
            left -= len(piece)
        yield piece
