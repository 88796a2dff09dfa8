"""Nothing is left behind: sessions, polls, cuts and clients that vanish, and what the process holds afterwards.

The whole load, with the memory that it leaves, runs in rounds. The first fills whatever caches and free lists there
are. What an allocator keeps follows the most that was alive at once, and that follows the speed of the machine, so some
more rounds may add to it; a leak is what every round adds.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from kit.peer import CAPABILITIES, NEWEST, last_id
from kit.raw import ACCEPT, Decoder, Event, Reply, Wire
from kit.servers import Farm, Server, gate, until

pytestmark = [pytest.mark.ours, pytest.mark.first]

WORKERS = 12
# Longer than a busy machine takes between two requests of a session.
IDLE_S = 8.0
# From then on an engine holds the connection whatever the handler asked for.
MAX_POLLS = 500
# Of the libraries on one transport one gets the whole load.
SHARE = {"fastmcp3": 8, "fastmcp4": 8, "web-v1": 4, "web-v2": 4}
# What leaks for each session, poll or cut of a round is more than this.
SLACK_BYTES = 1 << 20
MAX_ROUNDS = 8
COUNTERS = ("sessions", "connections", "streams", "events", "bytes")
HEAD = {"Accept": ACCEPT, "Content-Type": "application/json", "Mcp-Protocol-Version": NEWEST}
OPENING = {
    "protocolVersion": NEWEST,
    "capabilities": CAPABILITIES,
    "clientInfo": {"name": "soak", "version": "1"},
}


class Line:
    """A kept-alive connection: thousands of requests are not to be thousands of handshakes."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.wire: Wire | None = None
        self.session: str | None = None

    async def ask(self, method: str, body: Any = None, **more: str) -> tuple[Reply, list[Event]]:
        if self.wire is None:
            self.wire = await Wire.open(self.port)
        headers = {"Host": f"127.0.0.1:{self.port}", **HEAD, **{k.replace("_", "-"): v for k, v in more.items()}}
        if self.session is not None:
            headers["Mcp-Session-Id"] = self.session
        await self.wire.send(method, "/mcp", headers, None if body is None else json.dumps(body).encode())
        reply = await self.wire.answer()
        body = await reply.body()
        if reply.headers.get("connection") == "close":
            self.wire.close()
            self.wire = None
        return reply, Decoder().feed(body)

    async def open(self) -> None:
        self.session = None
        reply, _ = await self.ask("POST", {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": OPENING})
        assert reply.status == 200
        self.session = reply.headers["mcp-session-id"]
        reply, _ = await self.ask("POST", {"jsonrpc": "2.0", "method": "notifications/initialized"})
        assert reply.status == 202

    def close(self) -> None:
        if self.wire is not None:
            self.wire.close()


async def short_sessions(server: Server, count: int) -> None:
    """Every other one is deleted; the rest is left to the idle timeout, unless that is far."""

    async def worker(numbers: Iterator[int]) -> None:
        line = Line(server.port)
        for number in numbers:
            await line.open()
            params = {"name": "script", "arguments": {"steps": ["log x"]}, "_meta": {"progressToken": 1}}
            call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
            reply, events = await line.ask("POST", call)
            assert reply.status == 200 and events[-1].is_terminal
            if number % 2 or server.options["idle_s"] > IDLE_S:
                reply, _ = await line.ask("DELETE")
                assert reply.status == 200
        line.close()

    numbers = iter(range(count))
    await asyncio.gather(*(worker(numbers) for _ in range(WORKERS)))
    await server.until_stats(lambda stats: stats["sessions"] == 0, 60)


async def polls(server: Server, count: int) -> None:
    """Calls that are polled as often as polls are answered at once, then held, cut, and answered in the end."""
    peer = await server.peer()
    line = Line(server.port)
    line.session = peer.session
    while count > 0:
        name = gate()
        reply = await peer.call("script", {"steps": ["close hold=0 retry=1", f"gate {name}", "return x"]})
        cursor = last_id(await reply.rest())
        for number in range(min(count, MAX_POLLS + 20)):
            if number < MAX_POLLS:
                reply, events = await line.ask("GET", Last_Event_ID=cursor)
            else:
                reply = await peer.resume(cursor)
                first = await reply.event()
                events = [first] if first is not None else []
                reply.drop()
            assert reply.status == 200 and [event.data for event in events] == [""], events
            cursor = last_id(events)
        count -= number + 1
        await server.open(name)
        # The call ends after its gate has opened, and polls before that are answered at once.
        while not (events := await (await peer.resume(cursor)).rest())[-1].is_terminal:
            cursor = last_id(events)
    await peer.delete()
    line.close()


async def cuts(server: Server, count: int) -> None:
    """Streams that are opened and cut, at once or once they have begun, half of them while their call is running."""
    peer = await server.peer()

    async def worker(numbers: Iterator[int]) -> None:
        for number in numbers:
            if number % 2:
                reply = await peer.get()
            else:
                reply = await peer.call("script", {"steps": ["emit 2", "sleep 2", "emit 2"]}, id=f"cut {number}")
            if number % 4 > 1:
                await reply.event()
            reply.drop()

    numbers = iter(range(count))
    await asyncio.gather(*(worker(numbers) for _ in range(WORKERS)))
    await server.until_stats(lambda stats: stats["connections"] == 0, 60)
    await peer.delete()


LOADS: dict[str, tuple[Callable[[Server, int], Awaitable[None]], int]] = {
    "short-sessions": (short_sessions, 1_000),
    "polls": (polls, 1_500),
    "cuts": (cuts, 1_000),
}
MARKS = {"polls": pytest.mark.one_process("each process counts the polls that it answers")}


async def settled(server: Server) -> dict[str, Any]:
    """What is held once everything has wound down, as far as it does."""

    async def ask() -> dict[str, Any]:
        held, stats = await server.held(), await server.stats()
        return {**held, "counters": [stats[name] for name in COUNTERS]}

    def down(held: dict[str, Any]) -> bool:
        return not any(held["counters"]) and "Session" not in held.get("objects", ()) and not held.get("sessions")

    return await until(ask, down, 60)


async def test_a_little_load_leaves_nothing_behind(farm: Farm) -> None:
    server = farm.get(idle_s=600.0)

    async def held() -> dict[str, Any]:
        return {**await settled(server), **await server.state()}

    async def loaded() -> dict[str, Any]:
        for run, _ in LOADS.values():
            await run(server, 36)
        return await held()

    def wound_down(after: dict[str, Any]) -> bool:
        kinds = all(count <= before["objects"].get(kind, 0) for kind, count in after.get("objects", {}).items())
        return kinds and all(after[name] <= before[name] + 3 for name in ("descriptors", "tasks") if name in after)

    before = await loaded()
    await loaded()
    after = await until(held, wound_down)
    assert not after.get("errors"), after


@pytest.mark.full
@pytest.mark.timeout(600)
@pytest.mark.parametrize("load", [pytest.param(load, marks=MARKS.get(load, ())) for load in LOADS])
async def test_load_leaves_nothing_behind(farm: Farm, load: str) -> None:
    run, count = LOADS[load]
    count //= SHARE.get(farm.kind.name, 1)
    server = farm.get(idle_s=IDLE_S)
    rounds: list[dict[str, Any]] = []
    while len(rounds) < 2 or (grown(rounds) and len(rounds) < MAX_ROUNDS):
        await run(server, count)
        rounds.append(await settled(server))
    assert not grown(rounds), rounds
    assert not any(held.get("errors", ()) for held in rounds), rounds


def grown(rounds: list[dict[str, Any]]) -> bool:
    """Whether the last round left something behind that the one before it did not."""
    before, after = rounds[-2:]
    more = {name: after[name] - before[name] for name in ("rss", "heap", "tasks") if name in after}
    # Where a heap of its own is measured, its pages come and go by themselves.
    slack = {"rss": 8 * SLACK_BYTES if "heap" in more else SLACK_BYTES, "heap": SLACK_BYTES, "tasks": 1}
    return after.get("objects") != before.get("objects") or any(more[name] >= slack[name] for name in more)
