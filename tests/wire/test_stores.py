"""Stores that outlive their process: restarts, kills, graceful exits, keys. (A1, A5; D6, D7)

Every test runs on SQLite, and on the servers at the addresses in `TAILROPE_TEST_REDIS` and `TAILROPE_TEST_POSTGRES`, in
a namespace of its own. `TAILROPE_KILLS` is how often a server is killed.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from kit.balancer import balancer
from kit.elsewhere import GONE, NEVER_LOST, WAIT_S, Line, at, dense, start, until_cut
from kit.peer import Peer, counts, ids, last_id, logs, results
from kit.raw import Event
from kit.servers import Farm, Kind, Server
from kit.stock import CallFailed, stock_client

pytestmark = pytest.mark.ours

KILLS = int(os.environ.get("TAILROPE_KILLS", "20"))


@pytest.fixture(scope="module")
def killed(kind: Kind, place: str) -> Iterator[Line]:
    """Servers that are killed, and followed by another one on the same store."""
    line = Line(kind, place)
    yield line
    line.end()


@pytest.fixture(scope="module")
def leaving(kind: Kind, place: str) -> Iterator[Line]:
    """The same for servers that say that they go: nobody needs to wait until they count as lost."""
    line = Line(kind, place, engine=NEVER_LOST)
    yield line
    line.end()


# Killed


async def test_restart_after_a_kill_keeps_every_stored_event(killed: Line) -> None:
    before = killed.server
    peer = await before.peer()
    done = await (await peer.call("script", {"steps": ["emit 20", "return x"]}, id=1)).rest()
    running = await peer.call("script", {"steps": ["emit 20", "gate never"]}, id=2)
    partial = await running.some(20)
    listening = await peer.listen()
    await peer.ask("script", {"steps": ["standalone one", "standalone two", "return x"]})
    standalone = await listening.some(2)
    peer = at(peer, await killed.next())
    for position in (0, 7, 19):
        events = await (await peer.resume(ids(done)[position])).rest(WAIT_S)
        dense(events, position + 1, 20)
        assert results(events) == ["x"]
    left = await peer.resume(partial[0].id)
    events = await left.until_terminal(WAIT_S)
    await left.ends()
    dense(events, 2, 20)
    assert events[-1].message["id"] == 2 and events[-1].message["error"] == {"code": -32603, "message": GONE}
    # An end is final: every later resume gets the same one.
    again = await (await peer.resume(partial[-1].id)).rest(WAIT_S)
    assert results(again) == results(events)
    heard = await peer.resume(standalone[0].id)
    assert logs(await heard.some(1, WAIT_S)) == ["two"]
    assert await peer.ask("echo", {"text": "x"}) == "x"


async def test_i13_reader_elsewhere_is_told_when_the_owner_is_gone(killed: Line) -> None:
    here, there = killed.server, await killed.beside()
    peer = await here.peer()
    call = await peer.call("script", {"steps": ["emit 3", "gate never"]}, id=7)
    events = await call.some(3)
    call.drop()
    resumed = await at(peer, there).resume(ids(events)[-2])
    # Until it is killed: an owner that stands still is found to be gone, too, but this is about one that has died.
    assert counts(await resumed.some(1, WAIT_S)) == [3]
    here.kill()
    end = (await resumed.until_terminal(WAIT_S))[-1].message
    await resumed.ends()
    assert end["id"] == 7 and end["error"] == {"code": -32603, "message": GONE}, end
    assert await killed.next() is there


async def test_stock_client_outlives_a_kill_of_its_server(killed: Line) -> None:
    up = asyncio.Event()
    up.set()

    async def choose(method: str) -> int:
        await up.wait()
        return killed.server.port

    async with balancer(choose) as port, stock_client(port) as client, asyncio.timeout(WAIT_S * 2):
        call = asyncio.create_task(client.script("emit 5", "gate never"))
        # Before the answer has begun there is nothing to come back for.
        while len(client.progress) < 5:
            await asyncio.sleep(0.01)
        up.clear()
        await killed.next()
        up.set()
        with pytest.raises(CallFailed, match=GONE):
            await call
        assert client.progress == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    "kills", [1, pytest.param(KILLS, marks=[pytest.mark.full, pytest.mark.timeout(120 + 20 * KILLS)])]
)
async def test_a5_kill_at_any_moment_loses_nothing_that_was_acknowledged(
    killed: Line, tmp_path: Path, kills: int
) -> None:
    seed = random.randrange(1 << 32)
    chance = random.Random(seed)
    for turn in range(kills):
        peer = await killed.server.peer()
        notes = [tmp_path / f"{turn}-{number}" for number in range(3)]
        scripts = [[f"note {notes[0]}"], [f"note {notes[1]}"], [f"note {notes[2]} 2000"], ["emit 20", "return x"]]
        replies = [await peer.call("script", {"steps": steps}) for steps in scripts]
        readers = [asyncio.create_task(until_cut(reply)) for reply in replies]
        await asyncio.sleep(chance.uniform(0, 0.2))
        peer = at(peer, await killed.next())
        acknowledged = [len(note.read_bytes().split()) if note.exists() else 0 for note in notes]
        streams = zip(await asyncio.gather(*readers), [*acknowledged, 0], strict=True)
        # Each of them waits until the owner is found to be gone.
        await asyncio.gather(*(kept(peer, *stream, chance, f"seed {seed}, turn {turn}") for stream in streams))


# Events of one stream that handlers send before the store has answered.
AHEAD = 128


async def kept(peer: Peer, events: list[Event], acknowledged: int, chance: random.Random, told: str) -> None:
    """What a client has read of a stream, and what its tool knows to be sent, is there from wherever it is resumed."""
    if not ids(events):
        # It was killed before the client had heard of the stream.
        return
    for cursor in {ids(events)[0], chance.choice(ids(events)), ids(events)[-1]}:
        before = [event for event in events if event.id in ids(events)[: ids(events).index(cursor) + 1]]
        resumed = await peer.resume(cursor)
        if results(before):
            assert resumed.status == 204, told
            continue
        assert resumed.status == 200, (told, cursor, await resumed.body())
        rest = await resumed.rest(WAIT_S)
        after = counts(before)[-1] if counts(before) else 0
        last = counts(rest)[-1] if counts(rest) else after
        assert counts(rest) == list(range(after + 1, last + 1)), told
        # What a handler sent ahead of the store may be lost with its process; what a client saw is not.
        assert last >= acknowledged - AHEAD and last >= len(counts(events)), (told, last, acknowledged)
        # An id that is unknown would be answered with an error, too, but with another one.
        (end,) = results(rest)
        assert end == {"code": -32603, "message": GONE} or (end == "x" and last == 20), (told, end)
        assert b": gap" not in resumed.raw, told


# Asked to end


async def signalled(server: Server, how: signal.Signals) -> None:
    server.process.send_signal(how)
    await asyncio.to_thread(server.exit_code, WAIT_S)
    assert "Traceback" not in server.log(), server.log()


# What the other signal does is in test_drain.py.
@pytest.mark.parametrize("how", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.full)])
async def test_f44_graceful_exit_leaves_its_sessions_readable(leaving: Line, how: signal.Signals) -> None:
    before = leaving.server
    peer = await before.peer()
    done = await (await peer.call("script", {"steps": ["emit 5", "return x"]}, id=1)).rest()
    running = await peer.call("script", {"steps": ["emit 5", "gate never"]}, id=2)
    partial = await running.some(5)
    reading = asyncio.create_task(running.rest(WAIT_S))
    await signalled(before, how)
    assert results(await reading) == []
    peer = at(peer, await leaving.next())
    events = await (await peer.resume(ids(done)[0])).rest(WAIT_S)
    dense(events, 1, 5)
    assert results(events) == ["x"]
    left = await peer.resume(partial[1].id)
    events = await left.until_terminal(WAIT_S)
    dense(events, 3, 5)
    # An SDK may answer the calls that it cancels; else the engine does.
    assert events[-1].message["id"] == 2 and "error" in events[-1].message, events[-1]


# One file


async def test_what_a_process_was_told_to_drop_is_gone_when_it_ends(kind: Kind, tmp_path: Path) -> None:
    """Nobody waits for the answer to a drop. This end is no drain: it is all that an exit does."""
    line = Line(kind, f"sqlite:{tmp_path / 'events.db'}", engine=NEVER_LOST)
    before = line.server
    peers = await asyncio.gather(*(before.peer() for _ in range(20)))
    with locked(tmp_path / "events.db"):
        for peer in peers:
            assert (await peer.delete()).status == 200
        exiting = asyncio.create_task(before.ctl("exit"))
        await asyncio.sleep(0.3)
    with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
        await exiting
    after = await line.next()
    for peer in peers:
        assert (await at(peer, after).get()).status == 404, peer.session
    line.end()


async def test_f44_process_is_not_gone_before_its_last_events_are_written(kind: Kind, tmp_path: Path) -> None:
    """uvicorn ends its process by the signal that it got, at which Python runs nothing."""
    line = Line(kind, f"sqlite:{tmp_path / 'events.db'}", engine=NEVER_LOST)
    before = line.server
    peer = await before.peer()
    running = await peer.call("script", {"steps": ["emit 5", "gate never"]}, id=2)
    partial = await running.some(5)
    with locked(tmp_path / "events.db"):
        before.process.send_signal(signal.SIGTERM)
        await running.rest(WAIT_S)
        with pytest.raises(subprocess.TimeoutExpired):
            await asyncio.to_thread(before.exit_code, 0.3)
    await asyncio.to_thread(before.exit_code, WAIT_S)
    events = await (await at(peer, await line.next()).resume(last_id(partial))).until_terminal(WAIT_S)
    assert "error" in events[-1].message, events
    line.end()


@contextmanager
def locked(file: Path) -> Iterator[None]:
    """Nobody else can write to the file now. A store waits for that, though not for ever."""
    begun = time.monotonic()
    with closing(sqlite3.connect(file, isolation_level=None)) as busy:
        busy.execute("BEGIN IMMEDIATE")
        yield
        busy.execute("ROLLBACK")
    if time.monotonic() - begun > 4:
        pytest.skip("this process stood still for longer than a store waits for a lock")


async def test_i9_store_that_cannot_tell_of_a_session_is_no_404(farm: Farm, tmp_path: Path) -> None:
    file = tmp_path / "hunter2.db"
    server = farm.fresh(address=f"sqlite:{file}")
    try:
        peer = await server.peer()
        stranger = Peer(server.port)
        stranger.session, stranger.revision = "0" * 32, peer.revision
        assert (await stranger.get()).status == 404
        for suffix in ("", "-wal", "-shm"):
            # Not cut short before: a thread of the store reads the mapped file at any time.
            with open(f"{file}{suffix}", "r+b") as written:
                written.write(b"x" * 100_000)
        stranger.session = "1" * 32
        reply = await stranger.get()
        answer = await reply.json()
        # 1.x has an id of its own for answers to nothing.
        assert answer["id"] in (None, "server-error") and answer["error"]["code"] == -32603, answer
        assert reply.status == 503, answer
        for word in (b"sqlite", b"hunter2", b"database", b"malformed"):
            assert word not in bytes(reply.raw).lower()
        # The server is told: in Node by its transport's `onerror`.
        assert "cannot be looked up" in server.log() or (await server.state()).get("errors"), server.log()
    finally:
        server.kill()


async def test_payloads_are_encrypted_where_a_key_is_given(kind: Kind, tmp_path: Path) -> None:
    file = tmp_path / "events.db"
    old, new = "0a" * 32, "0b" * 32

    def keyed(*keys: str, **more: Any) -> Server:
        return start(kind, f"sqlite:{file}", engine={"encryption_keys": keys, **more})

    # Keys may change: what was written with the old one is read as long as it is named.
    before = keyed(old)
    peer = await before.peer()
    done = await (await peer.call("script", {"steps": ["log plain words", "return x"]})).rest()
    before.kill()
    for suffix in ("", "-wal"):
        written = Path(f"{file}{suffix}")
        assert not written.exists() or b"plain words" not in written.read_bytes()
    for keys, found in (((new, old), True), ((new,), False)):
        after = keyed(*keys, store_wait_ms=0)
        reply = await at(peer, after).resume(ids(done)[0])
        if found:
            events: list[Event] = await reply.rest(WAIT_S)
            assert logs(events) == ["plain words"], bytes(reply.raw)
        else:
            body = await reply.body()
            assert reply.status == 404 and b"plain words" not in body, body
            await after.logged("no encryption key opens")
        after.kill()


# Behind the SDK's own transport


async def test_install_may_leave_the_transports_of_the_sdk(kind: Kind, place: str) -> None:
    server = start(kind, place, engine={"transport": "stock"})
    try:
        peer = await server.peer()
        # What only ours does: a terminal ends a resumed connection. What the store brings: it can be resumed.
        done = await (await peer.call("script", {"steps": ["emit 3", "return x"]}, id=1)).rest()
        assert done[0].is_priming and done[0].retry == 20
        resumed = await peer.resume(ids(done)[1])
        events = await resumed.until_terminal(WAIT_S)
        dense(events, 2, 3)
        assert results(events) == ["x"] and (await server.stats())["connections_opened"] == 0
        resumed.drop()
        # The session's id is known, so an id of another one means nothing, although their streams have one name.
        other = await server.peer()
        await (await other.call("script", {"steps": ["emit 1", "return y"]}, id=1)).rest()
        foreign = await other.resume(ids(done)[1])
        # How an SDK answers to an unknown id differs: with a fault, or with a stream of nothing.
        assert foreign.status == 400 or results(await foreign.settle()) == []
    finally:
        server.stop()
