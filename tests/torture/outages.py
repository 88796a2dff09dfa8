"""A store that stands still for longer than an owner may be silent, amid calls read at both processes. (I1, I3, I13)

Nobody sees a sign of any owner meanwhile, and nobody may take that for its end: the calls go on when the store does,
and each ends with its own result, wherever it is read.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path
from urllib.parse import urlsplit

from torture.hosts import Host, hosted, port_of, through
from torture.proxy import Proxy
from torture.recorder import Recorder
from torture.rounds import Round
from torture.setting import Setting
from torture.wire import Connection, Hung, Session, Unheard

SESSIONS = 4
OWNER_LOST_MS = 10_000
OUTAGE_S = 13.0


class Store:
    """The store of a test, which can be made to stand still."""

    def __init__(self, place: str, proxy: Proxy | None) -> None:
        self.place, self.proxy = place, proxy

    @asynccontextmanager
    async def still(self) -> AsyncIterator[None]:
        if self.proxy is not None:
            self.proxy.silence()
            yield
            self.proxy.heal()
            return
        # Whoever writes waits; whoever reads does not.
        with closing(sqlite3.connect(Path(urlsplit(self.place).path), isolation_level=None, timeout=60)) as file:
            file.execute("BEGIN EXCLUSIVE")
            yield
            file.execute("ROLLBACK")


class Outage(Round):
    """Some sessions, and one time in which the store stands still."""

    def __init__(self, recorder: Recorder, setting: Setting, number: int, store: Store, hosts: list[Host]) -> None:
        super().__init__(recorder, setting, f"{setting.seed}/outage{number}", hosts)
        self.number, self.store, self.other = number, store, hosts[1]
        self.ready = 0
        self.well = asyncio.Event()
        self.going_on = asyncio.Barrier(SESSIONS)
        self.until = recorder.folder / f"outage{number}.end"

    async def run(self) -> None:
        for host in self.hosts:
            await takes_calls(host, self.setting.hang_s)
        standing = asyncio.create_task(self.stand())
        sessions = (self.session(index) for index in range(SESSIONS))
        outcomes = await asyncio.gather(*sessions, return_exceptions=True)
        # Who is waited for may have hung.
        self.until.touch()
        self.ready = SESSIONS
        await standing
        for outcome in outcomes:
            if isinstance(outcome, BaseException) and not isinstance(outcome, Hung):
                raise outcome

    async def stand(self) -> None:
        while self.ready < SESSIONS:
            await asyncio.sleep(0.01)
        async with self.store.still():
            self.recorder.count("outages")
            await asyncio.sleep(OUTAGE_S)
        self.well.set()

    async def session(self, index: int) -> None:
        try:
            await self.one(index)
        except BaseException:
            # The others do not wait for it.
            self.ready = SESSIONS
            await self.going_on.abort()
            raise

    async def one(self, index: int) -> None:
        name = f"o{self.number}s{index}"
        client = await Session.open(self.recorder, name, self.first.port)
        reading = await self.call(client, "running", {"until": str(self.until), "pause_ms": [0, 60]}, None)
        stream = reading.stream
        assert stream is not None
        if index % 2 == 1:
            reading.drop()
            reading = await client.connect(
                "GET", stream, cursor=stream.ids[-1], port=self.other.port, process=self.other.process_name
            )
        await reading.until(lambda: reading.events >= 5, self.setting.hang_s)
        self.ready += 1
        await self.well.wait()
        try:
            reading = await self.goes_on(client, reading, f"{name}-running")
        finally:
            # Nothing new comes once one of them has said that it is over.
            with suppress(asyncio.BrokenBarrierError):
                await self.going_on.wait()
            self.until.touch()
        await reading.over(self.setting.hang_s)
        await self.read(client, reading)
        if stream.is_failed:
            raise stream.hung("its owner was there all the time, and it ends with an error")

    async def goes_on(self, client: Session, connection: Connection, name: str) -> Connection:
        """Read on until an event comes that was sent when the store was well again."""
        stream = connection.stream
        assert stream is not None
        before = self.recorder.last_emitted(name)
        deadline = time.monotonic() + self.setting.hang_s
        while time.monotonic() < deadline:
            if await connection.until(lambda: stream.last_n > before, 1.0):
                return connection
            if connection.closed is not None:
                connection = await self.resumed(client, stream, stream.ids[-1])
                await asyncio.sleep(0.05)
        raise self.hung(connection, "the store is well, and no new event comes")


async def takes_calls(host: Host, wait_s: float) -> None:
    """Wait until a process takes calls of a session that its store knows: not at once after that stood still."""
    client = await Session.open(Unheard(), "before", host.port)
    deadline = time.monotonic() + wait_s
    answered = 0
    while time.monotonic() < deadline:
        reply = await client.peer.post({"jsonrpc": "2.0", "id": f"ping{answered}", "method": "ping"}, wait_s=wait_s)
        # The store has the session once it has the end of a call.
        await reply.body()
        reply.close()
        answered += reply.status != 503
        if answered == 2:
            return
        await asyncio.sleep(0.1)
    raise RuntimeError("it takes no calls though its store is well")


async def run(recorder: Recorder, setting: Setting) -> None:
    if setting.store == "sqlite":
        return await rounds(recorder, setting, Store(setting.place, None), setting.place)
    async with Proxy(port_of(setting.place), setting.seed) as proxy:
        await rounds(recorder, setting, Store(setting.place, proxy), through(setting.place, proxy.port))


async def rounds(recorder: Recorder, setting: Setting, store: Store, place: str) -> None:
    hosts = [await hosted(setting.server, place, owner_lost_ms=OWNER_LOST_MS) for _ in range(2)]
    try:
        for number in range(setting.size.outages):
            # Each owns sessions in turn.
            await Outage(recorder, setting, number, store, hosts if number % 2 == 0 else hosts[::-1]).run()
    finally:
        with suppress(ProcessLookupError):
            for host in hosts:
                host.stop()
