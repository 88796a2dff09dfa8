"""Several processes on one store, which a client takes for one server. (I12, I13, F-90 to F-93)

docs/deploy/several-processes.md says the same in words.

What any server has to do is asked of fleets by all of this folder; here is what only a fleet can get wrong.
"""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest
from kit.elsewhere import WAIT_S
from kit.fleet import FLEETS, Fleet
from kit.peer import Peer, last_id, logs, results
from kit.raw import Event
from kit.servers import Farm, Kind, Server, ask, gate

pytestmark = pytest.mark.ours

CANCELLED = -32800
ANSWER = {"action": "accept", "content": {"name": "yes"}}
ANSWERED = '{"name":"yes"}'
# Far more than it takes until each process had its turn.
MOST_SESSIONS = 300


@pytest.fixture(scope="module", params=FLEETS.values(), ids=FLEETS)
def kind(request: pytest.FixtureRequest) -> Kind:
    return request.param


async def of_each(server: Server, name: str) -> list[int]:
    """A counter of each process's engine."""
    stats = await asyncio.gather(*(ask(port, "stats") for port in server.controls))
    return [each[name] for each in stats]


async def sessions_of_all(server: Server) -> list[Peer]:
    """Sessions, of which each process has opened at least one."""
    before, peers = await of_each(server, "sessions_opened"), []
    while any(now == then for now, then in zip(await of_each(server, "sessions_opened"), before, strict=True)):
        assert len(peers) < MOST_SESSIONS, "one process gets nothing"
        peers.append(await server.peer())
    return peers


async def until_asked(peer: Peer, events: list[Event]) -> Any:
    """Read on, wherever, until the server asks something: the id of the question."""
    while True:
        reply = await peer.resume(last_id(events))
        while (event := await reply.event()) is not None:
            events.append(event)
            if event.message is not None and event.message.get("method") == "elicitation/create":
                reply.drop()
                return event.message["id"]


async def test_a_session_is_served_wherever_its_requests_go(farm: Farm) -> None:
    server = farm.get()
    peers = await sessions_of_all(server)
    before = await of_each(server, "connections_opened")
    for peer in peers:
        listening = await peer.listen()
        for number in range(4):
            assert await peer.ask("script", {"steps": [f"standalone {number}", f"return {number}"]}) == str(number)
        assert logs(await listening.some(4)) == ["0", "1", "2", "3"]
        listening.drop()
    grown = [now > then for now, then in zip(await of_each(server, "connections_opened"), before, strict=True)]
    assert all(grown), "each process has served"
    for peer in peers:
        assert (await peer.delete()).status == 200
        # For its owner from then on. Another process may ask the store before it has heard of the end.
        deadline = time.monotonic() + WAIT_S
        while [(await peer.call("echo", {"text": "x"})).status for _ in server.controls] != [404] * len(
            server.controls
        ):
            assert time.monotonic() < deadline, "some process goes on with a session that has ended"


async def test_i13_answers_and_cancellations_reach_the_process_that_runs_the_call(farm: Farm) -> None:
    server = farm.get()
    for peer in await sessions_of_all(server):
        name = gate()
        asks = await peer.call("script", {"steps": ["emit 1", "close", "elicit hm"]})
        waits = await peer.call("script", {"steps": [f"gate {name}", f"return {name}"]}, id="waits")
        await server.at(name)
        events = await asks.rest()
        question = await until_asked(peer, events)
        assert (await peer.respond(question, ANSWER)).status == 202
        assert results(await (await peer.resume(last_id(events))).rest()) == [ANSWERED]
        assert (await peer.cancel("waits")).status == 202
        assert [error["code"] for error in results(await waits.rest())] == [CANCELLED]
        await server.mark(f"cancelled return {name}")
        await server.open(name)
        assert (await peer.delete()).status == 200


async def test_i7_a_user_is_the_same_in_every_process_and_language(farm: Farm) -> None:
    """With bearer tokens that the SDK of each language verifies."""
    server = farm.get(auth=True)
    alice = {"authorization": "Bearer alice-token"}
    peer = await server.peer(headers=alice)
    cursor = (await (await peer.call("script", {"steps": ["emit 1", "return private"]})).rest())[0].id
    for number in range(20):
        peer.extra = alice if number % 2 else {"authorization": "Bearer alice-second-token"}
        assert await peer.ask("echo", {"text": str(number)}) == str(number)
        assert results(await (await peer.resume(cursor)).until_terminal()) == ["private"]
    stranger = Peer(server.port, headers={"authorization": "Bearer bob-token"})
    stranger.session, stranger.revision = peer.session, peer.revision
    for _ in range(10):
        replies = [await stranger.call("echo", {"text": "x"}), await stranger.resume(cursor), await stranger.delete()]
        assert {reply.status for reply in replies} == {404}
    assert (await peer.delete()).status == 200


async def test_i10_handlers_see_what_the_documents_promise_wherever_they_run(farm: Farm, kind: Fleet) -> None:
    if kind.language not in ("python", "node"):
        pytest.skip("the tools of this fleet do not tell what their handlers see")
    travels = {"x-tenant": "blue", "x-plan": "pro"}
    engine: dict[str, Any] = {"relayed_headers": list(travels)}
    headers = {**travels, "x-missed": "1"}
    if kind.language == "python":
        # What middleware sets: the state of the request, and a context variable.
        engine["relayed_state"] = ["user_id"]
        headers["x-test-state"] = '{"user_id":"alice"}'
    server = farm.get(own_auth=True, engine=engine)
    peers = [await server.peer(headers=headers) for _ in range(4)]

    async def seen(peer: Peer) -> dict[str, Any]:
        named = {name: await peer.ask("header", {"name": name}) for name in travels}
        state = json.loads(await peer.ask("sender"))["state"] if kind.language == "python" else None
        return {**named, "state": state}

    promised = {**travels, "state": "alice" if kind.language == "python" else None}
    for _ in range(30):
        # 120 of each.
        assert await asyncio.gather(*map(seen, peers)) == [promised] * len(peers)
    log = await server.logged("handlers cannot read all of it")
    lines = [line for line in log.splitlines() if "handlers cannot read all of it" in line]
    assert 1 <= len(lines) <= len(server.controls), "once in each process"
    assert all("header x-missed" in line and "x-tenant" not in line for line in lines)
    if kind.language == "python":
        assert all("context variable tenant_of_request" in line and "user_id" not in line for line in lines)
