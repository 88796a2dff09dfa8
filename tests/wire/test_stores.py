"""Stores that outlive their process: readers on another one, restarts, kills, tenants. (A1, A2, A5; D6, D7)

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
import uuid
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from balancer import balancer
from kit.stock import CallFailed, stock_client
from kit.servers import FLAVORS, Farm, Server, gate
from kit.peer import NEWEST, OLD, PRIMED, Peer, counts, ids, last_id, logs, results, seen, unknown_like
from program import python
from kit.raw import Event, Reply, Truncated

pytestmark = pytest.mark.ours

KILLS = int(os.environ.get("TAILROPE_KILLS", "10"))
WAIT_S = 20.0
OWNER_LOST_MS = 600
GONE = "The server process that ran this request is gone"
ROOM = {"max_events_per_stream": 1_000_000, "max_bytes_per_stream": 256 << 20, "max_bytes_per_session": 512 << 20}


# For servers that are not killed: one whose disk stands still for a while is not gone.
CALM = {"owner_lost_ms": 20_000}


def start(flavor: str, place: str, **options: Any) -> Server:
    install = {"store": place, "owner_lost_ms": OWNER_LOST_MS, **ROOM, **options.pop("install", {})}
    return Server(flavor, {**options, "install": install})


@pytest.fixture(scope="module")
def pair(flavor: str, place: str) -> Iterator[tuple[Server, Server]]:
    """Two servers on one store."""
    both = start(flavor, place, engine=CALM), start(flavor, place, engine=CALM)
    yield both
    for server in both:
        server.kill()
        assert "panicked at" not in server.log() and "Traceback" not in server.log(), server.log()


@pytest.fixture(scope="module")
def tenants(flavor: str, place: str) -> Iterator[tuple[Server, Server]]:
    """The same with two tenants, alice and bob."""
    both = start(flavor, place, auth=True, engine=CALM), start(flavor, place, auth=True, engine=CALM)
    yield both
    for server in both:
        server.kill()


def at(peer: Peer, server: Server) -> Peer:
    """The same session's client, whose requests land on this server."""
    there = Peer(server.port, peer.path, peer.extra)
    there.session, there.revision = peer.session, peer.revision
    return there


async def known(peer: Peer) -> Reply:
    """Listens where the session does not live. Its process tells the store of it without waiting."""
    deadline = time.monotonic() + WAIT_S
    while True:
        reply = await peer.get()
        if reply.status == 200:
            return reply
        assert reply.status == 404 and time.monotonic() < deadline, (reply.status, await reply.body())


def dense(events: list[Event], first: int, last: int) -> None:
    """All of these, once, in order (I3)."""
    assert counts(events) == list(range(first, last + 1))


# Elsewhere


@pytest.mark.parametrize("revision", [NEWEST, OLD[0]])
async def test_i3_reader_elsewhere_gets_all_that_the_owner_appends(pair: tuple[Server, Server], revision: str) -> None:
    here, there = pair
    peer = await here.peer(revision)
    name = gate()
    steps = ["emit 2000", f"gate {name}", "emit 8000", "return x"]
    reply = await peer.call("script", {"steps": steps})
    events = await reply.some(5)
    reply.drop()
    resumed = await at(peer, there).resume(last_id(events))
    assert resumed.status == 200, await resumed.body()
    # The suffix first; then the owner goes on while the reader is at its live tail.
    events += await resumed.some(1_995, WAIT_S)
    await here.open(name)
    events += [event for event in await resumed.until_terminal(WAIT_S) if not event.is_priming]
    await resumed.ends()
    dense(events, 1, 10_000)
    assert results(events) == ["x"] and len(set(ids(events))) == len(ids(events))
    # Once more where it ran, from the middle.
    again = await (await peer.resume(events[4_999].id)).rest(WAIT_S)
    dense(again, 5_001, 10_000)


async def test_i4_newest_reader_has_the_stream_wherever_it_is(pair: tuple[Server, Server]) -> None:
    here, there = pair
    peer = await here.peer()
    name = gate()
    reply = await peer.call("script", {"steps": [f"until {name}"]})
    events: list[Event] = []
    fenced = []
    for number in range(1, 9):
        events += await reply.some(5, WAIT_S)
        # Nobody waits until it is fenced: who has read from the newer one is behind its claim.
        fenced.append(asyncio.create_task(reply.rest(WAIT_S)))
        reply = await at(peer, pair[number % 2]).resume(last_id(events))
    await here.open(name)
    events += await reply.until_terminal(WAIT_S)
    dense(events, 1, counts(events)[-1])
    assert results(events) == [str(counts(events)[-1])]
    for left in await asyncio.gather(*fenced):
        assert results(left) == [], "I4: an older reader is fenced, however quickly they follow"
    complete = await at(peer, there).resume(last_id(events))
    assert complete.status == 204


async def test_standalone_stream_is_heard_elsewhere(pair: tuple[Server, Server]) -> None:
    here, there = pair
    peer = await here.peer()
    listening = await known(at(peer, there))
    await peer.ask("script", {"steps": ["standalone one", "return x"]})
    events = await listening.some(1, WAIT_S)
    listening.drop()
    await peer.ask("script", {"steps": ["standalone two", "return x"]})
    resumed = await at(peer, there).resume(last_id(events))
    assert logs(events + await resumed.some(1, WAIT_S)) == ["one", "two"]


async def test_stock_client_whose_gets_land_elsewhere_is_served(pair: tuple[Server, Server]) -> None:
    here, there = pair

    async def choose(method: str) -> int:
        return there.port if method == "GET" else here.port

    before = (await there.stats())["connections_opened"]
    async with balancer(choose) as port, stock_client(port) as client, asyncio.timeout(WAIT_S * 2):
        assert await client.script(*["emit 2", "close", "emit 1"] * 5, "return x") == "x"
        assert client.progress == list(range(1, 16))
    assert (await there.stats())["connections_opened"] > before


async def test_requests_are_refused_elsewhere_as_where_the_session_lives(pair: tuple[Server, Server]) -> None:
    here, there = pair
    peer = await here.peer()
    call = await peer.call("script", {"steps": ["emit 1", "return x"]})
    cursor = ids(await call.rest())[0]
    (await known(at(peer, there))).drop()
    heads: list[dict[str, str | None]] = [
        {"Accept": "application/json"},
        {"Accept": None},
        {"Last_Event_ID": "12"},
        {"Last_Event_ID": "1 2"},
        {"Last_Event_ID": unknown_like(cursor)},
        {"Mcp_Protocol_Version": "1999-01-01"},
        {"Mcp_Session_Id": None},
        {"Mcp_Session_Id": "0" * 32},
        {"Host": "example.com"},
        {"Origin": "http://example.com"},
    ]
    for head in heads:
        # Without a cursor it is the standalone stream, where it is not refused.
        last = None if "Last_Event_ID" in head else PRIMED
        answers = [await seen(await at(peer, server).get(**head), last) for server in pair]
        assert answers[0] == answers[1], head
    # A session that was refused a connection is not held on to (I11).
    await there.until_stats(lambda stats: stats["connections"] == 0 and stats["sessions"] == 0, WAIT_S)
    # What is not a GET stays with the process that has the session.
    assert (await at(peer, there).notify("notifications/initialized")).status == 404
    assert (await at(peer, there).delete()).status == 404
    assert (await peer.delete()).status == 200
    gone, deadline = await at(peer, there).get(), time.monotonic() + WAIT_S
    while gone.status == 200:
        assert time.monotonic() < deadline
        gone.drop()
        gone = await at(peer, there).get()
    assert gone.status == 404


# Restart


async def test_restart_after_a_kill_keeps_every_stored_event(flavor: str, place: str) -> None:
    before = start(flavor, place)
    try:
        peer = await before.peer()
        done = await (await peer.call("script", {"steps": ["emit 20", "return x"]}, id=1)).rest()
        running = await peer.call("script", {"steps": ["emit 20", "gate never"]}, id=2)
        partial = await running.some(20)
        listening = await peer.listen()
        await peer.ask("script", {"steps": ["standalone one", "standalone two", "return x"]})
        standalone = await listening.some(2)
    finally:
        before.kill()
    after = start(flavor, place)
    try:
        peer = at(peer, after)
        for position in (0, 7, 19):
            events = await (await peer.resume(ids(done)[position])).rest(WAIT_S)
            dense(events, position + 1, 20)
            assert results(events) == ["x"]
        left = await peer.resume(partial[0].id)
        started = time.monotonic()
        events = await left.until_terminal(WAIT_S)
        await left.ends()
        dense(events, 2, 20)
        assert events[-1].message["id"] == 2 and events[-1].message["error"] == {"code": -32603, "message": GONE}
        assert time.monotonic() - started < 10
        # An end is final: whoever asks again gets the same one.
        again = await (await peer.resume(partial[-1].id)).rest(WAIT_S)
        assert results(again) == results(events)
        heard = await peer.resume(standalone[0].id)
        assert logs(await heard.some(1, WAIT_S)) == ["two"]
    finally:
        after.kill()


async def test_i13_reader_elsewhere_is_told_when_the_owner_is_gone(flavor: str, place: str) -> None:
    here, there = start(flavor, place), start(flavor, place)
    try:
        peer = await here.peer()
        call = await peer.call("script", {"steps": ["emit 3", "gate never"]}, id=7)
        events = await call.some(2)
        call.drop()
        resumed = await at(peer, there).resume(last_id(events))
        events += await resumed.some(1, WAIT_S)
        here.kill()
        started = time.monotonic()
        end = (await resumed.until_terminal(WAIT_S))[-1].message
        took = time.monotonic() - started
        await resumed.ends()
        dense(events, 1, 3)
        assert end["id"] == 7 and end["error"] == {"code": -32603, "message": GONE}, end
        assert took < 8, f"{took} s"
    finally:
        here.kill()
        there.kill()


async def test_stock_client_outlives_a_kill_of_its_server(flavor: str, place: str) -> None:
    servers = [start(flavor, place)]
    up = asyncio.Event()
    up.set()

    async def choose(method: str) -> int:
        await up.wait()
        return servers[-1].port

    try:
        async with balancer(choose) as port, stock_client(port) as client, asyncio.timeout(WAIT_S * 2):
            call = asyncio.create_task(client.script("emit 5", "mark ready", "gate never"))
            await servers[0].mark("ready")
            # Before the answer has begun there is nothing to come back for.
            while len(client.progress) < 5:
                await asyncio.sleep(0.01)
            up.clear()
            servers[0].kill()
            servers.append(await asyncio.to_thread(start, flavor, place))
            up.set()
            with pytest.raises(CallFailed, match=GONE):
                await call
            assert client.progress == [1, 2, 3, 4, 5]
    finally:
        for server in servers:
            server.kill()


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
async def test_f44_graceful_exit_leaves_its_sessions_readable(flavor: str, place: str, how: signal.Signals) -> None:
    # Nobody needs to wait until the owner counts as lost: it said that it goes.
    before = start(flavor, place, engine={"owner_lost_ms": 600_000})
    try:
        peer = await before.peer()
        done = await (await peer.call("script", {"steps": ["emit 5", "return x"]}, id=1)).rest()
        running = await peer.call("script", {"steps": ["emit 5", "gate never"]}, id=2)
        partial = await running.some(5)
        before.process.send_signal(how)
        assert results(await running.rest(WAIT_S)) == []
        await asyncio.to_thread(before.exit_code, WAIT_S)
        assert "Traceback" not in before.log(), before.log()
    finally:
        before.kill()
    after = start(flavor, place, engine={"owner_lost_ms": 600_000})
    try:
        peer = at(peer, after)
        events = await (await peer.resume(ids(done)[0])).rest(WAIT_S)
        dense(events, 1, 5)
        assert results(events) == ["x"]
        left = await peer.resume(partial[1].id)
        events = await left.until_terminal(WAIT_S)
        dense(events, 3, 5)
        # An SDK may answer the calls that it cancels; else the engine does.
        assert events[-1].message["id"] == 2 and "error" in events[-1].message, events[-1]
    finally:
        after.kill()


async def test_f44_process_is_not_gone_before_its_last_events_are_written(flavor: str, tmp_path: Path) -> None:
    """uvicorn ends its process by the signal that it got, at which Python runs nothing."""
    place = f"sqlite:{tmp_path / 'events.db'}"
    before = start(flavor, place, engine={"owner_lost_ms": 600_000})
    try:
        peer = await before.peer()
        running = await peer.call("script", {"steps": ["emit 5", "gate never"]}, id=2)
        partial = await running.some(5)
        # Nobody else can write to the file now.
        with closing(sqlite3.connect(tmp_path / "events.db", isolation_level=None)) as busy:
            busy.execute("BEGIN IMMEDIATE")
            before.process.send_signal(signal.SIGTERM)
            await running.rest(WAIT_S)
            with pytest.raises(subprocess.TimeoutExpired):
                await asyncio.to_thread(before.exit_code, 1.5)
            busy.execute("ROLLBACK")
        await asyncio.to_thread(before.exit_code, WAIT_S)
    finally:
        before.kill()
    after = start(flavor, place, engine={"owner_lost_ms": 600_000})
    try:
        events = await (await at(peer, after).resume(last_id(partial))).until_terminal(WAIT_S)
        assert "error" in events[-1].message, events
    finally:
        after.kill()


@pytest.mark.timeout(120 + 20 * KILLS)
async def test_a5_kill_at_any_moment_loses_nothing_that_was_acknowledged(place: str, tmp_path: Path) -> None:
    seed = random.randrange(1 << 32)
    chance = random.Random(seed)
    server = start(FLAVORS[0], place)
    try:
        for turn in range(KILLS):
            told = f"seed {seed}, turn {turn}"
            peer = await server.peer()
            notes = [tmp_path / f"{turn}-{number}" for number in range(3)]
            replies = [await peer.call("script", {"steps": [f"note {note}"]}, token=note.name) for note in notes]
            readers = [asyncio.create_task(until_cut(reply)) for reply in replies]
            await asyncio.sleep(chance.uniform(0, 0.4))
            server.kill()
            read = await asyncio.gather(*readers)
            server = await asyncio.to_thread(start, FLAVORS[0], place)
            peer = at(peer, server)
            for note, events in zip(notes, read, strict=True):
                acknowledged = len(note.read_bytes().split()) if note.exists() else 0
                if not ids(events):
                    # It was killed before the client had heard of the stream.
                    continue
                for cursor in {ids(events)[0], chance.choice(ids(events)), ids(events)[-1]}:
                    before = [event for event in events if event.id in ids(events)[: ids(events).index(cursor) + 1]]
                    resumed = await peer.resume(cursor)
                    assert resumed.status == 200, (told, cursor, await resumed.body())
                    rest = await resumed.rest(WAIT_S)
                    after = counts(before)[-1] if counts(before) else 0
                    last = counts(rest)[-1] if counts(rest) else after
                    assert counts(rest) == list(range(after + 1, last + 1)), told
                    assert last >= acknowledged and last >= len(counts(events)), (told, last, acknowledged)
                    # An id that is unknown would be answered with an error, too, but with another one.
                    assert [end["message"] for end in results(rest)] == [GONE], (told, results(rest))
    finally:
        server.kill()


async def until_cut(reply: Reply) -> list[Event]:
    """What arrived, whole events only, until the connection broke."""
    events: list[Event] = []
    with suppress(OSError, Truncated, AssertionError):
        while (event := await reply.event(WAIT_S)) is not None:
            events.append(event)
    return events


# Tenants


async def test_i7_two_tenants_with_the_same_names_see_nothing_of_each_other(tenants: tuple[Server, Server]) -> None:
    here, there = tenants
    peers = {name: await here.peer(headers={"Authorization": f"Bearer {name}-token"}) for name in ("alice", "bob")}
    cursors: dict[str, list[str]] = {}
    name = gate()
    for who, peer in peers.items():
        steps = [f"log secret-of-{who}", f"gate {name}", f"return secret-of-{who}"]
        reply = await peer.call("script", {"steps": steps}, id=1, token="same")
        events = [await reply.event(), *await reply.some(1)]
        done = await (await peer.call("script", {"steps": ["emit 2", f"return secret-of-{who}"]}, id=2)).rest()
        listening = await peer.listen()
        await peer.ask("script", {"steps": [f"standalone secret-of-{who}", "return x"]}, id=3)
        heard = await listening.some(1)
        cursors[who] = [str(events[0].id), str(events[1].id), ids(done)[0], ids(done)[-1], last_id(heard)]
        reply.drop()
        listening.drop()
    for server in tenants:
        for who, other in (("alice", "bob"), ("bob", "alice")):
            own, foreign = at(peers[who], server), at(peers[other], server)
            for cursor in cursors[other]:
                # For one of a standalone stream there is the own one, with what was said on it.
                last = f"secret-of-{who}" if cursor == cursors[other][-1] else None
                answers = [await seen(await own.resume(one), last) for one in (cursor, unknown_like(cursor))]
                assert answers[0] == answers[1], (server is here, cursor)
                assert f"secret-of-{other}" not in str(answers)
            # Another tenant's session, with and without a cursor of it, and one that never was.
            foreign.extra = own.extra
            never = at(own, server)
            never.session = uuid.uuid4().hex
            for cursor in (None, *cursors[other]):
                head = {} if cursor is None else {"Last_Event_ID": cursor}
                exact = [await bare(await peer.get(**head)) for peer in (foreign, never)]
                assert exact[0] == exact[1] and exact[0][0] == 404, exact
    await here.open(name)
    for who, peer in peers.items():
        reply = await at(peer, there).resume(cursors[who][0])
        events = await reply.until_terminal(WAIT_S)
        assert results(events) == logs(events) == [f"secret-of-{who}"]
        other = "bob" if who == "alice" else "alice"
        assert f"secret-of-{other}".encode() not in bytes(reply.raw)


async def bare(reply: Reply) -> tuple[int, dict[str, str], bytes]:
    """Everything of an answer but the time of day."""
    headers = {name: value for name, value in reply.headers.items() if name != "date"}
    return reply.status, headers, await reply.body()


async def test_i7_a_second_token_of_the_same_tenant_is_the_same_tenant(tenants: tuple[Server, Server]) -> None:
    here, there = tenants
    peer = await here.peer(headers={"Authorization": "Bearer alice-token"})
    done = await (await peer.call("script", {"steps": ["emit 2", "return x"]})).rest()
    elsewhere = at(peer, there)
    elsewhere.extra = {"Authorization": "Bearer alice-second-token"}
    assert results(await (await elsewhere.resume(ids(done)[0])).rest(WAIT_S)) == ["x"]


# Opening

SECRET = "hunter2"
WRONG = [
    "floppy:",
    "sqlite:/no/such/directory/events.db",
    "sqlite:/",
    f"redis://user:{SECRET}@127.0.0.1:1/0",
    f"rediss://user:{SECRET}@127.0.0.1:1/0?option={SECRET}",
    f"postgres://user:{SECRET}@127.0.0.1:1/events",
]


@pytest.mark.parametrize("how", ["install(store=", "open_store(", "mcp.EventStore("])
@pytest.mark.parametrize("address", WRONG, ids=lambda address: address.split(":")[0] + str(len(address)))
def test_store_that_cannot_be_opened_is_refused_at_once(how: str, address: str) -> None:
    name = "store=" if "store=" in how else ""
    done = python(
        f"""
import logging, tailrope.mcp
logging.basicConfig(level=1)
started = __import__("time").monotonic()
try: tailrope.{how.removesuffix(name)}{name}sys.argv[1])
except tailrope.TailropeError as error:
    print("CODE", error.code, repr(error), error, error.__cause__, error.__context__, vars(error))
import mcp.server.streamable_http_manager as manager
print(manager.StreamableHTTPServerTransport.__module__)
""",
        30,
        address,
    )
    assert done.returncode == 0, done.stderr
    assert "CODE store_not_opened" in done.stdout and address.split(":")[0] in done.stdout, done.stdout
    # Nothing was changed, and what is secret is nowhere.
    assert "mcp.server.streamable_http" in done.stdout
    assert SECRET not in done.stdout + done.stderr


def test_store_is_named_without_what_is_secret(tmp_path: Path) -> None:
    done = python(
        """
address = f"sqlite:{sys.argv[1]}?key=hunter2"
store = tailrope.open_store(address.split("?")[0], durability="power", max_bytes=1 << 20, owner_lost_ms=2_000)
print(repr(store), store.address)
assert store.address == address.split("?")[0]
""",
        20,
        str(tmp_path / "events.db"),
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("<tailrope.Store sqlite:"), done.stdout


def test_options_of_a_store_that_is_open_are_refused_elsewhere(tmp_path: Path) -> None:
    done = python(
        """
import tailrope.mcp
store = tailrope.open_store(sys.argv[1], max_events_per_stream=7)
for options in ({"max_bytes": 1}, {"durability": "power"}, {"owner_lost_ms": 1}):
    for use in (tailrope.install, tailrope.mcp.EventStore):
        try: use(store=store, **options)
        except ValueError as error: assert next(iter(options)) in str(error) and "open_store" in str(error), error
        else: raise SystemExit(f"{options} are taken")
for options in ({"durability": "always"}, {"durability": 1}, {"retry_ms": 1}, {"max_bytes": 0}, {"nonsense": 1},
                {"encryption_keys": "ab" * 32}, {"encryption_keys": []}, {"encryption_keys": ["secret"]}):
    try: tailrope.open_store(sys.argv[1], **options)
    except ValueError as error: assert next(iter(options)) in str(error) and "secret" not in str(error), error
    else: raise SystemExit(f"{options} are taken")
tailrope.install(store=store, retry_ms=5)
assert tailrope.mcp._engage.default_runtime().engine.options()["max_events_per_stream"] == 7
tailrope.install(store=sys.argv[1], durability="power", owner_lost_ms=50, retry_ms=5)
assert tailrope.mcp._engage.default_runtime().engine.options()["owner_lost_ms"] == 50
""",
        20,
        f"sqlite:{tmp_path / 'events.db'}",
    )
    assert done.returncode == 0, done.stderr


def test_what_a_process_was_told_to_store_is_written_when_it_ends(tmp_path: Path) -> None:
    """Session records and ends have no answer that anybody waits for."""
    done = python(
        """
async def main():
    app = build(FLAVOR, "tailrope", {"install": {"store": sys.argv[1]}})
    await Life(app).__aenter__()
    for _ in range(300): await opened(app)
    tailrope._runtime._at_exit()
    os._exit(0)
asyncio.run(main())
""",
        60,
        f"sqlite:{tmp_path / 'events.db'}",
    )
    assert done.returncode == 0, done.stderr
    with closing(sqlite3.connect(tmp_path / "events.db")) as file:
        assert file.execute("SELECT count(*) FROM session").fetchone() == (300,)


def test_i9_store_that_cannot_tell_of_a_session_is_no_404(tmp_path: Path) -> None:
    done = python(
        """
async def main():
    app = build(FLAVOR, "tailrope", {"install": {"store": sys.argv[1]}})
    async with Life(app):
        keys = [(b"mcp-session-id", b"0" * 32), (b"mcp-protocol-version", b"2025-11-25")]
        assert (await call(app, "GET", None, keys))[0]["status"] == 404
        tailrope.mcp._engage.default_runtime().engine.leave()
        sent = await call(app, "GET", None, keys)
        body = json.loads(sent[1]["body"])
        assert sent[0]["status"] == 503 and body["error"]["code"] == -32603, (sent, body)
        assert "events.db" not in str(sent)
import tailrope.mcp
asyncio.run(main())
""",
        60,
        f"sqlite:{tmp_path / 'events.db'}",
    )
    assert done.returncode == 0, done.stderr


async def test_event_store_of_one_server_may_be_shared_by_processes(farm: Farm, tmp_path: Path) -> None:
    options = {"store": "tailrope", "address": f"sqlite:{tmp_path / 'events.db'}"}
    here, there = farm.fresh(**options), farm.fresh(**options)
    try:
        peer = await here.peer()
        done = await (await peer.call("script", {"steps": ["emit 3", "return x"]})).rest()
        events = await (await at(peer, there).resume(ids(done)[0])).rest(WAIT_S)
        dense(events, 1, 3)
        assert results(events) == ["x"]
    finally:
        here.kill()
        there.kill()


async def test_payloads_are_encrypted_where_a_key_is_given(flavor: str, tmp_path: Path) -> None:
    file = tmp_path / "events.db"
    old, new = "0a" * 32, "0b" * 32
    # Keys may change: what was written with the old one is read as long as it is named.
    before = start(flavor, f"sqlite:{file}", engine={"encryption_keys": [old]})
    try:
        peer = await before.peer()
        done = await (await peer.call("script", {"steps": ["log plain words", "return x"]})).rest()
    finally:
        before.kill()
    for suffix in ("", "-wal"):
        written = Path(f"{file}{suffix}")
        assert not written.exists() or b"plain words" not in written.read_bytes()
    for keys, found in (([new, old], True), ([new], False)):
        after = start(flavor, f"sqlite:{file}", engine={"encryption_keys": keys, "store_wait_ms": 0})
        try:
            reply = await at(peer, after).resume(ids(done)[0])
            await reply.settle(10 if found else 2)
            assert (b"plain words" in bytes(reply.raw)) == found, bytes(reply.raw)
        finally:
            after.kill()


# Behind the SDK's own transport


async def test_install_may_leave_the_transports_of_the_sdk(flavor: str, place: str) -> None:
    server = start(flavor, place, engine={"transport": "stock"})
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
        assert results(await foreign.settle()) == []
    finally:
        server.kill()


def test_stock_transports_find_their_events_after_a_restart(place: str) -> None:
    code = """
import tailrope.mcp
import mcp.server.streamable_http_manager as manager
from tailrope.mcp import _sdk
def message(number): return _sdk.parse(json.dumps({"jsonrpc": "2.0", "method": "m", "params": {"n": number}}).encode())
async def main(address, last):
    store = tailrope.mcp.EventStore(address, transport="stock")
    assert manager.StreamableHTTPServerTransport.__module__ == "mcp.server.streamable_http"
    one, two = store.scoped("one"), store.scoped("two")
    if not last:
        first = await one.store_event("7", None)
        for number in range(5): await one.store_event("7", message(number))
        await two.store_event("7", message(99))
        print(first)
        return
    found = []
    async def collect(event): found.append(json.loads(_sdk.dump(event.message))["params"]["n"])
    assert await one.replay_events_after(last[0], collect) == "7" and found == [0, 1, 2, 3, 4], found
    assert await two.replay_events_after(last[0], collect) is None and len(found) == 5
    assert await store.replay_events_after(last[0], collect) is None
    one.drop()
    assert await one.replay_events_after(last[0], collect) is None and len(found) == 5
asyncio.run(main(sys.argv[1], sys.argv[2:]))
"""
    first = python(code, 30, place)
    assert first.returncode == 0, first.stderr
    second = python(code, 30, place, first.stdout.strip())
    assert second.returncode == 0, second.stderr
