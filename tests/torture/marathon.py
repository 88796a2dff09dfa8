"""The poll marathon: a call whose connections the server closes five hundred times, through every official client.

The clients are as they are published (tests/interop/drivers). Between two closes the tool sends nothing, a little, or
a burst; now and then its connection is silent for longer than nginx bears. Whatever is on the way, the user has to see
one result and every progress message, once and in order, and no connection carries again what another one delivered.

    tests/services/with nginx -- .venv/mcp2/bin/python -m torture.marathon       (in tests/; `make torture-marathon`)

Python's clients use a frame or more of their stack for each time they come back and die near 950 times; a stream is
therefore held, and no longer polled, after 500.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import random
import shutil
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

from interop.driver import (
    CLIENTS,
    PYTHON,
    RUST,
    WITH_HTTP2,
    WITH_LINE,
    Drivers,
    Meeting,
    build_rust,
    drive,
    gates,
)
from kit.servers import Server
from kit.tap import Tap

from torture import nginx
from torture.ending import end
from torture.hosts import KINDS, OURS
from torture.nginx import DEFAULT, TUNED, Front, Nginx

CLOSES = 500
SEED = 7
RETRY_MS = 20
# A fifteen-second comment against a balancer's minute, compressed, with room for a machine that is busy.
KEEP_ALIVE_MS = 150
# How much longer than nginx bears a connection is silent.
LONGER_S = 0.5
WAIT_S = 90.0
# A call that takes longer hangs.
RUN_S = 300.0
# More at once only make each other late.
AT_ONCE = 6

DIRECT = "direct"
BEHIND = "nginx"
BEHIND_DEFAULT = "nginx as it comes"
BEHIND_CUTTING = "nginx that cuts"
WAYS = (DIRECT, BEHIND, BEHIND_DEFAULT, BEHIND_CUTTING)
# The stock Python clients do not outlive a second cut, with any server: there the line has to.
CUT_CLIENTS = tuple(client + WITH_LINE if client in PYTHON else client for client in CLIENTS)

_calls = itertools.count(1)


@dataclass(frozen=True)
class Leg:
    """What happens up to one close, or to many: `polls` is how often the server closes by itself."""

    emits: int
    polls: int = 0
    retry_ms: int = 1
    is_silent: bool = False


def plan(closes: int, silences: int, seed: int) -> list[Leg]:
    """So many closes: a run that delivers nothing, some with a burst, and at the end those that come by themselves."""
    dice = random.Random(seed)
    polls = closes // 8
    legs = []
    for number in range(closes - polls):
        kind = dice.random()
        emits = 0 if kind < 0.5 or 10 <= number < 25 else dice.randint(1, 3) if kind < 0.95 else dice.randint(20, 80)
        legs.append(Leg(emits, retry_ms=dice.choice((0, 1, 1, 1, 5, 20))))
    for number in dice.sample(range(len(legs)), silences):
        legs[number] = Leg(legs[number].emits, retry_ms=1, is_silent=True)
    return [*legs, Leg(1, polls)]


@dataclass(frozen=True)
class Run:
    """One client, one server, and what is between them."""

    client: str
    server: str
    way: str

    @property
    def name(self) -> str:
        return f"{self.client} {self.server} {self.way}"

    @property
    def driver(self) -> str:
        """The client, as it is driven: behind TLS it speaks HTTP/2 where it can."""
        return self.client + WITH_HTTP2 if self.way == BEHIND and self.client in PYTHON else self.client

    @property
    def has_tls(self) -> bool:
        # The driver of the Rust client is built without TLS.
        return self.way == BEHIND and self.client not in RUST

    @property
    def is_cut(self) -> bool:
        """Whether it is meant that connections are cut on the way."""
        return self.way == BEHIND_CUTTING

    @property
    def idle_s(self) -> int:
        """How long a connection may be silent on the way. With nothing on the way, any time will do."""
        return nginx.CUTTING_IDLE_S if self.way in (DIRECT, BEHIND_CUTTING) else nginx.IDLE_S


@dataclass
class Outcome:
    """What came of a run: no fault is good. `cuts` are those of nginx."""

    run: Run
    closes: int = 0
    cuts: int = 0
    faults: list[str] = field(default_factory=list)
    story: str = ""
    took_s: float = 0.0


def judge(at: Meeting, legs: list[Leg], name: str, is_cut: bool) -> list[str]:
    """What is wrong with what the client has shown, and with what went over the wire."""
    wanted = list(range(1, sum(leg.emits for leg in legs) + 2))
    seen = at.driver.progress()
    faults = []
    if at.driver.results() != [name] or at.driver.errors():
        faults.append(f"results {at.driver.results()}, errors {at.driver.errors()}")
    if seen != wanted:
        lost, twice = sorted(set(wanted) - set(seen)), len(seen) - len(set(seen))
        faults.append(
            f"progress: {len(seen)} of {len(wanted)}, lost {lost[:9]}, {twice} twice, sorted: {sorted(seen) == seen}"
        )
    sent = list(at.tap.watched.values())
    # What a cut took from the client is rightly sent again.
    if not is_cut and sent != [1, len(wanted)]:
        faults.append(f"the wire carried {sent[0]} results and {sent[1]} progress messages of {len(wanted)}")
    return faults


async def race(at: Meeting, server: Server, legs: list[Leg], name: str, silent_s: float) -> int:
    """Make the call and take it through its legs. Returns how often the client came back."""
    names = gates(len(legs))
    steps = []
    for leg, gate in zip(legs, names, strict=True):
        hold = " hold=0" if leg.polls else ""
        steps += [f"emit {leg.emits}", f"close retry={leg.retry_ms}{hold}", f"gate {gate}"]
    before = at.tap.resumes()
    seen = before
    await at.driver.call(*steps, "emit 1", f"return {name}")
    for leg, gate in zip(legs, names, strict=True):
        wanted = seen + max(1, leg.polls)
        await at.until(lambda wanted=wanted: at.tap.resumes() >= wanted or at.driver.is_over(), WAIT_S)
        if at.driver.is_over():
            break
        if leg.is_silent:
            await asyncio.sleep(silent_s)
        # A cut may have brought the client back, too.
        seen = at.tap.resumes()
        await server.open(gate)
    await at.until(at.driver.is_over, WAIT_S)
    return at.tap.resumes() - before


async def one(run: Run, server: Server, tap: Tap, url: str, legs: list[Leg], cuts: Callable[[], int]) -> Outcome:
    """A run; where the machine was too busy to let the client connect, it is tried once more."""
    for tries_left in (1, 0):
        outcome, has_begun = await attempt(run, server, tap, url, legs, cuts)
        if has_begun or not tries_left:
            break
    return outcome


async def attempt(
    run: Run, server: Server, tap: Tap, url: str, legs: list[Leg], cuts: Callable[[], int]
) -> tuple[Outcome, bool]:
    """What came of it, and whether the call was made at all."""
    outcome, has_begun = Outcome(run), False
    resumed = tap.resumes()
    name = f"goal-{next(_calls)}-reached"
    tap.watched = {f'"text":"{name}"'.encode(): 0, b'"progressToken"': 0}
    started = time.monotonic()
    env = {}
    if run.has_tls:
        authority = str(nginx.certificates() / "ca.pem")
        env = {"SSL_CERT_FILE": authority, "NODE_EXTRA_CA_CERTS": authority}
    drivers = Drivers()
    try:
        async with drive(drivers, run.driver, url, tap, server, WAIT_S, **env) as at:
            has_begun = True
            # A failure's story is read while there is somebody to tell it.
            try:
                async with asyncio.timeout(RUN_S):
                    outcome.closes = await race(at, server, legs, name, run.idle_s + LONGER_S)
                outcome.cuts = cuts()
                outcome.faults = judge(at, legs, name, run.is_cut or outcome.cuts > 0)
                await at.close()
            finally:
                outcome.story = at.story()
    except Exception as fault:
        outcome.faults.append(f"{type(fault).__name__}: {str(fault)[:300]}")
    finally:
        await drivers.stop()
    outcome.took_s = time.monotonic() - started
    outcome.cuts = cuts()
    # A request whose answer has not begun fails where nginx gives it up: there is nothing to come back to yet.
    return outcome, has_begun and (outcome.cuts == 0 or tap.resumes() > resumed)


def front(run: Run, tap: Tap) -> Front:
    return Front(tap.port, DEFAULT if run.way == BEHIND_DEFAULT else TUNED, run.has_tls, run.idle_s)


@asynccontextmanager
async def servers(runs: list[Run]) -> AsyncIterator[dict[tuple[str, bool], Server]]:
    """The servers of these runs, started at once, by their name and whether they keep silent connections alive."""
    async with AsyncExitStack() as stack:
        wanted = sorted({(run.server, run.is_cut) for run in runs})
        found = []
        # One after the other: a context is left by the task that entered it.
        for name, is_cut in wanted:
            keep_alive = {} if is_cut else {"keep_alive_ms": KEEP_ALIVE_MS}
            options = {"retry_ms": RETRY_MS, "engine": keep_alive}
            found.append(await stack.enter_async_context(Server.running(KINDS[name], options)))
        yield dict(zip(wanted, found, strict=True))


async def marathon(runs: list[Run], closes: int, silences: int) -> list[Outcome]:
    """Do all runs, a few at once. What fails outside of them, as a server that panics, is a fault of all."""
    outcomes: list[Outcome] = []
    try:
        await every(runs, closes, silences, outcomes)
    except Exception as fault:
        outcomes.append(Outcome(Run("all", "all", "all"), faults=[f"{type(fault).__name__}: {str(fault)[-2000:]}"]))
    return outcomes


async def every(runs: list[Run], closes: int, silences: int, outcomes: list[Outcome]) -> None:
    places = asyncio.Semaphore(AT_ONCE)
    if any(run.client.startswith(RUST) for run in runs):
        await asyncio.to_thread(build_rust)
    async with AsyncExitStack() as stack:
        running = await stack.enter_async_context(servers(runs))
        hosts = [running[run.server, run.is_cut] for run in runs]
        taps = [await stack.enter_async_context(Tap(host.port)) for host in hosts]
        fronted = [(run, tap) for run, tap in zip(runs, taps, strict=True) if run.way != DIRECT]
        urls = {run: f"http://127.0.0.1:{tap.port}/mcp" for run, tap in zip(runs, taps, strict=True)}
        balancer: Nginx | None = None
        ports: dict[Run, int] = {}
        if fronted:
            balancer = await stack.enter_async_context(nginx.nginx(*(front(run, tap) for run, tap in fronted)))
            urls |= {run: url for (run, _), url in zip(fronted, balancer.urls(), strict=True)}
            ports = {run: port for (run, _), port in zip(fronted, balancer.ports, strict=True)}

        def cuts(run: Run) -> int:
            return balancer.cuts(ports[run]) if balancer is not None and run in ports else 0

        async def placed(number: int, run: Run) -> None:
            async with places:
                legs = plan(closes, silences, SEED + number)
                outcome = await one(run, hosts[number], taps[number], urls[run], legs, lambda: cuts(run))
            if balancer is not None and run in ports:
                outcome.faults += misled(outcome, balancer, ports[run], silences)
            print(line(outcome), flush=True)
            outcomes.append(outcome)

        await asyncio.gather(*(placed(*each) for each in enumerate(runs)))
        for (name, is_cut), server in running.items():
            outcomes += counted(name, await server.stats(), outcomes, is_cut)


def misled(outcome: Outcome, balancer: Nginx, port: int, silences: int) -> list[str]:
    """Where the way was not the one that was meant."""
    run = outcome.run
    wanted = "HTTP/2.0" if run.driver.endswith(WITH_HTTP2) else "HTTP/1.1"
    spoken = balancer.protocols(port)
    faults = [] if set(spoken) == {wanted} else [f"spoke {dict(spoken)}, not {wanted}"]
    if run.is_cut and outcome.cuts < silences:
        faults.append(f"nginx has cut {outcome.cuts} connections, not {silences}")
    # Comments keep the others alive, on a machine that has time for them; a cut that nobody notices is no fault.
    return faults


def counted(name: str, stats: dict[str, int], outcomes: list[Outcome], is_cut: bool) -> list[Outcome]:
    """A fault where the server itself counts fewer closes than its clients have lived through."""
    told = stats["closes_asked"] + stats["closes_polled"]
    # From a cut, too, a client comes back.
    seen = sum(each.closes - each.cuts for each in outcomes if each.run.server == name and each.run.is_cut == is_cut)
    if is_cut or told >= seen:
        return []
    return [
        Outcome(
            Run("all", name, "all"),
            faults=[f"the server has closed {told} times, its clients have seen {seen} that were no cuts"],
        )
    ]


def line(outcome: Outcome) -> str:
    run = outcome.run
    end = "; ".join(outcome.faults) or "ok"
    where = f"{run.client:20} {run.server:10} {run.way:18}"
    note = f" (nginx has cut {outcome.cuts})" if outcome.cuts else ""
    return f"{where} {outcome.closes:4} closes {outcome.took_s:6.1f} s  {end}{note}"


def short_runs() -> list[Run]:
    """Every client directly and behind nginx, the servers in turn; those that bear cuts with one more."""
    turn = itertools.cycle(OURS)
    runs = [Run(client, next(turn), DIRECT) for client in CLIENTS]
    ways = itertools.cycle((BEHIND, BEHIND_DEFAULT))
    runs += [Run(client, next(turn), next(ways)) for client in (*PYTHON, *reversed(CLIENTS[2:]))]
    return [*runs, Run("ts2", "mcp2", BEHIND_CUTTING), Run(RUST[0], "mcp2", BEHIND_CUTTING)]


def full_runs() -> list[Run]:
    runs = [Run(client, server, way) for way in WAYS[:-1] for server in OURS for client in CLIENTS]
    return runs + [Run(client, server, BEHIND_CUTTING) for server in OURS for client in CUT_CLIENTS]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="The poll marathon through every official client.")
    parser.add_argument("--short", action="store_true", help="the runs of the test")
    parser.add_argument("--closes", type=int, default=CLOSES)
    parser.add_argument("--silences", type=int, default=6)
    parser.add_argument("--only", default="", help="runs whose line has this text")
    parser.add_argument("--story", action="store_true", help="tell what happened where something is wrong")
    options = parser.parse_args(arguments)
    if not nginx.is_there():
        print("marathon: run it under tests/services/with nginx", file=sys.stderr)
        return 2
    if shutil.which("go") is None:
        print("no Go toolchain is here: the Go SDK's client does not take part")
    runs = [run for run in (short_runs() if options.short else full_runs()) if options.only in line(Outcome(run))]
    outcomes = asyncio.run(marathon(runs, options.closes, options.silences))
    broken = [outcome for outcome in outcomes if outcome.faults]
    for outcome in broken:
        print(line(outcome))
        if options.story:
            print(outcome.story)
    closes = sum(outcome.closes for outcome in outcomes)
    print(f"{len(runs)} calls, {closes} closes, {len(broken)} calls that are not whole")
    return end("marathon", [outcome.run.name for outcome in broken])


if __name__ == "__main__":
    sys.exit(main())
