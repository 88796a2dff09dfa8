"""The rude clients of abuse.py, in a process of their own: python -m torture.rude PORT SESSION WAY=COUNT...

Each of them does one thing that no polite client does, and waits until the server closes the connection. What they saw
is printed as one JSON object, by way.
"""

from __future__ import annotations

import asyncio
import json
import socket
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from kit.peer import NEWEST
from kit.raw import ACCEPT

from torture.crowd_client import RESET

# What the front may take for the head of a request, and for silence in a body: its own defaults.
HEAD_S, BODY_S = 10.0, 60.0
# How much longer it may take for all that on a busy machine.
LATE_S = 30.0
DRIP_S = 0.5
AT_ONCE = 500
PAGE = 64 << 10
# The most that one of them sends that has no end of its own. A server takes bodies of half that.
MOST_BYTES = 8 << 20
PIPELINED = 50
TINY = 5_000
# How long answers are not read. A server may keep such a connection: it costs as much as an idle stream.
UNREAD_S = 5.0


@dataclass
class Found:
    """What the rude clients saw."""

    # Those that the server closed, by what it said last; and the longest that it took, from the last sign of life.
    ends: Counter[str] = field(default_factory=Counter)
    longest_s: float = 0.0
    kept: int = 0
    refused: int = 0
    sent: int = 0


class Rude:
    """One connection of a rude client."""

    def __init__(self, number: int, port: int, session: str, found: Found) -> None:
        self.number, self.port, self.session, self.found = number, port, session, found
        self.came = bytearray()
        self.asked = 0
        self._since = 0.0

    async def open(self) -> None:
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port, limit=PAGE)
        self._since = time.monotonic()

    def head(self, *lines: str, method: str = "POST", path: str = "/mcp") -> bytes:
        """The head of a request in the session."""
        mine = [
            f"{method} {path} HTTP/1.1",
            f"Host: 127.0.0.1:{self.port}",
            f"Mcp-Session-Id: {self.session}",
            f"Mcp-Protocol-Version: {NEWEST}",
            f"Accept: {ACCEPT}",
            "Content-Type: application/json",
        ]
        return "\r\n".join([*mine, *lines, "", ""]).encode()

    def ping(self, *lines: str) -> bytes:
        self.asked += 1
        body = json.dumps({"jsonrpc": "2.0", "id": f"{self.number}/{self.asked}", "method": "ping"}).encode()
        return self.head(f"Content-Length: {len(body)}", *lines) + body

    async def send(self, data: bytes) -> None:
        self.found.sent += len(data)
        self.writer.write(data)
        await self.writer.drain()

    async def flood(self, page: bytes) -> None:
        """The same again and again, for as long as the server takes it."""
        for _ in range(MOST_BYTES // len(page)):
            await self.send(page)
        self._since = time.monotonic()

    async def gone(self, within_s: float) -> None:
        """Wait until the server has closed the connection."""
        try:
            async with asyncio.timeout(within_s + LATE_S):
                while data := await self.reader.read(PAGE):
                    self.came = (self.came + data)[-PAGE:]
        except TimeoutError:
            self.found.kept += 1
            return
        self.noted()

    def noted(self) -> None:
        at = self.came.rfind(b"HTTP/1.1 ")
        said = self.came[at + 9 : at + 12].decode() if at >= 0 else "nothing"
        self.found.ends[said] += 1
        self.found.longest_s = max(self.found.longest_s, time.monotonic() - self._since)


async def idle(it: Rude) -> None:
    """Asks nothing."""
    await it.gone(HEAD_S)


async def slow(it: Rude) -> None:
    """A head that comes a byte at a time."""
    await it.send(b"GET /mcp HTTP/1.1\r\nX: ")

    async def drip() -> None:
        # It fails when the connection is closed, which is seen below.
        with suppress(OSError):
            while True:
                await it.send(b"x")
                await asyncio.sleep(DRIP_S)

    dripping = asyncio.create_task(drip())
    await it.gone(HEAD_S)
    dripping.cancel()


async def endless(it: Rude) -> None:
    """A head that comes fast, and has no end."""
    await it.send(it.head()[:-2])
    await it.flood((f"X-{'y' * 100}: {'z' * 900}\r\n" * (PAGE >> 10)).encode())
    await it.gone(HEAD_S)


async def pipelined(it: Rude) -> None:
    """Many requests in a row before it reads an answer."""
    await it.send(b"".join(it.ping() for _ in range(PIPELINED)) + it.ping("Connection: close"))
    await it.gone(BODY_S)


async def unread(it: Rude) -> None:
    """Many requests in a row whose answers it does not read."""
    it.writer.transport.pause_reading()  # type: ignore[attr-defined]
    request = it.head(method="GET", path="/elsewhere")
    with suppress(TimeoutError):
        async with asyncio.timeout(UNREAD_S):
            while True:
                await it.send(it.ping() if it.number % 2 else request)
    it.noted()


# Bodies that no server can read to their end, and the path that they come to: the session's, and one of the app.
CHUNKS = (
    b"no length\r\n{}\r\n0\r\n\r\n",
    b"-1\r\n{}\r\n0\r\n\r\n",
    b"fffffffffffffffff\r\n{}",
    b"2\r\n{}no end\r\n0\r\n\r\n",
    b"2;" + b"x" * (PAGE // 2) + b"\r\n{}\r\n0\r\n\r\n",
    b"2\r\n{}\r\n0\r\n" + b"x: y\r\n" * PAGE + b"\r\n",
)


async def chunks(it: Rude) -> None:
    """A body in chunks that are none."""
    path = "/mcp" if it.number % 2 else "/elsewhere"
    await it.send(it.head("Transfer-Encoding: chunked", path=path) + CHUNKS[it.number // 2 % len(CHUNKS)])
    await it.gone(HEAD_S)


async def large(it: Rude) -> None:
    """A body that has no end."""
    path = "/mcp" if it.number % 2 else "/elsewhere"
    await it.send(it.head("Transfer-Encoding: chunked", path=path))
    await it.flood(b"%x\r\n%s\r\n" % (PAGE, b" " * PAGE))
    await it.gone(BODY_S)


async def tiny(it: Rude) -> None:
    """A body in chunks of one byte."""
    await it.send(it.head("Transfer-Encoding: chunked") + b"1\r\n \r\n" * TINY + b"0\r\n\r\n")
    await it.gone(BODY_S)


async def silent(it: Rude) -> None:
    """A body that stops."""
    await it.send(it.head("Content-Length: 9") + b"{")
    await it.gone(BODY_S)


async def half(it: Rude) -> None:
    """Sends no more, before its request is complete or behind it."""
    whole = it.ping()
    begun = whole[: (0, 20, len(whole) - 5, len(whole))[it.number % 4]]
    if begun:
        await it.send(begun)
    it.writer.write_eof()
    await it.gone(HEAD_S)


async def churn(it: Rude) -> None:
    """Leaves as soon as it has come."""
    sock = it.writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    it.writer.transport.abort()
    it.noted()


WAYS: dict[str, Callable[[Rude], Awaitable[None]]] = {
    way.__name__: way for way in (idle, slow, endless, pipelined, unread, chunks, large, tiny, silent, half, churn)
}


async def rude(port: int, session: str, way: str, count: int) -> Found:
    found = Found()
    places = asyncio.Semaphore(count if way == "idle" else AT_ONCE)

    async def one(number: int) -> None:
        async with places:
            it = Rude(number, port, session, found)
            try:
                await it.open()
            except OSError:
                found.refused += 1
                return
            try:
                await WAYS[way](it)
            except OSError:
                it.noted()
            finally:
                it.writer.transport.abort()

    async with asyncio.TaskGroup() as group:
        for number in range(count):
            group.create_task(one(number))
    return found


async def all_ways(port: int, session: str, counts: list[tuple[str, int]]) -> dict[str, Any]:
    found = await asyncio.gather(*(rude(port, session, way, count) for way, count in counts))
    return {way: vars(it) for (way, _), it in zip(counts, found, strict=True)}


def main() -> None:
    port, session, *given = sys.argv[1:]
    counts = [(way, int(count)) for way, _, count in (each.partition("=") for each in given)]
    print(json.dumps(asyncio.run(all_ways(int(port), session, counts))), flush=True)


if __name__ == "__main__":
    main()
