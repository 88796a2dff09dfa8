"""Three server processes that share a store, and clients behind a load balancer that knows nothing of sessions.

A node keeps its port over restarts, as a machine behind a load balancer does. On a store with a network each node has
a path of its own to it, which can be cut.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

from kit.peer import Peer
from services.common import free_ports

from torture.hosts import FLEETS, Host, hosted, port_of, through
from torture.proxy import Proxy
from torture.recorder import Recorder
from torture.setting import Setting
from torture.wire import OPEN_S, Connection, Session, Stream, Unheard


class Node:
    """One place in the fleet, and the process that runs there now."""

    def __init__(self, server: str, port: int, place: str, path: Proxy | None, engine: dict[str, Any]) -> None:
        self.server, self.port, self.place, self.path, self.engine = server, port, place, path, engine
        self.host: Host | None = None
        # The load balancer has found out that it does not answer.
        self.is_avoided = False

    @property
    def process(self) -> int:
        assert self.host is not None
        return self.host.process.pid

    async def start(self) -> None:
        self.host = await hosted(self.server, self.place, port=self.port, **self.engine)

    async def restart(self, wait_s: float) -> str | None:
        """Ask the process to end, wait until it has, and start the next one. Gives what was wrong with its end."""
        assert self.host is not None
        self.host.process.send_signal(signal.SIGTERM)
        if not await self.host.died(wait_s):
            return f"it runs on {wait_s:.0f} s after it was asked to end"
        # uvicorn raises the signal again when it is done.
        code = self.host.exit_code(0)
        log = self.host.log()
        self.host.stop()
        await self.start()
        if code not in (0, -signal.SIGTERM, 128 + signal.SIGTERM):
            return f"exit status {code}: {log[-2000:]}"
        return f"it logs {log[-2000:]}" if "Traceback" in log else None

    def kill(self) -> None:
        assert self.host is not None
        self.host.process.kill()

    async def stand_still(self) -> None:
        assert self.host is not None
        await self.host.stand_still()

    def go_on(self) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.process, signal.SIGCONT)

    def stop(self) -> None:
        if self.host is not None:
            self.host.stop()


class Fleet:
    """The nodes, and the load balancer before them."""

    def __init__(self, nodes: list[Node]) -> None:
        self.nodes = nodes

    def any(self, dice: random.Random) -> Node:
        return dice.choice([node for node in self.nodes if not node.is_avoided])


@asynccontextmanager
async def fleet(setting: Setting, count: int = 3, **engine: Any) -> AsyncIterator[Fleet]:
    servers = FLEETS.get(setting.server, (setting.server,) * count)[:count]
    nodes: list[Node] = []
    async with AsyncExitStack() as paths:
        for at, (server, port) in enumerate(zip(servers, free_ports(len(servers)), strict=True)):
            place, path = setting.place, None
            if setting.store != "sqlite":
                path = await paths.enter_async_context(Proxy(port_of(place), f"{setting.seed}/path{at}"))
                place = through(place, path.port)
            nodes.append(Node(server, port, place, path, engine))
        try:
            await asyncio.gather(*(node.start() for node in nodes))
            yield Fleet(nodes)
        finally:
            for node in nodes:
                node.stop()


class Roamer(Session):
    """A session each of whose requests goes to a random node, and to another one where nobody listens."""

    def __init__(self, recorder: Recorder, name: str, peer: Peer, fleet: Fleet, dice: random.Random) -> None:
        super().__init__(recorder, name, peer)
        self.fleet, self.dice = fleet, dice
        # Where requests go for now, if not anywhere.
        self.node: Node | None = None

    @classmethod
    async def enter(cls, recorder: Recorder, name: str, fleet: Fleet, seed: str) -> Roamer:
        peer, dice = Peer(fleet.nodes[0].port), random.Random(seed)
        await cls(Unheard(), name, peer, fleet, dice).initialize()
        return cls(recorder, name, peer, fleet, dice)

    async def connect(self, method: str, stream: Stream | None, **more: Any) -> Connection:
        deadline = time.monotonic() + OPEN_S
        while True:
            node = self.node or self.fleet.any(self.dice)
            try:
                return await super().connect(method, stream, port=node.port, process=str(node.process), **more)
            except ConnectionError:
                if time.monotonic() > deadline:
                    raise
            self.recorder.count("refused connections")
            await asyncio.sleep(0.02)

    async def leave(self) -> int:
        """End the session at any node, and give the status of the answer."""
        self.peer.port = self.fleet.any(self.dice).port
        return (await self.peer.delete()).status
