"""What shipped clients need: to be told when to stop, and nothing that they cannot parse. (atlas A6: F-73, F-77)"""

from __future__ import annotations

import pytest
from kit.peer import NEWEST, OLD, Peer, last_id, results, unknown_like
from kit.servers import Server


async def polls_until_told(peer: Peer, cursor: str) -> int:
    """The GETs of a client that comes back after every 200, as the shipped ones do."""
    for gets in range(1, 9):
        reply = await peer.resume(cursor)
        if reply.status != 200:
            return gets
        events = await reply.settle()
        reply.drop()
        if results(events):
            return gets
        cursor = next((event.id for event in reversed(events) if event.id), cursor)
    raise AssertionError(f"still polling after {gets} GETs")


async def test_f73_client_of_a_lost_stream_stops_within_three_gets(server: Server) -> None:
    peer = await server.peer()
    events = await (await peer.call("script", {"steps": ["return x"]})).rest()
    assert await polls_until_told(peer, unknown_like(events[0].id or "")) <= 3


async def test_f73_client_of_a_finished_stream_stops_at_once(server: Server) -> None:
    peer = await server.peer()
    events = await (await peer.call("script", {"steps": ["return x"]})).rest()
    assert await polls_until_told(peer, last_id(events)) == 1


@pytest.mark.parametrize("revision", OLD)
async def test_f77_no_empty_event_reaches_a_client_of_an_old_revision(server: Server, revision: str) -> None:
    peer = await server.peer(revision)
    assert all(event.data for event in peer.opening)
    events = await (await peer.call("script", {"steps": ["emit 1", "return x"]})).rest()
    assert all(event.data for event in events) and results(events) == ["x"]
    assert all(event.id for event in events), "ids are sent, so that such a client can resume"


async def test_f77_initialize_is_primed_by_the_revision_it_asks_for(server: Server) -> None:
    assert (await server.peer(NEWEST)).opening[0].is_priming
    # A revision that nobody knows is negotiated down; its initialize stream must be safe for any client.
    for unknown in ("1999-01-01", "2099-01-01"):
        assert (await server.peer(unknown)).opening[0].data, unknown
