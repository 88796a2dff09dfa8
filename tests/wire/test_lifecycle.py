"""What lives how long: sessions, their logs, and work in flight. (atlas A5: F-50, F-51, F-54)"""

from __future__ import annotations

import asyncio

import pytest
from kit.servers import Farm, Server, gate
from kit.peer import Peer, last_id, logs, results

# Longer than a busy machine takes between two requests of a session.
IDLE_S = 5.0


async def gone(server: Server, peer: Peer, wait_s: float) -> bool:
    """Whether the session is answered 404 after that time. Asking counts as contact, so ask seldom."""
    await asyncio.sleep(wait_s)
    if server.transport == "tailrope":
        # A process that stood still has its sessions a while longer.
        await server.until_stats(lambda stats: stats["sessions"] == 0)
    reply = await peer.get(Last_Event_ID="nonsense")
    status = reply.status
    reply.drop()
    return status == 404


async def test_f50_sessions_without_delete_reach_a_plateau(farm: Farm) -> None:
    idle_s = 8.0
    server = farm.get(idle_s=idle_s)

    async def used() -> Peer:
        # Opened and used in one go: a busy machine must not make one wait for the others.
        peer = await server.peer()
        assert await peer.ask("echo", {"text": "x"}) == "x"
        return peer

    peers = await asyncio.gather(*(used() for _ in range(20)))
    assert await gone(server, peers[0], idle_s + 1.0)
    for peer in peers[1:]:
        # Not even a call brings such a session back.
        reply = await peer.call("echo", {"text": "x"})
        assert reply.status == 404
    if server.transport == "tailrope":
        stats = await server.until_stats(lambda stats: stats["sessions"] == 0)
        assert stats["streams"] == 0 and stats["bytes"] == 0, stats


@pytest.mark.ours
async def test_f50_sessions_are_bounded_in_number(farm: Farm) -> None:
    server = farm.get(engine={"max_sessions": 8})
    for _ in range(30):
        peer = Peer(server.port)
        try:
            await peer.initialize()
        except AssertionError:
            # Refusing a new one and dropping an old one both keep the bound; which is the SDK's choice.
            continue
        assert (await server.stats())["sessions"] <= 8


async def test_f51_session_with_a_running_tool_is_not_idle(farm: Farm) -> None:
    server = farm.get(idle_s=IDLE_S)
    peer = await server.peer()
    name = gate()
    reply = await peer.call("script", {"steps": ["emit 1", f"gate {name}", f"return {name}"]})
    cursor = last_id(await reply.some(1))
    reply.drop()
    await asyncio.sleep(IDLE_S + 1)
    await server.open(name)
    await server.mark(f"finished return {name}")
    resumed = await peer.resume(cursor)
    assert resumed.status == 200, await resumed.body()
    assert results(await resumed.until_terminal()) == [name]


async def test_f51_session_with_a_pending_poll_is_not_idle(farm: Farm) -> None:
    server = farm.get(idle_s=IDLE_S)
    peer = await server.peer()
    name = gate()
    # The tool has ended, nobody is connected, but the client was promised a next poll.
    reply = await peer.call("script", {"steps": ["emit 1", "close", f"return {name}"]})
    cursor = last_id(await reply.rest())
    await server.mark(f"finished return {name}")
    await asyncio.sleep(IDLE_S + 1)
    resumed = await peer.resume(cursor)
    assert resumed.status == 200, await resumed.body()
    assert results(await resumed.until_terminal()) == [name]


async def test_f51_session_with_an_open_standalone_stream_is_not_idle(farm: Farm) -> None:
    server = farm.get(idle_s=IDLE_S)
    peer = await server.peer()
    stream = await peer.listen()
    await asyncio.sleep(IDLE_S + 1)
    await peer.ask("script", {"steps": ["standalone x"]})
    assert logs(await stream.some(1)) == ["x"]


@pytest.mark.ours
async def test_detached_work_ends_with_an_error_after_max_detached_ms(farm: Farm) -> None:
    server = farm.get(idle_s=IDLE_S, engine={"max_detached_ms": 1000})
    peer = await server.peer()
    name = gate()
    reply = await peer.call("script", {"steps": ["emit 1", f"gate {name}", f"return {name}"]})
    await reply.some(1)
    reply.drop()
    assert await gone(server, peer, 2)
    await server.open(name)


async def test_f54_deleting_a_session_frees_its_log(farm: Farm) -> None:
    server = farm.get(cap=100_000, engine={"retention_ms": 600_000})
    peer = await server.peer()
    for _ in range(5):
        await peer.ask("script", {"steps": ["emit 100 1000"]})

    async def stored() -> int:
        if server.transport == "tailrope":
            return int((await server.stats())["bytes"])
        return int((await server.state())["store"]["rows"])

    assert await stored() > 400
    assert (await peer.delete()).status in (200, 204)
    for _ in range(100):
        if await stored() == 0:
            break
        await asyncio.sleep(0.02)
    assert await stored() == 0
    reply = await peer.call("echo", {"text": "x"})
    assert reply.status == 404


@pytest.mark.ours
async def test_f54_age_and_size_bounds_hold_without_any_call(farm: Farm) -> None:
    server = farm.get(engine={"retention_ms": 200})
    peer = await server.peer()
    reply = await peer.call("script", {"steps": ["emit 50 1000", "return x"]})
    events = await reply.rest()
    # Nothing is asked of the session meanwhile, only of the counters.
    await server.until_stats(lambda stats: stats["events"] == 0)
    # A store that others share has a few bytes for the session itself, and for its standalone stream.
    assert (await server.stats())["bytes"] < (1 if STORE == "memory:" else 1_000)
    lost = await peer.resume(events[0].id)
    assert lost.status == 200
    answer = await lost.rest()
    assert [sorted(result) for result in results(answer)] == [["code", "message"]]


@pytest.mark.ours
@pytest.mark.parametrize(
    ("limit", "most"), [("max_bytes_per_stream", 60_000), ("max_bytes_per_session", 60_000), ("max_bytes", 60_000)]
)
async def test_f54_bytes_are_bounded(farm: Farm, limit: str, most: int) -> None:
    if limit == "max_bytes" and STORE.startswith("redis"):
        pytest.skip("the bound of all is the server's own maxmemory")
    server = farm.get(engine={limit: most})
    peer = await server.peer()
    name = gate()
    for _ in range(3):
        reply = await peer.call("script", {"steps": ["emit 100 1000", f"return {name}"]})
        events = await reply.until_terminal()
        assert results(events) == [name]
        room = most if limit != "max_bytes_per_stream" else most * 3
        # The terminals are kept beyond the bound; they are small here.
        # Other stores trim what is over the bound of all beside their appends.
        wait_s = 0.0 if STORE == "memory:" else 5.0
        await server.until_stats(lambda stats, room=room: stats["bytes"] <= room + 5000, wait_s)
    # The call's own end is what yields last: the newest terminal is still there.
    again = await peer.resume(events[-2].id)
    assert results(await again.until_terminal()) == [name]
    await peer.delete()


async def test_ending_a_session_ends_its_connections(server: Server) -> None:
    peer = await server.peer()
    name = gate()
    stream = await peer.listen()
    call = await peer.call("script", {"steps": [f"gate {name}", "return x"]})
    await server.at(name)
    assert (await peer.delete()).status in (200, 204)
    await stream.settle(10)
    events = await call.settle(10)
    await server.open(name)
    assert stream._ended and call._ended, "both connections ended"
    # The call is told why, it does not just stop.
    assert [sorted(result) for result in results(events)] == [["code", "message"]]


async def test_deleted_session_is_404_for_every_method(server: Server) -> None:
    peer = await server.peer()
    reply = await peer.call("script", {"steps": ["return x"]})
    cursor = last_id(await reply.rest())
    assert (await peer.delete()).status in (200, 204)
    for answer in (await peer.get(), await peer.resume(cursor), await peer.call("echo", {"text": "x"})):
        assert answer.status == 404
    assert (await peer.delete()).status == 404
