"""A TCP proxy that is a bad network, on order and by seed.

It owns what happens to the bytes of a connection: how late they come, in which pieces, and whether at all. It knows
nothing of HTTP. What it does by chance is drawn from a seed and the number of the connection.

What a network cannot do it does not do either: bytes that are forwarded are the ones that came, in their order. A black
hole forwards nothing and closes nothing; what came meanwhile waits, as TCP would send it again, until `revive`.
"""

from __future__ import annotations

import asyncio
import random
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal, Self

Direction = Literal["up", "down"]
How = Literal["reset", "end", "half", "hole"]
DIRECTIONS: tuple[Direction, Direction] = ("up", "down")
CHUNK_BYTES = 1 << 16


@dataclass(frozen=True)
class Shape:
    """How the bytes of one direction are forwarded. Durations in milliseconds, ranges drawn anew for each piece."""

    latency_ms: tuple[float, float] = (0, 0)
    # Pieces of so many bytes (least, most), each in a packet of its own; None leaves chunks as they come.
    piece_bytes: tuple[int, int] | None = None
    # Between two pieces: with small pieces a slow drip.
    pause_ms: tuple[float, float] = (0, 0)
    # Waits so long after the first bytes, and forwards all that came until then at once.
    merge_ms: float = 0


PLAIN = Shape()
DELAYED = Shape(latency_ms=(1, 15))
SPLIT = Shape(piece_bytes=(1, 40))
DRIP = Shape(piece_bytes=(20, 200), pause_ms=(0, 2))
MERGED = Shape(merge_ms=20)
SHAPES = (PLAIN, DELAYED, SPLIT, DRIP, MERGED)


def reset(sock: socket.socket) -> None:
    """Close without a goodbye: what was not sent is thrown away, and the peer gets a reset."""
    with suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    close(sock)


def close(sock: socket.socket) -> None:
    """Close, also while somebody waits for it."""
    if sock.fileno() >= 0:
        # A loop that still knows the number would take the next socket that gets it for this one.
        loop = asyncio.get_running_loop()
        loop.remove_reader(sock)
        loop.remove_writer(sock)
    sock.close()


class Pump:
    """One direction of a connection."""

    def __init__(self, link: Link, source: socket.socket, target: socket.socket, shape: Shape) -> None:
        self.link, self.source, self.target, self.shape = link, source, target, shape
        self.forwarded = 0
        self.flows = asyncio.Event()
        self.flows.set()
        # Where in the bytes something happens, and what.
        self.fault: tuple[int, How] | None = None

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            # Before it reads: the peer of a black hole finds its buffers full at last.
            await self.flows.wait()
            data = await loop.sock_recv(self.source, CHUNK_BYTES)
            if data and self.shape.merge_ms:
                await asyncio.sleep(self.shape.merge_ms / 1000)
                with suppress(BlockingIOError):
                    data += self.source.recv(CHUNK_BYTES)
            await self._sleep(self.shape.latency_ms)
            await self.flows.wait()
            if not data:
                self.target.shutdown(socket.SHUT_WR)
                return
            for piece in self._pieces(data):
                await self._forward(piece)

    def _pieces(self, data: bytes) -> list[bytes]:
        if self.shape.piece_bytes is None:
            return [data]
        pieces, at = [], 0
        while at < len(data):
            size = self.link.random.randint(*self.shape.piece_bytes)
            pieces.append(data[at : at + size])
            at += size
        return pieces

    async def _forward(self, piece: bytes) -> None:
        loop = asyncio.get_running_loop()
        await self.flows.wait()
        if self.fault is not None and self.forwarded + len(piece) >= self.fault[0]:
            at, how = self.fault
            self.fault = None
            head = max(0, at - self.forwarded)
            await loop.sock_sendall(self.target, piece[:head])
            self.forwarded += head
            self.link.happen(how, self)
            await self.flows.wait()
            piece = piece[head:]
        await loop.sock_sendall(self.target, piece)
        self.forwarded += len(piece)
        await self._sleep(self.shape.pause_ms)

    async def _sleep(self, of_ms: tuple[float, float]) -> None:
        if of_ms[1] > 0:
            await asyncio.sleep(self.link.random.uniform(*of_ms) / 1000)


class Link:
    """One connection of a client's, with the one to the server that belongs to it."""

    def __init__(self, number: int, seed: str, client: socket.socket, server: socket.socket, shapes: Shapes) -> None:
        self.number = number
        self.random = random.Random(f"{seed}/{number}")
        self.client, self.server = client, server
        up, down = shapes(self.random)
        self.pumps: dict[Direction, Pump] = {
            "up": Pump(self, client, server, up),
            "down": Pump(self, server, client, down),
        }
        self.tasks: list[asyncio.Task[None]] = []
        self.is_over = False

    def black_hole(self, *directions: Direction) -> None:
        """Forward nothing from now on, and tell nobody."""
        for direction in directions or DIRECTIONS:
            self.pumps[direction].flows.clear()

    def revive(self) -> None:
        """The path is back: what waited arrives, then what comes."""
        for pump in self.pumps.values():
            pump.flows.set()

    def half_close(self, direction: Direction) -> None:
        """Whoever reads in this direction sees the end of its peer, who is not told."""
        with suppress(OSError):
            self.pumps[direction].target.shutdown(socket.SHUT_WR)
        # What still comes is lost, and its sender notices nothing.
        self.pumps[direction].flows.clear()

    def end(self) -> None:
        """The client sees an end that is not the body's, the server a reset."""
        with suppress(OSError):
            self.client.shutdown(socket.SHUT_WR)
        self._over()
        close(self.client)
        reset(self.server)

    def reset(self) -> None:
        """Both sides see a reset."""
        self._over()
        reset(self.client)
        reset(self.server)

    def after(self, count: int, how: How, direction: Direction = "down") -> None:
        """Let it happen once so many more bytes went in this direction: in the middle of whatever they are."""
        pump = self.pumps[direction]
        pump.fault = (pump.forwarded + count, how)

    def happen(self, how: How, pump: Pump) -> None:
        direction: Direction = "down" if pump is self.pumps["down"] else "up"
        if how == "hole":
            self.black_hole()
        elif how == "half":
            self.half_close(direction)
        else:
            {"reset": self.reset, "end": self.end}[how]()

    def _over(self) -> None:
        self.is_over = True
        for task in self.tasks:
            task.cancel()

    async def run(self) -> None:
        self.tasks = [asyncio.create_task(pump.run()) for pump in self.pumps.values()]
        try:
            await asyncio.gather(*self.tasks)
            close(self.client)
            close(self.server)
        except (OSError, asyncio.CancelledError):
            # One side is gone: so is the other.
            if not self.is_over:
                self.reset()
        finally:
            self._over()
            await asyncio.gather(*self.tasks, return_exceptions=True)


# The shapes of a connection, up and down.
Shapes = Callable[[random.Random], tuple[Shape, Shape]]


def plain(_: random.Random) -> tuple[Shape, Shape]:
    return PLAIN, PLAIN


def any_shape(of: random.Random) -> tuple[Shape, Shape]:
    return PLAIN, of.choice(SHAPES)


class Proxy:
    """Listens on a free port of loopback and forwards to `port`, which may change for connections to come."""

    def __init__(self, port: int, seed: str = "0", shapes: Shapes = plain) -> None:
        self.target = port
        self.seed, self.shapes = seed, shapes
        self.port = 0
        # By the port that the client's side comes from, so that who opened a connection finds its link.
        self.links: dict[int, Link] = {}
        self.count = 0
        self.is_silent = False
        self._refuses = False
        self._listener: socket.socket | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        self._listener.setblocking(False)
        self.port = self._listener.getsockname()[1]
        self._start(self._accept(self._listener))
        return self

    async def __aexit__(self, *_: object) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._listener is not None:
            self._listener.close()

    def _start(self, work: object) -> None:
        task: asyncio.Task[None] = asyncio.create_task(work)  # type: ignore[arg-type]
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            client, (_, port) = await loop.sock_accept(listener)
            self.count += 1
            self._start(self._serve(client, port, self.count))

    async def _serve(self, client: socket.socket, port: int, number: int) -> None:
        loop = asyncio.get_running_loop()
        server = socket.socket()
        server.setblocking(False)
        try:
            if self._refuses:
                raise ConnectionRefusedError
            await loop.sock_connect(server, ("127.0.0.1", self.target))
        except OSError:
            reset(client)
            close(server)
            return
        for each in (client, server):
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        link = self.links[port] = Link(number, self.seed, client, server, self.shapes)
        if self.is_silent:
            link.black_hole()
        try:
            await link.run()
        finally:
            if self.links.get(port) is link:
                del self.links[port]

    async def link(self, port: int) -> Link:
        """The link of the connection that came from this port."""
        async with asyncio.timeout(5):
            while port not in self.links:
                await asyncio.sleep(0.001)
        return self.links[port]

    # What befalls all connections at once, as a broken server would.

    def cut(self) -> None:
        """Reset every connection. New ones are served."""
        for link in list(self.links.values()):
            link.reset()

    def silence(self) -> None:
        """Forward nothing for anybody, new connections among them."""
        self.is_silent = True
        for link in self.links.values():
            link.black_hole()

    def refuse(self) -> None:
        """Reset every connection, and every new one."""
        self._refuses = True
        self.cut()

    def heal(self) -> None:
        self.is_silent = self._refuses = False
        for link in self.links.values():
            link.revive()
