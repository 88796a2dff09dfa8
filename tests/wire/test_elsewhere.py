"""A session runs in one process, and is read through another one of the same store. (A1, A2; D6, D7)

Every test runs on SQLite, and on the servers at the addresses in `TAILROPE_TEST_REDIS` and `TAILROPE_TEST_POSTGRES`, in
a namespace of its own.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Iterator

import pytest
from kit.balancer import balancer
from kit.elsewhere import WAIT_S, at, dense, known, pair_on
from kit.peer import NEWEST, OLD, PRIMED, counts, ids, last_id, logs, results, seen, unknown_like
from kit.raw import Event, Reply
from kit.servers import Kind, Server, gate
from kit.stock import stock_client

pytestmark = pytest.mark.ours


@pytest.fixture(scope="module")
def pair(kind: Kind, place: str) -> Iterator[tuple[Server, Server]]:
    """Two servers on one store."""
    with pair_on(kind, place, guard=True) as both:
        yield both


@pytest.fixture(scope="module")
def tenants(kind: Kind, place: str, pair: tuple[Server, Server]) -> Iterator[tuple[Server, Server]]:
    """The same with two tenants, alice and bob."""
    if kind.language == "node" and not kind.has_front:
        # Its servers know who somebody is in any case; they only insist where they are told to.
        yield pair
        return
    with pair_on(kind, place, auth=True) as both:
        yield both


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


@pytest.mark.parametrize("revision", [NEWEST, OLD[0]])
@pytest.mark.parametrize("last", [1_000, pytest.param(10_000, marks=pytest.mark.full)])
async def test_i3_reader_elsewhere_gets_all_that_the_owner_appends(
    pair: tuple[Server, Server], revision: str, last: int
) -> None:
    here, there = pair
    errors = (await there.state()).get("errors")
    peer = await here.peer(revision)
    name = gate()
    steps = [f"emit {last // 4}", f"gate {name}", f"emit {last - last // 4}", "return x"]
    reply = await peer.call("script", {"steps": steps})
    events = await reply.some(5)
    reply.drop()
    resumed = await at(peer, there).resume(last_id(events))
    assert resumed.status == 200, await resumed.body()
    # The suffix first; then the owner goes on while the reader is at its live tail.
    events += await resumed.some(last // 4 - 5, WAIT_S)
    await here.open(name)
    events += [event for event in await resumed.until_terminal(WAIT_S) if not event.is_priming]
    await resumed.ends()
    dense(events, 1, last)
    assert results(events) == ["x"] and len(set(ids(events))) == len(ids(events))
    # Once more from the middle, now that it is complete. Behind its end there is nothing.
    for server in pair:
        again = await (await at(peer, server).resume(events[last // 2 - 1].id)).rest(WAIT_S)
        dense(again, last // 2 + 1, last)
        assert results(again) == ["x"]
        assert (await at(peer, server).resume(last_id(events))).status == 204
    await there.until_stats(lambda stats: stats["sessions"] == 0, WAIT_S)
    assert (await there.state()).get("errors") == errors


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
    # There again, and where it lives.
    for server, word in ((there, "two"), (here, "three")):
        await peer.ask("script", {"steps": [f"standalone {word}", "return x"]})
        resumed = await at(peer, server).resume(last_id(events))
        events += await resumed.some(1, WAIT_S)
        resumed.drop()
    assert logs(events) == ["one", "two", "three"]


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
        {"Last_Event_ID": cursor, "Origin": "http://127.0.0.1"},
        {"Last_Event_ID": cursor, "Mcp_Protocol_Version": None},
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
    assert await peer.ask("echo", {"text": "still"}) == "still"
    assert (await peer.delete()).status == 200
    gone, deadline = await at(peer, there).get(), time.monotonic() + WAIT_S
    while gone.status == 200:
        assert time.monotonic() < deadline
        gone.drop()
        gone = await at(peer, there).get()
    assert gone.status == 404


async def test_i7_two_tenants_with_the_same_names_see_nothing_of_each_other(tenants: tuple[Server, Server]) -> None:
    here, there = tenants
    peers = {name: await here.peer(headers=bearer(f"{name}-token")) for name in ("alice", "bob")}
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
            nobody = at(peers[other], server)
            nobody.extra = {}
            # Node's SDK leaves authentication to its host; a front has it asked first.
            is_asked = server.kind.language != "node" or server.kind.has_front
            assert (await nobody.get()).status == (401 if is_asked else 404)
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
    peer = await here.peer(headers=bearer("alice-token"))
    done = await (await peer.call("script", {"steps": ["emit 2", "return x"]})).rest()
    elsewhere = at(peer, there)
    elsewhere.extra = bearer("alice-second-token")
    assert results(await (await elsewhere.resume(ids(done)[0])).rest(WAIT_S)) == ["x"]
