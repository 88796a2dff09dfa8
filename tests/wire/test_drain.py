"""A server process that ends, or is to take no more, says so to every connected client. (F-44, D9)

What an exit leaves in a store is in test_stores.py.
"""

from __future__ import annotations

import asyncio
import re
import signal

import pytest
from kit.elsewhere import NEVER_LOST, WAIT_S, Wandering, at, start
from kit.ending import ENDS_S, ended, opened
from kit.peer import OLD, last_id, results
from kit.servers import Farm, Kind, gate


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
async def test_f44_signal_with_open_streams_ends_the_process(farm: Farm, how: signal.Signals) -> None:
    server = farm.fresh()
    try:
        _, replies = await opened(server)
        await ended(server, replies, how)
    finally:
        server.stop()


async def test_f44_calls_of_old_sessions_get_an_error_at_drain(farm: Farm) -> None:
    server = farm.fresh()
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
