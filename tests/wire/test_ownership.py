"""Who holds a stream? The newest valid reader, at once. (atlas A3: F-30, F-31, F-32)"""

from __future__ import annotations

import asyncio
import time

import pytest
from kit.peer import Peer, counts, last_id, logs, results
from kit.servers import Server, gate

pytestmark = pytest.mark.first


@pytest.mark.one_process("which events were sent is known to its own process alone: docs/deploy/several-processes.md")
async def test_f30_second_standalone_get_takes_over_without_409(server: Server) -> None:
    peer = await server.peer()
    old = await peer.listen()
    await peer.ask("script", {"steps": ["standalone one"]})
    assert logs(await old.some(1)) == ["one"]
    new = await peer.get()
    assert new.status == 200, await new.body()
    await peer.ask("script", {"steps": ["standalone two"]})
    # What the old connection was handed is not sent again; what follows goes to the new one only.
    assert logs(await new.some(1)) == ["two"]
    assert logs(await old.settle(0.2)) == []


@pytest.mark.one_process("the first listener at another process is closed: docs/deploy/several-processes.md")
async def test_f30_superseded_standalone_connection_is_parked_and_promoted(server: Server) -> None:
    peer = await server.peer()
    old = await peer.listen()
    new = await peer.listen()
    first = await new.event()
    assert first is not None and first.is_priming
    # Parked: no event and no end, so that its client does not come back to evict the other.
    await old.event()
    await old.quiet(0.2)
    new.close()
    for number in range(150):
        # The server needs a moment to see the newest one go; nothing tells the client when it did.
        await peer.ask("script", {"steps": [f"standalone {number}"]})
        try:
            event = await old.event(0.1)
        except TimeoutError:
            continue
        assert event is not None
        return
    raise AssertionError("the parked connection was never promoted")


async def test_f30_resume_takes_over_from_a_dead_socket(server: Server) -> None:
    peer = await server.peer()
    name, second = gate(), gate()
    steps = ["emit 2", f"gate {name}", "emit 2", f"gate {second}", "emit 1", "return x"]
    # The first connection is blackholed: open, but nobody reads it and nobody ends it.
    dead = await peer.call("script", {"steps": steps})
    cursor = last_id(await dead.some(2))
    alive = await peer.resume(cursor)
    assert alive.status == 200
    await server.open(name)
    assert counts(await alive.some(2)) == [3, 4]
    # Fenced: it was ended cleanly and had nothing more.
    assert counts(await dead.rest()) == []
    await server.open(second)
    events = await alive.until_terminal()
    assert counts(events) == [5] and results(events) == ["x"]
    await alive.ends()


async def test_f31_second_resume_of_a_live_stream_takes_it_over(server: Server) -> None:
    peer = await server.peer()
    name, second = gate(), gate()
    steps = ["emit 1", f"gate {name}", "emit 2", f"gate {second}", "emit 1", "return x"]
    opened = await peer.call("script", {"steps": steps})
    cursor = last_id(await opened.some(1))
    opened.drop()
    first = await peer.resume(cursor)
    await server.open(name)
    assert counts(await first.some(2)) == [2, 3]
    newest = await peer.resume(cursor)
    # The whole suffix after the presented cursor, not what some other connection left over.
    assert counts(await newest.some(2)) == [2, 3]
    assert counts(await first.rest()) == []
    await server.open(second)
    events = await newest.until_terminal()
    assert counts(events) == [4] and results(events) == ["x"]
    await newest.ends()


@pytest.mark.parametrize("takeovers", [20, pytest.param(200, marks=pytest.mark.full)])
async def test_f31_many_takeovers_lose_nothing(server: Server, takeovers: int) -> None:
    peer = await server.peer()
    name = gate()
    reply = await peer.call("script", {"steps": [f"until {name}"]})
    cursor, got = None, []
    for _ in range(takeovers):
        events = await reply.some(1)
        got += counts(events)
        cursor = last_id(events)
        old, reply = reply, await peer.resume(cursor)
        assert reply.status == 200
        # What the old connection carried after our cursor comes again on the new one, by the cursor's meaning.
        old.close()
    await server.open(name)
    events = await reply.until_terminal()
    got += counts(events)
    assert got == list(range(1, len(got) + 1))
    assert results(events) == [str(len(got))]


async def reader(peer: Peer, stop_at: float, gets: list[int]) -> None:
    """A naive EventSource: whenever its standalone connection ends, it opens another."""
    while time.monotonic() < stop_at:
        reply = await peer.get()
        gets.append(reply.status)
        try:
            while await reply.event(max(0.0, stop_at - time.monotonic())) is not None:
                pass
        except TimeoutError:
            reply.close()
            return
        await asyncio.sleep(0.02)


@pytest.mark.one_process("the first listener at another process is closed: docs/deploy/several-processes.md")
async def test_f32_two_standalone_readers_do_not_evict_each_other_for_ever(server: Server) -> None:
    peer = await server.peer()
    gets: list[int] = []
    stop_at = time.monotonic() + 0.5
    await asyncio.gather(reader(peer, stop_at, gets), reader(peer, stop_at, gets))
    assert set(gets) == {200}
    assert len(gets) <= 4, f"{len(gets)} GETs in half a second"


async def test_f32_reader_of_a_finished_stream_is_told_to_stop(server: Server) -> None:
    peer = await server.peer()
    reply = await peer.call("script", {"steps": ["emit 1", "return x"]})
    events = await reply.rest()
    for _ in range(3):
        again = await peer.resume(last_id(events))
        assert again.status == 204
        assert await again.body() == b""


@pytest.mark.ours
async def test_takeovers_are_counted(server: Server) -> None:
    before = (await server.stats())["takeovers"]
    peer = await server.peer()
    name = gate()
    opened = await peer.call("script", {"steps": ["emit 1", f"gate {name}", "return x"]})
    newest = await peer.resume(last_id(await opened.some(1)))
    await opened.rest()
    assert (await server.stats())["takeovers"] == before + 1
    await server.open(name)
    await newest.until_terminal()
