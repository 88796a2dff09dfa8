"""HTTP/1.1 over connections that can be reset, cut in the middle, or refused.

Knows nothing of MCP.
"""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import struct
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

MOST_HEAD = 65_536
Handler = Callable[["Connection", "Request"], Awaitable[bool]]


class GoneError(Exception):
    """The client has left this connection."""


@dataclass
class Request:
    method: str
    headers: dict[str, str]
    body: bytes
    target: str = ""

    def json(self) -> Any:
        return json.loads(self.body) if self.body else None


class Connection(asyncio.Protocol):
    """One socket of a client's. `write` and `pause` raise GoneError once the client has left."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._buffer = bytearray()
        self._arrived = asyncio.Event()
        self.gone = asyncio.Event()
        self.left_ms: float | None = None
        self.is_split = False
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._listener.opened(self)
        self._task = asyncio.create_task(self._serve())

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        self._arrived.set()

    def connection_lost(self, fault: Exception | None) -> None:
        self.left_ms = self._listener.now_ms()
        self._listener.closed(self)
        self.gone.set()
        self._arrived.set()

    async def _request(self) -> Request | None:
        while (end := self._buffer.find(b"\r\n\r\n")) < 0:
            if not await self._more() or len(self._buffer) > MOST_HEAD:
                return None
        lines = self._buffer[:end].decode("latin-1").split("\r\n")
        pairs = (line.split(":", 1) for line in lines[1:])
        headers = {name.strip().lower(): value.strip() for name, value in pairs}
        length = end + 4 + int(headers.get("content-length", "0"))
        while len(self._buffer) < length:
            if not await self._more():
                return None
        body = bytes(self._buffer[end + 4 : length])
        del self._buffer[:length]
        method, target, _ = lines[0].split(" ", 2)
        return Request(method, headers, body, target)

    async def _more(self) -> bool:
        if self.gone.is_set():
            return False
        self._arrived.clear()
        await self._arrived.wait()
        return not self.gone.is_set()

    async def _serve(self) -> None:
        try:
            while request := await self._request():
                if not await self._listener.handle(self, request):
                    break
        except GoneError:
            pass
        finally:
            self._transport.close()

    def write(self, data: bytes) -> None:
        if self.gone.is_set() or self._transport.is_closing():
            raise GoneError
        self._transport.write(data)

    async def pause(self, ms: float) -> None:
        """Wait, unless the client leaves."""
        try:
            await asyncio.wait_for(self.gone.wait(), ms / 1_000)
        except TimeoutError:
            return
        raise GoneError

    def answer(self, status: int, headers: dict[str, str], body: bytes) -> None:
        """A whole answer, after which the connection is kept."""
        headers = {**headers, "content-length": str(len(body))}
        self.write(head(status, headers) + body)

    def begin_stream(self) -> None:
        self.write(head(200, {"content-type": "text/event-stream", "transfer-encoding": "chunked"}))

    async def stream(self, data: bytes) -> None:
        if not self.is_split:
            self.write(b"%x\r\n%b\r\n" % (len(data), data))
            return
        for byte in data:
            self.write(b"1\r\n%c\r\n" % byte)
            # To the next turn of the loop, so that it is a packet of its own.
            await asyncio.sleep(0)

    def end_stream(self) -> None:
        self.write(b"0\r\n\r\n")

    def cut(self) -> None:
        """End the connection, though not the body, in the polite way."""
        self._transport.close()

    def reset(self) -> None:
        linger = struct.pack("ii", 1, 0)
        self._transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self._transport.abort()


REASONS = {200: "OK", 202: "Accepted", 204: "No Content", 404: "Not Found", 503: "Service Unavailable"}


def head(status: int, headers: dict[str, str]) -> bytes:
    lines = [f"HTTP/1.1 {status} {REASONS.get(status, 'Some Answer')}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


class Listener:
    """A port that can refuse for a while. The same port is listened on again, and nobody else gets it meanwhile."""

    def __init__(self, handle: Handler, tls: ssl.SSLContext | None = None) -> None:
        self.handle = handle
        self._tls = tls
        self._started = time.monotonic()
        self._server: asyncio.Server | None = None
        self._downtime: asyncio.Task[None] | None = None
        self._connections: set[Connection] = set()
        self.most_sockets = 0
        self.port = 0

    def now_ms(self) -> float:
        return (time.monotonic() - self._started) * 1_000

    @property
    def sockets(self) -> int:
        return len(self._connections)

    def opened(self, connection: Connection) -> None:
        self._connections.add(connection)
        self.most_sockets = max(self.most_sockets, len(self._connections))

    def closed(self, connection: Connection) -> None:
        self._connections.discard(connection)

    def _bind(self) -> socket.socket:
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.bind(("127.0.0.1", self.port))
        return sock

    async def open(self) -> None:
        # Bound but never listening: it keeps the port while nobody listens.
        self._keeper = self._bind()
        self.port = self._keeper.getsockname()[1]
        await self._listen()

    async def _listen(self) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: Connection(self), sock=self._bind(), backlog=2_048, ssl=self._tls
        )

    def refuse(self, ms: float) -> None:
        """Refuse connections for so long, from now on."""
        assert self._server is not None
        self._server.close()
        self._downtime = asyncio.create_task(self._come_back(ms))

    async def _come_back(self, ms: float) -> None:
        await asyncio.sleep(ms / 1_000)
        await self._listen()

    async def close(self) -> None:
        if self._downtime is not None:
            self._downtime.cancel()
        if self._server is not None:
            self._server.close()
        for connection in list(self._connections):
            connection.reset()
        self._keeper.close()
