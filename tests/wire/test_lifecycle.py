"""What lives how long: sessions, their logs, and work in flight. (atlas A5: F-50, F-51, F-54; I6, I11)"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest
from kit.fleet import Fleet, servers_of
from kit.peer import Peer, last_id, logs, results
from kit.raw import Reply, Wire
from kit.servers import Farm, Server, gate, until

pytestmark = pytest.mark.first

IDLE_S = 0.4


async def used(server: Server, use: Callable[[Peer], Awaitable[Reply]]) -> tuple[Peer, Reply]:
    """A session, and the answer to the first request in it.

    Where a process stood still the session has ended before that request; then it is another one.
    """
    for _ in range(20):
        with suppress(AssertionError):
            peer = await server.peer()
            reply = await use(peer)
            if reply.status == 200:
                return peer, reply
    raise AssertionError("no session lives until its first request")


async def waits_at(server: Server, name: str) -> tuple[Peer, str]:
    """A session whose tool waits at a gate, and the cursor that its client had when it left."""
    steps = ["emit 1", f"gate {name}", f"return {name}"]
    peer, reply = await used(server, lambda peer: peer.call("script", {"steps": steps}))
    cursor = last_id(await reply.some(1))
    reply.drop()
    return peer, cursor


async def only(server: Server, sessions: int) -> None:
    """Wait until so many sessions are left: those that may end by themselves have."""
    if server.transport == "tailrope":
        await server.until_stats(lambda stats: stats["sessions"] == sessions)
    else:
        await asyncio.sleep(IDLE_S + 1)


async def idle_one_ended(server: Server) -> None:
    """Wait until a session that is opened now, and left alone, has ended beside the test's own."""
    with suppress(AssertionError):
        await server.peer()
    await only(server, 1)


async def test_f50_sessions_without_delete_reach_a_plateau(farm: Farm) -> None:
    server = farm.get(idle_s=IDLE_S)
    peers = []
    for _ in range(5):
        peer, reply = await used(server, lambda peer: peer.call("echo", {"text": "x"}))
        assert results(await reply.until_terminal()) == ["x"]
        peers.append(peer)
    await only(server, 0)
    for peer in peers:
        # Not even a call brings such a session back.
        assert (await peer.call("echo", {"text": "x"})).status == 404
    if server.transport == "tailrope":
        # A store that others share may still be at it.
        await server.until_stats(lambda stats: not any(stats[name] for name in ("sessions", "streams", "bytes")))


@pytest.mark.ours
@pytest.mark.one_process("each process has a bound of its own")
async def test_f50_the_idlest_session_of_a_user_makes_room(farm: Farm) -> None:
    server = farm.get(engine={"max_sessions": 4})
    peers = []
    for number in range(10):
        peers.append(await server.peer())
        stats = await server.stats()
        assert (stats["sessions"], stats["sessions_gave_way"]) == (min(number + 1, 4), max(number - 3, 0))
    for peer in peers[:6]:
        assert (await peer.call("echo", {"text": "x"})).status == 404
    for peer in reversed(peers[6:]):
        # In another millisecond of the engine's clock.
        await asyncio.sleep(0.005)
        assert await peer.ask("echo", {"text": "x"}) == "x"
    # The one that was not heard of for the longest time is the one that was asked first.
    held = await peers[9].listen()
    await server.peer()
    assert (await peers[8].call("echo", {"text": "x"})).status == 404
    assert await peers[9].ask("echo", {"text": "x"}) == "x"
    held.drop()


@pytest.mark.ours
@pytest.mark.one_process("each process has a bound of its own")
async def test_f50_sessions_of_one_user_keep_nobody_else_out(farm: Farm) -> None:
    server = farm.get(engine={"max_sessions": 8, "max_sessions_per_principal": 3})
    one, other = ({"authorization": f"Bearer {name}"} for name in ("one", "other"))
    for _ in range(20):
        await server.peer(headers=one)
    held = []
    for number in range(5):
        # The third is the last that fits; all are in use.
        peer = Peer(server.port, headers=other)
        if number < 3:
            await peer.initialize()
            held.append(await peer.listen())
        else:
            with pytest.raises(AssertionError, match=r"503.*Too many open sessions"):
                await peer.initialize()
    stats = await server.stats()
    assert (stats["sessions"], stats["sessions_gave_way"]) == (6, 17)
    for stream in held:
        stream.drop()


@pytest.mark.ours
async def test_f50_a_first_request_that_is_refused_leaves_no_session(farm: Farm) -> None:
    server = farm.get(engine={"max_sessions": 3})
    for _ in range(2):
        await server.peer()
    for body in (b"no JSON", b'{"jsonrpc":"2.0","id":1,"method":"tools/list"}', b'{"jsonrpc":"2.0","method":"x"}'):
        assert (await Peer(server.port).post(body)).status == 400
    await server.until_stats(lambda stats: stats["sessions"] == 2)
    await server.peer()
    stats = await server.stats()
    assert (stats["sessions"], stats["sessions_gave_way"]) == (3, 0)


async def test_f51_session_with_a_running_tool_is_not_idle(farm: Farm) -> None:
    server = farm.get(idle_s=IDLE_S)
    name = gate()
    peer, cursor = await waits_at(server, name)
    await idle_one_ended(server)
    await server.open(name)
    await server.mark(f"finished return {name}")
    resumed = await peer.resume(cursor)
    assert resumed.status == 200, await resumed.body()
    assert results(await resumed.until_terminal()) == [name]
    await peer.delete()


@pytest.mark.one_process("a poll that another process promised is not known, and its idle time is short")
async def test_f51_session_with_a_pending_poll_is_not_idle(farm: Farm) -> None:
    server = farm.get(idle_s=IDLE_S)
    name = gate()
    # The tool has ended, nobody is connected, but the client was promised a next poll.
    steps = ["emit 1", "close", f"return {name}"]
    peer, reply = await used(server, lambda peer: peer.call("script", {"steps": steps}))
    cursor = last_id(await reply.rest())
    await server.mark(f"finished return {name}")
    await idle_one_ended(server)
    resumed = await peer.resume(cursor)
    assert resumed.status == 200, await resumed.body()
    assert results(await resumed.until_terminal()) == [name]
    await peer.delete()


@pytest.mark.one_process("a session that is read at another process is counted there, too")
async def test_f51_session_with_an_open_standalone_stream_is_not_idle(farm: Farm) -> None:
    server = farm.get(idle_s=IDLE_S)
    peer, stream = await used(server, lambda peer: peer.get())
    await idle_one_ended(server)
    await peer.ask("script", {"steps": ["standalone x"]})
    assert logs(await stream.some(1)) == ["x"]
    await peer.delete()


@pytest.mark.ours
async def test_f51_session_whose_post_never_came_whole_becomes_idle(farm: Farm) -> None:
    server = farm.get(idle_s=IDLE_S)
    name = gate()
    # The call holds the session until the server has met the request that is broken.
    held = gate()
    peer, call = await used(server, lambda peer: peer.call("script", {"steps": [f"gate {held}", "return x"]}))
    wire = await Wire.open(server.port)
    headers = peer.headers(**{"Content-Type": "application/json", "Content-Length": "100", "X-Slow-Auth": name})
    await wire.send("POST", peer.path, {"Host": f"127.0.0.1:{server.port}", **headers}, None)
    wire.writer.write(b'{"jsonrpc":')
    await server.at(name)
    wire.writer.transport.abort()
    # The reset is older than these requests, so the server has seen it once they are answered.
    for _ in range(3):
        await server.stats()
    await server.open(name)
    await server.stats()
    await server.open(held)
    assert results(await call.rest()) == ["x"]
    await only(server, 0)


@pytest.mark.ours
async def test_detached_work_ends_with_an_error_after_max_detached_ms(farm: Farm) -> None:
    server = farm.get(idle_s=IDLE_S, engine={"max_detached_ms": 300})
    name = gate()
    peer, cursor = await waits_at(server, name)
    await only(server, 0)
    # Handlers of fastmcp 3 run on when their session has ended.
    if server.kind.name != "fastmcp3":
        await server.mark(f"cancelled return {name}")
    assert (await peer.resume(cursor)).status == 404


async def test_f54_deleting_a_session_frees_its_log(server: Server) -> None:
    async def stored() -> int:
        if server.transport == "tailrope":
            return int((await server.stats())["events"])
        return int((await server.state())["store"]["rows"])

    before = await stored()
    peer = await server.peer()
    for _ in range(5):
        await peer.ask("script", {"steps": ["emit 100 1000"]})
    assert await stored() > before + 400
    assert (await peer.delete()).status in (200, 202, 204)
    await until(stored, lambda events: events <= before)
    assert (await peer.call("echo", {"text": "x"})).status == 404


@pytest.mark.ours
async def test_f54_age_and_size_bounds_hold_without_any_call(farm: Farm) -> None:
    server = farm.get(engine={"retention_ms": 200})
    peer = await server.peer()
    name = gate()
    reply = await peer.call("script", {"steps": ["emit 50 1000", f"gate {name}", "return x"]})
    await server.at(name)
    # Handlers run ahead of a store that takes time.
    await server.until_stats(lambda stats: stats["bytes"] > 40_000)
    await server.open(name)
    events = await reply.rest()
    # Nothing is asked of the session meanwhile, only of the counters. A store that others share has a few bytes for the
    # session itself and for its standalone stream, and each process of a fleet tells of them.
    most = 1_000 * len(servers_of(server.kind))
    await server.until_stats(lambda stats: stats["events"] == 0 and stats["bytes"] < most)
    lost = await peer.resume(events[0].id)
    assert lost.status == 200
    assert [sorted(result) for result in results(await lost.rest())] == [["code", "message"]]


@pytest.mark.ours
@pytest.mark.one_process("what another process reads is counted there, too")
async def test_f54_bytes_are_bounded(farm: Farm) -> None:
    # Of a stream, of a session, and of everything: two sessions have more than each of these bounds leaves them.
    bounds = {"max_bytes_per_stream": 30_000, "max_bytes_per_session": 60_000, "max_bytes": 100_000}
    server = farm.get(engine=bounds)
    name = gate()
    for most, calls in ((30_000, 1), (60_000, 3), (100_000, 3)):
        if most != 60_000:
            peer = await server.peer()
        for _ in range(calls):
            reply = await peer.call("script", {"steps": ["emit 60 1000", f"return {name}"]})
            events = await reply.until_terminal()
            assert results(events) == [name]
        # The terminals are kept beyond the bounds; they are small here. Stores other than that in memory trim later.
        await server.until_stats(lambda stats, most=most: most - 20_000 < stats["bytes"] <= most + 5_000)
        # The call's own end is what yields last: the newest terminal is still there.
        again = await peer.resume(events[-2].id)
        assert results(await again.until_terminal()) == [name]


async def test_ending_a_session_ends_its_connections(server: Server) -> None:
    peer = await server.peer()
    name = gate()
    stream = await peer.listen()
    call = await peer.call("script", {"steps": [f"gate {name}", "return x"]})
    await server.at(name)
    assert (await peer.delete()).status in (200, 202, 204)
    # Both end.
    await stream.rest()
    events = await call.rest()
    await server.open(name)
    # The call is told why, it does not just stop.
    assert [sorted(result) for result in results(events)] == [["code", "message"]]


async def test_deleted_session_is_404_for_every_method(server: Server) -> None:
    peer = await server.peer()
    reply = await peer.call("script", {"steps": ["return x"]})
    cursor = last_id(await reply.rest())
    assert (await peer.delete()).status in (200, 202, 204)
    for ask in (peer.get, lambda: peer.resume(cursor), lambda: peer.call("echo", {"text": "x"}), peer.delete):
        if isinstance(server.kind, Fleet):
            # Of a session that its owner has deleted another process hears when the store has forgotten it.
            await until(ask, lambda answer: answer.status == 404)
        else:
            assert (await ask()).status == 404
