"""The clients of crowd.py: thousands in one process, each with a session and one connection at a time.

They read as bytes come and retry nothing. How an answer ended is told apart: whole, or cut off.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from itertools import pairwise
from typing import Any

from kit.peer import CAPABILITIES, NEWEST, results
from kit.raw import ACCEPT, Decoder, Event

# A crowd on a busy machine takes its time. Who waits for longer waits in vain.
WAIT_S = 300.0
RESET = struct.pack("ii", 1, 0)
PROGRESS = "notifications/progress"


class Cut(Exception):
    """The connection ended while something was still to come."""


class Line(asyncio.Protocol):
    """One connection, with one request at a time, and what has come of its answer."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.port = 0
        self.is_lost = False
        self._raw = bytearray()
        self._changed: asyncio.Future[None] | None = None
        self._begin()

    @classmethod
    async def open(cls, port: int) -> Line:
        async with asyncio.timeout(WAIT_S):
            _, line = await asyncio.get_running_loop().create_connection(cls, "127.0.0.1", port)
        return line

    def _begin(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.body = bytearray()
        self.blocks: list[Event] = []
        self.is_whole = False
        self._left = 0
        self._decoder: Decoder | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.port = transport.get_extra_info("peername")[1]

    def connection_lost(self, fault: Exception | None) -> None:
        self.is_lost = True
        self._wake()

    def data_received(self, data: bytes) -> None:
        self._raw += data
        while not self.is_whole and self._parse():
            pass
        self._wake()

    def _wake(self) -> None:
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(None)

    def _parse(self) -> bool:
        """Take one part from what was read; False if it is not there yet."""
        if not self.status:
            end = self._raw.find(b"\r\n\r\n")
            if end < 0:
                return False
            self._head(self._raw[:end].decode("latin-1").split("\r\n"))
            del self._raw[: end + 4]
            return True
        if "transfer-encoding" not in self.headers:
            if len(self._raw) < self._left:
                return False
            self._take(bytes(self._raw[: self._left]))
            del self._raw[: self._left]
            self.is_whole = True
            return True
        line = self._raw.find(b"\r\n")
        if line < 0:
            return False
        size = int(self._raw[:line], 16)
        end = line + 2 + size
        if len(self._raw) < end + 2:
            return False
        assert self._raw[end : end + 2] == b"\r\n", bytes(self._raw[line : end + 2])
        self._take(bytes(self._raw[line + 2 : end]))
        del self._raw[: end + 2]
        self.is_whole = size == 0
        return True

    def _head(self, lines: list[str]) -> None:
        self.status = int(lines[0].split()[1])
        for line in lines[1:]:
            name, _, value = line.partition(":")
            self.headers[name.lower()] = value.strip()
        self._left = int(self.headers.get("content-length", "0"))
        self._decoder = Decoder() if self.headers.get("content-type", "").startswith("text/event-stream") else None

    def _take(self, data: bytes) -> None:
        if self._decoder is None:
            self.body += data
        else:
            self.blocks += self._decoder.feed(data)

    def ask(self, method: str, path: str, headers: dict[str, str], body: bytes) -> None:
        assert self.transport is not None
        self._begin()
        lines = [
            f"{method} {path} HTTP/1.1",
            f"Host: 127.0.0.1:{self.port}",
            *(f"{name}: {it}" for name, it in headers.items()),
        ]
        self.transport.write("\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""]).encode() + body)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until it holds. Raises Cut when the connection is over and it does not."""
        async with asyncio.timeout(WAIT_S):
            while not condition():
                if self.is_lost:
                    raise Cut(f"status {self.status}, {len(self.blocks)} blocks")
                self._changed = asyncio.get_running_loop().create_future()
                await self._changed

    async def over(self) -> None:
        """Wait for the end of the connection, whichever it is."""
        await self.until(lambda: self.is_lost)

    async def whole(self) -> None:
        await self.until(lambda: self.is_whole)

    def cut(self) -> None:
        """End the connection at once (RST)."""
        assert self.transport is not None
        sock = self.transport.get_extra_info("socket")
        if sock is not None and sock.fileno() >= 0:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        self.transport.abort()


class Client:
    """One session. Its name is the progress token of its call, and the result."""

    def __init__(self, number: int, port: int) -> None:
        self.name, self.port = f"c{number}", port
        self.session: str | None = None
        self.line = Line()
        # Ids of the priming event and of the events of the call, in the order of arrival.
        self.ids: list[str] = []

    def headers(self, **more: str) -> dict[str, str]:
        held = {} if self.session is None else {"Mcp-Session-Id": self.session, "Mcp-Protocol-Version": NEWEST}
        return {**held, **more}

    def post(self, message: dict[str, Any], path: str = "/mcp") -> None:
        headers = self.headers(**{"Accept": ACCEPT, "Content-Type": "application/json"})
        self.line.ask("POST", path, headers, json.dumps({"jsonrpc": "2.0", **message}).encode())

    async def enter(self, keep: bool = False) -> None:
        """Open the session, on a connection that is over afterwards unless it is kept."""
        self.line = await Line.open(self.port)
        about = {"name": self.name, "version": "1"}
        params = {"protocolVersion": NEWEST, "capabilities": CAPABILITIES, "clientInfo": about}
        self.post({"id": 0, "method": "initialize", "params": params})
        await self.line.whole()
        assert self.line.status == 200, (self.line.status, bytes(self.line.body))
        self.session = self.line.headers["mcp-session-id"]
        self.post({"method": "notifications/initialized"})
        await self.line.whole()
        assert self.line.status == 202, self.line.status
        if not keep:
            self.line.cut()

    async def place(self) -> int:
        """Which process answers on this connection."""
        self.post({}, "/ctl/state")
        await self.line.whole()
        return int(json.loads(self.line.body)["pid"])

    async def call(self, steps: list[str], keep: bool = False) -> None:
        """Begin a call of the tool `script`, on the connection that is open if it is kept."""
        if not keep:
            self.line = await Line.open(self.port)
        arguments = {"steps": steps}
        params = {"name": "script", "arguments": arguments, "_meta": {"progressToken": self.name}}
        self.post({"id": 1, "method": "tools/call", "params": params})

    async def got(self, count: int) -> None:
        """Wait until so many events of the call have come, and remember their ids."""
        line = self.line
        await line.until(lambda: line.is_whole or sum(map(carries, line.blocks)) >= count)
        assert line.status == 200, (line.status, bytes(line.body))
        self.ids = [block.id for block in self.line.blocks if block.id is not None]

    async def listen(self, cursor: str | None = None) -> None:
        """GET the standalone stream, or go on behind a cursor, and wait for the first event."""
        self.line = await Line.open(self.port)
        more = {} if cursor is None else {"Last-Event-ID": cursor}
        self.line.ask("GET", "/mcp", self.headers(Accept="text/event-stream", **more), b"")
        line = self.line
        await line.until(lambda: line.is_whole or any(block.id is not None for block in line.blocks))
        assert line.status == 200, (line.status, bytes(line.body))


def carries(block: Event) -> bool:
    return bool(block.data)


def judge(name: str, blocks: Iterable[Event], after: int, last: int, is_failed: bool = False) -> Counter[str]:
    """What is wrong with the events of a call that came behind a cursor: those from `after` to `last`, and the end."""
    found: Counter[str] = Counter()
    blocks = list(blocks)
    got: list[int] = []
    for block in blocks:
        message = block.message
        if isinstance(message, dict) and message.get("method") == PROGRESS:
            if message["params"]["progressToken"] == name:
                got.append(int(message["params"]["progress"]))
            else:
                found["foreign"] += 1
    wanted = set(range(after + 1, last + 1))
    found["lost"] += len(wanted - set(got))
    found["repeated"] += len(got) - len(wanted & set(got))
    found["out of order"] += sum(two < one for one, two in pairwise(got))
    ends = results(blocks)
    # An error is no text.
    if len(ends) != 1 or isinstance(ends[0], str) == is_failed:
        found["wrong ends"] += 1
    elif not is_failed and ends != [name]:
        found["foreign"] += 1
    elif not blocks[-1].is_terminal:
        found["out of order"] += 1
    return +found


async def each(clients: Iterable[Client], do: Callable[[Client], Awaitable[None]], at_once: int = 100) -> None:
    """Let every client do this, so many at a time."""
    left = iter(clients)

    async def some() -> None:
        for client in left:
            await do(client)

    async with asyncio.TaskGroup() as group:
        for _ in range(at_once):
            group.create_task(some())
