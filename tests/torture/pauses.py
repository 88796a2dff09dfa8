"""An owner that stands still for longer than it may be silent, as on a frozen machine, and goes on. (I1, I3, I4, I13)

Its calls are read at the other process that shares the store, which takes their sessions over and ends their calls.
Then the owner wakes up amid its tools, with events in flight, and readers of its own. What was taken over is over
there, too. The session goes on with another server object, or is unknown where its host builds none. A session that
nobody read elsewhere goes on as if nothing had been.
"""

from __future__ import annotations

import asyncio
import signal
import time
from contextlib import suppress

from torture.hosts import Host, hosted
from torture.recorder import Recorder
from torture.rounds import AHEAD, Round
from torture.setting import Setting
from torture.wire import Connection, Hung, Session, Stream

SESSIONS = 6
# Longer than a busy machine lets the other one, which has to be taken for alive, stand still.
OWNER_LOST_MS = 6_000
# How much longer than that it stands still, at least and at most.
LONGER_S = (0.5, 3.0)
# Where a call is read while its owner stands still.
WAYS = ("stays", "was elsewhere", "moves")
# An event in flight may be too late when it is answered: whether it was stored is not known then. Other faults say why.
UNSURE = "did not store the event"


class Pause(Round):
    """Some sessions, and one time of standing still."""

    def __init__(self, recorder: Recorder, setting: Setting, number: int, owner: Host, other: Host) -> None:
        super().__init__(recorder, setting, f"{setting.seed}/pause{number}", [owner, other])
        self.number, self.owner, self.other = number, owner, other
        # Sessions that were taken over and answer all the same: each was adopted.
        self.going_on = self.adopted_before = 0
        self.ready = 0
        self.asleep, self.awake = asyncio.Event(), asyncio.Event()
        self.until = recorder.folder / f"pause{number}.end"

    async def adoptions(self) -> int:
        """How often the two processes have adopted a session."""
        return sum([(await host.stats())["sessions_adopted"] for host in (self.owner, self.other)])

    async def run(self) -> None:
        self.adopted_before = await self.adoptions()
        sessions = [asyncio.create_task(self.session(index)) for index in range(SESSIONS)]
        pausing = asyncio.create_task(self.pause())
        outcomes = await asyncio.gather(*sessions, return_exceptions=True)
        self.until.touch()
        # Who is waited for may have hung.
        self.ready = SESSIONS
        await pausing
        for outcome in outcomes:
            if isinstance(outcome, BaseException) and not isinstance(outcome, Hung):
                raise outcome

    async def pause(self) -> None:
        while self.ready < SESSIONS:
            await asyncio.sleep(0.01)
        await asyncio.sleep(self.random.uniform(0, 0.3))
        process = self.first.process
        try:
            await self.first.stand_still()
            self.recorder.count("pauses")
            for stream in self.streams:
                if not stream.is_over:
                    stream.gone("owner_lost")
            self.hosts = [self.other]
            self.asleep.set()
            await asyncio.sleep(OWNER_LOST_MS / 1000 + self.random.uniform(*LONGER_S))
        finally:
            process.send_signal(signal.SIGCONT)
        self.hosts = [self.first, self.other]
        self.awake.set()
        # Its tools go on for a while.
        await asyncio.sleep(self.random.uniform(0.1, 0.6))
        self.until.touch()

    async def session(self, index: int) -> None:
        name = f"p{self.number}s{index}"
        client = await Session.open(self.recorder, name, self.first.port)
        standalone = Stream(client, "standalone")
        # Opened first, so that nothing comes before its first position is known.
        listening = await client.connect("GET", standalone, process=self.first.process_name)
        await self.first_id(listening)
        running = await self.call(
            client,
            "running",
            {"until": str(self.until), "count": 100_000, "standalone": 50_000, "pause_ms": [0, 30], "unsure": UNSURE},
            None,
        )
        # Over before the owner stands still, or after it, or amid its last events.
        brief = await self.call(
            client, "brief", {"count": self.random.randint(5, 60), "pause_ms": [0, 20], "unsure": UNSURE}, None
        )
        await running.until(lambda: running.events >= 5, self.setting.hang_s)
        reading = [
            asyncio.create_task(self.follow(client, connection, self.random.choice(WAYS)))
            for connection in (running, brief)
        ]
        self.ready += 1
        await self.asleep.wait()
        outcomes = await asyncio.gather(*reading, return_exceptions=True)
        await self.awake.wait()
        await self.spoken(f"{name}-running")
        listening.drop()
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
        answered = await self.is_answered(client, running)
        is_taken_over = not answered or running.stream.is_failed or brief.stream.is_failed
        if is_taken_over:
            self.recorder.count("adopted" if answered else "taken over")
            standalone.gone("owner_lost")
        if is_taken_over and answered:
            self.going_on += 1
            if await self.adoptions() - self.adopted_before < self.going_on:
                raise self.hung(running, "its owner goes on with a session that another process has ended")
        await self.hear(client, listening, f"{name}-running", AHEAD if is_taken_over else 0)

    async def follow(self, client: Session, connection: Connection, way: str) -> None:
        """Read a call to its end, somewhere; then as everybody does who comes back later."""
        stream = connection.stream
        assert stream is not None
        self.recorder.count(f"readers: {way}")
        if way == "was elsewhere":
            connection.drop()
            connection = await self.at_other(client, stream)
        await self.asleep.wait()
        if way == "moves":
            connection.drop()
            connection = await self.at_other(client, stream)
        if way == "stays":
            await self.awake.wait()
        started = time.monotonic()
        if not await connection.over(self.setting.hang_s):
            raise stream.hung(f"no end for a reader that {way}")
        self.recorder.longest("end ms", (time.monotonic() - started) * 1000)
        await self.awake.wait()
        await self.read(client, connection)

    async def is_answered(self, client: Session, connection: Connection) -> bool:
        """Whether the session goes on. Its owner learns from the store, at the latest now, that it was taken over."""
        deadline = time.monotonic() + self.setting.hang_s
        while time.monotonic() < deadline:
            reply = await client.peer.post(
                {"jsonrpc": "2.0", "id": "ping", "method": "ping"}, wait_s=self.setting.hang_s
            )
            answer = await reply.body(self.setting.hang_s)
            reply.close()
            if reply.status == 404 or b'"result"' in answer:
                return reply.status != 404
        raise self.hung(connection, f"a ping is neither answered nor refused, status {reply.status}")

    async def spoken(self, facts: str) -> None:
        """Wait until a tool says nothing more: it has ended, or was told to."""
        deadline, said = time.monotonic() + self.setting.hang_s, 0
        while time.monotonic() < deadline:
            told = self.recorder.told(facts)
            if self.until.exists() and (len(told) == said or told[-1].get("n") == "end"):
                return
            said = len(told)
            await asyncio.sleep(0.5)

    async def at_other(self, client: Session, stream: Stream) -> Connection:
        return await client.connect(
            "GET", stream, cursor=stream.ids[-1], port=self.other.port, process=self.other.process_name
        )


async def run(recorder: Recorder, setting: Setting) -> None:
    hosts = [await hosted(setting.server, setting.place, owner_lost_ms=OWNER_LOST_MS) for _ in range(2)]
    try:
        number = 0
        while number < setting.size.pauses or time.monotonic() < setting.deadline:
            # Each in turn, so that also one that was thought gone is the one that others go to.
            owner, other = hosts if number % 2 == 0 else hosts[::-1]
            await Pause(recorder, setting, number, owner, other).run()
            number += 1
    finally:
        with suppress(ProcessLookupError):
            for host in hosts:
                host.stop()
