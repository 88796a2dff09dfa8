"""Rude clients at the front of one process, beside polite ones: a part of crowd.py; rude.py says what they do.

Polite clients get every answer, in bounded time. Each way of abuse costs a bounded amount of memory, and no more when
it comes again. The server closes the connections itself, in its own time-outs. What hyper alone does is not judged.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from kit.peer import results
from kit.servers import ALONE, TESTS, Kind, Server, until

from torture.crowd_client import Client, Line
from torture.part import Part, check_log, options, spread

PEER = ALONE.name
POLITE = 4
# A polite client that waits for longer gets no answer.
POLITE_S = 30.0
PAUSE_S = 0.02
# Calls of each polite client before the abuse begins.
CALM = 20
LOOK_S = 0.05
# With fewer clients all ways come at once, and what takes a minute is left out.
FEW = 1_000
FULL = 10_000
KB, MB = 1_000, 1_000_000
# What memory may grow by in any case, also from the last wave but one to the last.
SLACK = 96 * MB
WAVES = 3


@dataclass(frozen=True)
class Way:
    """How many of 10,000 clients are rude in this way, and what each connection may hold."""

    of_full: int
    holds: int
    waves: int = WAVES


WAYS = {
    "idle": Way(10_000, 16 * KB),
    "slow": Way(1_000, 32 * KB),
    "endless": Way(500, 160 * KB),
    "pipelined": Way(50, 500 * KB),
    "unread": Way(100, 1 * MB),
    "chunks": Way(500, 160 * KB),
    "large": Way(50, 16 * MB),
    "tiny": Way(50, 2 * MB),
    "half": Way(1_000, 32 * KB),
    "churn": Way(10_000, 16 * KB),
    "silent": Way(500, 32 * KB, waves=1),
}
LONG = "silent"


@dataclass
class Polite:
    """Polite clients, and how long they waited: for a call, and for what the front passes on."""

    port: int
    calls: list[float] = field(default_factory=list)
    passed: list[float] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    async def run(self, number: int) -> None:
        client = Client(number, self.port)
        await client.enter()
        while True:
            for times, ask in ((self.calls, call), (self.passed, pass_on)):
                started = time.perf_counter()
                try:
                    async with asyncio.timeout(POLITE_S):
                        await ask(client)
                except Exception as fault:
                    self.faults.append(f"{ask.__name__}: {type(fault).__name__} {fault}")
                times.append(time.perf_counter() - started)
                client.line.cut()
                await asyncio.sleep(PAUSE_S)

    def told(self) -> str:
        said = f"calls {spread(self.calls)}; passed on {spread(self.passed)}"
        self.calls.clear()
        self.passed.clear()
        return said


async def call(client: Client) -> None:
    client.line = await Line.open(client.port)
    client.post({"id": 1, "method": "tools/call", "params": {"name": "echo", "arguments": {"text": client.name}}})
    await client.line.whole()
    assert results(client.line.blocks) == [client.name], (client.line.status, client.line.blocks)


async def pass_on(client: Client) -> None:
    client.line = await Line.open(client.port)
    client.line.ask("PUT", "/elsewhere", {}, b"{}")
    await client.line.whole()
    # The app knows no such path, or no such method. The front would say 502.
    assert 400 <= client.line.status < 500, client.line.status


@asynccontextmanager
async def polite(port: int) -> AsyncIterator[Polite]:
    clients = Polite(port)
    running = [asyncio.create_task(clients.run(number)) for number in range(POLITE)]
    try:
        yield clients
    finally:
        for each in running:
            each.cancel()
        for outcome in await asyncio.gather(*running, return_exceptions=True):
            if not isinstance(outcome, asyncio.CancelledError):
                clients.faults.append(f"{outcome!r}")


@dataclass
class Wave:
    """What the server took while the rude clients were there, and behind them; and what these saw."""

    peak: int
    left: int
    found: dict[str, dict[str, object]]


async def wave(server: Server, session: str, counts: dict[str, int]) -> Wave:
    open_before = server.descriptors()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "torture.rude", str(server.port), session),
        *(f"{way}={count}" for way, count in counts.items()),
        cwd=TESTS,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        ending = asyncio.ensure_future(process.communicate())
        peak = server.rss()
        while not (await asyncio.wait([ending], timeout=LOOK_S))[0]:
            peak = max(peak, server.rss())
        found = json.loads((await ending)[0])
    finally:
        if process.returncode is None:
            process.kill()

    async def opened() -> int:
        return server.descriptors() - open_before

    # Polite clients come and go.
    await until(opened, lambda count: count <= 6 * POLITE)
    return Wave(peak, server.rss(), found)


async def abused(server: Server, part: Part, counts: dict[str, int], waves: int, clients: Polite, session: str) -> None:
    """Wave after wave of the same."""
    before, name = server.rss(), " ".join(counts)
    clients.told()
    done = [await wave(server, session, counts) for _ in range(waves)]
    most, left = max(each.peak for each in done) - before, [each.left - before for each in done]
    ends = {way: found["ends"] for way, found in done[-1].found.items()}
    part.tell(
        f"{sum(counts.values())} {name}: {clients.told()}; {most / MB:+.1f} MB, {left[-1] / MB:+.1f} MB afterwards; "
        f"ended by {json.dumps(ends)}"
    )
    bound = SLACK + sum(WAYS[way].holds * count for way, count in counts.items())
    if most > bound:
        part.faults.append(f"{name}: memory grows by {most / MB:.0f} MB, {bound / MB:.0f} MB may be")
    if len(left) > 1 and left[-1] - left[-2] > SLACK:
        part.faults.append(f"{name}: memory grows with each wave: {[round(each / MB) for each in left]} MB")
    for each in done:
        for way, found in each.found.items():
            for what in ("kept", "refused"):
                if found[what]:
                    part.faults.append(f"{way}: {found[what]} connections were {what}")


async def abuse(kind: Kind, part: Part) -> None:
    counts = {way: max(part.clients * it.of_full // FULL, 4) for way, it in WAYS.items()}
    if part.clients < FEW:
        del counts[LONG]
        rounds = [(counts, 1)]
    else:
        rounds = [({way: count}, WAYS[way].waves) for way, count in counts.items()]
    async with Server.running(kind, options(part.clients)) as server:
        owner = Client(0, server.port)
        await owner.enter()
        assert owner.session is not None
        async with polite(server.port) as clients:

            async def asked() -> int:
                return len(clients.passed)

            await until(asked, lambda count: count >= CALM * POLITE or bool(clients.faults))
            part.tell(f"alone: {clients.told()}")
            for some, waves in rounds:
                await abused(server, part, some, waves, clients, owner.session)
        part.faults += clients.faults
        check_log(part, server)
    if kind is ALONE:
        part.faults.clear()
