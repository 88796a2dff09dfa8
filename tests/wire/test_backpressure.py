"""Readers that do not read, and events that are too big or awkward. (atlas A5: F-56, F-57, F-60, F-61; I10)"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import re
from typing import Any

import pytest
from kit.fleet import servers_of
from kit.peer import counts, last_id, results
from kit.raw import Event, Truncated
from kit.servers import Farm, Server, gate, until

pytestmark = pytest.mark.first

MIB = 1 << 20
AWKWARD = "a\u2028b\u2029c\u0085d\re\nf\x00g\ufeffh\u00e9i\U0001f40d"
# More than the sockets take of a stream whose reader has a small buffer and never reads.
FLOOD = "emit 700 10000"


async def test_f56_reader_that_stalls_delays_no_other_call(server: Server) -> None:
    peer = await server.peer()
    name = gate()
    steps = [FLOOD, f"mark {name}", f"gate {name}", "return x"]
    stalled = await peer.call("script", {"steps": steps}, receive_buffer=4096)
    for _ in range(5):
        assert await peer.ask("echo", {"text": "quick"}) == "quick"
    # Nor does it block the handler that writes to it.
    await server.mark(name)
    await server.open(name)
    stalled.drop()


async def test_f56_stalled_standalone_reader_delays_no_call(server: Server) -> None:
    peer = await server.peer()
    await peer.get(receive_buffer=4096)
    for _ in range(35):
        text = "standalone " + "y" * 200_000
        async with asyncio.timeout(60):
            assert await peer.ask("script", {"steps": [text, "return x"]}) == "x"


TIGHT = {"max_bytes_per_stream": MIB, "max_event_bytes": 40_000}
# What a process may take beside its log, which is for the whole run to say: a collector of garbage takes its time.
ROOM = {"python": 24 * MIB, "node": 96 * MIB, "rust": 24 * MIB}


@pytest.mark.parametrize(
    "events", [700, pytest.param(20_000, marks=[pytest.mark.full, pytest.mark.timeout(300)], id="full")]
)
async def test_f57_slow_reader_costs_no_memory(farm: Farm, events: int) -> None:
    server = farm.get(cap=50, engine=TIGHT)
    peer = await server.peer()
    await peer.ask("script", {"steps": [f"emit {events // 10} 10000"]})

    async def kept() -> int:
        return int((await server.stats())["bytes"]) if server.transport == "tailrope" else 0

    before, kept_before, peak = (await server.state())["rss"], await kept(), 0
    # A reader that takes nothing, and one that is killed while it reads.
    name, killed = gate(), gate()
    stalled = await peer.call("script", {"steps": [f"emit {events} 10000", f"return {name}"]}, receive_buffer=4096)
    left = await peer.call("script", {"steps": [f"emit {events} 10000", f"return {killed}"]})
    await left.some(2)
    left.drop()

    def emitted(state: Any) -> bool:
        nonlocal peak
        peak = max(peak, state["rss"])
        return {f"finished return {name}", f"finished return {killed}"} <= state["marks"].keys()

    # All is emitted, though nobody reads it.
    state = await until(server.state, emitted, 240)
    if server.transport == "tailrope":
        assert state.get("errors", []) == []
    # Each process of a fleet tells what the store has, as far as it knows.
    assert await kept() < (kept_before + 2 * MIB + 50_000) * len(servers_of(server.kind))
    if events == 20_000:
        most = sum(ROOM[member.language] for member in servers_of(server.kind))
        assert peak - before < most, f"{(peak - before) >> 20} MiB"
    # The reader that wakes up gets the rest, or is told where the hole is; never a hole in silence.
    blocks: list[Event] = []
    reply = stalled
    while not results(blocks):
        # A connection cut for its reader's sake may end anywhere, even inside an event.
        with contextlib.suppress(Truncated, AssertionError):
            blocks += [block async for block in reply.blocks()]
        reply = await peer.resume(last_id(blocks))
    found = counts(blocks)
    holes = [(a, b) for a, b in itertools.pairwise(found) if b != a + 1]
    gaps = [block.comment for block in blocks if block.comment and block.comment.startswith("gap")]
    assert results(blocks) == [name]
    assert len(holes) <= len(gaps), (holes, gaps)


@pytest.mark.ours
async def test_f57_reader_that_takes_nothing_is_cut_off_at_the_age_of_connections(farm: Farm) -> None:
    server = farm.get(engine={"max_connection_ms": 500})
    peer = await server.peer()
    # More than the sockets take, for a client that keeps its own.
    stalled = await peer.call("script", {"steps": ["emit 100 60000", "return x"]}, receive_buffer=4096)
    await server.until_stats(lambda stats: stats["connections"] == 0, 20)
    blocks: list[Event] = []
    reply = stalled
    while True:
        assert reply.status == 200, await reply.body()
        # It may end anywhere, even inside an event; so may a later one, where this process stood still.
        with contextlib.suppress(Truncated, AssertionError, ConnectionError):
            async for block in reply.blocks(20):
                blocks.append(block)
        if results(blocks):
            break
        reply = await peer.resume(last_id(blocks))
    assert (counts(blocks), results(blocks)) == (list(range(1, 101)), ["x"])


@pytest.mark.ours
@pytest.mark.one_process("what is not stored reaches the readers of its own process alone")
async def test_f60_event_over_the_limit_is_not_kept(farm: Farm) -> None:
    server = farm.get(cap=50, engine=TIGHT)
    peer = await server.peer()
    reply = await peer.call("script", {"steps": ["emit 1", "big 50000"]})
    events = await reply.rest()
    assert counts(events) == [1]
    # Who reads the stream gets the response, once. Who comes back for it is told why it is not there.
    (whole,) = results(events)
    assert len(whole) == 50_000
    again = await (await peer.resume(events[1].id)).rest()
    (error,) = results(again)
    assert again[-1].id == events[-1].id and (await peer.resume(events[-1].id)).status == 204
    assert error["code"] < 0
    # Some libraries send the text twice.
    assert re.search(r"\b(5|10)\d{4}\b", error["message"]), error
    # A notification that is too big is the handler's to hear of; the call goes on.
    raised, after = json.loads(await peer.ask("script", {"steps": ["try emit 1 50000", "try emit 1 100"]}))
    assert re.match(r"raised .*\b5\d{4}\b", raised) and after == "ok", raised


@pytest.mark.parametrize("size", [9_000_000, pytest.param(20_000_000, marks=pytest.mark.full)])
async def test_f60_large_result_is_delivered_and_resumed(server: Server, size: int) -> None:
    peer = await server.peer()
    reply = await peer.call("script", {"steps": ["emit 1", f"big {size}"]})
    events = await reply.until_terminal(60)
    assert [len(result) for result in results(events)] == [size]
    again = await (await peer.resume(events[1].id)).until_terminal(60)
    assert results(again) == results(events)


async def test_f61_line_separators_are_escaped_on_the_wire(server: Server) -> None:
    peer = await server.peer()
    reply = await peer.call("echo", {"text": AWKWARD})
    events = await reply.until_terminal()
    raw = bytes(reply.raw)
    for forbidden in ("\u2028", "\u2029", "\u0085", "\x00"):
        assert forbidden.encode() not in raw, f"{ord(forbidden):x} is raw on the wire"
    assert b"\ndata: " in raw and raw.count(b"\ndata: ") == len(events), "one data line each"
    assert results(events) == [AWKWARD]


async def test_f61_awkward_text_survives_replay_and_progress(server: Server) -> None:
    peer = await server.peer()
    reply = await peer.call("script", {"steps": [f"log {AWKWARD}", f"return {AWKWARD}"]})
    events = await reply.until_terminal()
    again = await (await peer.resume(events[0].id)).until_terminal()
    for found in (events, again):
        messages = [event.message for event in found if event.message]
        assert messages[0]["params"]["data"] == AWKWARD
        assert results(found) == [AWKWARD]
    # The same bytes for every reader.
    assert [(e.id, e.data) for e in events if e.data] == [(e.id, e.data) for e in again if e.data]


@pytest.mark.ours
async def test_lines_end_with_lf_and_fields_have_one_blank(server: Server) -> None:
    peer = await server.peer()
    reply = await peer.call("script", {"steps": ["emit 2", "return x"]})
    await reply.rest()
    raw = bytes(reply.raw)
    assert b"\r" not in raw
    for block in raw.decode().split("\n\n")[:-1]:
        names = [line.partition(": ")[0] for line in block.split("\n")]
        assert names in (["id", "retry", "data"], ["id", "data"]), block
        assert names.index("id") < names.index("data")
