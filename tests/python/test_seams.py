"""Every way into Tailrope: lowlevel servers, transports made by hand, one store for one server, `run()`."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from conftest import KIND
from kit.peer import OLD, Peer, counts, last_id, results
from kit.servers import LOWLEVEL, TESTS, Farm, Kind, Server
from kit.stock import LINE, stock_client
from tailrope.testing._server import _free_port
from wire import test_contexts, test_host, test_ownership, test_polling, test_replay

pytestmark = pytest.mark.ours

# The lowlevel `Server` behind the SDK's session manager and behind ours, and with the public transport class alone.
LOW: dict[str, tuple[str, dict[str, Any]]] = {
    "lowlevel": ("lowlevel", {}),
    "resumable": ("lowlevel", {"way": "resumable"}),
    "manager": ("lowlevel", {"way": "manager"}),
    "byhand": ("byhand", {"store": "event-store"}),
}

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
    test_contexts.test_a_related_id_may_come_as_text,
    test_ownership.test_f31_second_resume_of_a_live_stream_takes_it_over,
    test_replay.test_f10_resumes_of_a_running_emitter_lose_and_repeat_nothing,
]


@pytest.fixture(scope="module", params=LOW)
def low(request: pytest.FixtureRequest) -> Iterator[Server]:
    name, options = LOW[request.param]
    server = Server(LOWLEVEL[f"{name}-{KIND.line}"], options)
    yield server
    server.kill()
    assert "panicked at" not in server.log(), server.log()


@pytest.mark.parametrize("way", ["lowlevel", "resumable", "manager"])
async def test_sessions_that_give_way_are_not_kept_by_their_manager(way: str) -> None:
    name, options = LOW[way]
    # The SDK refuses what its own table has no room for, and ends nothing when it is idle.
    bounds = {"max_sessions": 2, "idle_s": None, "engine": {"max_sessions": 2}}
    server = Server(LOWLEVEL[f"{name}-{KIND.line}"], {**options, **bounds})
    try:
        peers = [await server.peer() for _ in range(12)]
        stats = await server.stats()
        assert (stats["sessions"], stats["sessions_gave_way"]) == (2, 10)
        statuses = [(await peer.call("echo", {"text": "x"})).status for peer in peers]
        assert statuses == [404] * 10 + [200] * 2
    finally:
        server.kill()


@pytest.mark.parametrize("scenario", SCENARIOS, ids=[function.__name__ for function in SCENARIOS])
async def test_lowlevel(low: Server, scenario: Scenario) -> None:
    await scenario(low)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=[function.__name__ for function in SCENARIOS])
async def test_resumable(farm: Farm, scenario: Scenario) -> None:
    await scenario(farm.get(way="resumable"))


@pytest.mark.parametrize("revision", OLD)
async def test_lowlevel_with_old_revisions(low: Server, revision: str) -> None:
    await test_polling.test_old_sessions_get_no_priming_and_no_early_close(low, revision)
    await test_polling.test_old_sessions_still_resume(low, revision)
    await test_contexts.test_close_is_false_where_nothing_may_be_closed(low, revision)


@pytest.mark.parametrize("id", [0, "0", 7, "x y/ü"], ids=repr)
async def test_lowlevel_contexts(low: Server, id: Any) -> None:
    await test_contexts.test_what_belongs_to_a_call_is_on_its_stream(low, id)
    await test_contexts.test_close_with_pacing_works_on_every_context(low, id)


async def test_lowlevel_with_a_stock_client(low: Server) -> None:
    if "store" in low.options and LINE == 2:
        pytest.skip("the modern revision is routed by the SDK's manager, and the client asks for it first")
    async with stock_client(low.port) as client:
        assert await client.script(*["emit 3", "close", "emit 2"] * 5, "return x") == "x"
        assert client.progress == list(range(1, 26))


async def test_lowlevel_contexts_have_the_ids_of_the_wire(low: Server) -> None:
    peer = await low.peer()
    assert await peer.ask("request_id", id=17) == "17"
    assert await peer.ask("request_id", id="17") == '"17"'


async def test_one_server_of_a_process_alone(farm: Farm) -> None:
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


async def test_two_servers_have_bounds_of_their_own(farm: Farm) -> None:
    server = farm.get(servers={"one": {"max_sessions": 2, "max_events_per_stream": 3}, "two": {"max_sessions": 4}})
    peers: dict[str, list[Peer]] = {}
    for path, most in (("one", 2), ("two", 4)):
        peers[path] = []
        for number in range(most + 2):
            status, peer = await opened(server, f"/{path}/mcp")
            assert status == (200 if number < most else 503), (path, number)
            peers[path].append(peer)
            if status == 200:
                # In use, so that it ends for nobody.
                await peer.listen()
    await server.until_stats(lambda stats: stats["sessions"] == 6)
    for path, kept in (("one", [8, 9]), ("two", list(range(1, 10)))):
        before = (await server.stats())["events_stored"]
        reply = await peers[path][0].call("script", {"steps": ["close", "emit 9", "return x"]})
        await server.until_stats(lambda stats, before=before: stats["events_stored"] == before + 10)
        rest = await (await peers[path][0].resume(last_id(await reply.rest()))).rest()
        assert (counts(rest), results(rest)) == (kept, ["x"])
    # A session that ends makes room, at its own server only.
    await peers["two"][0].delete()
    assert (await opened(server, "/one/mcp"))[0] == 503
    assert (await opened(server, "/two/mcp"))[0] == 200


async def test_library_runs_by_itself_under_install(kind: Kind) -> None:
    port = _free_port()
    command = [sys.executable, "-m", "servers.python.running", kind.name, str(port)]
    process = subprocess.Popen(command, cwd=TESTS, stderr=subprocess.DEVNULL, env={**os.environ, "NO_COLOR": "1"})
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
