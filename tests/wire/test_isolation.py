"""Whose events are these? (atlas A1: F-01, F-02, F-03, F-08, F-09)"""

from __future__ import annotations

import asyncio
import json

from kit.stock import LINE, stock_client
from kit.servers import Farm, Server, gate
from kit.peer import Peer, counts, ids, last_id, logs, results, seen, text, unknown_like
from kit.raw import Event, Reply


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


async def test_f01_stock_client_accepts_only_its_own_result(farm: Farm) -> None:
    # The pause before the client comes back is long enough for both calls to finish while it is away.
    server = farm.get(retry_ms=600)
    async with stock_client(server.port) as alice, stock_client(server.port) as bob:
        first, second = gate(), gate()
        calls = []
        for client, name in ((alice, first), (bob, second)):
            steps = ["close", f"gate {name}", f"return {name}"]
            calls.append(asyncio.create_task(client.script(*steps)))
            await server.at(name)
        await server.open(second)
        await server.mark(f"finished return {second}")
        await server.open(first)
        async with asyncio.timeout(20):
            assert await asyncio.gather(*calls) == [first, second]


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
        assert logs(await stream.settle()) == wanted
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
    assert results(await again.until_terminal()) == [json.dumps({"name": "alice"})]


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
        assert "for-bob" in logs(await reply.settle())
        assert "for-alice" not in str(bytes(reply.raw))
        reply.drop()


async def test_f08_duplicate_id_in_flight_is_refused_and_the_first_is_untouched(server: Server) -> None:
    peer = await server.peer()
    name = gate()
    first = await peer.call("script", {"steps": [f"gate {name}", "emit 1", "return first"]}, id=7)
    await server.at(name)
    second = await peer.call("script", {"steps": ["return second"]}, id=7)
    assert second.status == 400
    error = await second.json()
    assert error["error"]["code"] == -32600
    assert error["id"] is None
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
        if LINE == 2:
            assert counts(events) == steps
            assert {event.message["params"]["progressToken"] for event in events[:-1] if event.data} == {token}


async def test_f09_request_id_cannot_name_the_standalone_stream(server: Server) -> None:
    for id in ("_GET_stream", "standalone", "GET", ""):
        peer = await server.peer()
        stream = await peer.listen()
        name = gate()
        call = await peer.call("script", {"steps": [f"gate {name}", "standalone to all", f"return {name}"]}, id=id)
        if call.status == 400:
            # Refusing an odd id is fine too; the standalone stream must be as before.
            await peer.ask("script", {"steps": ["standalone to all"]})
        else:
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
