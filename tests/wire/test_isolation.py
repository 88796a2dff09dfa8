"""Whose events are these? (atlas A1: F-01, F-02, F-03, F-05, F-08, F-09; I7)"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from kit.fleet import refused_call
from kit.peer import NEWEST, Peer, counts, ids, last_id, logs, results, seen, text, unknown_like
from kit.raw import Event, Reply
from kit.servers import Farm, Server, gate

pytestmark = pytest.mark.first


async def away(peer: Peer, words: str, name: str, id: int) -> str:
    """Call a tool that waits at gate `name`, take the first cursor and lose the connection."""
    reply = await peer.call("script", {"steps": [f"gate {name}", "emit 1", f"return {words}"]}, id=id)
    first = await reply.event()
    assert first is not None and first.id, first
    reply.drop()
    return first.id


async def whole(reply: Reply) -> list[Event]:
    """The response, what comes before it, and what may not come after it."""
    return await reply.until_terminal() + await reply.settle()


async def test_f01_other_sessions_result_is_never_replayed(server: Server) -> None:
    alice, bob = await server.peer(), await server.peer()
    for_alice, for_bob = gate(), gate()
    alices = await away(alice, for_alice, for_alice, id=1)
    bobs = await away(bob, for_bob, for_bob, id=1)
    await server.open(for_bob)
    await server.mark(f"finished return {for_bob}")
    await server.open(for_alice)
    await server.mark(f"finished return {for_alice}")
    for peer, cursor, words in ((alice, alices, for_alice), (bob, bobs, for_bob)):
        events = await whole(await peer.resume(cursor))
        assert results(events) == [words]
        assert counts(events) == [1]


async def test_f01_many_sessions_with_the_same_ids_get_their_own(server: Server) -> None:
    name = gate()
    peers = await asyncio.gather(*(server.peer() for _ in range(12)))
    cursors: dict[tuple[int, int], str] = {}
    for number, peer in enumerate(peers):
        for id in (1, 2):
            cursors[number, id] = await away(peer, f"{name}-{number}-{id}", name, id)
    await server.open(name)
    for number, id in cursors:
        await server.mark(f"finished return {name}-{number}-{id}")
    replies = await asyncio.gather(*(peers[number].resume(cursor) for (number, _), cursor in cursors.items()))
    for (number, id), reply in zip(cursors, replies, strict=True):
        events = await whole(reply)
        assert results(events) == [f"{name}-{number}-{id}"]
        assert [event.message["id"] for event in events if event.is_terminal] == [id]


async def test_f02_standalone_streams_of_two_sessions_are_apart(server: Server) -> None:
    alice, bob = await server.peer(), await server.peer()
    cursors = []
    for peer, words in ((alice, "a1"), (bob, "b1")):
        stream = await peer.listen()
        await peer.ask("script", {"steps": [f"standalone {words}"]})
        events = await stream.some(1)
        assert logs(events) == [words]
        cursors.append(last_id(events))
        stream.drop()
    for peer, words in ((alice, "a2"), (bob, "b2"), (alice, "a3")):
        await peer.ask("script", {"steps": [f"standalone {words}"]})
    for peer, cursor, wanted in ((alice, cursors[0], ["a2", "a3"]), (bob, cursors[1], ["b2"])):
        stream = await peer.resume(cursor)
        assert logs([*await stream.some(len(wanted)), *await stream.settle()]) == wanted
        stream.close()


async def test_f02_questions_stay_in_their_session(server: Server) -> None:
    alice, bob = await server.peer(), await server.peer()
    call = await alice.call("script", {"steps": ["elicit for alice"]}, id=1)
    first = await call.event()
    assert first is not None and first.id
    question = (await call.some(1))[0].message
    assert question["method"] == "elicitation/create"
    call.drop()
    foreign = await bob.resume(first.id)
    assert "for alice" not in str((await seen(foreign))[2])
    foreign.drop()
    # Neither may bob answer it: the id is only known in alice's session.
    await bob.respond(question["id"], {"action": "accept", "content": {"name": "bob"}})
    again = await alice.resume(first.id)
    assert [event.message["id"] for event in await again.some(1)] == [question["id"]]
    await alice.respond(question["id"], {"action": "accept", "content": {"name": "alice"}})
    assert results(await again.until_terminal()) == ['{"name":"alice"}']


async def test_f03_foreign_cursor_of_a_finished_call_is_an_unknown_one(server: Server) -> None:
    alice, bob = await server.peer(), await server.peer()
    reply = await alice.call("script", {"steps": ["emit 2", "return secret-of-alice"]}, id=5)
    cursor = (await reply.rest())[0].id
    assert cursor
    foreign = await seen(await bob.resume(cursor))
    unknown = await seen(await bob.resume(unknown_like(cursor)))
    assert "secret-of-alice" not in foreign[2]
    assert foreign == unknown


async def test_f03_foreign_cursor_of_a_running_call_is_an_unknown_one(server: Server) -> None:
    alice, bob = await server.peer(), await server.peer()
    name = gate()
    reply = await alice.call("script", {"steps": ["emit 1", f"gate {name}", f"return {name}"]}, id=5)
    cursor = ids(await reply.some(1))[-1]
    foreign, unknown = await bob.resume(cursor), await bob.resume(unknown_like(cursor))
    assert await seen(foreign) == await seen(unknown)
    for stolen in (foreign, unknown):
        stolen.drop()
    await server.open(name)
    # The owner's connection was not taken over by the stranger.
    assert results(await reply.until_terminal()) == [name]


async def test_f03_foreign_standalone_cursor_gives_the_callers_own_stream(server: Server) -> None:
    alice, bob = await server.peer(), await server.peer()
    stream = await alice.listen()
    await alice.ask("script", {"steps": ["standalone for-alice-1"]})
    cursor = last_id(await stream.some(1))
    stream.drop()
    await alice.ask("script", {"steps": ["standalone for-alice-2"]})
    for presented in (cursor, unknown_like(cursor)):
        reply = await bob.resume(presented)
        assert reply.status == 200
        await bob.ask("script", {"steps": ["standalone for-bob"]})
        while logs(await reply.some(1)) != ["for-bob"]:
            pass
        await reply.settle()
        assert "for-alice" not in str(bytes(reply.raw))
        reply.drop()


# What a user sends, twice, and what others send. The servers in Node also take a client and a subject from a header; of
# Python's libraries not all know subjects.
BEARER = {name: {"Authorization": f"Bearer {name}-token"} for name in ("alice", "alice-second", "bob")}
CLAIMED = {name: {"X-User": name} for name in ("app/alice", "other/alice", "app/mallory", "app")}
USERS = {
    "python": ([BEARER["alice"], BEARER["alice-second"]], [BEARER["bob"]]),
    "rust": ([BEARER["alice"]] * 2, [BEARER["bob"], {}]),
    "node": ([CLAIMED["app/alice"]] * 2, [CLAIMED["other/alice"], CLAIMED["app/mallory"], CLAIMED["app"], {}]),
}


@pytest.mark.one_language("it is refused in the words of the SDK of the process that is asked")
async def test_f05_a_session_belongs_to_its_principal(farm: Farm) -> None:
    # A front asks nobody who somebody is unless it is told to.
    asked = "python" if farm.kind.language == "node" and farm.kind.has_front else farm.kind.language
    server = farm.get(auth=True) if asked == "python" else farm.get()
    (own, own_again), others = USERS[asked]
    alice = await server.peer(headers=own)
    reply = await alice.call("script", {"steps": ["emit 1", "return private"]})
    cursor = (await reply.rest())[0].id
    for headers in others:
        thief = Peer(server.port, headers=headers)
        thief.revision = NEWEST

        async def answers(session: str | None, thief: Peer = thief) -> list[Any]:
            thief.session = session
            replies = [await thief.call("echo", {"text": "x"}), await thief.get(), await thief.resume(cursor)]
            return [await seen(reply) for reply in [*replies, await thief.delete()]]

        stolen = await answers(alice.session)
        # rmcp's own service answers every DELETE alike.
        deleted = 202 if farm.kind.name == "rmcp" else 404
        assert [status for status, _, _ in stolen] == [404, 404, 404, deleted], headers
        assert stolen == await answers("0" * 32), "as if there were no such session"
        # Nor does the cursor open anything in a session of the other's own.
        other = await server.peer(headers=headers)
        assert await seen(await other.resume(cursor)) == await seen(await other.resume(unknown_like(cursor or "")))
    # Another token of the same user's is the same principal.
    alice.extra = own_again
    assert results(await (await alice.resume(cursor)).until_terminal()) == ["private"]


async def test_f08_duplicate_id_in_flight_is_refused_and_the_first_is_untouched(server: Server) -> None:
    peer = await server.peer()
    name = gate()
    first = await peer.call("script", {"steps": [f"gate {name}", "emit 1", "return first"]}, id=7)
    await server.at(name)
    second = await peer.call("script", {"steps": ["return second"]}, id=7)
    assert (await refused_call(server, second))["code"] == -32600
    await server.open(name)
    events = await first.until_terminal()
    assert counts(events) == [1] and results(events) == ["first"]
    # The id is free for an engine that has answered; a client may not reuse it, but it must not break anything.
    assert await peer.ask("echo", {"text": "after"}, id=8) == "after"


async def test_f08_number_and_text_ids_are_two_requests(server: Server) -> None:
    peer = await server.peer()
    one, other = gate(), gate()
    number = await peer.call("script", {"steps": [f"gate {one}", "emit 2", "return number"]}, id=3, token="n")
    await server.at(one)
    words = await peer.call("script", {"steps": [f"gate {other}", "emit 1", "return text"]}, id="3", token="t")
    assert words.status == 200
    await server.at(other)
    await server.open(one, other)
    for reply, id, wanted, token, steps in ((number, 3, "number", "n", [1, 2]), (words, "3", "text", "t", [1])):
        events = await reply.until_terminal()
        assert events[-1].message["id"] == id and type(events[-1].message["id"]) is type(id)
        assert text(events[-1].message) == wanted
        # 1.x hands the text '3' to both handlers as their own id, so there only the responses are certain.
        if server.kind.line != "mcp1":
            assert counts(events) == steps
            assert {event.message["params"]["progressToken"] for event in events[:-1] if event.data} == {token}


async def test_f09_request_id_cannot_name_the_standalone_stream(server: Server) -> None:
    for id in ("_GET_stream", "standalone", "GET", ""):
        peer = await server.peer()
        stream = await peer.listen()
        name = gate()
        call = await peer.call("script", {"steps": [f"gate {name}", "standalone to all", f"return {name}"]}, id=id)
        await server.open(name)
        events = await call.until_terminal()
        assert logs(events) == [] and results(events) == [name]
        assert logs(await stream.some(1)) == ["to all"]
        stream.close()


async def test_f09_closing_such_a_request_leaves_the_standalone_stream_open(server: Server) -> None:
    peer = await server.peer()
    stream = await peer.listen()
    name = gate()
    call = await peer.call("script", {"steps": ["close", f"gate {name}", "return x"]}, id="_GET_stream")
    events = await call.rest()
    assert logs(await stream.settle(0.2)) == [] and not stream._ended
    await server.open(name)
    assert results(await (await peer.resume(last_id(events))).until_terminal()) == ["x"]
    await peer.ask("script", {"steps": ["standalone still here"]})
    assert logs(await stream.some(1)) == ["still here"]
