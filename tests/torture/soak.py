"""A day of rude clients, compressed: sessions that nobody ends, sockets that nobody reads, polls that nobody makes.

The server's times are 900 times as short as a user's: half an hour of idleness is two seconds, a day 96. From
time to time the clients pause. Then everything that was held on their behalf has to go, and what is left in the process
and in its store is compared with what was left earlier. Meanwhile some sessions work, each in a way in which a server
could take it for idle, for much longer than a session may be idle; none of them may be taken away.

    tests/services/with redis postgres -- .venv/mcp2/bin/python -m torture.soak     (in tests/; `make torture-soak`)
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import sqlite3
import sys
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kit.peer import Peer, last_id, logs, results
from kit.raw import Event, Reply, Truncated, Wire
from kit.servers import Server

from torture.ending import end
from torture.hosts import KINDS, OURS, build_rust

# With six pauses, which take 8 s at least, this is more than a day of 96 s.
RUDE_S = 60
# Half an hour of idleness and an hour at which connections end, as balancers end them. Retention and the time without
# contact are longer than a user's: a busy machine makes those late who work.
IDLE_MS = 2_000
DETACHED_MS = 8_000
ENGINE = {
    "retention_ms": 4_000,
    "max_detached_ms": DETACHED_MS,
    "max_connection_ms": 4_000,
    "keep_alive_ms": 200,
    "owner_lost_ms": 2_000,
}
# A session that works comes back after so long: later than it may be idle.
AWAY_S = 3.0
WORKERS = 6
# Everything has gone within this time, on a busy machine.
GONE_S = 60.0
# A soak that takes so much longer than its rudeness hangs.
LATE_S = 420.0
# More at once would look at how busy the machine is.
AT_ONCE = 2
WAIT_S = 30.0
# The later half of the pauses may find this many times as much as the earlier half, and so much in any case.
FACTOR = 1.25
SLACK = {"rss_kb": 24 << 10, "heap_kb": 4 << 10, "kept_kb": 8 << 10}
SLACK_ELSE = 12
# Of these one sample says little: an allocator and a collector take and give when they like. Where nothing else grows
# than these, there are up to so many pauses: what leaks does so at each of them, what is taken once is taken once.
MEMORY = ("rss_kb", "heap_kb")
MOST_PAUSES = 6
# A machine that stands still makes as many unlucky as there are workers: so many make little of it.
LEAST_RUDE = 100

_names = itertools.count(1)


def fresh() -> str:
    return f"soak{next(_names)}"


@dataclass
class Kept:
    """The sockets that rude clients keep. Those that are full are given up at each pause, once their sessions have
    gone: a server in Python cannot drop what the socket has not taken, and has a descriptor until then."""

    silent: list[Reply] = field(default_factory=list)
    full: list[Reply] = field(default_factory=list)

    def give_up(self, replies: list[Reply]) -> None:
        while replies:
            replies.pop().drop()


# What rude clients do, once each.


async def leave(server: Server, kept: Kept) -> None:
    """A session with one call, and no goodbye."""
    peer = await Peer.open(server.port)
    assert await peer.ask("script", {"steps": ["emit 2", "return x"]}, wait_s=WAIT_S) == "x"


async def hold_a_dead_socket(server: Server, kept: Kept) -> None:
    """A standalone stream whose client keeps the socket and never reads from it: to the server it is only silent."""
    peer = await Peer.open(server.port)
    kept.silent.append(await peer.get(receive_buffer=4096))


async def hold_a_full_socket(server: Server, kept: Kept) -> None:
    """A call that emits more than the sockets take, to a client that keeps its own and never reads."""
    peer = await Peer.open(server.port)
    kept.full.append(await peer.call("script", {"steps": ["emit 100 60000", "return x"]}, receive_buffer=4096))


async def abandon_a_poll(server: Server, kept: Kept) -> None:
    """A call that is polled, a few times; its result is there when nobody asks for it any longer."""
    peer = await Peer.open(server.port)
    gate = fresh()
    reply = await peer.call("script", {"steps": ["close hold=0 retry=1", f"gate {gate}", "emit 5", "return x"]})
    cursor = last_id(await reply.rest(WAIT_S))
    for _ in range(2):
        cursor = last_id(await (await peer.resume(cursor)).rest(WAIT_S))
    await server.open(gate)


async def abandon_a_call(server: Server, kept: Kept) -> None:
    """A call that never ends, and whose client is gone for good."""
    peer = await Peer.open(server.port)
    reply = await peer.call("script", {"steps": ["emit 1", f"gate {fresh()}"]})
    await reply.some(1, WAIT_S)
    reply.drop()


async def break_off(server: Server, kept: Kept) -> None:
    """A request that is not whole when its client leaves, and an answer that is not read to its end."""
    wire = await Wire.open(server.port)
    await wire.send("POST", "/mcp", {"Host": f"127.0.0.1:{server.port}", "Content-Type": "application/json"}, None)
    wire.close()
    peer = await Peer.open(server.port)
    (await peer.call("script", {"steps": ["emit 20 2000", "return x"]}, receive_buffer=4096)).drop()


RUDE = (leave, leave, leave, hold_a_dead_socket, hold_a_full_socket, abandon_a_poll, abandon_a_call, break_off)

# What a rude client may meet itself: on a busy machine a session can be idle for too long before it is used.
UNLUCKY = (AssertionError, ConnectionError, Truncated, TimeoutError, asyncio.IncompleteReadError)

# Sessions that work. Each runs until `over`, and raises where the server has taken something from it.


async def wait_for_a_result(server: Server, over: asyncio.Event) -> None:
    """A call whose connection is open all the time, but for the moments in which the server ends old ones."""
    await work(server, over, [], 0.0)


async def poll_for_a_result(server: Server, over: asyncio.Event) -> None:
    """A call that is polled again and again."""
    await work(server, over, ["close hold=0 retry=1"], 0.3)


async def work_away(server: Server, over: asyncio.Event) -> None:
    """A call whose client is away for longer than a session may be idle."""
    await work(server, over, ["close hold=0 retry=1"], AWAY_S)


async def begin(server: Server, ask: Callable[[Peer], Awaitable[Reply]]) -> tuple[Peer, Reply]:
    """A session with its first request; a session that was idle for too long before that is opened anew."""
    deadline = time.monotonic() + GONE_S
    while True:
        try:
            peer = await Peer.open(server.port)
            reply = await ask(peer)
            assert reply.status == 200, reply.status
            return peer, reply
        except UNLUCKY:
            # Nothing of it was used yet, so nothing is lost.
            if time.monotonic() > deadline:
                raise


async def work(server: Server, over: asyncio.Event, first: list[str], away_s: float) -> None:
    gate = fresh()
    blocks: list[Event] = []

    async def read(reply: Reply) -> None:
        assert reply.status == 200, (reply.status, await reply.body())
        with suppress(Truncated, ConnectionError, TimeoutError):
            while (block := await reply.block(WAIT_S)) is not None:
                blocks.append(block)
        reply.close()

    async def open_gate() -> None:
        await over.wait()
        await server.open(gate)

    opening = asyncio.create_task(open_gate())
    steps = ["emit 1", *first, f"gate {gate}", "emit 1", f"return {gate}"]
    peer, reply = await begin(server, lambda peer: peer.call("script", {"steps": steps}, wait_s=WAIT_S))
    await read(reply)
    while not results(blocks):
        with suppress(TimeoutError):
            # Once the result is there, nobody may be away for longer than it is kept.
            await asyncio.wait_for(over.wait(), away_s)
            await asyncio.sleep(0.05)
        # Too busy to answer is not lost.
        with suppress(TimeoutError, ConnectionError):
            await read(await peer.resume(last_id(blocks)))
    await opening
    assert results(blocks) == [gate], results(blocks)
    await peer.delete()


async def listen(server: Server, over: asyncio.Event) -> None:
    """A session without calls, whose standalone stream is open, and still is when something is sent on it."""
    blocks: list[Event] = []
    text = fresh()
    peer, reply = await begin(server, lambda peer: peer.get())
    asking: asyncio.Task[Any] | None = None
    while text not in logs(blocks):
        if over.is_set() and asking is None:
            asking = asyncio.create_task(
                peer.ask("script", {"steps": [f"standalone {text}", "return x"]}, wait_s=WAIT_S)
            )
        with suppress(Truncated, ConnectionError, TimeoutError):
            block = await reply.block(WAIT_S)
            if block is not None:
                blocks.append(block)
                continue
        reply.close()
        with suppress(TimeoutError, ConnectionError):
            reply = await peer.resume(last_id(blocks))
            assert reply.status == 200, (reply.status, await reply.body())
    assert logs(blocks) == [text]
    assert asking is not None and await asking == "x"
    reply.close()
    await peer.delete()


WORKING: tuple[Callable[[Server, asyncio.Event], Awaitable[None]], ...] = (
    wait_for_a_result,
    poll_for_a_result,
    work_away,
    listen,
)

# What is kept outside the process.


@asynccontextmanager
async def memory() -> AsyncIterator[tuple[str | None, Callable[[], Awaitable[dict[str, int]]]]]:
    async def kept() -> dict[str, int]:
        return {}

    yield None, kept


@asynccontextmanager
async def sqlite() -> AsyncIterator[tuple[str | None, Callable[[], Awaitable[dict[str, int]]]]]:
    with tempfile.TemporaryDirectory(prefix="tailrope-soak-") as folder:
        file = Path(folder) / "events.db"

        def count() -> dict[str, int]:
            with closing(sqlite3.connect(file, timeout=20)) as db:
                rows = {
                    f"rows_{table}": int(db.execute(f"SELECT count(*) FROM {table}").fetchone()[0])
                    for table in ("session", "stream", "event")
                }
                # The write-ahead log beside the file has a bound of its own, which half a day does not reach.
                pages = (
                    "(SELECT page_count FROM pragma_page_count) - (SELECT freelist_count FROM pragma_freelist_count)"
                )
                size = f"SELECT ({pages}) * (SELECT page_size FROM pragma_page_size)"
                return {**rows, "kept_kb": int(db.execute(size).fetchone()[0]) >> 10}

        yield f"sqlite:{file}", lambda: asyncio.to_thread(count)


@asynccontextmanager
async def redis() -> AsyncIterator[tuple[str | None, Callable[[], Awaitable[dict[str, int]]]]]:
    address, name = os.environ["TAILROPE_TEST_REDIS"], f"soak{uuid.uuid4().hex[:12]}"

    async def kept() -> dict[str, int]:
        found = await said("redis-cli", "-u", address, "--scan", "--pattern", f"*{name}*")
        return {"keys": len(found.split())}

    yield f"{address}?namespace={name}", kept


@asynccontextmanager
async def postgres() -> AsyncIterator[tuple[str | None, Callable[[], Awaitable[dict[str, int]]]]]:
    address, name = os.environ["TAILROPE_TEST_POSTGRES"], f"soak{uuid.uuid4().hex[:12]}"

    async def kept() -> dict[str, int]:
        tables = ("session", "stream", "event", "trash")
        statement = " UNION ALL ".join(f"SELECT '{table}', count(*) FROM {name}.{table}" for table in tables)
        lines = (await said("psql", "-qAt", "-c", statement, address)).split()
        return {f"rows_{table}": int(count) for table, count in (each.split("|") for each in lines)}

    yield f"{address}?namespace={name}", kept


STORES = {"memory": memory, "sqlite": sqlite, "redis": redis, "postgres": postgres}


async def said(*command: str) -> str:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=pipe)
    out, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()
    return out.decode()


@dataclass
class Soak:
    """What came of a soak: what was held at each pause, and what is wrong."""

    server: str
    store: str
    rude: int = 0
    unlucky: int = 0
    samples: list[dict[str, int]] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        lines = [f"{self.server} on {self.store}: {self.rude} rude clients, {self.unlucky} of them too slow"]
        lines += [f"    {sample}" for sample in self.samples]
        return "\n".join(lines + [f"    WRONG: {fault}" for fault in self.faults])


async def be_rude(server: Server, kept: Kept, until: float, least: float, found: Soak) -> None:
    """Rude clients, a few at once, until then, and until there were so many."""

    async def worker() -> None:
        while time.monotonic() < until or found.rude < least:
            found.rude += 1
            try:
                await RUDE[found.rude % len(RUDE)](server, kept)
            except UNLUCKY:
                found.unlucky += 1

    async with asyncio.TaskGroup() as group:
        for _ in range(WORKERS):
            group.create_task(worker())


async def paused(
    server: Server, kept: Kept, working: int, outside: Callable[[], Awaitable[dict[str, int]]]
) -> dict[str, int]:
    """What is held once everything has gone that has to go, as far as it does."""
    deadline = time.monotonic() + GONE_S
    descriptors = None
    while True:
        stats = await server.stats()
        inside = {name: stats[name] for name in ("sessions", "connections", "streams", "events")}
        # axum closes no connection on which nothing is asked.
        idle = len(kept.silent) if server.kind.language == "rust" else 0
        sample = {**inside, "descriptors": server.descriptors() - idle, **await outside()}
        # A working session has a standalone stream, or one of its call.
        calm = inside["sessions"] == working and inside["streams"] <= 2 * working
        if calm and is_small(sample, working):
            if descriptors is not None and sample["descriptors"] >= descriptors:
                break
            # And until no more of them go.
            kept.give_up(kept.full)
            descriptors = sample["descriptors"]
        if time.monotonic() > deadline:
            break
        await asyncio.sleep(0.3)
    held = await server.held()
    if "tasks" in held:
        sample["tasks"] = held["tasks"]
    if "heap" in held:
        sample["heap_kb"] = held["heap"] >> 10
    return {**sample, "rss_kb": server.rss() >> 10}


def is_small(sample: dict[str, int], working: int) -> bool:
    """Whether nothing is there that would be of a session that does not work."""
    few = 2 * working + 2 * SLACK_ELSE
    return all(count <= few for name, count in sample.items() if name.startswith("rows_"))


def growing(name: str, samples: list[dict[str, int]]) -> str | None:
    """How it grows, if it does."""
    middle = len(samples) // 2
    early = max(sample[name] for sample in samples[:middle])
    late = max(sample[name] for sample in samples[middle:])
    # The least of the later ones: what grows does not come back.
    least = min(sample[name] for sample in samples[middle:])
    if least > early * FACTOR + SLACK.get(name, SLACK_ELSE):
        return f"{name} grows: up to {early} at first, {least} to {late} later"
    return None


def leaking(name: str, samples: list[dict[str, int]]) -> str | None:
    """How much of it each pause has added, if that is as much as one may not add."""
    first, last = samples[0][name], samples[-1][name]
    each = (last - first) / (len(samples) - 1)
    if each > first * (FACTOR - 1) + SLACK.get(name, SLACK_ELSE):
        return f"{name} grows: from {first} to {last}, by {each:.0f} at each pause"
    return None


def judge(samples: list[dict[str, int]], working: int, pauses: int) -> list[str]:
    """What grows from pause to pause, or is held for nobody. More samples than so many were taken to see whether memory
    goes on growing."""
    faults = []
    if any(sample["sessions"] != working for sample in samples):
        faults.append(f"{[sample['sessions'] for sample in samples]} sessions are held, of which {working} work")
    for name in samples[0]:
        is_long = name in MEMORY and len(samples) > pauses
        fault = leaking(name, samples) if is_long else growing(name, samples)
        faults += [fault] if fault is not None else []
    return faults


def is_enough(samples: list[dict[str, int]], working: int, pauses: int) -> bool:
    """Whether another pause would change nothing of what is judged."""
    if len(samples) < pauses:
        return False
    faults = judge(samples, working, pauses)
    return len(samples) >= MOST_PAUSES or not faults or not all(fault.startswith(MEMORY) for fault in faults)


async def soak(server: str, store: str, length_s: float, pauses: int) -> Soak:
    """One soak. What ends it early is a fault, too."""
    found = Soak(server, store)
    try:
        async with asyncio.timeout(length_s + LATE_S):
            await soaked(found, length_s, pauses)
    except Exception as fault:
        found.faults.append(f"{type(fault).__name__}: {fault}")
    return found


async def soaked(found: Soak, length_s: float, pauses: int) -> None:
    kept = Kept()
    async with STORES[found.store]() as (address, outside):
        options = {"idle_s": IDLE_MS / 1_000, "engine": ENGINE, **({} if address is None else {"address": address})}
        async with Server.running(KINDS[found.server], options) as server:
            over = asyncio.Event()
            working = [asyncio.create_task(kind(server, over)) for kind in WORKING]
            try:
                while not is_enough(found.samples, len(WORKING), pauses):
                    least = LEAST_RUDE * (len(found.samples) + 1) / pauses
                    await be_rude(server, kept, time.monotonic() + length_s / pauses, least, found)
                    sample = await paused(server, kept, len(WORKING), outside)
                    if server.kind.language == "rust" and found.store == "memory":
                        # What malloc keeps of megabytes that come and go depends on how many were there at once.
                        del sample["rss_kb"]
                    found.samples.append(sample)
                    # Whoever fails has not waited for the end to do so.
                    if any(task.done() for task in working):
                        break
                over.set()
                outcomes = await asyncio.gather(*working, return_exceptions=True)
            finally:
                for task in working:
                    task.cancel()
            for kind, outcome in zip(WORKING, outcomes, strict=True):
                if isinstance(outcome, BaseException):
                    found.faults.append(f"{kind.__name__}: {type(outcome).__name__}: {outcome}")
            if found.unlucky * 4 > found.rude:
                found.faults.append("too few clients could do what they had in mind")
            if len(found.samples) >= pauses:
                found.faults += judge(found.samples, len(WORKING), pauses)
    kept.give_up(kept.full)
    kept.give_up(kept.silent)


async def all_of(pairs: list[tuple[str, str]], length_s: float, pauses: int) -> list[Soak]:
    """The soaks of these stores and servers, so many at once."""
    places = asyncio.Semaphore(AT_ONCE)

    async def one(store: str, server: str) -> Soak:
        async with places:
            found = await soak(server, store, length_s, pauses)
        print(found, flush=True)
        return found

    return await asyncio.gather(*(one(*pair) for pair in pairs))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="A day of rude clients, compressed.")
    parser.add_argument("--seconds", type=float, default=RUDE_S, help="of rudeness, without the pauses")
    parser.add_argument("--pauses", type=int, default=6)
    parser.add_argument("--stores", nargs="*", default=list(STORES))
    parser.add_argument("--servers", nargs="*", default=list(OURS))
    options = parser.parse_args(arguments)
    build_rust(options.servers)
    pairs = list(itertools.product(options.stores, options.servers))
    soaks = asyncio.run(all_of(pairs, options.seconds, options.pauses))
    broken = [f"{found.server} on {found.store}" for found in soaks if found.faults]
    print(f"{len(broken)} of {len(soaks)} soaks have found something")
    return end("soak", broken)


if __name__ == "__main__":
    sys.exit(main())
