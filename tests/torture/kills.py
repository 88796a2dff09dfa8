"""Servers that are killed between any two steps, and clients that come back to the next process or to another one that
shares the store. (D3; I1, I3, I13, F-16, F-17, F-45, F-94)

A tool kills its own process before an event is sent, when it is sent and nothing is known of it, when it is stored, or
when it may be on the wire. Some readers are behind a black hole by then, so that what was stored never reached them.
"""

from __future__ import annotations

import asyncio
import random
import time
from contextlib import suppress

from torture.hosts import Host
from torture.proxy import Proxy
from torture.recorder import Recorder
from torture.setting import Setting
from torture.wire import Connection, Hung, Session, Stream

SESSIONS = 5
# Long enough for a process that lives on a busy machine, and not too long to wait for.
OWNER_LOST_MS = 4_000
STEPS = ("before", "sent", "stored", "later")
# Events of a call that is over before the kill.
FINISHED = 20


class Round:
    """One life and death of a process."""

    def __init__(self, recorder: Recorder, setting: Setting, number: int, doomed: Host, other: Host) -> None:
        self.recorder, self.setting, self.number = recorder, setting, number
        self.random = random.Random(f"{setting.seed}/kill{number}")
        # Where readers can go: the doomed one first, then the other one and the one that is started instead.
        self.doomed, self.hosts = doomed, [doomed, other]
        self.died = asyncio.Event()
        self.streams: list[Stream] = []
        # Each of them in turn, and not always the same two where there is time for two.
        self.at = STEPS[(number + sum(f"{setting.seed}{setting.server}".encode())) % len(STEPS)]

    async def run(self, proxy: Proxy) -> Host:
        """Gives the process that was started in place of the dead one."""
        self.recorder.breaks = True
        victim = self.random.randrange(SESSIONS)
        sessions = [asyncio.create_task(self.session(index, index == victim, proxy)) for index in range(SESSIONS)]
        if not await self.doomed.died(self.setting.hang_s + 20):
            self.recorder.tell("hung", session=f"k{self.number}s{victim}", says="the tool never killed its process")
        self.recorder.count("kills")
        self.recorder.count(f"kills {self.at}")
        for stream in self.streams:
            if stream.request is not None and not stream.is_over:
                stream.gone("owner_lost")
        # Those who went to the dead one find it refusing them until then.
        self.hosts = self.hosts[1:]
        self.died.set()
        again = await start(self.setting)
        self.hosts.append(again)
        for outcome in await asyncio.gather(*sessions, return_exceptions=True):
            if isinstance(outcome, BaseException) and not isinstance(outcome, Hung):
                raise outcome
        self.recorder.breaks = False
        await self.doomed.stop()
        return again

    async def session(self, index: int, is_victim: bool, proxy: Proxy) -> None:
        name = f"k{self.number}s{index}"
        client = await Session.open(self.recorder, name, self.doomed.port)
        standalone = Stream(client, "standalone")
        # Opened first, so that nothing comes before its first position is known.
        listening = await client.connect("GET", standalone, process=self.doomed.process_name)
        await self.first_id(listening)
        whole = await self.call(client, "whole", {"count": FINISHED}, None)
        if not await whole.over(self.setting.hang_s):
            raise self.hung(whole, "a short call does not end")
        # Its tool is done, and nobody has read the response.
        unread = await self.call(client, "unread", {"count": FINISHED}, proxy)
        await unread.until(lambda: unread.events >= 3, self.setting.hang_s)
        unread.drop()
        kill = {"kill": {"n": self.random.randint(15, 40), "at": self.at}} if is_victim else {}
        running = await self.call(
            client, "running", {"count": 100_000, "standalone": 50_000, "pause_ms": [0, 30], **kill}, proxy
        )
        if self.random.random() < 0.5:
            # What is stored from now on does not reach its reader.
            await running.until(lambda: running.events >= 5, self.setting.hang_s)
            (await client.link(proxy, running)).black_hole("down")
        await self.died.wait()
        for connection in (listening, unread, running):
            connection.drop()
        outcomes = await asyncio.gather(
            self.read(client, whole),
            self.read(client, unread),
            self.read(client, running),
            self.hear(client, listening, f"{name}-running"),
            return_exceptions=True,
        )
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome

    async def call(self, client: Session, name: str, plan: dict[str, object], proxy: Proxy | None) -> Connection:
        plan = {
            "facts": self.recorder.facts_file(f"{client.name}-{name}"),
            "seed": self.random.randrange(1 << 30),
            "pause_ms": [0, 2],
            "bytes": 200,
            **plan,
        }
        stream, body = client.request(name, plan)
        self.streams.append(stream)
        connection = await client.connect("POST", stream, body=body, proxy=proxy, process=self.doomed.process_name)
        await self.first_id(connection)
        return connection

    async def first_id(self, connection: Connection) -> None:
        if not await connection.until(lambda: bool(connection.ids), self.setting.hang_s):
            raise self.hung(connection, f"no first id, status {connection.status}")

    async def resumed(self, client: Session, stream: Stream, cursor: str) -> Connection:
        """At one of the processes that live. Until the next one is up, only the other one does."""
        host = self.random.choice(self.hosts)
        connection = await client.connect("GET", stream, cursor=cursor, port=host.port, process=host.process_name)
        self.recorder.count("resumes")
        return connection

    async def read(self, client: Session, before: Connection) -> None:
        """To the end: the response, or the error that says that its process is gone. Then all of it once more.

        What any reader ever got is in the store, so whoever reads from the start gets that, too.
        """
        stream = before.stream
        assert stream is not None
        await self.to_the_end(client, stream, stream.ids[-1])
        await self.to_the_end(client, stream, stream.ids[0])
        stream.done()

    async def to_the_end(self, client: Session, stream: Stream, cursor: str) -> None:
        deadline = time.monotonic() + self.setting.hang_s
        while time.monotonic() < deadline:
            connection = await self.resumed(client, stream, cursor)
            await connection.over(self.setting.hang_s)
            if connection.has_terminal or (connection.status == 204 and stream.is_over):
                return
            connection.drop()
            cursor = connection.ids[-1] if connection.ids else cursor
            await asyncio.sleep(0.05)
        raise stream.hung("no end after its process was killed")

    async def hear(self, client: Session, before: Connection, facts: str) -> None:
        """What the dead process had stored of the standalone stream."""
        stream = before.stream
        assert stream is not None
        said = [
            fact["n"] for fact in self.recorder.told(facts) if fact["fact"] == "ack" and fact["stream"] == stream.name
        ]
        last_n = max(said, default=0)
        deadline = time.monotonic() + self.setting.hang_s
        while time.monotonic() < deadline:
            connection = await self.resumed(client, stream, stream.ids[-1])
            heard = await connection.until(lambda: stream.last_n >= last_n, 2.0)
            connection.drop()
            if heard:
                stream.done()
                return
        raise self.hung(before, f"heard {stream.last_n} of {last_n} on the standalone stream")

    def hung(self, connection: Connection, says: str) -> Hung:
        assert connection.stream is not None
        return connection.stream.hung(says)


async def start(setting: Setting) -> Host:
    return await Host.start(setting.server, setting.place, owner_lost_ms=OWNER_LOST_MS)


async def run(recorder: Recorder, setting: Setting) -> None:
    hosts = [await start(setting), await start(setting)]
    try:
        number = 0
        while number < setting.size.kills or time.monotonic() < setting.deadline:
            # The two are the doomed one in turn, so that also the one that adopted sessions dies.
            doomed, other = hosts
            async with Proxy(doomed.port, f"{setting.seed}/{number}") as proxy:
                again = await Round(recorder, setting, number, doomed, other).run(proxy)
            hosts = [other, again]
            number += 1
    finally:
        with suppress(ProcessLookupError):
            for host in hosts:
                await host.stop()
