"""What a resume sends: the log's suffix after the cursor, once, in order, then the live tail. (A2: F-10 to F-28)"""

from __future__ import annotations

import asyncio
import re

import pytest
from kit.peer import Peer, counts, ids, last_id, logs, results, unknown_like
from kit.raw import Event, Reply
from kit.servers import Farm, Server, gate, until


def up_to(count: int, first: int = 1) -> list[int]:
    return list(range(first, count + 1))


async def begun(peer: Peer, *steps: str, read: int) -> str:
    """Call a script, read so many messages and cut the connection: the cursor that is left."""
    reply = await peer.call("script", {"steps": list(steps)})
    events = await reply.some(read) if read else [await reply.event()]
    reply.drop()
    return last_id(events)


async def finished_away(server: Server, peer: Peer, before: str, *after: str) -> tuple[str, str]:
    """A call whose client has seen what the step `before` emits, and was away for the others: a cursor, the result."""
    name = gate()
    read = int(before.split()[1])
    cursor = await begun(peer, before, f"gate {name}", *after, f"return {name}", read=read)
    await server.open(name)
    await server.mark(f"finished return {name}")
    return cursor, name


async def resumed_at(server: Server, peer: Peer) -> int:
    """How many GETs the server has got; a front tells its host of none, so there it is what the engine has."""
    if server.kind.has_front:
        return int((await server.stats())["resumes_accepted"])
    return int((await server.state())["requests"].get(f"GET {peer.session}", 0))


# Where a stock transport sends what is emitted neither with the replay nor live; each SDK has one of them.
@pytest.mark.parametrize("where", ["priming", "replay"])
async def test_f10_events_during_a_running_replay_are_delivered(lab: Server, where: str) -> None:
    peer = await lab.peer()
    name, slow, end = gate(), gate(), gate()
    steps = ["emit 2", f"gate {name}", "emit 5", f"mark {name}", f"gate {end}", "return x"]
    cursor = await begun(peer, *steps, read=2)
    await lab.plan(**({"gate": slow, "gate_on": "priming"} if where == "priming" else {"replay_gate": slow}))
    before = await resumed_at(lab, peer)
    resuming = asyncio.create_task(peer.resume(cursor))
    await until(lambda: resumed_at(lab, peer), lambda resumed: resumed > before)
    await lab.open(name)
    # The tool runs on, unless its appends rightly wait behind the slow one: no mark tells which.
    await asyncio.sleep(0.1)
    await lab.open(slow)
    reply = await resuming
    assert counts(await reply.some(5)) == [3, 4, 5, 6, 7]
    await lab.open(end)
    assert results(await reply.until_terminal()) == ["x"]


async def test_f10_resumes_of_a_running_emitter_lose_and_repeat_nothing(server: Server) -> None:
    session, name = await server.session(), gate()
    call = await session.call("script", {"steps": [f"until {name}"]})
    for take in (1, 7, 3, 20, 2, 11):
        await call.cut(after=take)
        await call.resume()
    await server.open(name)
    result = (await call.collect(read_again=False))[-1]
    call.assert_exactly_once([*range(1, int(result) + 1), result])


async def cut_again_and_again(peer: Peer, many: int) -> None:
    steps = [*[f"emit {many}", "sleep 1"] * 2, f"emit {many}", "return x"]
    reply = await peer.call("script", {"steps": steps})
    seen: list[Event] = []
    take = 1
    while True:
        for _ in range(take):
            event = await reply.event()
            assert event is not None, f"ended after {counts(seen)}"
            seen.append(event)
            if event.is_terminal:
                assert (counts(seen), results(seen)) == (up_to(3 * many), ["x"])
                assert len(set(ids(seen))) == len(ids(seen)), "no id comes twice"
                return
        reply.drop()
        reply = await peer.resume(last_id(seen))
        take = take * 7 % 97


@pytest.mark.parametrize(("calls", "many"), [(1, 50), pytest.param(4, 400, marks=pytest.mark.full)])
async def test_f10_resumes_under_load_lose_and_repeat_nothing(server: Server, calls: int, many: int) -> None:
    # All emit as fast as they can, each followed by a reader that is cut again and again.
    peers = [await server.peer() for _ in range(3)]
    await asyncio.gather(*(cut_again_and_again(peer, many) for peer in peers for _ in range(calls)))


async def test_f11_the_last_event_does_not_come_again(server: Server) -> None:
    peer = await server.peer()
    cursor, name = await finished_away(server, peer, "emit 3", "emit 1")
    for _ in range(2):
        events = await (await peer.resume(cursor)).until_terminal()
        assert counts(events) == [4] and results(events) == [name]


async def test_f12_wire_order_is_emission_order_whatever_the_store_latency(lab: Server) -> None:
    await lab.plan(latency_ms=[40, 0, 20, 1, 10, 0, 5])
    peer = await lab.peer()
    reply = await peer.call("script", {"steps": ["burst 12", "return x"]})
    events = await reply.until_terminal()
    assert counts(events) == up_to(12)
    assert results(events) == ["x"]
    if lab.transport == "tailrope":
        # A user's store sees the appends of one stream one after the other.
        assert (await lab.state())["store"]["overlaps"] == 0


async def test_f12_replay_repeats_the_live_order(lab: Server) -> None:
    await lab.plan(latency_ms=[30, 0, 15, 1])
    peer = await lab.peer()
    cursor, name = await finished_away(lab, peer, "emit 1", "burst 8")
    events = await (await peer.resume(cursor)).until_terminal()
    assert counts(events) == up_to(9, 2) and results(events) == [name]


async def test_f16_result_produced_while_away_is_replayed(server: Server) -> None:
    peer = await server.peer()
    cursor, name = await finished_away(server, peer, "emit 1", "emit 3")
    events = await (await peer.resume(cursor)).until_terminal()
    assert counts(events) == [2, 3, 4] and results(events) == [name]


async def test_f16_result_produced_after_a_close_is_replayed(server: Server) -> None:
    peer = await server.peer()
    name = gate()
    call = await peer.call("script", {"steps": ["emit 1", "close", f"gate {name}", "emit 1", f"return {name}"]})
    events = await call.rest()
    await server.open(name)
    await server.mark(f"finished return {name}")
    events += await (await peer.resume(last_id(events))).until_terminal()
    assert counts(events) == [1, 2] and results(events) == [name]


async def test_f16_result_stays_readable_from_every_cursor(server: Server) -> None:
    call = await (await server.session()).call("script", {"steps": ["emit 3", "return x"]})
    await call.collect(read_again=False)
    cursors = call.ids[:-1]
    for cursor in cursors:
        await call.resume(after=cursor)
        await call.collect(read_again=False)
    assert len(call.connections) == 1 + len(cursors) == 5
    call.assert_exactly_once([1, 2, 3, "x"])


@pytest.mark.one_language("the Python SDKs refuse batches")
async def test_f16_batch_whose_responses_are_made_while_the_client_is_away_is_resumed_whole(server: Server) -> None:
    if server.kind.language == "python":
        pytest.skip("the Python SDKs refuse batches")
    peer = await server.peer("2025-03-26")
    name = gate()

    def call(id: int | str, *steps: str) -> dict[str, object]:
        params = {"name": "script", "arguments": {"steps": steps}, "_meta": {"progressToken": id}}
        return {"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params}

    batch = [
        call(1, "emit 1", f"gate {name}", "emit 2", "return one"),
        call(2, f"gate {name}", "emit 1", "return two"),
        call("3", f"gate {name}", f"return {name}"),
        {"jsonrpc": "2.0", "method": "notifications/x"},
    ]
    reply = await peer.post(batch)
    cursor = last_id(await reply.some(1))
    await server.at(name, 3)
    reply.drop()
    await server.open(name)
    await server.mark(f"finished return {name}")
    resumed = await peer.resume(cursor)
    rest = [event for _ in range(3) for event in await resumed.until_terminal()]
    assert sorted(results(rest)) == sorted(["one", "two", name])
    assert sorted(counts(rest)) == [1, 2, 3]
    if server.transport == "tailrope":
        await resumed.ends()


async def test_f19_unknown_cursor_without_a_request_is_refused(server: Server) -> None:
    peer = await server.peer()
    for cursor in ("nonsense", "0", "a" * 33 + ".", "a" * 119):
        reply = await peer.resume(cursor)
        assert reply.status == 400, cursor
        error = await reply.json()
        assert error["jsonrpc"] == "2.0" and error["error"]["code"] < 0


async def test_f19_lost_stream_fails_the_request_it_names(server: Server) -> None:
    peer = await server.peer()
    for id in (5, "five"):
        reply = await peer.call("script", {"steps": ["return x"]}, id=id)
        lost = unknown_like((await reply.rest())[0].id or "")
        answer = await peer.resume(lost)
        assert answer.status == 200
        events = await answer.rest()
        assert len(events) == 1, events
        message = events[0].message
        assert message["id"] == id and type(message["id"]) is type(id)
        assert message["error"]["code"] < 0
        # A client that comes back with the tombstone is told to stop, cheaply and for good.
        for _ in range(2):
            after = await peer.resume(events[0].id)
            assert (after.status, await after.body()) == (204, b"")


async def test_f20_trimmed_history_is_announced(farm: Farm) -> None:
    server = farm.get(cap=10, engine={"max_events_per_stream": 10})
    peer = await server.peer()
    cursor, name = await finished_away(server, peer, "emit 2", "emit 50")
    reply = await peer.resume(cursor)
    assert reply.status == 200
    blocks = [block async for block in reply.blocks()]
    gaps = [block.comment for block in blocks if block.comment and block.comment.startswith("gap")]
    assert len(gaps) == 1, blocks
    # Positions count from 1 and every progress notification is one event, so the numbers can be checked.
    match = re.fullmatch(r"gap (\d+) (\d+)", gaps[0] or "")
    assert match, gaps
    first, missing = int(match[1]), int(match[2])
    assert first == 3
    assert counts(blocks) == list(range(first + missing, 53))
    assert counts(blocks), "what is retained must be sent"
    assert results(blocks) == [name]
    # The announcement comes before the first event that follows the gap.
    marker = next(i for i, block in enumerate(blocks) if block.comment == gaps[0])
    assert all(block.message is None for block in blocks[:marker])


async def test_f22_reader_that_leaves_during_replay_leaves_nothing_behind(server: Server) -> None:
    peer = await server.peer()
    cursor, name = await finished_away(server, peer, "emit 1", "emit 1200 1000")
    got = [1]
    for _ in range(4):
        reply = await peer.resume(cursor, receive_buffer=4096)
        events = await reply.some(100)
        got += counts(events)
        cursor = last_id(events)
        reply.drop()
    events = await (await peer.resume(cursor)).until_terminal()
    got += counts(events)
    assert got == up_to(1201) and results(events) == [name]
    if server.transport == "tailrope":
        await server.until_stats(lambda stats: stats["connections"] == 0)


async def test_f23_resumed_connection_ends_after_the_response(server: Server) -> None:
    peer = await server.peer()
    name = gate()
    cursor = await begun(peer, "emit 1", f"gate {name}", f"return {name}", read=1)
    live = await peer.resume(cursor)
    await server.open(name)
    assert results(await live.until_terminal()) == [name]
    await live.ends()
    # The same holds where the response is already in the log.
    replayed = await peer.resume(cursor)
    assert results(await replayed.until_terminal()) == [name]
    await replayed.ends()


async def primed(reply: Reply, retry_ms: int = 20) -> str:
    """The first bytes of an SSE answer: an id, a retry and an explicit empty data line."""
    assert reply.status == 200 and reply.is_sse
    first = await reply.block()
    assert first is not None
    assert first.id, first
    assert first.retry == retry_ms, first
    assert first.data == "", first
    assert re.fullmatch(r"[\x21-\x2b\x2d-\x7e]{1,120}", first.id), first.id
    return first.id


async def test_f24_post_stream_starts_with_an_id(server: Server) -> None:
    peer = await server.peer()
    assert peer.opening[0].is_priming, "initialize is primed as well"
    name = gate()
    reply = await peer.call("script", {"steps": [f"gate {name}", f"return {name}"]})
    await server.at(name)
    cursor = await primed(reply)
    reply.drop()
    await server.open(name)
    await server.mark(f"finished return {name}")
    assert results(await (await peer.resume(cursor)).until_terminal()) == [name]


async def test_f25_standalone_stream_starts_with_an_id(server: Server) -> None:
    peer = await server.peer()
    stream = await peer.listen()
    cursor = await primed(stream)
    stream.drop()
    # Before the first notification: the priming event is all that the client has.
    await peer.ask("script", {"steps": ["standalone while away"]})
    again = await peer.resume(cursor)
    await primed(again)
    assert logs(await again.some(1)) == ["while away"]


async def test_f26_resume_that_delivers_nothing_gives_a_new_id_and_retry(server: Server) -> None:
    peer = await server.peer()
    name = gate()
    reply = await peer.call("script", {"steps": ["emit 1", f"gate {name}", f"return {name}"]})
    first = await primed(reply)
    cursor = last_id(await reply.some(1))
    reply.drop()
    used = {first, cursor}
    for _ in range(5):
        reply = await peer.resume(cursor)
        cursor = await primed(reply)
        assert cursor not in used, "an id that did not change is no progress for some clients"
        used.add(cursor)
        reply.drop()
    await server.open(name)
    events = await (await peer.resume(cursor)).until_terminal()
    # Every one of those ids means the same position.
    assert counts(events) == [] and results(events) == [name]


@pytest.mark.parametrize("small", [False, True])
@pytest.mark.one_process("its event store is in memory")
async def test_f28_control_rows_never_appear_as_messages(farm: Farm, small: bool) -> None:
    # A small window forces the user's own replay, which hands back the priming rows too.
    server = farm.get(store="lab", **({"engine": {"max_events_per_stream": 5}} if small else {}))
    peer = await server.peer()
    await server.plan(replay_primings=True)
    name = gate()
    cursor = await begun(peer, f"gate {name}", "emit 30", f"return {name}", read=0)
    poll = await peer.resume(cursor)
    await poll.settle(0.1)
    poll.drop()
    await server.open(name)
    await server.mark(f"finished return {name}")
    events = await (await peer.resume(cursor)).until_terminal()
    await server.plan()
    for event in events:
        assert event.is_priming or event.message.get("jsonrpc") == "2.0", event
    assert counts(events) == up_to(30) and results(events) == [name]


async def test_ids_in_one_connection_never_repeat(server: Server) -> None:
    peer = await server.peer()
    reply = await peer.call("script", {"steps": ["emit 30", "return x"]})
    found = ids(await reply.until_terminal())
    assert len(found) == len(set(found)) == 32
