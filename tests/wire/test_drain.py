"""A server process that ends, or is to take no more, says so to every connected client. (F-44, D9)

What an exit leaves in a store is in test_stores.py.
"""

from __future__ import annotations

import asyncio
import re
import signal
import time
from collections import Counter
from functools import partial
from pathlib import Path

import pytest
from kit.elsewhere import NEVER_LOST, WAIT_S, Wandering, at, start
from kit.ending import ENDS_S, ended, opened
from kit.peer import NEWEST, OLD, Peer, last_id, results
from kit.places import empty_place
from kit.raw import Reply
from kit.servers import Farm, Kind, gate, until

STREAMS, SESSIONS = 10_000, 250
# What a drain tells clients where nobody says otherwise: how long a restart takes, and how much more at most.
RETRY_MS, SPREAD_MS = 5_000, 2_500
DRAIN_WITHIN_MS = 10_000


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
async def test_f44_signal_with_open_streams_ends_the_process(farm: Farm, how: signal.Signals) -> None:
    server = farm.fresh()
    try:
        _, replies = await opened(server)
        await ended(server, replies, how)
    finally:
        server.stop()


@pytest.mark.ours
@pytest.mark.parametrize("json_response", [False, True], ids=["old", "json"])
async def test_f44_calls_that_cannot_be_handed_over_end_as_usual(farm: Farm, json_response: bool) -> None:
    server = farm.fresh(**({"json_response": True} if json_response else {}), engine={"drain_within_ms": 60_000})
    try:
        name = gate()
        peer = await server.peer(NEWEST if json_response else OLD[0])
        running = asyncio.create_task(peer.ask("script", {"steps": [f"gate {name}", "return x"]}))
        await server.at(name)
        draining = asyncio.create_task(server.ctl("drain", body={}))
        # Once it has begun, such a call is refused.
        await until(partial(status_of_call, peer), lambda status: status == 503)
        assert not running.done()
        await server.open(name)
        assert await running == "x"
        await draining
    finally:
        server.stop()


async def test_f44_calls_of_old_sessions_get_an_error_at_drain(farm: Farm) -> None:
    server = farm.fresh(engine={"drain_within_ms": 400})
    try:
        name = gate()
        calls = []
        for revision in OLD:
            peer = await server.peer(revision)
            calls.append(await peer.call("script", {"steps": ["emit 1", f"gate {name}", "return x"]}))
            await calls[-1].some(1)
        server.process.send_signal(signal.SIGTERM)
        for call in calls:
            # Such a client cannot be asked to come back, so its call fails in words.
            assert [sorted(result) for result in results(await call.rest())] == [["code", "message"]]
        await asyncio.to_thread(server.exit_code, ENDS_S)
        if server.transport != "stock":
            # Of each process that drained.
            drained = re.findall(r"calls_done=(\d+) calls_ended=(\d+)", server.log())
            assert [sum(map(int, counts)) for counts in zip(*drained, strict=True)] == [0, len(OLD)], drained
    finally:
        server.stop()


@pytest.mark.ours
async def test_f44_drain_on_request_closes_every_connection(farm: Farm) -> None:
    server = farm.fresh()
    try:
        peer, replies = await opened(server)
        draining = asyncio.create_task(server.ctl("drain", body={"retry_ms": 1234, "within_ms": 10_000}))
        for reply in replies:
            while await reply.event() is not None:
                pass
            retries = [int(found) for found in re.findall(rb"retry: (\d+)", bytes(reply.raw))]
            # The floor that was asked for, spread so that not all come back at once.
            assert 1234 <= retries[-1] <= 3 * 1234, retries
        await draining
        # Later resumes get their priming and end.
        cursor = [line[4:] for line in bytes(replies[1].raw).decode().splitlines() if line.startswith("id: ")][-1]
        events = await (await peer.resume(cursor)).rest()
        assert len(events) >= 1 and events[0].is_priming
    finally:
        server.stop()


@pytest.mark.ours
async def test_f44_a_drain_is_paced_by_its_options_and_says_what_it_came_to(farm: Farm) -> None:
    server = farm.fresh(engine={"drain_within_ms": 600_000, "drain_retry_ms": 7, "drain_spread_ms": 0})
    try:
        ends, stays = gate(), gate()
        listening = await (await server.peer()).listen()
        await listening.event()
        # Such calls are waited for here.
        peer = await server.peer(OLD[0])
        calls = [await peer.call("script", {"steps": ["emit 1", f"gate {name}", "return x"]}) for name in (ends, stays)]
        for call in calls:
            await call.some(1)
        draining = asyncio.create_task(server.ctl("drain", body={}))
        await listening.rest()
        assert re.findall(rb"retry: (\d+)", bytes(listening.raw))[-1] == b"7"
        await server.open(ends)
        assert results(await calls[0].until_terminal()) == ["x"]
        # The signal that comes again, or a supervisor: nobody waits any longer.
        await server.ctl("drain", body={"within_ms": 0})
        log = await server.logged("calls_ended=1")
        assert re.search(r"took_ms=\d+.* calls_done=1 calls_ended=1 sessions_handed_over=0", log), log
        draining.cancel()
    finally:
        server.stop()


STOPPED = "The server stopped before the call had ended"


@pytest.mark.ours
@pytest.mark.parametrize("store", ["memory", "sqlite"])
async def test_f44_a_call_that_a_drain_cuts_is_recorded_as_drained(kind: Kind, store: str, tmp_path: Path) -> None:
    place = empty_place(store, tmp_path)
    server = start(kind, place, engine={**NEVER_LOST, "drain_within_ms": 400})
    try:
        peer = await server.peer()
        call = await peer.call("script", {"steps": ["emit 1", f"gate {gate()}"]})
        cursor = last_id(await call.some(1))
        server.process.send_signal(signal.SIGTERM)
        events = await call.rest()
        assert results(events) == [] and events[-1].retry is not None
        await asyncio.to_thread(server.exit_code, ENDS_S)
        log = server.log()
        assert outcomes(log) == ["drained"], log
        drained = re.findall(r"calls_done=(\d+) calls_ended=(\d+)", log)
        assert [sum(map(int, counts)) for counts in zip(*drained, strict=True)] == [0, 1], log
    finally:
        server.stop()
    if store != "memory":
        later = start(kind, place, engine=NEVER_LOST)
        try:
            [error] = results(await (await at(peer, later).resume(cursor)).until_terminal(WAIT_S))
            assert error == {"code": -32603, "message": STOPPED}
        finally:
            later.stop()


@pytest.mark.ours
@pytest.mark.parametrize("store", ["memory", "sqlite"])
async def test_i11_a_call_that_no_client_comes_back_for_is_recorded_as_such(
    kind: Kind, store: str, tmp_path: Path
) -> None:
    server = start(kind, empty_place(store, tmp_path), engine={**NEVER_LOST, "max_detached_ms": 400})
    try:
        peer = await server.peer()
        call = await peer.call("script", {"steps": ["emit 1", f"gate {gate()}"]})
        cursor = last_id(await call.some(1))
        call.close()
        log = await server.logged("outcome=")
        assert outcomes(log) == ["client_gone"], log
        assert (await peer.resume(cursor)).status == 404
        assert outcomes(server.log()) == ["client_gone"]
    finally:
        server.stop()


def outcomes(log: str) -> list[str]:
    """Of calls that a record was written for."""
    return re.findall(r" outcome=(\w+)", log)


@pytest.mark.ours
async def test_o17_calls_of_a_process_that_drains_end_and_idle_sessions_go_on_at_once(kind: Kind, place: str) -> None:
    here = start(kind, place, engine={**NEVER_LOST, "drain_within_ms": 120_000})
    there = start(kind, place, engine=NEVER_LOST)
    try:
        idle, busy = [await Wandering.opened(here, there) for _ in range(2)]
        assert await at(idle, here).ask("echo", {"text": "x"}) == "x"
        running = await at(busy, here).call("script", {"steps": ["emit 1", "elicit hm"]})
        events = await running.some(2, WAIT_S)
        question = events[-1].message["id"]
        here.process.send_signal(signal.SIGTERM)
        await running.rest(WAIT_S)
        # The process still runs, as a call of the other session does.
        assert await idle.ask("echo", {"text": "on"}) == "on"
        assert here.process.poll() is None and (await there.stats())["sessions_adopted"] == 1
        resumed = await busy.resume(last_id(events))
        answer = {"action": "accept", "content": {"name": "yes"}}
        assert (await busy.respond(question, answer)).status == 202
        assert results(await resumed.until_terminal(WAIT_S)) == ['{"name":"yes"}']
        assert await asyncio.to_thread(here.exit_code, ENDS_S) in (0, -signal.SIGTERM, 128 + signal.SIGTERM)
        assert await busy.ask("echo", {"text": "on"}) == "on"
        assert (await there.stats())["sessions_adopted"] == 2
    finally:
        here.stop()
        there.stop()
    for server in (here, there):
        assert "Traceback" not in server.log() and "is gone" not in server.log(), server.log()


async def status_of_call(peer: Peer) -> int:
    return (await peer.call("echo", {"text": "x"})).status


@pytest.mark.ours
async def test_o17_delete_in_a_drain_ends_the_session_everywhere(kind: Kind, place: str) -> None:
    here = start(kind, place, engine={**NEVER_LOST, "drain_within_ms": 120_000})
    there = start(kind, place, engine=NEVER_LOST)
    try:
        peers = [await Wandering.opened(here, there) for _ in range(2)]
        calls = [await at(peer, here).call("script", {"steps": ["emit 1", f"gate {gate()}"]}) for peer in peers]
        for call in calls:
            await call.some(1, WAIT_S)
        draining = asyncio.create_task(here.ctl("drain", body={"within_ms": 120_000}))
        for call in calls:
            await call.rest(WAIT_S)
        for peer, asked in zip(peers, (here, there), strict=True):
            assert (await at(peer, asked).delete()).status == 200
            for server in (there, here):
                # The owner answers a DELETE before the store has it: another process may know the session for a moment.
                await until(partial(status_of_call, at(peer, server)), lambda status: status == 404)
        # Nothing is left that the drain would wait for.
        await draining
        assert (await there.stats())["sessions_adopted"] == 0
    finally:
        here.stop()
        there.stop()


@pytest.mark.ours
@pytest.mark.full
@pytest.mark.first
@pytest.mark.timeout(900)
async def test_f44_ten_thousand_open_streams_are_drained_within_the_budget(kind: Kind, tmp_path: Path) -> None:
    place = empty_place("sqlite", tmp_path)
    server = start(kind, place, engine={**NEVER_LOST, "drain_within_ms": DRAIN_WITHIN_MS})
    name = gate()

    async def held(peer: Peer) -> list[Reply]:
        steps = ["emit 1", f"gate {name}", "return x"]
        return [await peer.call("script", {"steps": steps}) for _ in range(STREAMS // SESSIONS)]

    async def told(reply: Reply) -> int:
        """What its client is told last: when it has to come back."""
        assert len(await reply.rest(WAIT_S + DRAIN_WITHIN_MS)) >= 1
        raw = bytes(reply.raw)
        assert b"id: " in raw
        return int(re.findall(rb"retry: (\d+)", raw)[-1])

    try:
        peers = [await server.peer() for _ in range(SESSIONS)]
        replies = [reply for each in await asyncio.gather(*map(held, peers)) for reply in each]
        await server.at(name, STREAMS)
        server.process.send_signal(signal.SIGTERM)
        asked = time.monotonic()
        waits_ms = await asyncio.gather(*map(told, replies))
        assert min(waits_ms) >= RETRY_MS and max(waits_ms) <= RETRY_MS + SPREAD_MS
        # Chance gives each tenth of the time 1,000 clients, and hardly ever a fifth more or less.
        tenths = Counter(min(9, (wait_ms - RETRY_MS) * 10 // SPREAD_MS) for wait_ms in waits_ms)
        assert all(800 <= tenths[tenth] <= 1_200 for tenth in range(10)), tenths
        # No call ends, so the process takes the whole time that it has for them, and what writing their ends takes.
        code = await asyncio.to_thread(server.exit_code, DRAIN_WITHIN_MS / 1000 + 3 * ENDS_S)
        assert code in (0, -signal.SIGTERM, 128 + signal.SIGTERM), code
        assert time.monotonic() - asked >= DRAIN_WITHIN_MS / 1000
        assert "Traceback" not in server.log(), server.log()
    finally:
        server.stop()
