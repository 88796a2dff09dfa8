"""Three processes of one store behind a load balancer without affinity: a random one gets each request. (I3, I12, I13,
O4, O6, O17, O18; F-44, F-45, F-90 to F-93)

Under calls of all sessions the processes are restarted, one after the other: nothing is lost, nothing fails, nothing
runs twice. Then one of them is killed, stands still for longer than it may be silent, or is cut off from the store:
what runs in it ends with its result or one error, everything else goes on, and so do all sessions at all nodes. Who
cannot connect tries another node; whatever else a client meets is counted, or is a fault.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from torture.fleet import Fleet, Node, Roamer, fleet
from torture.hosts import FLEETS
from torture.pauses import UNSURE
from torture.recorder import Recorder
from torture.setting import Setting
from torture.wire import Connection, Hung, Stream

# Longer than a busy machine lets a process stand still that has to be taken for alive.
OWNER_LOST_MS = 6_000
# A process that drains waits for its calls; the longest takes half a minute, and a machine may be busy.
DRAIN_MS = 120_000
# How long nodes are paused and cut off, in their own measure.
TIMES = 2
EVENTS = 20
STANDALONE = 10
# After so long without a head a client asks another node for its stream.
PATIENCE_S = 5.0
SILENT = b"the event store gives no sign"
# How likely a reader leaves a connection that works, to come back somewhere else.
LEAVES = 0.3


@dataclass(eq=False)
class Call:
    """A call, and what its client has to say about its end."""

    stream: Stream
    facts: str
    # While a node was lost. Then its end may be an error, where no other node ran it.
    in_fault: bool
    # Its connection ended before its first id: nobody can come back to it. Without an answer it may run all the same.
    is_given_up: bool = False
    is_refused: bool = False
    over_at: float | None = None

    @property
    def is_settled(self) -> bool:
        return self.over_at is not None or self.is_given_up


class Round:
    """Sessions with calls, while something befalls the nodes."""

    def __init__(self, recorder: Recorder, setting: Setting, number: int, fleet: Fleet, longest_s: float) -> None:
        self.longest_s = longest_s
        self.recorder, self.setting, self.number, self.fleet = recorder, setting, number, fleet
        self.seed = f"{setting.seed}/nodes{number}"
        self.random = random.Random(self.seed)
        self.calls: list[Call] = []
        self.is_enough = False
        # Processes whose calls may end with an error, and whether one of them is lost now.
        self.lost: set[int] = set()
        self.in_fault = False
        # The lost process is there again, and others may take it for gone for a while.
        self.comes_back = False

    async def run(self, befall: Callable[[Round], Awaitable[None]]) -> None:
        clients = await asyncio.gather(
            *(
                Roamer.enter(self.recorder, f"n{self.number}s{index}", self.fleet, f"{self.seed}/{index}")
                for index in range(self.setting.sessions)
            )
        )
        load = [asyncio.create_task(self.session(client)) for client in clients]
        try:
            await self.until(self.is_busy, "calls do not begin")
            await befall(self)
        finally:
            self.is_enough = True
            outcomes = await asyncio.gather(*load, return_exceptions=True)
            self.in_fault, self.recorder.breaks = self.comes_back, False
        outcomes += await asyncio.gather(*(self.goes_on(client) for client in clients), return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException) and not isinstance(outcome, Hung):
                raise outcome

    # What befalls the nodes

    def begin_fault(self, node: Node) -> list[Call]:
        """A node is lost from now on. Gives the calls that run in it."""
        self.in_fault = True
        self.lost.add(node.process)
        running = []
        for call in self.calls:
            if call.is_settled:
                continue
            call.in_fault = True
            ran = self.ran(call)
            if not ran or node.process in ran:
                call.stream.gone("owner_lost")
            if node.process in ran:
                running.append(call)
        return running

    def is_busy(self) -> bool:
        """Whether a call of each session is amid its events."""
        busy = {call.stream.session.name for call in self.calls if call.stream.last_n > 0 and not call.is_settled}
        return len(busy) >= min(self.setting.sessions, 3)

    async def until(self, condition: Callable[[], bool], says: str) -> None:
        deadline = time.monotonic() + self.setting.hang_s
        while not condition():
            if time.monotonic() > deadline:
                self.recorder.tell("hung", session=f"n{self.number}", says=says)
                return
            await asyncio.sleep(0.02)

    # Sessions

    async def session(self, client: Roamer) -> None:
        """Two calls at once, again and again, and a reader of the standalone stream where nothing is lost of it."""
        number = 0
        while number == 0 or not self.is_enough:
            both = [self.call(client, f"{side}{number}") for side in "ab"]
            if number == 0 and not self.lost:
                both.append(self.listen(client))
            for outcome in await asyncio.gather(*both, return_exceptions=True):
                if isinstance(outcome, BaseException):
                    raise outcome
            number += 1

    async def listen(self, client: Roamer) -> None:
        """Hear all that a call of its own says on the standalone stream."""
        stream = Stream(client, "standalone")
        connection = await self.listening(client, stream)
        saying = asyncio.create_task(self.call(client, "says", {"count": EVENTS, "standalone": STANDALONE}))
        deadline = time.monotonic() + self.setting.hang_s + self.longest_s
        while stream.last_n < STANDALONE and not self.in_fault:
            if time.monotonic() > deadline:
                raise stream.hung(f"heard {stream.last_n} of {STANDALONE}")
            await connection.until(lambda: stream.last_n >= STANDALONE, 0.5)
            if connection.closed is not None or self.random.random() < LEAVES / 3:
                connection.drop()
                connection = await self.resumed(client, stream)
        connection.drop()
        await saying
        if stream.last_n >= STANDALONE:
            stream.done()

    async def goes_on(self, client: Roamer) -> None:
        """Whatever befell them, the session is served by every node under its own id, and ends as it is asked to."""
        for at, node in enumerate(self.fleet.nodes):
            client.node = node
            deadline, tries = time.monotonic() + self.setting.hang_s, 0
            while True:
                call = await self.call(client, f"on{at}-{tries}", {"count": 3, "pause_ms": [0, 5]})
                if not call.stream.is_failed:
                    break
                if time.monotonic() > deadline:
                    raise call.stream.hung(f"the session does not go on at each node: {self.error(call)}")
                tries += 1
                await asyncio.sleep(0.2)
        client.node = None
        for call in self.calls:
            if call.stream.session is not client or not (call.in_fault or call.is_given_up):
                continue
            if call.over_at is not None:
                # Nothing was added to its log since.
                await self.again(client, call.stream)
                call.stream.done()
            elif self.ran(call) and (call.is_refused or not call.in_fault):
                call.stream.hung("answered 503, and runs" if call.is_refused else "runs, and was cut without an id")
        if (status := await client.leave()) != 200:
            raise call.stream.hung(f"the session's DELETE is answered {status}")

    # Calls

    async def call(self, client: Roamer, name: str, plan: dict[str, object] | None = None) -> Call:
        seconds = math.exp(self.random.uniform(math.log(self.setting.size.call_s[0]), math.log(self.longest_s)))
        steps = {
            "count": EVENTS,
            # Half of the events follow at once.
            "pause_ms": [1_000 * seconds / EVENTS, 3_000 * seconds / EVENTS],
            "bytes": 100,
            "close": 0.05,
            "unsure": UNSURE,
            **(plan or {}),
        }
        deadline, tries = time.monotonic() + self.setting.hang_s, 0
        while True:
            # Who was not answered, or refused, calls again: it is another call.
            call, connection = await self.posted(client, f"{name}.{tries}" if tries else name, steps)
            tries += 1
            if connection is not None:
                break
            if time.monotonic() > deadline:
                raise call.stream.hung("is not served")
            if call.in_fault:
                # It may run all the same, also later, and says what it has to.
                steps["standalone"] = 0
            await asyncio.sleep(0.2)
        await self.read(client, call, connection)
        self.judge(call)
        return call

    async def posted(self, client: Roamer, name: str, steps: dict[str, object]) -> tuple[Call, Connection | None]:
        """A call, and its connection if one can come back to it, or it has its end."""
        facts = f"{client.name}-{name}"
        plan = {"facts": self.recorder.facts_file(facts), "seed": self.random.randrange(1 << 30), **steps}
        stream, body = client.request(name, plan)
        call = Call(stream, facts, self.in_fault)
        self.calls.append(call)
        if self.in_fault:
            stream.gone("owner_lost")
        self.recorder.count("calls")
        connection = await client.connect("POST", stream, body=body)
        if await self.primed(connection):
            return call, connection
        call.is_given_up = True
        if connection.status == 503:
            call.is_refused = True
            self.refused(connection)
        elif connection.status == 504 and call.in_fault:
            self.recorder.count("calls whose node cannot tell whether they run")
        elif connection.status not in (None, 200):
            raise stream.hung(f"answered {connection.status}: {bytes(connection.body[-300:])!r}")
        elif call.in_fault:
            self.recorder.count("calls cut before their first id")
        else:
            # A socket that is closed drops the connections that wait to be accepted. It is not to be running.
            self.recorder.count("calls in the queue of a process that ends")
        return call, None

    async def primed(self, connection: Connection) -> bool:
        """Whether one can come back to it, or has no need to. False when it is over before."""
        stream = connection.stream
        assert stream is not None
        if await connection.until(lambda: bool(connection.ids) or connection.has_terminal, self.setting.hang_s):
            return True
        if connection.closed is None:
            connection.drop()
            raise stream.hung(f"no first id, status {connection.status}")
        return False

    async def listening(self, client: Roamer, stream: Stream) -> Connection:
        """A first connection of the standalone stream that its reader can come back from."""
        deadline = time.monotonic() + self.setting.hang_s
        while time.monotonic() < deadline:
            connection = await client.connect("GET", stream)
            if await self.primed(connection):
                return connection
            if connection.status == 503:
                self.refused(connection)
            elif connection.status not in (None, 200):
                raise stream.hung(f"its first connection is answered {connection.status}")
            # A process that ends cuts it.
            self.recorder.count("connections cut before their first id")
            await asyncio.sleep(0.05)
        raise stream.hung("no connection has a first id")

    async def read(self, client: Roamer, call: Call, connection: Connection) -> None:
        stream = call.stream
        while not stream.is_over:
            stay_s = self.stay()
            await connection.until(lambda: stream.is_over, stay_s)
            if stream.is_over:
                break
            if connection.closed is None and stay_s >= self.setting.hang_s:
                connection.drop()
                raise stream.hung("no end")
            connection.drop()
            connection = await self.resumed(client, stream)
        call.over_at = time.monotonic()
        if not await connection.over(self.setting.hang_s):
            raise stream.hung("the connection of its end stays open")
        if not call.in_fault:
            stream.done()

    def stay(self) -> float:
        """How long a reader stays on a connection."""
        if self.random.random() < LEAVES:
            return self.random.uniform(0, self.longest_s / 4)
        # A call takes its time.
        return self.setting.hang_s + self.longest_s

    async def resumed(self, client: Roamer, stream: Stream) -> Connection:
        """At any node, behind what was read."""
        deadline = time.monotonic() + self.setting.hang_s
        status: int | None = None
        while time.monotonic() < deadline:
            connection = await client.connect("GET", stream, cursor=stream.ids[-1])
            await connection.until(lambda: connection.status is not None, PATIENCE_S)  # noqa: B023
            status = connection.status
            self.recorder.count("resumes")
            if status == 200:
                return connection
            await connection.over(PATIENCE_S if status is not None else 0)
            connection.drop()
            if status == 503:
                self.refused(connection)
            elif status is None:
                self.recorder.count("resumes without an answer")
            else:
                raise stream.hung(f"its resume is answered {status}")
            await asyncio.sleep(0.05)
        raise stream.hung(f"cannot be resumed, status {status}")

    async def again(self, client: Roamer, stream: Stream) -> None:
        """Read all of it once more: what is in its log is what was seen."""
        deadline = time.monotonic() + self.setting.hang_s
        while time.monotonic() < deadline:
            connection = await client.connect("GET", stream, cursor=stream.ids[0])
            await connection.over(PATIENCE_S)
            connection.drop()
            if connection.has_terminal or connection.status == 204:
                return
            await asyncio.sleep(0.05)
        raise stream.hung(f"cannot be read again, status {connection.status}")

    def refused(self, connection: Connection) -> None:
        """A node says that it cannot now. Where nothing was lost, no node has a reason to."""
        if SILENT in connection.body:
            # A machine that stands still for seconds lets every process take itself for cut off.
            self.recorder.count("answers 503 of a process that the store gives no sign")
            return
        self.recorder.count("answers 503")
        if not self.lost:
            assert connection.stream is not None
            raise connection.stream.hung(f"answered 503 though nothing is lost: {bytes(connection.body[-300:])!r}")

    # Verdicts

    def ran(self, call: Call) -> list[int]:
        """The processes that ran it, one for each time."""
        return [fact["process"] for fact in self.recorder.told(call.facts) if fact["fact"] == "note"]

    def judge(self, call: Call) -> None:
        ran = self.ran(call)
        if len(ran) > 1:
            raise call.stream.hung(f"ran {len(ran)} times, in {ran}")
        if not call.stream.is_failed:
            return
        self.recorder.count("calls with an error")
        if not call.in_fault or not self.lost.issuperset(ran):
            raise call.stream.hung(f"ends with an error, and its process {ran} is well: {self.error(call)}")

    def error(self, call: Call) -> str:
        return call.stream.end[-300:]


# The faults


async def rolling(round: Round) -> None:
    """Each process in turn is asked to end, and waited for; the next one begins at its port."""
    for node in round.random.sample(round.fleet.nodes, len(round.fleet.nodes)):
        wrong = await node.restart(DRAIN_MS / 1000 + round.setting.hang_s)
        round.recorder.count("restarts")
        if wrong is not None:
            round.recorder.tell("hung", session=f"n{round.number}", says=f"a process that was asked to end: {wrong}")


async def kill(round: Round) -> None:
    """What ran there ends with one error, soon after it has been silent for long enough."""
    node = round.fleet.any(round.random)
    round.recorder.breaks = True
    running = round.begin_fault(node)
    node.kill()
    killed = time.monotonic()
    round.recorder.count("kills")
    await round.until(lambda: all(call.is_settled for call in running), "a call of a killed process has no end")
    for call in running:
        if call.over_at is not None:
            round.recorder.longest("ms to the end of a call whose process was killed", (call.over_at - killed) * 1000)
    node.stop()
    await node.start()


async def pause(round: Round) -> None:
    """A process that was taken for gone is back, and nothing of it reaches anybody."""
    node = round.fleet.any(round.random)
    await node.stand_still()
    try:
        node.is_avoided = True
        round.begin_fault(node)
        round.recorder.count("pauses")
        await asyncio.sleep(TIMES * OWNER_LOST_MS / 1000)
    finally:
        round.comes_back, node.is_avoided = True, False
        node.go_on()


async def partition(round: Round) -> None:
    """A process that runs, and is reached by clients, and not by the store."""
    node = round.fleet.any(round.random)
    assert node.path is not None
    round.begin_fault(node)
    node.path.silence()
    round.recorder.count("partitions")
    try:
        await asyncio.sleep(TIMES * OWNER_LOST_MS / 1000)
    finally:
        round.comes_back = True
        node.path.heal()


async def run(recorder: Recorder, setting: Setting) -> None:
    faults = [kill, pause] if setting.store == "sqlite" else [kill, pause, partition]
    # Where there is time for one, servers and seeds differ in which.
    first = sum(setting.seed.encode()) + list(FLEETS).index(setting.server)
    async with fleet(setting, owner_lost_ms=OWNER_LOST_MS, drain_within_ms=DRAIN_MS) as nodes:
        number = 0
        while number <= setting.size.node_faults or time.monotonic() < setting.deadline:
            fault = rolling if number % (len(faults) + 1) == 0 else faults[(first + number) % len(faults)]
            # What is lost takes its time anyhow.
            longest_s = setting.size.call_s[1] / (1 if fault is rolling else 4)
            await Round(recorder, setting, number, nodes, max(longest_s, setting.size.call_s[0])).run(fault)
            number += 1
