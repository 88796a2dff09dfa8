"""What a handler does through the context of its call, and what counters and log tell of it."""

from __future__ import annotations

import contextlib
import hashlib
import re
from pathlib import Path
from typing import Any

import pytest
from kit.fleet import Fleet
from kit.peer import OLD, Peer, counts, last_id, logs, results
from kit.raw import Reply
from kit.servers import Farm, Server, gate

pytestmark = pytest.mark.ours


@contextlib.asynccontextmanager
async def acting(server: Server, peer: Peer, id: Any = None) -> Any:
    """A running call that does what it is told, its reply, and the function to tell it."""
    name = gate()
    reply = await peer.call("act", {"name": name, "steps": []}, id=id)
    await server.mark(f"acting {name}")

    async def order(step: str) -> Any:
        answer = await server.ctl("act", name=name, step=step)
        assert "outcome" in answer, answer
        return answer["outcome"]

    yield reply, order
    await order("respond")


async def first_retry(reply: Reply) -> tuple[int | None, str]:
    first = await reply.event()
    assert first is not None and first.id is not None
    return first.retry, first.id


# 1.30 of the Python SDK takes the related id 0 for none; its FastMCP and fastmcp 3 hand ids out as text.
IDS = pytest.mark.parametrize("id", [0, "0", 7, "x y/ü"], ids=repr)


@IDS
async def test_what_belongs_to_a_call_is_on_its_stream(server: Server, id: Any) -> None:
    peer = await server.peer()
    stream = await peer.listen()
    other = gate()
    beside = await peer.call("script", {"steps": [f"gate {other}"]}, id="beside")
    reply = await peer.call("script", {"steps": ["emit 1", "log mine", "changed", "elicit who"]}, id=id)
    events = await reply.some(3)
    assert counts(events) == [1] and logs(events) == ["mine"]
    assert events[2].message["method"] == "elicitation/create"
    # What is for everybody is not the call's, not even where the SDK cannot tell them apart.
    assert (await stream.some(1))[0].message["method"] == "notifications/tools/list_changed"
    await peer.respond(events[2].message["id"], {"action": "accept", "content": {"name": "me"}})
    assert [terminal.message["id"] for terminal in await reply.rest()] == [id]
    await server.open(other)
    assert results(await beside.rest()) == ["done"]


@IDS
async def test_close_with_pacing_works_on_every_context(server: Server, id: Any) -> None:
    peer = await server.peer()
    async with acting(server, peer, id) as (reply, order):
        stream = await peer.listen()
        _, standing = await first_retry(stream)
        assert await order("close_standalone retry=700 hold=150") is True
        closed = await stream.rest()
        assert [event.retry for event in closed if event.retry is not None] == [700]
        again = await peer.resume(standing)
        assert (await first_retry(again))[0] == 700
        await again.rest()

        assert await order("close retry=600 hold=0") is True
        events = await reply.rest()
        assert [event.retry for event in events if event.retry is not None][-1] == 600
        polled = await peer.resume(last_id(events))
        retry, cursor = await first_retry(polled)
        assert retry == 600 and await polled.rest() == []
        # Nobody is connected: there is nothing to close, and nothing wrong with asking.
        assert await order("close") in (True, False)
    found: list[Any] = []
    # Another process may hear of the response when it has closed this poll.
    while not found:
        events = await (await peer.resume(cursor)).rest()
        found, cursor = results(events), last_id(events)
    assert len(found) == 1


@pytest.mark.parametrize("revision", OLD)
async def test_close_is_false_where_nothing_may_be_closed(server: Server, revision: str) -> None:
    peer = await server.peer(revision)
    async with acting(server, peer) as (reply, order):
        for step in ("close", "close retry=5 hold=0", "close_standalone", "close_standalone retry=5"):
            assert await order(step) is False, step
    assert len(results(await reply.rest())) == 1


async def test_a_related_id_may_come_as_text(server: Server) -> None:
    peer = await server.peer()
    async with acting(server, peer, 17) as (reply, order):
        for step in ("related n:17 a", "related s:17 b"):
            await order(step)
        assert logs(await reply.some(2)) == ["a", "b"]


@pytest.mark.one_process("each process has a bound of its own")
async def test_session_over_max_sessions_is_503(farm: Farm) -> None:
    server = farm.get(engine={"max_sessions": 2})
    first, second = await server.peer(), await server.peer()
    streams = [await first.listen(), await second.listen()]  # Sessions in use end for nobody.
    for _ in range(5):
        refused = Peer(server.port)
        with pytest.raises(AssertionError, match=r"503.*Too many open sessions"):
            await refused.initialize()
        assert refused.session is None
    await server.until_stats(lambda stats: stats["sessions"] == 2)
    assert await first.ask("echo", {"text": "still here"}) == "still here"
    await first.delete()
    await server.peer()
    for stream in streams:
        stream.drop()


async def test_work_that_nobody_comes_back_for_is_stopped(farm: Farm) -> None:
    # With an idle time of half an hour, the default.
    server = farm.get(engine={"max_detached_ms": 600})
    peer = await server.peer()
    name = gate()
    reply = await peer.call("script", {"steps": ["emit 1", f"gate {name}", f"return {name}"]})
    cursor = last_id(await reply.some(1))
    reply.drop()
    await server.until_stats(lambda stats: stats["sessions"] == 0)
    if server.kind.name != "fastmcp3":
        # There the tool runs on, as it does on the stock transport.
        await server.mark(f"cancelled return {name}")
    assert (await peer.resume(cursor)).status == 404
    held = ("streams", "events", "bytes", "connections")
    await server.until_stats(lambda stats: not any(stats[name] for name in held))


COUNTERS = Path(__file__).resolve().parents[2] / "docs/reference/counters.md"
# As Python names them: the page is written from the core's list.
STATS = set(re.findall(r"^\| `([a-z_]+)` \|", COUNTERS.read_text(), re.MULTILINE))


async def test_stats_and_log_tell_what_happened_and_never_what_was_said(farm: Farm) -> None:
    secret = "do-not-write-this-down"
    server = farm.get(engine={"max_events_per_stream": 4}, log="DEBUG")
    peer = await server.peer(headers={"X-Secret": secret})
    before = await server.stats()
    assert before.keys() == STATS and len(STATS) > 50 and all(isinstance(value, int) for value in before.values())
    # A takeover, a gap, a complete one, a lost one, a refused one.
    async with acting(server, peer, 1) as (reply, order):
        await order(f"related n:1 {secret}")
        cursor = last_id(await reply.some(1))
        resumed = await peer.resume(cursor)
        assert (await first_retry(resumed))[0] == 20
        await reply.ends()
        resumed.drop()
        for _ in range(8):
            await order(f"related n:1 {secret}")
    # The nine events and the response: a reader that is faster than the store would see more.
    await server.until_stats(lambda stats: stats["events_stored"] - before["events_stored"] >= 10)
    rest = await (await peer.resume(cursor)).rest()
    # At another process one more may be there still: it reads before the response has taken its place.
    assert logs(rest) == [secret] * 3 or (isinstance(server.kind, Fleet) and logs(rest) == [secret] * 4)
    assert (await peer.resume(last_id(rest))).status == 204
    forged = cursor[:5] + ("A" if cursor[5] != "A" else "B") + cursor[6:]
    assert [fault["code"] for fault in results(await (await peer.resume(forged)).rest())] == [-32603]
    # An id that is too long for the event id to name.
    other = last_id(await (await peer.call("echo", {"text": secret}, id="n" * 80)).rest())
    assert (await peer.resume(other[:5] + ("A" if other[5] != "A" else "B") + other[6:])).status == 400
    # And one that nobody here made.
    assert (await peer.resume("no-such-cursor")).status == 400
    after = await server.stats()
    assert after["resumes_refused"] - before["resumes_refused"] == 2
    grown = {name for name in STATS if after[name] > before[name]}
    assert {"resumes_accepted", "resumes_complete", "resumes_lost", "resumes_refused", "gaps", "takeovers"} <= grown
    assert {"events_stored", "events_missed", "streams_opened", "connections_opened", "closes_complete"} <= grown
    assert not any("fault" in name or "unstored" in name or "drain" in name for name in grown), grown
    await peer.delete()
    await server.stats()
    lines = (await server.logged("session ended")).splitlines()
    assert peer.session is not None
    name = hashlib.sha256(f"{peer.path}\n{peer.session}".encode()).hexdigest()[:32]
    told = ("session opened", "resume session=", "request refused", "resume not possible", "gap")
    for words in (*told, "why=superseded", "why=complete", "session ended"):
        found = [line for line in lines if words in line]
        assert any(f"session={name}" in line for line in found), (words, lines)
    # Who has the session's id may come back to it.
    assert secret not in server.log() and peer.session not in server.log()
    # Which cursor was resumed, and how much was left, is what an operator looks for first.
    resumed_lines = [line for line in lines if "resume session=" in line and cursor in line]
    assert resumed_lines and all("request=" in line and "replayed=" in line for line in resumed_lines), lines
