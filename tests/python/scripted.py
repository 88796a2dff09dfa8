"""A server that does on each connection what a test wrote down, byte by byte, and notes what it was asked."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

STREAM = {"content-type": "text/event-stream"}


@dataclass
class Exchange:
    """One request, and the way to answer it."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes
    at_ms: float
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    is_chunked: bool = False
    ended_ms: float = 0
    closed: bool = False

    @property
    def last_event_id(self) -> str | None:
        return self.headers.get("last-event-id")

    async def head(self, status: int = 200, headers: dict[str, str] | None = STREAM, **more: str) -> None:
        all_headers = {**(headers or {}), **{name.replace("_", "-"): value for name, value in more.items()}}
        self.is_chunked = status == 200
        all_headers |= {"transfer-encoding": "chunked"} if self.is_chunked else {"content-length": "0"}
        lines = [f"HTTP/1.1 {status} X", *(f"{name}: {value}" for name, value in all_headers.items()), "", ""]
        self.writer.write("\r\n".join(lines).encode())
        await self.writer.drain()

    async def answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        """A whole answer that is no stream; the connection stays open."""
        names = {name.replace("_", "-"): value for name, value in headers.items()} | {"content-length": str(len(body))}
        lines = [f"HTTP/1.1 {status} X", *(f"{name}: {value}" for name, value in names.items()), "", ""]
        self.writer.write("\r\n".join(lines).encode() + body)
        await self.writer.drain()

    async def send(self, text: str | bytes) -> None:
        data = text.encode() if isinstance(text, str) else text
        self.writer.write(b"%x\r\n%s\r\n" % (len(data), data))
        await self.writer.drain()

    async def end(self) -> None:
        """End the body in good order; the connection stays open."""
        self.ended_ms = time.monotonic() * 1_000
        self.writer.write(b"0\r\n\r\n")
        await self.writer.drain()

    def drop(self) -> None:
        """Close in the middle of whatever it was."""
        self.ended_ms = time.monotonic() * 1_000
        self.closed = True
        self.writer.close()

    async def gone(self) -> None:
        """Until the client has closed the connection."""
        with contextlib.suppress(OSError):
            while await self.reader.read(1 << 16):
                pass


Handler = Callable[[Exchange], Awaitable[None]]


@dataclass
class Scripted:
    """The server: `url`, and all that it was asked, in order."""

    handler: Handler
    url: str = ""
    exchanges: list[Exchange] = field(default_factory=list)
    connections: int = 0
    """How many were opened in all."""
    open: int = 0
    faults: list[BaseException] = field(default_factory=list)

    @property
    def gets(self) -> list[Exchange]:
        return [exchange for exchange in self.exchanges if exchange.method == "GET"]

    async def until(self, condition: Callable[[], object], wait_s: float = 15) -> None:
        deadline = time.monotonic() + wait_s
        while not condition():
            assert not self.faults, self.faults
            assert time.monotonic() < deadline, "never happened"
            await asyncio.sleep(0.005)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.open += 1
        try:
            while not writer.is_closing():
                exchange = await self._read(reader, writer)
                self.exchanges.append(exchange)
                await self.handler(exchange)
        except (OSError, asyncio.IncompleteReadError):
            pass
        except asyncio.CancelledError:
            # The test is over.
            pass
        except BaseException as fault:
            self.faults.append(fault)
        finally:
            self.open -= 1
            writer.close()

    async def _read(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Exchange:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("utf-8", "surrogateescape").split("\r\n")
        method, target, _ = head[0].split(" ")
        headers = {}
        for line in filter(None, head[1:]):
            name, _, value = line.partition(":")
            headers[name.lower()] = value.strip()
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        return Exchange(method, target, headers, body, time.monotonic() * 1_000, reader, writer)


@asynccontextmanager
async def scripted(handler: Handler) -> AsyncIterator[Scripted]:
    served = Scripted(handler)
    tasks: set[asyncio.Task[None]] = set()

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(served.serve(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    served.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/mcp"
    try:
        yield served
        assert not served.faults, served.faults
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        if tasks:
            await asyncio.wait(list(tasks), timeout=2)
