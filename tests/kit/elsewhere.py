"""Several server processes on one store: one that is killed, one that reads what another one runs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from kit.peer import NEWEST, Peer, counts
from kit.raw import Event, Reply, Truncated
from kit.servers import Kind, Server

# Of a process that may stand still for a while, on a store that waits for a disk or a network.
WAIT_S = 60.0
GONE = "The server process that ran this request is gone"
ROOM = {"max_events_per_stream": 1_000_000, "max_bytes_per_stream": 256 << 20, "max_bytes_per_session": 512 << 20}
# How long a killed server counts as alive. Short, because tests wait for its end.
OWNER_LOST_MS = 6_000
# For servers that are not killed: one whose disk stands still for a while is not gone.
CALM = {"owner_lost_ms": 20_000}
# For servers whose end nobody has to find out.
NEVER_LOST = {"owner_lost_ms": 600_000}


def start(kind: Kind, place: str, **options: Any) -> Server:
    engine = {"owner_lost_ms": OWNER_LOST_MS, **ROOM, **options.pop("engine", {})}
    return Server(kind, {**options, "address": place, "engine": engine})


@contextmanager
def pair_on(kind: Kind, place: str, **options: Any) -> Iterator[tuple[Server, Server]]:
    """Two servers on one store. Neither may have found anything to complain of."""
    both: list[Server] = []
    try:
        for _ in range(2):
            both.append(start(kind, place, **{"engine": CALM, **options}))
        yield both[0], both[1]
    finally:
        for server in both:
            server.kill()
    for server in both:
        assert "panicked at" not in server.log() and "Traceback" not in server.log(), server.log()


class Line:
    """Servers that follow each other on one store, each when the one before it has ended."""

    def __init__(self, kind: Kind, place: str, **options: Any) -> None:
        self.kind, self.place, self.options = kind, place, options
        self._servers: list[Server] = []

    @property
    def server(self) -> Server:
        """The one whose turn it is."""
        # A test that failed may have left one that has ended.
        while self._servers and self._servers[0].process.poll() is not None:
            self._servers.pop(0).stop()
        if not self._servers:
            self._servers.append(start(self.kind, self.place, **self.options))
        return self._servers[0]

    async def beside(self) -> Server:
        """The next, while the one before it still runs."""
        assert self._servers
        self._servers.append(await asyncio.to_thread(start, self.kind, self.place, **self.options))
        return self._servers[-1]

    async def next(self) -> Server:
        """The next, once the one before it has ended: it is killed if it still runs."""
        self._servers[0].stop()
        return await asyncio.to_thread(lambda: self.server)

    def end(self) -> None:
        while self._servers:
            self._servers.pop().stop()


def at(peer: Peer, server: Server) -> Peer:
    """The same session's client, whose requests land on this server."""
    there = Peer(server.port, peer.path, peer.extra)
    there.session, there.revision = peer.session, peer.revision
    return there


class Wandering(Peer):
    """A client whose requests land on these servers one after the other. The last one gets all further ones, or with
    `again` it begins with the first."""

    def __init__(self, *servers: Server, again: bool = False, headers: Mapping[str, str] | None = None) -> None:
        self._ports = [server.port for server in servers]
        self._again, self._asked = again, 0
        super().__init__(servers[0].port, headers=headers)

    @property
    def port(self) -> int:
        place = self._asked % len(self._ports) if self._again else min(self._asked, len(self._ports) - 1)
        self._asked += 1
        return self._ports[place]

    @port.setter
    def port(self, port: int) -> None:
        pass

    @classmethod
    async def opened(cls, *servers: Server, revision: str = NEWEST, **more: Any) -> Wandering:
        peer = cls(*servers, **more)
        await peer.initialize(revision)
        return peer


async def known(peer: Peer) -> Reply:
    """Listens where the session does not live. Its process tells the store of it without waiting."""
    deadline = time.monotonic() + WAIT_S
    while True:
        reply = await peer.get()
        if reply.status == 200:
            return reply
        assert reply.status == 404 and time.monotonic() < deadline, (reply.status, await reply.body())


def dense(events: list[Event], first: int, last: int) -> None:
    """All of these, once, in order (I3)."""
    assert counts(events) == list(range(first, last + 1))


async def until_cut(reply: Reply) -> list[Event]:
    """What arrived, whole events only, until the connection broke."""
    events: list[Event] = []
    with suppress(OSError, Truncated, AssertionError):
        while (event := await reply.event(WAIT_S)) is not None:
            events.append(event)
    return events
