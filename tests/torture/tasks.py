"""Calls that become tasks, on processes that are killed, stand still, restart, and lose their store. (T-01 to T-27)

Clients without affinity call, poll, answer and cancel all the time, while something befalls the processes: most often
SIGKILL, now and then a pause shorter or longer than an owner may be silent, a restart, a store that refuses everybody,
or a process that the store does not hear. What has to hold is in task_rules.py. Then races, on processes that are well:
task_races.py.

    tests/services/with redis postgres -- .venv/mcp2/bin/python -m torture.tasks     (in tests/; `make torture-tasks`)
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import random
import sqlite3
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from torture.ending import end
from torture.fleet import Fleet, Node, fleet
from torture.hosts import build_rust
from torture.recorder import Recorder
from torture.setting import SHORT, Setting
from torture.task_client import Client
from torture.task_races import RACES, race
from torture.task_rules import Case, Fates, judge

# The servers, and how often processes of each are killed on each store.
SERVERS = {"mcp2": 200, "handler-v2": 60, "tower": 60}
# Their SDKs let handlers of 2026-07-28 ask while they run.
ASK = ("mcp2", "handler-v2")
# How many processes each store has.
STORES = {"sqlite": 2, "redis": 3, "postgres": 3}
RACED = 20
CLIENTS = 12
TASK_AFTER_MS = 100
LONGEST_MS = 4_000
# Shorter than some calls take.
DRAIN_MS = 3_000
HOUR_MS = 3_600_000
# Longer than a busy machine lets a process stand still that has to be taken for alive.
OWNER_LOST_MS = 6_000
# Every so many kills, nothing else happens until what was lost has its end.
CALM_EVERY = 4
# Every so many kills, something else befalls the processes.
OTHER_EVERY = 5
CANCELLED = 0.15
AWAY_S = 5.0
# A machine that stood still for so long makes everything late.
STALL_S = 0.5
HANG_S = 60.0


@dataclass
class Trial:
    """What came of one server on one store."""

    server: str
    store: str
    notes: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    races: dict[str, Counter[str]] = field(default_factory=dict)

    def __str__(self) -> str:
        counts = ", ".join(f"{count:,} {what}" for what, count in sorted(self.notes.items()))
        lines = [f"{self.server} on {self.store}: {counts}; {len(self.faults)} faults"]
        lines += [f"  {name}: {dict(sorted(of.items()))}" for name, of in self.races.items()]
        return "\n".join([*lines, *(f"  {fault}" for fault in self.faults[:30])])


class Ordeal:
    """The processes of one store, their clients, and what befalls them."""

    def __init__(self, trial: Trial, setting: Setting, fleet: Fleet, owner_lost_ms: int) -> None:
        self.trial, self.setting, self.fleet = trial, setting, fleet
        self.owner_lost_s = owner_lost_ms / 1_000
        self.recorder = Recorder(setting.folder)
        self.random = random.Random(f"{setting.seed}/ordeal")
        self.fates = Fates()
        self.clients: list[Client] = []
        self.is_enough = self.is_late = False

    # Load

    def plan(self, name: str, dice: random.Random) -> dict[str, Any]:
        # Some end before they are a task.
        plan: dict[str, Any] = {
            "token": name,
            "facts": self.recorder.facts_file(name),
            "ms": dice.choice([0, dice.uniform(0, 2 * TASK_AFTER_MS), dice.uniform(0, LONGEST_MS)]),
            "says": int(dice.random() < 0.3),
        }
        kind = dice.choice(["plain", "rounds", *(("asks", "both") if self.setting.server in ASK else ())])
        if kind != "plain":
            plan["ms"] /= 3
        if kind in ("asks", "both"):
            plan["asks"] = dice.randint(1, 2)
        if kind in ("rounds", "both"):
            plan |= {"rounds": dice.randint(1, 2), "keys": dice.randint(1, 3)}
        return plan

    @property
    def one_question(self) -> dict[str, Any]:
        """A plan with one question of a task."""
        return {"asks": 1} if self.setting.server in ASK else {"rounds": 1, "ms": 1.5 * TASK_AFTER_MS}

    async def load(self, index: int) -> None:
        """Calls, one after the other."""
        number = 0
        while number == 0 or not self.is_enough:
            name = f"c{index}n{number}"
            dice = random.Random(f"{self.setting.seed}/{name}")
            client = self.client(name, self.plan(name, dice))
            self.clients.append(client)
            await client.play(dice.uniform(0, 2) if dice.random() < CANCELLED else None)
            number += 1

    def client(self, name: str, plan: dict[str, Any]) -> Client:
        return Client(Case(name, plan), self.fleet, f"{self.setting.seed}/{name}", lambda: self.is_late)

    async def watch(self) -> None:
        """Notes when this machine stands still."""
        before = time.monotonic()
        while True:
            await asyncio.sleep(0.05)
            now = time.monotonic()
            if now - before > STALL_S:
                self.fates.befell()
                self.trial.notes["stalls of this machine"] += 1
            before = now

    # What befalls

    async def kill(self) -> None:
        node = self.fleet.any(self.random)
        self.fates.ends[node.process] = time.monotonic()
        self.fates.lost.add(node.process)
        node.kill()
        self.fates.befell()
        assert node.host is not None
        await node.host.died(HANG_S)
        self.read_log(node)
        node.stop()
        # Who connected now would wait for the next one to begin.
        node.is_avoided = True
        await node.start()
        node.is_avoided = False
        self.fates.befell()

    def read_log(self, node: Node) -> None:
        assert node.host is not None
        log = node.host.log()
        if "Traceback" in log or "never retrieved" in log:
            self.trial.faults.append(f"a process logs {log[-3000:]}")

    async def drain(self) -> None:
        node = self.fleet.any(self.random)
        node.is_avoided = True
        # What runs for longer than the drain fails.
        self.fates.ends[node.process] = time.monotonic()
        self.fates.lost.add(node.process)
        self.fates.befell()
        wrong = await node.restart(DRAIN_MS / 1_000 + HANG_S)
        self.fates.befell()
        node.is_avoided = False
        if wrong is not None:
            self.trial.faults.append(f"a process that was asked to end: {wrong}")

    async def pause(self, for_s: float) -> None:
        node = self.fleet.any(self.random)
        begun = time.monotonic()
        await node.stand_still()
        self.fates.befell()
        try:
            await asyncio.sleep(for_s)
        finally:
            if for_s > self.owner_lost_s or time.monotonic() - begun > self.owner_lost_s / 2:
                self.fates.lost.add(node.process)
            node.go_on()
            self.fates.befell()

    async def pause_short(self) -> None:
        await self.pause(self.owner_lost_s / 4)

    async def pause_long(self) -> None:
        await self.pause(self.owner_lost_s * 1.5)

    async def away(self) -> None:
        """Nobody reaches the store."""
        async with self.refusing():
            await asyncio.sleep(self.random.uniform(0.5, AWAY_S))
        self.fates.befell()

    @asynccontextmanager
    async def refusing(self) -> AsyncIterator[None]:
        paths = [node.path for node in self.fleet.nodes if node.path is not None]
        if paths:
            for path in paths:
                path.refuse()
            try:
                yield
            finally:
                for path in paths:
                    path.heal()
            return
        with closing(
            sqlite3.connect(Path(urlsplit(self.setting.place).path), isolation_level=None, timeout=60)
        ) as file:
            file.execute("BEGIN EXCLUSIVE")
            yield
            file.execute("ROLLBACK")

    async def cut_off(self) -> None:
        """One process does not reach the store for longer than it may be silent, and its clients reach it."""
        node = self.fleet.any(self.random)
        assert node.path is not None
        self.fates.lost.add(node.process)
        node.path.silence()
        self.fates.befell()
        await asyncio.sleep(self.owner_lost_s * 1.5)
        node.path.heal()
        self.fates.befell()

    async def befall(self, kills: int, calm_every: int) -> None:
        others: list[Callable[[], Awaitable[None]]] = [self.pause_short, self.pause_long, self.drain, self.away]
        others += [] if self.setting.store == "sqlite" else [self.cut_off]
        for number in range(kills):
            await asyncio.sleep(self.random.uniform(0.1, 1.0))
            await self.kill()
            self.trial.notes["kills"] += 1
            if calm_every and number % calm_every == calm_every - 1:
                await asyncio.sleep(self.owner_lost_s)
            if number % OTHER_EVERY == OTHER_EVERY - 1:
                other = others[number // OTHER_EVERY % len(others)]
                await asyncio.sleep(self.random.uniform(0.1, 1.0))
                await other()
                self.trial.notes[other.__name__.replace("_", " ")] += 1

    # All of it

    async def run(self, kills: int, calm_every: int) -> None:
        watching = asyncio.create_task(self.watch())
        load = [asyncio.create_task(self.load(index)) for index in range(CLIENTS)]
        try:
            await self.befall(kills, calm_every)
        finally:
            self.is_enough = True
            _, late = await asyncio.wait(load, timeout=HANG_S)
            self.is_late = True
            if late:
                self.trial.faults.append(f"{len(late)} clients do not come to an end")
            outcomes = await asyncio.gather(*load, return_exceptions=True)
            watching.cancel()
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
        await self.settle(self.clients)
        for node in self.fleet.nodes:
            self.read_log(node)

    async def settle(self, clients: list[Client]) -> None:
        """Every process is asked once more for every task; then all of it is judged."""
        places = asyncio.Semaphore(8)

        async def once_more(client: Client) -> None:
            async with places:
                await client.everywhere()

        await asyncio.gather(*(once_more(client) for client in clients if client.case.task is not None))
        for client in clients:
            case = client.case
            facts = self.recorder.told(case.name)
            self.trial.notes["calls"] += 1
            self.trial.notes.update(client.notes)
            self.trial.notes["rounds that ran"] += sum(fact["fact"] == "begin" for fact in facts)
            found = judge(case, facts, self.fates, self.owner_lost_s)
            self.trial.faults += [f"{case.name}: {fault}" for fault in found]
            if found:
                self.write(case, facts)

    def write(self, case: Case, facts: list[dict[str, Any]]) -> None:
        """What a fault is to be understood by."""
        lines = [json.dumps(each, default=vars) for each in (case, self.fates.ends, sorted(self.fates.lost), *facts)]
        (self.setting.folder / f"{case.name}.fault").write_text("\n".join(lines))


async def tried(
    server: str,
    store: str,
    folder: Path,
    *,
    kills: int,
    raced: int,
    seed: str,
    owner_lost_ms: int = OWNER_LOST_MS,
    calm: bool = True,
) -> Trial:
    """One server on one store."""
    trial = Trial(server, store)
    setting = Setting(server, store, seed, SHORT, folder)
    options = {
        "owner_lost_ms": owner_lost_ms,
        "drain_within_ms": DRAIN_MS,
        "task_after_ms": TASK_AFTER_MS,
        "retention_ms": HOUR_MS,
    }
    async with fleet(setting, STORES[store], **options) as nodes:
        await ready(nodes.nodes)
        ordeal = Ordeal(trial, setting, nodes, owner_lost_ms)
        for kind in RACES if raced else ():
            trial.races[kind.__name__.replace("_", " ")] = await race(kind, raced, ordeal)
        await ordeal.run(kills, CALM_EVERY if calm else 0)
    return trial


async def ready(nodes: list[Node]) -> None:
    for node in nodes:
        assert node.host is not None
        await node.host.ctl("stats")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Tasks on processes that are killed, paused, restarted and cut off.")
    parser.add_argument("--server", action="append", choices=list(SERVERS))
    parser.add_argument("--store", action="append", choices=list(STORES))
    parser.add_argument("--kills", type=int, help=f"on each store ({SERVERS})")
    parser.add_argument("--races", type=int, default=RACED, help=f"of each kind ({RACED})")
    parser.add_argument("--owner-lost-ms", type=int, default=OWNER_LOST_MS)
    parser.add_argument("--seed", default=str(int(time.time())))
    options = parser.parse_args(arguments)
    broken = []
    print(f"seed {options.seed}", flush=True)
    servers = options.server or list(SERVERS)
    build_rust(servers)
    for server, store in itertools.product(servers, options.store or STORES):
        folder = Path(tempfile.mkdtemp(prefix=f"tailrope-tasks-{server}-{store}-"))
        trial = asyncio.run(
            tried(
                server,
                store,
                folder,
                kills=SERVERS[server] if options.kills is None else options.kills,
                raced=options.races,
                seed=options.seed,
                owner_lost_ms=options.owner_lost_ms,
            )
        )
        print(trial, flush=True)
        if trial.faults:
            print(f"  seed {options.seed}, histories in {folder}", flush=True)
            broken.append(f"tasks of {server} on {store}")
    return end("tasks", broken)


if __name__ == "__main__":
    sys.exit(main())
