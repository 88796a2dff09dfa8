"""Clients as they are shipped must stop, or get on. (atlas A6: F-73, F-77)"""

from __future__ import annotations

import asyncio

import pytest
from conftest import Farm, Server, gate
from kit.peer import NEWEST, OLD, last_id, results, unknown_like
from kit.stock import MODES, CallFailed, stock_client


async def polls_until_told(server: Server, cursor: str, peer: object, most: int) -> int:
    """A client that comes back after every 200, as the shipped ones do; gives the number of its GETs."""
    for gets in range(1, most + 1):
        reply = await peer.resume(cursor)  # type: ignore[attr-defined]
        if reply.status != 200:
            return gets
        events = await reply.settle(0.3)
        reply.drop()
        if any(event.is_terminal for event in events):
            return gets
        cursor = next((event.id for event in reversed(events) if event.id), cursor)
    raise AssertionError(f"still polling after {most} GETs")


async def test_f73_client_of_a_lost_stream_stops_within_three_gets(server: Server) -> None:
    peer = await server.peer()
    reply = await peer.call("script", {"steps": ["return x"]})
    events = await reply.rest()
    lost = unknown_like(events[0].id or "")
    assert await polls_until_told(server, lost, peer, 8) <= 3


async def test_f73_client_of_a_finished_stream_stops_at_once(server: Server) -> None:
    peer = await server.peer()
    reply = await peer.call("script", {"steps": ["return x"]})
    events = await reply.rest()
    assert await polls_until_told(server, last_id(events), peer, 8) == 1


@pytest.mark.parametrize("mode", MODES[:1])
async def test_f73_stock_client_does_not_poll_a_lost_stream_for_ever(farm: Farm, mode: str) -> None:
    server = farm.get(retry_ms=4_000, engine={"retention_ms": 50, "prefer_resumable": True})
    async with stock_client(server.port, mode) as client:
        name = gate()
        call = asyncio.create_task(client.script("close", f"return {name}"))
        await server.mark(f"finished return {name}")
        await server.lost()
        done, _ = await asyncio.wait([call], timeout=15)
        assert done, "the call is still waiting"
        assert isinstance(call.exception(), CallFailed)
        before = (await server.state())["requests"]["GET"]
        await asyncio.sleep(2.0)
        # One is the client's standalone stream, at most; the call's stream is not asked for again.
        assert (await server.state())["requests"]["GET"] - before <= 1


@pytest.mark.parametrize("revision", OLD)
async def test_f77_no_empty_event_reaches_a_client_of_an_old_revision(server: Server, revision: str) -> None:
    peer = await server.peer(revision)
    assert all(event.data for event in peer.opening)
    reply = await peer.call("script", {"steps": ["emit 1", "return x"]})
    events = await reply.rest()
    assert all(event.data for event in events) and results(events) == ["x"]
    assert all(event.id for event in events), "ids are sent, so that such a client can resume"


async def test_f77_initialize_is_primed_by_the_revision_it_asks_for(server: Server) -> None:
    assert (await server.peer(NEWEST)).opening[0].is_priming
    # A revision that nobody knows is negotiated down; its initialize stream must be safe for any client.
    unknown = await server.peer("1999-01-01")
    assert unknown.opening[0].data


@pytest.mark.parametrize("mode", MODES)
async def test_f77_stock_client_takes_primed_streams(farm: Farm, mode: str) -> None:
    server = farm.get(engine={"prefer_resumable": True})
    async with stock_client(server.port, mode) as client:
        assert await client.script("emit 3", "return x") == "x"
        assert client.progress == [1, 2, 3]


@pytest.mark.parametrize("mode", MODES)
async def test_stock_client_hears_standalone_notifications_across_a_close(farm: Farm, mode: str) -> None:
    server = farm.get(engine={"prefer_resumable": True})
    async with stock_client(server.port, mode) as client:
        async with asyncio.timeout(20):
            await client.script("standalone one", "close_standalone", "standalone two", "return x")
            while client.logs != ["one", "two"]:
                await asyncio.sleep(0.02)
