"""Servers that are killed between any two steps, and clients that come back to the next process or to another one that
shares the store. (D3; I1, I3, I13, F-16, F-17, F-45, F-94)

A tool kills its own process before an event is sent, when it is sent and nothing is known of it, when it is taken, or
when it may be on the wire. Some readers are behind a black hole by then, so that what was stored never reached them.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress

from torture.hosts import Host, hosted
from torture.proxy import Proxy
from torture.recorder import Recorder
from torture.rounds import AHEAD, Round
from torture.setting import Setting
from torture.wire import Hung, Session, Stream

SESSIONS = 5
# Long enough for a process that lives on a busy machine, and not too long to wait for.
OWNER_LOST_MS = 6_000
STEPS = ("before", "sent", "taken", "later")
# Events of a call that is over before the kill.
FINISHED = 20


class Life(Round):
    """One life and death of a process."""

    def __init__(self, recorder: Recorder, setting: Setting, number: int, doomed: Host, other: Host) -> None:
        # Where readers can go: the doomed one first, then the other one and the one that is started instead.
        super().__init__(recorder, setting, f"{setting.seed}/kill{number}", [doomed, other])
        self.doomed, self.number = doomed, number
        self.died = asyncio.Event()
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
            if not stream.is_over:
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
        self.doomed.stop()
        return again

    async def session(self, index: int, is_victim: bool, proxy: Proxy) -> None:
        name = f"k{self.number}s{index}"
        client = await Session.open(self.recorder, name, self.doomed.port)
        standalone = Stream(client, "standalone")
        self.streams.append(standalone)
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
        # So late that the first events are stored for certain, and have to come.
        kill = {"kill": {"n": self.random.randint(AHEAD + 10, AHEAD + 50), "at": self.at}} if is_victim else {}
        running = await self.call(
            client, "running", {"count": 100_000, "standalone": 100_000, "pause_ms": [0, 30], **kill}, proxy
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
            self.hear(client, listening, f"{name}-running", AHEAD),
            return_exceptions=True,
        )
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome


async def start(setting: Setting) -> Host:
    return await hosted(setting.server, setting.place, owner_lost_ms=OWNER_LOST_MS)


async def run(recorder: Recorder, setting: Setting) -> None:
    hosts = [await start(setting), await start(setting)]
    try:
        number = 0
        while number < setting.size.kills or time.monotonic() < setting.deadline:
            # The two are the doomed one in turn, so that also the one that looked sessions up dies.
            doomed, other = hosts
            async with Proxy(doomed.port, f"{setting.seed}/{number}") as proxy:
                again = await Life(recorder, setting, number, doomed, other).run(proxy)
            hosts = [other, again]
            number += 1
    finally:
        with suppress(ProcessLookupError):
            for host in hosts:
                host.stop()
