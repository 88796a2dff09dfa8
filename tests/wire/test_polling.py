"""Closing connections on purpose, and coming back: nothing lost, nothing repeated, by anybody. (D9, W-041 to W-047)"""

from __future__ import annotations

import asyncio
import re
import time

import pytest
from kit.fleet import servers_of
from kit.peer import OLD, Peer, counts, ids, last_id, logs, results
from kit.servers import Farm, Server, gate


async def poll(peer: Peer, cursor: str) -> tuple[list[int], list[str], str, int]:
    """Resume whenever the connection ends, until the response is there: progress, results, cursor, resumes."""
    progress: list[int] = []
    for resumes in range(1, 200):
        reply = await peer.resume(cursor)
        assert reply.status == 200, await reply.body()
        events = await reply.rest()
        progress += counts(events)
        cursor = last_id(events)
        if found := results(events):
            return progress, found, cursor, resumes
    raise AssertionError("no response after 200 resumes")


async def test_twenty_live_resumes_lose_nothing(server: Server) -> None:
    peer = await server.peer()
    for round in range(20):
        name = gate()
        reply = await peer.call("script", {"steps": [f"until {name}"]})
        events = await reply.some(3)
        got = counts(events)
        # Half of them while the old connection is still there, half after a cut.
        if round % 2:
            reply.drop()
        resumed = await peer.resume(last_id(events))
        got += counts(await resumed.some(5))
        await server.open(name)
        rest = await resumed.until_terminal()
        got += counts(rest)
        assert got == list(range(1, len(got) + 1)), f"round {round}"
        assert results(rest) == [str(len(got))]


async def test_ten_closes_that_deliver_nothing_are_survived(server: Server) -> None:
    peer = await server.peer()
    gates = [gate() for _ in range(10)]
    steps = [step for name in gates for step in (f"gate {name}", "close", f"mark closed {name}")]
    reply = await peer.call("script", {"steps": [*steps, "emit 1", "return x"]})
    seen: list[str] = []
    for name in gates:
        first = await reply.event()
        assert first is not None and first.is_priming and first.id
        await server.at(name)
        await server.open(name)
        assert await reply.rest() == [], "an id and nothing else"
        await server.mark(f"closed {name}")
        seen.append(first.id)
        if name != gates[-1]:
            reply = await peer.resume(first.id)
    assert len(set(seen)) == 10, "each connection gave a new id"
    progress, found, _, _ = await poll(peer, seen[-1])
    assert (progress, found) == ([1], ["x"])


async def test_close_cuts_the_stream_in_two_and_loses_nothing(server: Server) -> None:
    peer = await server.peer()
    reply = await peer.call("script", {"steps": ["emit 5", "close", "emit 5", "return x"]})
    events = await reply.rest()
    before = counts(events)
    assert before == [1, 2, 3, 4, 5][: len(before)], "nothing that came after the close"
    assert events[0].retry == 20
    progress, found, _, resumes = await poll(peer, last_id(events))
    assert (before + progress, found, resumes) == (list(range(1, 11)), ["x"], 1)


async def test_three_streams_cut_at_once_are_resumed_at_once(server: Server) -> None:
    peer = await server.peer()
    name = gate()
    stream = await peer.listen()
    one = await peer.call("script", {"steps": ["emit 2", f"gate {name}", "emit 3", "return one"]}, id=1)
    steps = ["emit 4", f"gate {name}", "emit 1", "standalone late", f"return two {name}"]
    # The context of the first Python line has every id as text, and rmcp tells progress by its token alone: neither
    # could tell these two apart.
    is_unsure = any(kind.line in ("mcp1", "rmcp3") for kind in servers_of(server.kind))
    two = await peer.call("script", {"steps": steps}, id="two" if is_unsure else "1")
    await peer.ask("script", {"steps": ["standalone early"]})
    cursors = [last_id(await stream.some(1)), last_id(await one.some(2)), last_id(await two.some(4))]
    for reply in (stream, one, two):
        reply.drop()
    await server.at(name, 2)
    await server.open(name)
    resumed = await asyncio.gather(*(peer.resume(cursor) for cursor in cursors))
    assert logs(await resumed[0].some(1)) == ["late"]
    first, second = await resumed[1].rest(), await resumed[2].rest()
    assert (counts(first), results(first)) == ([3, 4, 5], ["one"])
    assert (counts(second), results(second)) == ([5], [f"two {name}"])
    everything = ids(first + second)
    assert len(set(everything)) == len(everything), "an id is unique in its session"
    await resumed[0].quiet(0.2)


async def test_closing_the_standalone_stream_keeps_it(server: Server) -> None:
    peer = await server.peer()
    stream = await peer.listen()
    await peer.ask("script", {"steps": ["standalone one", "close_standalone", "standalone two"]})
    events = await stream.rest()
    again = await peer.resume(last_id(events))
    first = await again.event()
    assert first is not None and first.is_priming and first.retry == 20
    # The close may overtake "one" on its way out; it is then in the log.
    left = 2 - len(logs(events))
    assert logs(events) + logs(await again.some(left)) == ["one", "two"]
    await again.quiet(0.1)


@pytest.mark.ours
async def test_hold_of_zero_is_pure_polling(server: Server) -> None:
    peer = await server.peer()
    name = gate()
    reply = await peer.call("script", {"steps": ["close hold=0", f"gate {name}", "emit 2", f"return {name}"]})
    cursor = last_id(await reply.rest())
    for _ in range(6):
        events = await (await peer.resume(cursor)).rest()
        assert [event.data for event in events] == [""]
        cursor = last_id(events)
    await server.open(name)
    await server.mark(f"finished return {name}")
    progress, found, _, _ = await poll(peer, cursor)
    assert (progress, found) == ([1, 2], [name])


@pytest.mark.ours
async def test_hold_keeps_a_resumed_connection_that_long(server: Server) -> None:
    peer = await server.peer()
    longer, end = gate(), gate()
    steps = ["close hold=300", f"gate {longer}", "close hold=30000", f"gate {end}", f"return {end}"]
    reply = await peer.call("script", {"steps": steps})
    cursor = last_id(await reply.rest())
    started = time.monotonic()
    events = await (await peer.resume(cursor)).rest()
    assert time.monotonic() - started > 0.2
    # A result that arrives while the connection is held is sent at once: long before the hold is over.
    await server.open(longer)
    await server.at(end)
    resumed = await peer.resume(last_id(events))
    await server.open(end)
    assert results(await resumed.rest()) == [end]


@pytest.mark.ours
async def test_close_for_polling_is_remembered_while_nobody_is_connected(server: Server) -> None:
    peer = await server.peer()
    name, end = gate(), gate()
    steps = [f"gate {name}", "close hold=0", f"mark {name}", f"gate {end}", "return x"]
    reply = await peer.call("script", {"steps": steps})
    first = await reply.event()
    assert first is not None and first.id
    before = (await server.stats())["connections_lost"]
    reply.drop()
    await server.until_stats(lambda stats: stats["connections_lost"] > before)
    await server.open(name)
    await server.mark(name)
    events = await (await peer.resume(first.id)).rest()
    assert [event.data for event in events] == [""]
    await server.open(end)


@pytest.mark.ours
async def test_plain_close_while_nobody_is_connected_is_not_remembered(server: Server) -> None:
    peer = await server.peer()
    name, end = gate(), gate()
    steps = ["close", f"gate {name}", "close", f"mark {name}", f"gate {end}", "return x"]
    reply = await peer.call("script", {"steps": steps})
    cursor = last_id(await reply.rest())
    await server.open(name)
    await server.mark(name)
    resumed = await peer.resume(cursor)
    first = await resumed.event()
    assert first is not None and first.is_priming
    await resumed.quiet(0.2)
    await server.open(end)
    assert results(await resumed.until_terminal()) == ["x"]


@pytest.mark.ours
async def test_retry_of_one_stream_is_repeated_on_its_resumes_only(server: Server) -> None:
    peer = await server.peer()
    name = gate()
    reply = await peer.call("script", {"steps": ["close retry=777", f"gate {name}", f"return {name}"]})
    events = await reply.rest()
    # The value that counts for the wait is the last one before the close.
    assert [event.retry for event in events if event.retry is not None][-1] == 777
    cursor = last_id(events)
    for _ in range(3):
        resumed = await peer.resume(cursor)
        first = await resumed.event()
        assert first is not None and first.retry == 777
        cursor = first.id or ""
        resumed.drop()
    other = await peer.call("script", {"steps": ["return other"]})
    first = await other.event()
    assert first is not None and first.retry == 20
    await server.open(name)
    assert results(await (await peer.resume(cursor)).rest()) == [name]


@pytest.mark.parametrize("revision", OLD)
async def test_old_sessions_get_no_priming_and_no_early_close(server: Server, revision: str) -> None:
    peer = await server.peer(revision)
    assert peer.revision == revision
    assert all(event.data for event in peer.opening), "the stream of initialize is not primed either"
    name = gate()
    steps = ["emit 1", "close", f"gate {name}", "emit 2", f"return {name}"]
    reply = await peer.call("script", {"steps": steps})
    first = await reply.event()
    assert first is not None and counts([first]) == [1]
    await server.at(name)
    await reply.quiet(0.2)
    await server.open(name)
    events = await reply.rest()
    assert (counts(events), results(events)) == ([2, 3], [name])
    stream = await peer.listen()
    await peer.ask("script", {"steps": ["standalone x"]})
    event = await stream.event()
    assert event is not None and logs([event]) == ["x"]


@pytest.mark.parametrize("revision", OLD)
async def test_old_sessions_still_resume(server: Server, revision: str) -> None:
    peer = await server.peer(revision)
    name = gate()
    reply = await peer.call("script", {"steps": ["emit 2", f"gate {name}", "emit 2", f"return {name}"]})
    events = await reply.some(1)
    reply.drop()
    resumed = await peer.resume(last_id(events))
    assert counts(await resumed.some(1)) == [2]
    await server.open(name)
    rest = await resumed.rest()
    assert (counts(rest), results(rest)) == ([3, 4], [name])
    assert all(event.data for event in rest)


@pytest.mark.parametrize("revision", OLD)
async def test_the_sessions_revision_decides_not_the_requests_header(server: Server, revision: str) -> None:
    peer = await server.peer(revision)
    reply = await peer.call("script", {"steps": ["close", "return x"]}, Mcp_Protocol_Version="2025-11-25")
    events = await reply.rest()
    assert all(event.data for event in events) and results(events) == ["x"]


async def test_question_travels_on_the_calls_own_stream_across_a_poll(server: Server) -> None:
    peer = await server.peer()
    stream = await peer.listen()
    reply = await peer.call("script", {"steps": ["close", "elicit who"]})
    cursor = last_id(await reply.rest())
    resumed = await peer.resume(cursor)
    question = (await resumed.some(1))[0].message
    assert (question["method"], question["params"]["message"]) == ("elicitation/create", "who")
    await peer.respond(question["id"], {"action": "accept", "content": {"name": "me"}})
    assert results(await resumed.until_terminal()) == ['{"name":"me"}']
    assert not [event for event in await stream.settle(0.1) if event.message is not None]


@pytest.mark.ours
async def test_engine_closes_by_itself_after_max_connection_ms(farm: Farm) -> None:
    server = farm.get(engine={"max_connection_ms": 300})
    peer, old = await server.peer(), await server.peer(OLD[1])
    name = gate()
    steps = {"steps": ["emit 1", f"gate {name}", f"return {name}"]}
    reply = await peer.call("script", steps)
    events = await reply.rest()
    assert any(event.retry is not None for event in events) and not results(events)
    # A client of an old revision is never cut off: what it would make of that is unknown.
    stays = await old.call("script", steps)
    await stays.some(1)
    await stays.quiet(0.6)
    await server.open(name)
    progress, found, _, _ = await poll(peer, last_id(events))
    assert (counts(events) + progress, found) == ([1], [name])
    assert results(await stays.rest()) == [name]


@pytest.mark.ours
async def test_engine_closes_by_itself_after_max_connection_bytes(farm: Farm) -> None:
    server = farm.get(engine={"max_connection_bytes": 20_000})
    peer = await server.peer()
    name = gate()
    reply = await peer.call("script", {"steps": ["emit 30 1000", f"gate {name}", "emit 370 1000", f"return {name}"]})
    # Ends although its call goes on and has nothing more to say for now.
    events = await reply.rest()
    assert 0 < len(counts(events)) <= 30
    await server.open(name)
    await server.mark(f"finished return {name}")
    progress, found, _, resumes = await poll(peer, last_id(events))
    assert counts(events) + progress == list(range(1, 401)) and found == [name]
    # What is ready together may go over the mark, but not by much.
    assert resumes >= 370 * 1_000 / 20_000 / 4


@pytest.mark.ours
async def test_keep_alives_are_comments(farm: Farm) -> None:
    server = farm.get(engine={"keep_alive_ms": 50})
    peer = await server.peer()
    stream = await peer.listen()
    first = await stream.block()
    assert first is not None and first.is_priming
    for _ in range(3):
        block = await stream.block()
        # As each SDK spells it.
        assert block is not None and re.fullmatch("keep-?alive", block.comment or ""), block
    assert re.search(rb": keep-?alive\n\n", bytes(stream.raw))
