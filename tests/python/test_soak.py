"""Nothing is left behind: short sessions, polls and cuts by the thousand, and what the process holds before and after.

Each kind of load runs in rounds. The first fills whatever caches and free lists there are. What an allocator keeps
follows the most that was alive at once, and that follows the speed of the machine, so some more rounds may add to it;
a leak is what every round adds.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from conftest import Farm, Server, gate
from kit.peer import CAPABILITIES, NEWEST, last_id
from kit.raw import ACCEPT, Decoder, Event, Reply, Wire

pytestmark = [pytest.mark.ours, pytest.mark.timeout(600)]

WORKERS = 12
# Longer than a busy machine takes between two requests of a session.
IDLE_S = 8.0
# From then on an engine holds the connection whatever the handler asked for.
MAX_POLLS = 500
# Of one venv's two libraries the SDK's own gets the whole load, as the transport is the same under both.
SHARE = {"fastmcp3": 8, "fastmcp4": 8}
# What leaks for each session, poll or cut of a round is more than this.
SLACK_BYTES = 1 << 20
MAX_ROUNDS = 8
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
        return reply, Decoder().feed(await reply.body())

    async def open(self) -> None:
        self.session = None
        reply, _ = await self.ask("POST", {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": OPENING})
        assert reply.status == 200
        self.session = reply.headers["mcp-session-id"]
        reply, _ = await self.ask("POST", {"jsonrpc": "2.0", "method": "notifications/initialized"})
        assert reply.status == 202


async def short_sessions(server: Server, count: int) -> None:
    """Every other one is deleted; the rest is left to the idle timeout."""

    async def worker(numbers: Iterator[int]) -> None:
        line = Line(server.port)
        for number in numbers:
            await line.open()
            params = {"name": "script", "arguments": {"steps": ["log x"]}, "_meta": {"progressToken": 1}}
            call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
            reply, events = await line.ask("POST", call)
            assert reply.status == 200 and events[-1].is_terminal
            if number % 2:
                reply, _ = await line.ask("DELETE")
                assert reply.status == 200

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
        assert (await (await peer.resume(cursor)).rest())[-1].is_terminal
    await peer.delete()


async def cuts(server: Server, count: int) -> None:
    """Streams that are opened and cut at once, half of them while their call is running."""
    peer = await server.peer()

    async def worker(numbers: Iterator[int]) -> None:
        for number in numbers:
            if number % 2:
                reply = await peer.get()
            else:
                reply = await peer.call("script", {"steps": ["emit 2", "sleep 2", "emit 2"]}, id=f"cut {number}")
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


async def settled(server: Server) -> dict[str, Any]:
    """What is held once everything has wound down, as far as it does."""
    for _ in range(600):
        held, stats = await server.ctl("held"), await server.stats()
        if "Session" not in held["objects"] and stats["sessions"] == 0:
            break
        await asyncio.sleep(0.05)
    return {**held, **{name: stats[name] for name in ("sessions", "connections", "streams", "events", "bytes")}}


@pytest.mark.parametrize("load", LOADS)
async def test_load_leaves_nothing_behind(farm: Farm, load: str) -> None:
    run, count = LOADS[load]
    count //= SHARE.get(farm.kind.name, 1)
    server = farm.get(idle_s=IDLE_S)
    rounds: list[dict[str, Any]] = []
    while len(rounds) < 2 or (grown(rounds) and len(rounds) < MAX_ROUNDS):
        await run(server, count)
        rounds.append(await settled(server))
    assert not grown(rounds), rounds
    for held in rounds:
        assert [held[name] for name in ("sessions", "connections", "streams", "events", "bytes")] == [0] * 5, rounds


def grown(rounds: list[dict[str, Any]]) -> bool:
    """Whether the last round left something behind that the one before it did not."""
    before, after = rounds[-2:]
    return (
        after["objects"] != before["objects"]
        or after["tasks"] > before["tasks"]
        or after["rss"] - before["rss"] >= SLACK_BYTES
    )
