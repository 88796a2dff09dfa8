"""Every way into Tailrope: lowlevel servers, transports by hand, one store for one server, `run()`, each context."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
import test_host
import test_ownership
import test_polling
import test_replay
from kit.stock import LINE, stock_client
from conftest import HERE, Farm, Server, gate
from kit.peer import OLD, Peer, counts, last_id, logs, results
from kit.raw import Reply
from tailrope.testing._server import _free_port

pytestmark = pytest.mark.ours

# The lowlevel `Server` behind the SDK's session manager, and with the public transport class but no install().
LOW: dict[str, dict[str, Any]] = {"lowlevel": {}, "byhand": {"store": "tailrope"}}

Scenario = Callable[[Server], Awaitable[None]]
SCENARIOS: list[Scenario] = [
    test_polling.test_close_cuts_the_stream_in_two_and_loses_nothing,
    test_polling.test_closing_the_standalone_stream_keeps_it,
    test_polling.test_hold_of_zero_is_pure_polling,
    test_polling.test_question_travels_on_the_calls_own_stream_across_a_poll,
    test_polling.test_ten_closes_that_deliver_nothing_are_survived,
    test_polling.test_three_streams_cut_at_once_are_resumed_at_once,
    test_host.test_cancelled_request_gets_its_terminal,
    test_host.test_handlers_see_the_http_request,
    test_host.test_sampling_and_elicitation_work_over_raw_http,
    test_ownership.test_f31_second_resume_of_a_live_stream_takes_it_over,
    test_replay.test_f10_resumes_of_a_running_emitter_lose_and_repeat_nothing,
]


@pytest.fixture(scope="module", params=LOW)
def low(request: pytest.FixtureRequest) -> Iterator[Server]:
    server = Server(request.param, LOW[request.param])
    yield server
    server.kill()
    assert "panicked at" not in server.log(), server.log()


@pytest.mark.parametrize("scenario", SCENARIOS, ids=[function.__name__ for function in SCENARIOS])
async def test_lowlevel(low: Server, scenario: Scenario) -> None:
    await scenario(low)


@pytest.mark.parametrize("revision", OLD)
async def test_lowlevel_with_old_revisions(low: Server, revision: str) -> None:
    await test_polling.test_old_sessions_get_no_priming_and_no_early_close(low, revision)
    await test_polling.test_old_sessions_still_resume(low, revision)


async def test_lowlevel_with_a_stock_client(low: Server) -> None:
    if low.kind.name == "byhand" and LINE == 2:
        pytest.skip("the modern revision is routed by the SDK's manager, and the client asks for it first")
    async with stock_client(low.port) as client:
        assert await client.script(*["emit 3", "close", "emit 2"] * 5, "return x") == "x"
        assert client.progress == list(range(1, 26))


async def test_lowlevel_contexts_have_the_ids_of_the_wire(low: Server) -> None:
    peer = await low.peer()
    assert await peer.ask("request_id", id=17) == "17"
    assert await peer.ask("request_id", id="17") == "'17'"


@pytest.mark.parametrize("id", [0, "0", 7, "x y/ü"], ids=repr)
async def test_what_belongs_to_a_call_is_on_its_stream(farm: Farm, low: Server, id: Any) -> None:
    # 1.30 takes the related id 0 for none; its FastMCP and fastmcp 3 hand ids out as text.
    for server in (low, farm.get()):
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
        await low.open(other)
        await server.open(other)
        assert results(await beside.rest()) == ["done"]


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


@pytest.mark.parametrize("id", [0, "0", 7, "seven"], ids=repr)
async def test_close_with_pacing_works_on_every_context(farm: Farm, low: Server, id: Any) -> None:
    for server in (low, farm.get()):
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
        assert len(results(await (await peer.resume(cursor)).rest())) == 1


@pytest.mark.parametrize("revision", OLD)
async def test_close_is_false_where_nothing_may_be_closed(farm: Farm, low: Server, revision: str) -> None:
    for server in (low, farm.get()):
        peer = await server.peer(revision)
        async with acting(server, peer) as (reply, order):
            for step in ("close", "close retry=5 hold=0", "close_standalone", "close_standalone retry=5"):
                assert await order(step) is False, step
        assert len(results(await reply.rest())) == 1


async def test_a_related_id_may_come_as_text(farm: Farm, low: Server) -> None:
    for server in (low, farm.get()):
        peer = await server.peer()
        async with acting(server, peer, 17) as (reply, order):
            for step in ("related n:17 a", "related s:17 b"):
                await order(step)
            assert logs(await reply.some(2)) == ["a", "b"]


async def test_a_store_engages_its_server_alone(farm: Farm) -> None:
    server = farm.get(servers={"ours": {"retry_ms": 44}, "stock": None})
    ours, stock = await server.peer(path="/ours/mcp"), await server.peer(path="/stock/mcp")
    assert (await server.stats())["sessions"] == 1
    events = await (await ours.call("script", {"steps": ["emit 1", "close", "emit 1", "return x"]})).rest()
    assert events[0].retry == 44
    rest = await (await ours.resume(last_id(events))).rest()
    assert rest[0].is_priming and counts(events + rest) == [1, 2] and results(rest) == ["x"]
    events = await (await stock.call("script", {"steps": ["emit 1", "return x"]})).rest()
    assert [event.id for event in events] == [None, None] and results(events) == ["x"]
    assert (await server.stats())["sessions"] == 1


async def opened(server: Server, path: str) -> tuple[int, Peer]:
    """A peer, and the status that its initialize was answered with."""
    peer = Peer(server.port, path)
    try:
        await peer.initialize()
    except AssertionError as fault:
        status, body = fault.args[0]
        assert status == 503 and b"Too many open sessions" in body, fault
        return 503, peer
    return 200, peer


async def test_two_stores_have_bounds_of_their_own(farm: Farm) -> None:
    server = farm.get(servers={"one": {"max_sessions": 2, "max_events_per_stream": 3}, "two": {"max_sessions": 4}})
    peers: dict[str, list[Peer]] = {}
    for path, most in (("one", 2), ("two", 4)):
        peers[path] = []
        for number in range(most + 2):
            status, peer = await opened(server, f"/{path}/mcp")
            assert status == (200 if number < most else 503), (path, number)
            peers[path].append(peer)
    assert (await server.stats())["sessions"] == 6
    for path, kept in (("one", [8, 9]), ("two", list(range(1, 10)))):
        before = (await server.stats())["events_stored"]
        reply = await peers[path][0].call("script", {"steps": ["close", "emit 9", "return x"]})
        await server.until_stats(lambda stats, before=before: stats["events_stored"] == before + 10)
        rest = await (await peers[path][0].resume(last_id(await reply.rest()))).rest()
        assert (counts(rest), results(rest)) == (kept, ["x"])
    # A session that ends makes room, in its own store only.
    await peers["two"][0].delete()
    assert (await opened(server, "/one/mcp"))[0] == 503
    assert (await opened(server, "/two/mcp"))[0] == 200


async def test_session_over_max_sessions_is_503(farm: Farm) -> None:
    server = farm.get(engine={"max_sessions": 2})
    first = await server.peer()
    await server.peer()
    for _ in range(5):
        status, peer = await opened(server, "/mcp")
        assert status == 503 and peer.session is None
    assert (await server.stats())["sessions"] == 2
    assert await first.ask("echo", {"text": "still here"}) == "still here"
    await first.delete()
    assert (await opened(server, "/mcp"))[0] == 200


async def test_library_runs_by_itself_under_install(flavor: str) -> None:
    port = _free_port()
    command = [sys.executable, "-m", "servers.running", flavor, str(port)]
    process = subprocess.Popen(command, cwd=HERE, stderr=subprocess.DEVNULL, env={**os.environ, "NO_COLOR": "1"})
    try:
        for _ in range(400):
            with contextlib.suppress(OSError):
                peer = await Peer.open(port)
                break
            await asyncio.sleep(0.05)
        reply = await peer.call("script", {"steps": ["emit 1", "close", "emit 1", "return x"]})
        events = await reply.rest()
        assert events[0].is_priming and events[0].retry == 20
        rest = await (await peer.resume(last_id(events))).rest()
        assert counts(events + rest) == [1, 2] and results(rest) == ["x"]
    finally:
        process.kill()
        process.wait()


STATS = {
    *("sessions", "connections", "streams", "events", "bytes"),
    *("sessions_opened", "streams_opened", "connections_opened", "connections_lost"),
    *("events_stored", "events_unstored", "events_missed", "messages_late"),
    *("resumes_accepted", "resumes_complete", "resumes_lost", "resumes_refused", "gaps", "takeovers"),
    *("takeovers_elsewhere", "logs_lost"),
    *(f"closes_{why}" for why in ("complete", "asked", "polled", "limit", "drain", "fault", "ended")),
}


async def test_stats_and_log_tell_what_happened_and_never_what_was_said(farm: Farm) -> None:
    secret = "do-not-write-this-down"
    server = farm.get(engine={"max_events_per_stream": 4}, log="DEBUG")
    peer = await server.peer(headers={"X-Secret": secret})
    before = await server.stats()
    assert before.keys() == STATS and all(isinstance(value, int) for value in before.values())
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
    rest = await (await peer.resume(cursor)).rest()
    assert logs(rest) == [secret] * 3
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
    lines = [line for line in server.log().splitlines() if ":tailrope:" in line]
    assert peer.session is not None
    told = ("session opened", "resume session=", "resume refused", "resume not possible", "gap")
    for words in (*told, "why=superseded", "why=complete", "session ended"):
        found = [line for line in lines if words in line]
        assert any(f"session={peer.session}" in line for line in found), (words, lines)
    assert secret not in server.log()
    # Nor is a cursor there: whoever reads logs could not use it anyway, but it is the client's.
    assert cursor not in server.log()


async def test_work_that_nobody_comes_back_for_is_stopped(farm: Farm) -> None:
    # With the SDK's own idle timeout of half an hour.
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
    stats = await server.stats()
    assert (stats["streams"], stats["events"], stats["bytes"], stats["connections"]) == (0, 0, 0, 0)
    await server.open(name)
