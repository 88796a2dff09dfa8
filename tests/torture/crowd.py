"""Thousands of streams at the front of one process: idle, resumed all at once, beside a busy interpreter, at its end.

A rule that is broken fails: nothing is lost, repeated, out of order or cut where it should end. Figures are told.

    idle      sessions with an idle GET, and what each costs in memory beside a session of the SDK's own transport
    storm     clients that have read a call's stored events are all cut at once, and all come back at once, each behind
              a position of its own, while the calls send more
    latency   how long a resume takes until its first stored event, alone and beside a handler that holds the
              interpreter for 20 ms at a time
    sigterm   a process with open streams is asked to end
    kill      of two processes at one port, with one store, one is killed
    abuse     rude clients, at the fronts and at hyper alone: abuse.py lists what they do

    .venv/mcp2/bin/python -m torture.crowd --clients 2000      (in tests/; `make torture-crowd`)
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import resource
import signal
import socket
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

from kit.ending import ENDS_S
from kit.places import empty_place
from kit.servers import ALONE, FRONTS, Kind, Server

from torture.abuse import PEER, abuse
from torture.crowd_client import RESET, Client, Cut, each, judge
from torture.ending import end
from torture.part import SPARE, Part, check_log, options, spread

SERVERS = ("mcp2-front", "node-v2-front")
FULL = 10_000
# Of each client in a storm: stored when it is cut, and sent from then on.
EVENTS, LATER = 50, 10
# A session of the SDK's own transport is weighed with fewer.
STOCK_SESSIONS = 1_000
WARM = 20
# Clients to whose idle streams a message is sent.
HEARERS = 100
TIMED = 1_000
HELD_MS = 20
MOST_AT_END = 1_000
MOST_AT_KILL = 500
OWNER_LOST_MS = 2_000
# A part that takes longer hangs.
LIMIT_S = 1_800.0
GATE = "crowd"


async def weigh(server: Server) -> int:
    return int((await server.held())["rss"])


async def sessions(server: Server, count: int) -> tuple[list[Client], int, float]:
    """Open so many, and give the memory of the process with them, and the bytes of each."""
    clients = [Client(number, server.port) for number in range(count)]
    # What the process takes for good.
    warm = min(WARM, count // 2)
    await each(clients[:warm], Client.enter)
    before = await weigh(server)
    await each(clients[warm:], Client.enter)
    after = await weigh(server)
    return clients, after, (after - before) / (count - warm)


async def idle(kind: Kind, part: Part) -> None:
    few = min(part.clients, STOCK_SESSIONS)
    async with Server.running(kind, {"store": "none"}, "stock") as server:
        *_, stock = await sessions(server, few)
    async with Server.running(kind, options(part.clients)) as server:
        clients, before, session = await sessions(server, part.clients)
        await each(clients, Client.listen)
        stream = (await weigh(server) - before) / part.clients
        hearers = random.Random(1).sample(clients, min(HEARERS, part.clients))
        for hearer in hearers:
            caller = Client(0, server.port)
            caller.session = hearer.session
            await caller.call([f"standalone {hearer.name}", "return x"])
            await caller.line.whole()
            await hearer.line.until(lambda hearer=hearer: hears(hearer) == [hearer.name])  # type: ignore[misc]
        for client in clients:
            if client.line.is_lost or client.line.is_whole:
                part.faults.append(f"the idle stream of {client.name} has ended")
            elif client not in hearers and hears(client):
                part.faults.append(f"{client.name} hears {hears(client)}")
        check_log(part, server)
    part.tell(f"{stream / 1e3:.1f} kB an idle stream")
    part.tell(f"{session / 1e3:.1f} kB a session, {stock / 1e3:.1f} kB one of the SDK's own transport")
    part.tell(f"{(session + stream - stock) / 1e3:.1f} kB for both beside the SDK's own session")


def hears(client: Client) -> list[str]:
    """The texts of the log messages on its stream."""
    return [block.message["params"]["data"] for block in client.line.blocks if block.data]


async def call(client: Client, keep: bool = False) -> None:
    """Call a tool that sends events, waits, sends more and returns, and read the first ones."""
    if not keep:
        await client.enter()
    await client.call([f"emit {EVENTS}", f"gate {GATE}", f"emit {LATER}", f"return {client.name}"], keep)
    await client.got(EVENTS)


async def storm(kind: Kind, part: Part) -> None:
    dice, found, times = random.Random(2), Counter[str](), list[float]()
    async with Server.running(kind, options(part.clients)) as server:
        clients = [Client(number, server.port) for number in range(part.clients)]
        await each(clients, call)
        for client in clients:
            found += judge_seen(client)
            client.line.cut()
        started = time.monotonic()

        async def resume(client: Client) -> None:
            after = dice.randint(0, EVENTS)
            await resume_behind(client, after, started, times, found)
            found.update(judge(client.name, client.line.blocks, after, EVENTS + LATER))

        async with asyncio.TaskGroup() as group:
            group.create_task(server.open(GATE))
            group.create_task(each(clients, resume, part.clients))
        took = time.monotonic() - started
        check_log(part, server)
    part.count(found, "after the storm")
    part.tell(f"all back after {max(times, default=0):.1f} s, all over after {took:.1f} s")
    part.tell(f"first event of a resume: {spread(times)}")


async def resume_behind(client: Client, after: int, started: float, times: list[float], found: Counter[str]) -> None:
    """Go on behind this event of the call to its end, and note when the first event came."""
    try:
        await client.listen(client.ids[after])
        times.append(time.monotonic() - started)
        await client.line.whole()
    except Cut:
        found["cut"] += 1


def judge_seen(client: Client) -> Counter[str]:
    """What is wrong with the events that came before the gate."""
    found = judge(client.name, client.line.blocks, 0, EVENTS)
    # It has no end yet.
    found["wrong ends"] -= 1
    return +found


def resumed(port: int, client: Client) -> float:
    """The seconds until the first stored event of a resume, on a connection of its own."""
    head = {**client.headers(Accept="text/event-stream"), "Last-Event-ID": client.ids[1]}
    text = "".join(f"{name}: {value}\r\n" for name, value in head.items())
    request = f"GET /mcp HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n{text}\r\n".encode()
    started = time.perf_counter()
    with socket.create_connection(("127.0.0.1", port), ENDS_S) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        sock.sendall(request)
        came = b""
        while b'"progress":2' not in came.replace(b" ", b""):
            more = sock.recv(1 << 16)
            assert more, came
            came += more
        return time.perf_counter() - started


async def latency(kind: Kind, part: Part) -> None:
    rounds = min(TIMED, part.clients)
    async with Server.running(kind, options(part.clients)) as server:
        clients = [Client(number, server.port) for number in range(min(50, rounds))]
        for client in clients:
            await client.enter()
            await client.call(["emit 3", f"return {client.name}"])
            await client.line.whole()
            await client.got(3)
        turns = [clients[number % len(clients)] for number in range(rounds)]
        # Nothing else runs on this loop meanwhile, so it may be held up.
        alone = [resumed(server.port, client) for client in turns]
        hog = Client(-1, server.port)
        await hog.enter()
        await hog.call(["emit 1", f"hog {HELD_MS} {GATE}"])
        await hog.got(1)
        beside = [resumed(server.port, client) for client in turns]
        echoes = []
        for client in clients:
            started = time.perf_counter()
            await client.call(["return x"])
            await client.line.whole()
            echoes.append(time.perf_counter() - started)
        await server.open(GATE)
        await hog.line.whole()
        held = int(hog.line.blocks[-1].message["result"]["content"][0]["text"])
        if not held:
            part.faults.append("the interpreter was not held")
        check_log(part, server)
    part.tell(f"resumes beside a busy interpreter: {spread(beside)} (alone: {spread(alone)})")
    delay_ms = statistics.median(echoes) * 1e3
    part.tell(f"calls beside a busy interpreter: p50 {delay_ms:.0f} ms; the handler held it {held} times")


async def sigterm(kind: Kind, part: Part) -> None:
    part.clients = min(part.clients, MOST_AT_END)
    # The calls wait for nothing that comes.
    server = await Server.start(kind, options(part.clients, drain_within_ms=500))
    try:
        clients = [Client(number, server.port) for number in range(part.clients)]
        listening, calling = clients[::2], clients[1::2]
        await each(listening, Client.enter)
        await each(listening, Client.listen)
        await each(calling, call)
        seen = [len(client.line.blocks) for client in clients]
        started = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        await each(clients, lambda client: client.line.over(), part.clients)
        ended = time.monotonic() - started
        if not await asyncio.to_thread(exits, server):
            part.faults.append(f"it runs on {ENDS_S:.0f} s after it was asked to end")
        else:
            code = server.exit_code(0)
            part.tell(
                f"streams ended after {ended:.1f} s, the process after {time.monotonic() - started:.1f} s: {code}"
            )
            # uvicorn raises the signal again when it is done.
            if code != (-signal.SIGTERM if kind.language == "python" else 0):
                part.faults.append(f"exit status {code}: {server.log()[-2000:]}")
        found = Counter[str]()
        for client, before in zip(clients, seen, strict=True):
            new = [block for block in client.line.blocks[before:] if block.comment is None]
            found["cut"] += not client.line.is_whole
            found["without a retry at the end"] += not (new and new[-1].retry)
            found["without an id"] += not any(block.id for block in client.line.blocks)
            found["with another message at the end"] += any(block.data for block in new)
        for client in calling:
            found += judge_seen(client)
        part.count(+found, "streams at the end")
        check_log(part, server)
    finally:
        await asyncio.to_thread(server.stop)


def exits(server: Server) -> bool:
    try:
        server.exit_code(ENDS_S)
    except Exception:
        return False
    return True


async def kill(kind: Kind, part: Part) -> None:
    part.clients = min(part.clients, MOST_AT_KILL)
    dice, found = random.Random(3), Counter[str]()
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        shared = {
            **options(part.clients, owner_lost_ms=OWNER_LOST_MS),
            "address": empty_place("sqlite", folder),
            "reuse_port": True,
        }
        doomed = await stack.enter_async_context(Server.running(kind, shared))
        other = await Server.start(kind, shared, port=doomed.port)
        stack.push_async_callback(asyncio.to_thread, other.stop)
        clients = [Client(number, doomed.port) for number in range(part.clients)]
        # By process: the session and the connection of a client are the same one's.
        at: dict[int, list[Client]] = {doomed.process.pid: [], other.process.pid: []}

        async def settle(client: Client) -> None:
            await client.enter(keep=True)
            at[await client.place()].append(client)
            await call(client, keep=True)

        await each(clients, settle)
        theirs, others = at[doomed.process.pid], at[other.process.pid]
        if not theirs or not others:
            part.faults.append(f"one process has all clients: {len(theirs)} and {len(others)}")
        for client in clients:
            found += judge_seen(client)
        doomed.process.kill()
        await each(theirs, lambda client: client.line.over(), len(theirs) or 1)
        # While the system closes its descriptors, it still takes connections that nobody will answer.
        await asyncio.to_thread(doomed.process.wait, ENDS_S)
        started = time.monotonic()

        async def resume(client: Client) -> None:
            after = dice.randint(0, EVENTS)
            await resume_behind(client, after, started, back, found)
            # What ran in the killed process gets an error.
            found.update(judge(client.name, client.line.blocks, after, EVENTS, is_failed=True))

        back: list[float] = []
        await each(theirs, resume, len(theirs) or 1)
        took = time.monotonic() - started
        part.count(found, "of the killed process")
        found.clear()
        for client in others:
            found["ended or got something at the other process"] += client.line.is_lost or judge_seen(client) != {}
        await other.open(GATE)
        for client in others:
            try:
                await client.line.whole()
            except Cut:
                found["cut"] += 1
            found.update(judge(client.name, client.line.blocks, 0, EVENTS + LATER))
        part.count(+found, "of the other process")
        check_log(part, other)
    part.tell(f"{len(theirs)} cut by the kill, first event of a resume: {spread(back)}, all told after {took:.1f} s")
    part.tell(f"{len(others)} saw nothing of it")


PARTS: dict[str, Callable[[Kind, Part], Awaitable[None]]] = {
    "idle": idle,
    "storm": storm,
    "latency": latency,
    "sigterm": sigterm,
    "kill": kill,
    "abuse": abuse,
}


async def crowd(server: str, name: str, clients: int) -> Part:
    """One part on this server. What was not expected is a fault of it, too."""
    part = Part(clients)
    try:
        async with asyncio.timeout(LIMIT_S):
            await PARTS[name](ALONE if server == PEER else FRONTS[server], part)
    except Exception as fault:
        part.faults.append(f"{type(fault).__name__}: {told(fault)}")
    return part


def told(fault: BaseException) -> str:
    """Of many at once the first."""
    while isinstance(fault, BaseExceptionGroup):
        fault = fault.exceptions[0]
    return f"{type(fault).__name__} {fault}"


def too_few_descriptors(clients: int) -> str | None:
    """Take as many descriptors as this process and its servers may, and say so if these are not enough."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # A front takes three quarters of them for connections.
    wanted = clients * 4 // 3 + SPARE
    if hard != resource.RLIM_INFINITY and hard < wanted:
        missing = f"{clients} clients need {wanted} descriptors, and `ulimit -Hn` is {hard}"
        return f"{missing}: raise it, or take --clients {(hard - SPARE) * 3 // 4}"
    # While clients come back, a server may have their old connections, too.
    most = 2 * clients + SPARE if hard == resource.RLIM_INFINITY else hard
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    return None


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Thousands of streams at the front of one process.")
    parser.add_argument("--clients", type=int, default=FULL)
    parser.add_argument("--servers", nargs="*", choices=(*SERVERS, PEER), default=[*SERVERS, PEER])
    parser.add_argument("--parts", nargs="*", choices=PARTS, default=list(PARTS))
    given = parser.parse_args(arguments)
    if missing := too_few_descriptors(given.clients):
        print(missing, flush=True)
        return end("crowd", ["descriptors"])
    broken = []
    for server in given.servers:
        for name in given.parts if server != PEER else {"abuse"}.intersection(given.parts):
            started = time.monotonic()
            part = asyncio.run(crowd(server, name, given.clients))
            load = f"{time.monotonic() - started:.0f} s, load {os.getloadavg()[0]:.1f}"
            print(f"{server:14} {name:8} {part.clients:6} clients  ({load})", flush=True)
            for line in part.figures + [f"BROKEN {fault}" for fault in part.faults]:
                print(f"    {line}", flush=True)
            broken += [f"{server} {name}"] if part.faults else []
    return end("crowd", broken)


if __name__ == "__main__":
    sys.exit(main())
