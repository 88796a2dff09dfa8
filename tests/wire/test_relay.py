"""A session runs in one process, and any other one of the same store takes requests for it: they are relayed. (I5, I7,
I12, I13)

Every test runs on SQLite, and on the servers at the addresses in `TAILROPE_TEST_REDIS` and `TAILROPE_TEST_POSTGRES`, in
a namespace of its own.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest
from kit.balancer import balancer
from kit.elsewhere import CALM, NEVER_LOST, WAIT_S, Wandering, at, dense, known, pair_on, start
from kit.peer import NEWEST, OLD, Peer, last_id, results, text
from kit.raw import Event, Reply, request
from kit.servers import Kind, Server, gate
from kit.stock import MODES, stock_client

pytestmark = pytest.mark.ours

# An operator lets a header of the own travel; no credential does, whatever the operator says.
NAMED = ["X-Own", "authorization", "cookie"]


@pytest.fixture(scope="module")
def pair(kind: Kind, place: str) -> Iterator[tuple[Server, Server]]:
    """Two servers on one store."""
    with pair_on(kind, place, guard=True) as both:
        yield both


@pytest.fixture(scope="module")
def users(kind: Kind, place: str) -> Iterator[tuple[Server, Server]]:
    """The same, which believe who somebody says to be."""
    with pair_on(kind, place, own_auth=True, engine={**CALM, "relayed_headers": NAMED}) as both:
        yield both


async def whole(reply: Reply) -> tuple[int, dict[str, str], Any]:
    """Everything of an answer but the time of day; of a stream, what it ends with, however that came."""
    left_out = ("date", "content-length", "transfer-encoding") if reply.is_sse else ("date",)
    headers = {name: value for name, value in reply.headers.items() if name not in left_out}
    body = results(await reply.until_terminal(WAIT_S)) if reply.is_sse else await reply.body()
    return reply.status, headers, body


async def question(reply: Reply, events: list[Event]) -> Any:
    """The id of the next request that the server asks the client."""
    while True:
        event = await reply.event(WAIT_S)
        assert event is not None, "the connection ended without a question"
        events.append(event)
        if isinstance(event.message, dict) and "id" in event.message and "method" in event.message:
            return event.message["id"]


async def until_gone(peer: Peer, server: Server) -> None:
    """The session is unknown there."""
    deadline = time.monotonic() + WAIT_S
    while (reply := await at(peer, server).call("echo", {"text": "x"})).status != 404:
        assert time.monotonic() < deadline, (reply.status, await reply.body())
        reply.drop()
        await asyncio.sleep(0.05)


@pytest.mark.parametrize("revision", [NEWEST, OLD[0]])
@pytest.mark.parametrize("again", [False, True], ids=["elsewhere", "alternating"])
async def test_session_goes_on_at_another_process(pair: tuple[Server, Server], revision: str, again: bool) -> None:
    here, there = pair
    peer = await Wandering.opened(here, there, again=again, revision=revision)
    for number in range(2):
        listed = await peer.post({"jsonrpc": "2.0", "id": f"list-{number}", "method": "tools/list"})
        answer = (await listed.until_terminal(WAIT_S))[-1].message
        assert "echo" in [tool["name"] for tool in answer["result"]["tools"]]
        assert await peer.ask("echo", {"text": "x"}) == "x"
    name = f"ran-{peer.session}"
    reply = await peer.call("script", {"steps": [f"mark {name}", "emit 2", "close", "emit 1", "return done"]})
    events = await reply.rest(WAIT_S)
    while not results(events):
        events += await (await peer.resume(last_id(events))).rest(WAIT_S)
    dense(events, 1, 3)
    assert results(events) == ["done"]
    await here.mark(name)
    marks = [(await server.state())["marks"].get(name, 0) for server in pair]
    assert marks == [1, 0], "it runs once, where the session lives"
    assert (await peer.delete()).status == 200
    for server in pair:
        await until_gone(peer, server)


async def test_relayed_requests_are_answered_as_those_at_their_own_process(pair: tuple[Server, Server]) -> None:
    peer = await Wandering.opened(*pair)
    notification = {
        "jsonrpc": "2.0",
        "method": "notifications/progress",
        "params": {"progressToken": "p", "progress": 1},
    }
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "echo", "arguments": {"text": "x"}}}
    posts: list[tuple[Any, dict[str, str | None]]] = [
        (notification, {}),
        ({"jsonrpc": "2.0", "id": 77, "result": {}}, {}),
        (call, {}),
        (call, {"Accept": "application/json"}),
        (call, {"Accept": None}),
        (call, {"Content_Type": "text/plain"}),
        (call, {"Mcp_Protocol_Version": "1999-01-01"}),
        (call, {"Host": "example.com"}),
        (call, {"Origin": "http://example.com"}),
        (b"{", {}),
        (b"", {}),
        (b"[]", {}),
        ({"jsonrpc": "2.0"}, {}),
        ({"jsonrpc": "2.0", "id": None, "method": "tools/list"}, {}),
        ({"jsonrpc": "2.0", "id": 5, "method": 7}, {}),
    ]
    for body, head in posts:
        answers = [await whole(await at(peer, server).post(body, **head)) for server in pair]
        assert answers[0] == answers[1], (str(body)[:80], head)
    for head in ({"Mcp_Protocol_Version": "1999-01-01"}, {"Mcp_Session_Id": "0" * 32}):
        replies = [await request(server.port, "DELETE", peer.path, peer.headers(**head)) for server in pair]
        answers = [await whole(reply) for reply in replies]
        assert answers[0] == answers[1], head
    ends = [await Wandering.opened(pair[0], server) for server in pair]
    told = [await whole(await request(end.port, "DELETE", end.path, end.headers())) for end in ends]
    for (_, headers, _), end in zip(told, ends, strict=True):
        assert headers.pop("mcp-session-id", end.session) == end.session
    assert told[0] == told[1]


async def test_body_that_is_too_large_is_refused_where_it_comes(kind: Kind, place: str) -> None:
    # fastmcp has no option for it, and node:http hangs up on what is larger than it takes by itself.
    is_fixed = kind.name.startswith("fastmcp")
    with pair_on(kind, place, **({} if is_fixed else {"max_request_body_size": 2_000})) as pair:
        peer = await Wandering.opened(*pair)
        body = {"jsonrpc": "2.0", "id": 5, "method": "x" * (5 << 20 if is_fixed else 3_000)}
        told = [await whole(await at(peer, server).post(body)) for server in pair]
        assert told[0] == told[1] and told[0][0] == 413


@pytest.mark.parametrize("asks", ["elicit", "sample"])
@pytest.mark.parametrize("called", ["here", "there"])
async def test_answer_to_a_question_comes_elsewhere(pair: tuple[Server, Server], asks: str, called: str) -> None:
    calls, answers = pair if called == "here" else pair[::-1]
    peer = await Wandering.opened(*pair)
    events: list[Event] = []
    reply = await at(peer, calls).call("script", {"steps": [f"{asks} hm", "emit 1"]})
    asked = await question(reply, events)
    content = {"type": "text", "text": "yes"}
    answer = (
        {"action": "accept", "content": {"name": "yes"}}
        if asks == "elicit"
        else {"role": "assistant", "content": content, "model": "m"}
    )
    assert (await at(peer, answers).respond(asked, answer)).status == 202
    events += await reply.rest(WAIT_S)
    assert results(events) == [json.dumps({"name": "yes"}, separators=(",", ":")) if asks == "elicit" else "yes"]


@pytest.mark.parametrize("called", ["here", "there"])
@pytest.mark.parametrize("cancelled", ["here", "there"])
async def test_i13_call_is_cancelled_at_any_process(pair: tuple[Server, Server], called: str, cancelled: str) -> None:
    places = dict(zip(("here", "there"), pair, strict=True))
    peer = await Wandering.opened(*pair)
    name, mark = gate(), f"end-{peer.session}-{called}-{cancelled}"
    reply = await at(peer, places[called]).call("script", {"steps": ["emit 1", f"gate {name}", f"return {mark}"]}, id=9)
    events = await reply.some(1, WAIT_S)
    await pair[0].at(name)
    assert (await at(peer, places[cancelled]).cancel(9)).status == 202
    events += await reply.until_terminal(WAIT_S)
    [end] = results(events)
    assert isinstance(end, dict) and "code" in end
    await pair[0].open(name)


async def test_i12_call_runs_on_when_its_connection_is_lost(pair: tuple[Server, Server]) -> None:
    here, there = pair
    peer = await Wandering.opened(here, there)
    name = gate()
    reply = await peer.call("script", {"steps": ["emit 2", f"gate {name}", "emit 2", "return x"]})
    events = await reply.some(2, WAIT_S)
    reply.drop()
    await here.open(name)
    rest = await (await at(peer, here).resume(last_id(events))).until_terminal(WAIT_S)
    dense(events + rest, 1, 4)
    assert results(rest) == ["x"]


async def test_i5_id_that_is_in_flight_is_refused_wherever_it_comes(pair: tuple[Server, Server]) -> None:
    here, there = pair
    peer = await Wandering.opened(here, there)
    for first, second in itertools.product(pair, pair):
        name = gate()
        reply = await at(peer, first).call("script", {"steps": ["emit 1", f"gate {name}", "return first"]}, id=7)
        events = await reply.some(1, WAIT_S)
        again = await at(peer, second).call("echo", {"text": "second"}, id=7)
        if second is here:
            assert again.status == 400
        else:
            [error] = results(await again.rest(WAIT_S))
            assert isinstance(error, dict) and "code" in error
        await here.open(name)
        events += await reply.rest(WAIT_S)
        assert results(events) == ["first"]


async def test_i7_another_user_finds_nothing(users: tuple[Server, Server]) -> None:
    here, there = users
    owner = await Wandering.opened(here, there, headers={"authorization": "Bearer secret-1"})
    name = gate()
    running = await owner.call("script", {"steps": ["emit 1", f"gate {name}", "return mine"]}, id=5)
    events = await running.some(1, WAIT_S)
    asked = []
    for session in (owner.session, "0" * 32):
        stranger = at(owner, there)
        stranger.session, stranger.extra = session, {"authorization": "Bearer secret-2"}
        posts = [
            await stranger.call("echo", {"text": "x"}, id=6),
            await stranger.notify("notifications/initialized"),
            await stranger.cancel(5),
            await stranger.respond(0, {}),
            await stranger.delete(),
        ]
        asked.append([await whole(reply) for reply in posts])
    assert asked[0] == asked[1] and {status for status, _, _ in asked[0]} == {404}
    await here.open(name)
    events += await running.rest(WAIT_S)
    assert results(events) == ["mine"]
    assert await owner.ask("echo", {"text": "still"}) == "still"


async def test_handlers_see_what_may_travel(users: tuple[Server, Server]) -> None:
    given = {
        "authorization": "Bearer secret-1",
        "cookie": "a=b",
        "x-api-key": "secret",
        "proxy-authorization": "Basic c2VjcmV0",
        "x-own": "of the operator",
        "x-other": "here alone",
        "x-request-id": "r-1",
        "traceparent": "00-1-2-01",
        "accept-language": "de",
        "user-agent": "lab",
    }
    peer = await Wandering.opened(*users, headers=given)
    seen = {name: await peer.ask("header", {"name": name}) for name in given}
    travels = {name: given[name] for name in ("x-own", "x-request-id", "traceparent", "accept-language", "user-agent")}
    assert {name: value for name, value in seen.items() if value} == travels
    assert await peer.ask("header", {"name": "mcp-session-id"}) == peer.session
    assert await peer.ask("header", {"name": "mcp-protocol-version"}) == NEWEST
    assert await peer.ask("header", {"name": "content-type"}) == "application/json"


@pytest.mark.parametrize("mode", MODES)
async def test_stock_client_with_a_random_process_per_request(pair: tuple[Server, Server], mode: str) -> None:
    dice = random.Random(7)

    async def choose(method: str) -> int:
        return dice.choice(pair).port

    async with balancer(choose) as port, asyncio.timeout(WAIT_S * 4):
        for _ in range(3):
            async with stock_client(port, mode) as client:
                assert await client.script(*["emit 2", "close", "emit 1"] * 3, "return x") == "x"
                assert client.progress == list(range(1, 10))
                assert json.loads(await client.script("elicit hm")) == {"name": "re: hm"}
                assert await asyncio.gather(*(client.ask("echo", {"text": str(n)}) for n in range(8))) == [
                    str(n) for n in range(8)
                ]


async def test_json_response_servers_relay_too(kind: Kind, place: str) -> None:
    with pair_on(kind, place, json_response=True) as pair:
        peer = await pair[0].peer()
        # It is answered before the store knows of it.
        (await known(at(peer, pair[1]))).drop()
        told = []
        for server in pair:
            told.append(await whole(await at(peer, server).call("echo", {"text": "x"}, id=1)))
        assert told[0] == told[1] and text(json.loads(told[0][2])) == "x"
        assert (await at(peer, pair[1]).delete()).status == 200
        await until_gone(peer, pair[0])


@pytest.fixture
def patient(kind: Kind, place: str) -> Iterator[tuple[Server, Server]]:
    """Two servers that never take each other for gone."""
    both = [start(kind, place, engine=NEVER_LOST) for _ in range(2)]
    yield both[0], both[1]
    for server in both:
        server.stop()


async def test_i11_inbox_of_a_process_that_stands_still_is_bounded(patient: tuple[Server, Server]) -> None:
    here, there = patient
    peer = await Wandering.opened(here, there)
    name = f"stood-{peer.session}"
    steps = [f"mark {name}", "return x"]
    # What the owner has to write is written: one that stands still within a commit keeps SQLite locked.
    assert await peer.ask("echo", {"text": "x"}) == "x"
    os.kill(here.process.pid, signal.SIGSTOP)
    try:
        call = asyncio.create_task(peer.call("script", {"steps": steps}))
        progress = {"progressToken": "p", "progress": 1, "message": "x" * (1 << 20)}
        taken = 0
        while (refused := await peer.notify("notifications/progress", progress)).status == 202:
            taken += 1
        assert 3 < taken < 20
        assert refused.status == 503 and int(refused.headers["retry-after"]) >= 1
        error = json.loads(bytes(refused.raw))["error"]
        assert "too much waits" in error["message"]
    finally:
        os.kill(here.process.pid, signal.SIGCONT)
    assert results(await (await call).rest(WAIT_S)) == ["x"]
    assert (await here.state())["marks"][name] == 1
    assert await peer.ask("echo", {"text": "on"}) == "on"


async def test_session_whose_process_is_gone_goes_on(kind: Kind, place: str) -> None:
    here, there = start(kind, place), start(kind, place)
    try:
        peer = await Wandering.opened(here, there)
        session = peer.session
        assert await peer.ask("echo", {"text": "x"}) == "x"
        here.kill()
        assert await peer.ask("echo", {"text": "x"}) == "x"
        assert (await peer.notify("notifications/initialized")).status == 202
        listed = await peer.post({"jsonrpc": "2.0", "id": "list", "method": "tools/list"})
        answer = (await listed.until_terminal(WAIT_S))[-1].message
        assert "echo" in [tool["name"] for tool in answer["result"]["tools"]]
        assert peer.session == session and (await there.stats())["sessions_adopted"] == 1
        assert (await peer.delete()).status == 200
        await until_gone(peer, there)
    finally:
        here.stop()
        there.stop()
