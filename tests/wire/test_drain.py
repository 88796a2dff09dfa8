"""A server process that ends, or is to take no more, says so to every connected client. (F-44, D9)

What an exit leaves in a store is in test_stores.py.
"""

from __future__ import annotations

import asyncio
import re
import signal

import pytest
from kit.ending import ENDS_S, ended, opened
from kit.peer import OLD, results
from kit.servers import Farm, gate


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
        draining = asyncio.create_task(server.ctl("drain", body={"retry_ms": 1234, "budget_ms": 10_000}))
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
