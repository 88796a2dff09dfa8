"""Calls are paced by the name of their tool, whose code does nothing for it. (D9, O9)"""

from __future__ import annotations

from itertools import pairwise

import pytest
from kit.elsewhere import CALM, at, pair_on
from kit.peer import OLD, Peer, last_id, results
from kit.raw import Event
from kit.servers import Farm, Kind, gate

pytestmark = [pytest.mark.ours, pytest.mark.first]

PACE = {
    "retry_ms": 40,
    "hold_ms": 0,
    "max_connection_ms": 200,
    "max_connection_bytes": 1 << 20,
    "heartbeat_ms": 150,
    "retention_ms": 60_000,
}
PACED = {"pace": {"scri*": PACE}}


def numbers(events: list[Event], token: str) -> list[float]:
    """The progress among the events, which is all for this token."""
    told = [
        event.message["params"] for event in events if (event.message or {}).get("method") == "notifications/progress"
    ]
    assert all(params["progressToken"] == token for params in told)
    return [params["progress"] for params in told]


def is_increasing(numbers: list[float]) -> bool:
    return all(one < next for one, next in pairwise(numbers))


async def poll_until(peer: Peer, cursor: str, enough: int) -> tuple[list[Event], str]:
    """Polls until so many notifications have come."""
    events: list[Event] = []
    while len([event for event in events if event.message is not None]) < enough:
        polled = await (await peer.resume(cursor)).rest()
        assert polled[0].is_priming and polled[0].retry == PACE["retry_ms"], polled
        events += polled
        cursor = last_id(polled)
    return events, cursor


async def test_a_silent_tool_is_closed_polled_and_sends_heartbeats(farm: Farm) -> None:
    peer = await farm.get(engine=PACED).peer()
    end = gate()
    steps = {"steps": [f"gate {end}", "emit 2", f"return {end}"]}
    reply = await peer.call("script", steps, id="c", token="of the call")
    events = await reply.rest()
    assert events[0].is_priming and events[0].retry == PACE["retry_ms"]
    assert not results(events), "the engine closed it"
    polled, cursor = await poll_until(peer, last_id(events), 3)
    beats = numbers(events + polled, "of the call")
    await farm.get(engine=PACED).open(end)
    while not results(polled):
        polled = await (await peer.resume(cursor)).rest()
        cursor = last_id(polled)
        beats += numbers(polled, "of the call")
    assert results(polled) == [end]
    assert len(beats) >= 5 and beats[-2:] == [1, 2], "heartbeats, and then the tool's own"
    assert is_increasing(beats), beats


async def test_other_tools_are_paced_as_ever(farm: Farm) -> None:
    server = farm.get(engine={"pace": dict.fromkeys(("scripts*", "scrip", "act"), PACE)})
    peer = await server.peer()
    end = gate()
    reply = await peer.call("script", {"steps": [f"gate {end}", f"return {end}"]})
    first = await reply.event()
    assert first is not None and first.is_priming and first.retry == 20
    await reply.quiet(0.5)
    await server.open(end)
    assert results(await reply.rest()) == [end]


@pytest.mark.parametrize("revision", OLD)
async def test_a_client_without_priming_has_a_cursor_soon(farm: Farm, revision: str) -> None:
    server = farm.get(engine={"pace": {"*": {"heartbeat_ms": 3_600_000, "hold_ms": 0, "max_connection_ms": 10}}})
    peer = await server.peer(revision)
    end = gate()
    reply = await peer.call("script", {"steps": [f"gate {end}", f"return {end}"]}, id="c", token=7)
    first = await reply.event()
    assert first is not None and first.id is not None and first.message["params"]["progressToken"] == 7
    reply.drop()
    resumed = await peer.resume(first.id)
    await server.open(end)
    assert results(await resumed.rest()) == [end]


async def test_o9_a_pace_holds_at_another_process(kind: Kind, place: str) -> None:
    with pair_on(kind, place, engine={**CALM, **PACED}) as (here, there):
        peer = await here.peer()
        end = gate()
        reply = await peer.call("script", {"steps": [f"gate {end}", f"return {end}"]}, id="c", token="t")
        events = await reply.rest()
        assert not results(events)
        polled, cursor = await poll_until(at(peer, there), last_id(events), 3)
        beats = numbers(events + polled, "t")
        assert is_increasing(beats), beats
        # A call that is relayed is paced by the process that runs it.
        relayed = await at(peer, there).call("script", {"steps": [f"gate {end}", f"return {end}"]}, id="r", token="r")
        events = await relayed.rest()
        assert not results(events), "it was closed where it came to"
        await here.open(end)
        for peer_of, at_last in ((at(peer, there), cursor), (at(peer, there), last_id(events))):
            found: list[str] = []
            while not found:
                polled = await (await peer_of.resume(at_last)).rest()
                at_last, found = last_id(polled), results(polled)
            assert found == [end]
