"""Every row of the table of answers: status, body and what a client may conclude. (design 8, W-011 to W-017, W-080 to
W-094, I5, I7, I8)"""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from kit.fleet import Fleet, refused_call, servers_of
from kit.peer import PRIMED, Peer, counts, ids, last_id, logs, results, seen, unknown_like
from kit.raw import Reply, request
from kit.servers import Farm, Kind, Server, gate


async def finished(peer: Peer, *steps: str, id: Any = None) -> list[str]:
    """Run a script to its end; gives the ids of its stream: priming, events, terminal."""
    reply = await peer.call("script", {"steps": list(steps)}, id=id)
    return ids(await reply.rest())


async def refused(reply: Reply, status: int = 400) -> Any:
    """A refusal with a JSON-RPC error as body; gives the error object."""
    assert reply.status == status, (reply.status, bytes(reply.raw))
    assert reply.headers["content-type"].startswith("application/json")
    answer = await reply.json()
    assert answer["jsonrpc"] == "2.0" and isinstance(answer["error"]["code"], int), answer
    assert answer["error"]["message"]
    return answer


async def echoed(reply: Reply, cursor: str) -> str:
    """The first event of a resume: the client's own position under a new id, retry, empty data."""
    assert reply.status == 200 and reply.is_sse
    first = await reply.block()
    assert first is not None and first.data == "" and first.retry is not None and first.id
    assert first.id != cursor
    return first.id


async def test_resume_of_a_live_stream(server: Server) -> None:
    peer = await server.peer()
    name = gate()
    call = await peer.call("script", {"steps": ["emit 3", f"gate {name}", "emit 1", "return x"]})
    events = await call.some(3)
    call.drop()
    resumed = await peer.resume(events[0].id)
    await echoed(resumed, events[0].id or "")
    assert counts(await resumed.some(2)) == [2, 3]
    await server.open(name)
    rest = await resumed.rest()
    assert counts(rest) == [4] and results(rest) == ["x"]


async def test_resume_of_a_finished_stream(server: Server) -> None:
    peer = await server.peer()
    stream = await finished(peer, "emit 2", "return x")
    for position, cursor in enumerate(stream[:-1]):
        resumed = await peer.resume(cursor)
        await echoed(resumed, cursor)
        rest = await resumed.rest()
        assert counts(rest) == [1, 2][position:] and results(rest) == ["x"]
        # Message ids are the same for every reader.
        assert ids(rest) == stream[position + 1 :]


async def test_the_echo_is_a_cursor_of_the_same_position(server: Server) -> None:
    peer = await server.peer()
    stream = await finished(peer, "emit 3", "return x")
    cursor = stream[2]
    for _ in range(4):
        resumed = await peer.resume(cursor)
        cursor = await echoed(resumed, cursor)
        resumed.drop()
    rest = await (await peer.resume(cursor)).rest()
    assert counts(rest) == [3] and results(rest) == ["x"]


async def test_cursor_at_the_terminal_is_204(server: Server) -> None:
    peer = await server.peer()
    stream = await finished(peer, "emit 2", "return x")
    for _ in range(2):
        reply = await peer.resume(stream[-1])
        assert reply.status == 204
        assert await reply.body() == b"" and "content-type" not in reply.headers


@pytest.mark.ours
async def test_trimmed_cursor_is_a_gap_and_is_counted(farm: Farm) -> None:
    server = farm.get(cap=10, engine={"max_events_per_stream": 10})
    peer = await server.peer()
    stream = await finished(peer, "emit 40", "return x")
    # The live reader may have fallen behind ten events too, and was told so.
    before = (await server.stats())["gaps"]
    resumed = await peer.resume(stream[0])
    await echoed(resumed, stream[0])
    blocks = [block async for block in resumed.blocks()]
    comment = blocks[0].comment or ""
    match = re.fullmatch(r"gap (\d+) (\d+)", comment)
    assert match, blocks[0]
    assert int(match[1]) == 1
    assert counts(blocks) == list(range(1 + int(match[2]), 41)) and results(blocks) == ["x"]
    assert f": {comment}\n\n".encode() in bytes(resumed.raw)
    assert (await server.stats())["gaps"] == before + 1
    # A cursor inside what is retained meets no gap.
    clean = await (await peer.resume(stream[-3])).rest()
    assert counts(clean) == [40] and results(clean) == ["x"]
    assert (await server.stats())["gaps"] == before + 1


async def test_lost_stream_of_a_named_request_is_a_tombstone(server: Server) -> None:
    peer, other = await server.peer(), await server.peer()
    for id in (5, 0, "five", "", "ü", "5", -7):
        stream = await finished(peer, "return x", id=id)
        reply = await peer.resume(unknown_like(stream[0]))
        assert reply.status == 200 and reply.is_sse, id
        events = await reply.rest()
        (answer,) = [event.message for event in events if event.message]
        assert answer["id"] == id and type(answer["id"]) is type(id)
        assert answer["error"]["code"] < 0 and "result" not in answer
        tombstone = events[-1].id
        assert tombstone and re.fullmatch(r"[\x21-\x2b\x2d-\x7e]{1,120}", tombstone)
        # No look-up: any session gets the same.
        for asking in (peer, other):
            again = await asking.resume(tombstone)
            assert (again.status, await again.body()) == (204, b""), id


async def test_lost_stream_without_a_named_request_is_400(server: Server) -> None:
    peer = await server.peer()
    # Tag and id take more than the bytes that an event id has for them.
    stream = await finished(peer, "return x", id="r" * 80)
    assert all(len(cursor) <= 120 for cursor in stream)
    again = await (await peer.resume(stream[0])).rest()
    assert results(again) == ["x"], "it can be resumed like any other"
    await refused(await peer.resume(unknown_like(stream[0])))


@pytest.mark.one_language("the SDKs differ in what they say that may change")
async def test_unknown_standalone_cursor_gives_the_own_stream_from_its_low_mark(server: Server) -> None:
    peer = await server.peer()
    stream = await peer.listen()
    await peer.ask("script", {"steps": ["standalone one", "standalone two"]})
    events = await stream.some(2)
    stream.drop()
    reply = await peer.resume(unknown_like(last_id(events)))
    assert reply.status == 200
    found = await reply.some(2 + len(server.kind.changing)) + await reply.settle()
    assert logs(found) == ["one", "two"]
    # What the client knows of the server may be old, where the server says that it may change.
    methods = sorted(event.message["method"] for event in found if event.message)
    changed = [f"notifications/{name}/list_changed" for name in server.kind.changing]
    assert methods == sorted(["notifications/message"] * 2 + changed)


async def test_cursor_not_of_our_form_is_400(server: Server) -> None:
    peer = await server.peer()
    for cursor in ("x", "1_1", "a", "a" * 34, "a" * 33 + ".", "b" + "A" * 32, "A" * 121, "z", "a;b"):
        answer = await refused(await peer.resume(cursor))
        assert answer.get("id") in (None, "server-error"), cursor


@pytest.mark.one_process("what another process has handed over is not known: docs/deploy/several-processes.md")
async def test_standalone_get_without_cursor_starts_after_what_was_handed_over(server: Server) -> None:
    peer = await server.peer()
    await peer.ask("script", {"steps": ["standalone one", "standalone two"]})
    first = await peer.listen()
    # Nobody has had anything yet: from the low mark.
    assert logs(await first.some(2)) == ["one", "two"]
    first.drop()
    await peer.ask("script", {"steps": ["standalone three"]})
    second = await peer.listen()
    assert "one" not in (found := logs(await second.settle())) and "two" not in found
    second.drop()


@pytest.mark.one_language("headers differ with the host of the process that is asked")
async def test_foreign_equals_unknown_in_status_body_and_headers(server: Server) -> None:
    alice, bob = await server.peer(), await server.peer()
    name = gate()
    done = await finished(alice, "emit 2", f"return {name}", id=1)
    unnamed = await finished(alice, f"return {name}", id="q" * 90)
    listening = await alice.listen()
    await alice.ask("script", {"steps": [f"standalone {name}"]})
    standalone = last_id(await listening.some(1))
    for cursor in (done[0], done[1], done[-1], unnamed[0], unnamed[-1], standalone):
        last = PRIMED if cursor == standalone else None
        foreign = await seen(await bob.resume(cursor), last)
        unknown = await seen(await bob.resume(unknown_like(cursor)), last)
        assert foreign == unknown, cursor
        assert name not in foreign[2]
    # Nor does bob's asking change anything for alice.
    assert results(await (await alice.resume(done[0])).rest()) == [name]


async def test_duplicate_id_in_flight(server: Server) -> None:
    peer = await server.peer()
    name = gate()
    first = await peer.call("script", {"steps": [f"gate {name}", "return x"]}, id="same")
    await server.at(name)
    answer = await refused_call(server, await peer.call("echo", {"text": "y"}, id="same"))
    assert answer["code"] == -32600
    await server.open(name)
    assert results(await first.rest()) == ["x"]


async def test_unknown_session_is_404_and_missing_session_is_400(server: Server) -> None:
    peer = await server.peer()
    stream = await finished(peer, "return x")
    for session, status in (("0" * 32, 404), (None, 400)):
        peer.session = session
        for reply in (await peer.call("echo", {"text": "x"}), await peer.get(), await peer.resume(stream[0])):
            assert reply.status == status
        assert (await peer.delete()).status == status


async def test_request_id_that_json_rpc_forbids_is_400(server: Server) -> None:
    peer = await server.peer()
    for id in (None, 1.5, True, False, [], {}, [1]):
        await refused(await peer.post({"jsonrpc": "2.0", "id": id, "method": "ping"}))


LARGEST = 2**53 - 1
BEYOND = (2**53 + 1, -(2**53), 10**18, 2**63 - 1)


async def test_integer_ids_keep_their_digits(server: Server) -> None:
    peer = await server.peer()
    is_of_node = any(kind.language == "node" for kind in servers_of(server.kind))
    for id in (0, -1, LARGEST, -LARGEST, *(() if is_of_node else BEYOND)):
        reply = await peer.call("script", {"steps": ["emit 1", "return x"]}, id=id)
        events = await reply.rest()
        lost = await (await peer.resume(unknown_like(ids(events)[0]))).rest()
        for stream in (events, lost):
            assert f'"id":{id}' in (stream[-1].data or "").replace(" ", "")
        assert counts(events) == [1] and results(events) == ["x"]


@pytest.mark.ours
@pytest.mark.one_language("Python takes integers that JavaScript cannot hold")
async def test_integer_ids_that_a_language_cannot_hold_are_refused(server: Server) -> None:
    if server.kind.language != "node":
        pytest.skip("holds all that fit in 64 bits")
    peer = await server.peer()
    for id in BEYOND:
        await refused_call(server, await peer.post({"jsonrpc": "2.0", "id": id, "method": "ping"}), id)


async def test_close_and_progress_work_for_the_id_zero(server: Server) -> None:
    # 1.30 drops an integer related id of 0.
    peer = await server.peer()
    reply = await peer.call("script", {"steps": ["emit 1", "close", "emit 1", "return x"]}, id=0)
    events = await reply.rest()
    rest = await (await peer.resume(last_id(events))).rest()
    assert counts(events + rest) == [1, 2] and results(rest) == ["x"]


PING = b'{"jsonrpc":"2.0","id":1,"method":"ping"}'
HELLO = (
    b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":'
    b'{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"x","version":"1"}}}'
)
Changes = dict[str, str | None]
PLAIN: dict[str, tuple[str, Changes, bytes | None]] = {
    "no accept": ("POST", {"Accept": None}, PING),
    "json only": ("POST", {"Accept": "application/json"}, PING),
    "text body": ("POST", {"Content-Type": "text/plain"}, PING),
    "no type": ("POST", {"Content-Type": None}, PING),
    "put": ("PUT", {}, b"{}"),
    "patch": ("PATCH", {}, b"{}"),
    "get without sse": ("GET", {"Accept": "application/json"}, None),
    "unknown session": ("GET", {"Mcp-Session-Id": "nobody"}, None),
    "delete unknown session": ("DELETE", {"Mcp-Session-Id": "nobody"}, None),
    "unknown session post": ("POST", {"Mcp-Session-Id": "nobody"}, PING),
    "unknown version": ("POST", {"Mcp-Protocol-Version": "1999-01-01"}, PING),
    "unknown version of a get": ("GET", {"Mcp-Protocol-Version": "1999-01-01"}, None),
    "unknown version of a delete": ("DELETE", {"Mcp-Protocol-Version": "1999-01-01"}, None),
    "no json": ("POST", {}, b'{"jsonrpc"'),
    "no message": ("POST", {}, b'{"jsonrpc":"2.0","id":{}}'),
    "another version of json rpc": ("POST", {}, PING.replace(b"2.0", b"1.0")),
    "a member too many": ("POST", {}, PING[:-1] + b',"extra":1}'),
    "initialize again": ("POST", {}, HELLO),
    "a batch too long": ("POST", {}, b"[" + b",".join([PING] * 101) + b"]"),
    "origin": ("POST", {"Origin": "http://evil.example"}, PING),
    "host": ("POST", {"Host": "evil.example"}, PING),
    "host on get": ("GET", {"Host": "evil.example"}, None),
}
OTHER_HOST = {"origin", "host", "host on get"}
# `serve` of SDK 2.x has the SDK's handler of both eras, whose words for these are others than its transport's.
OF_HANDLER = {"no message", "another version of json rpc", "a member too many"}


def taken(kind: Kind) -> set[str]:
    """What the SDK does not refuse, and what a process answers in another way that does not have the session: it looks
    for one only where the method is one of a session's, and in Node it opens one for any `initialize`."""
    if isinstance(kind, Fleet):
        return {"put", "patch", "initialize again"} | taken(kind.members[0])
    if kind.language == "node":
        return OTHER_HOST | (OF_HANDLER if kind.name == "node-v2-front" else set())
    # fastmcp lets a loopback server be called by any name.
    return {"a member too many", "initialize again"} | (OTHER_HOST if kind.name.startswith("fastmcp") else set())


async def plain(peer: Peer, method: str, change: Changes, body: bytes | None) -> tuple[Any, ...]:
    base = {"Accept": "application/json, text/event-stream"}
    if body is not None:
        base["Content-Type"] = "application/json"
    headers = {**peer.headers(), **base, **change}
    reply = await request(peer.port, method, "/mcp", {k: v for k, v in headers.items() if v is not None}, body)
    assert reply.status >= 400, (reply.status, method, change, body)
    payload = await reply.body()
    reply.close()
    try:
        answer: Any = json.loads(payload)
        answer = (answer.get("id"), answer["error"]["code"], answer["error"]["message"])
    except (ValueError, KeyError):
        answer = payload
    kept = {name: reply.headers.get(name) for name in ("content-type", "allow")}
    return reply.status, answer, kept, "mcp-session-id" in reply.headers


def without_a_parsers_words(answer: tuple[Any, ...]) -> tuple[Any, ...]:
    """What Python's JSON and pydantic say about a body is for them to say."""
    status, told, *rest = answer
    if isinstance(told, tuple):
        told = (*told[:2], re.sub(r"(?s)((Parse|Validation) error): .*", r"\1", told[2]))
    return status, told, *rest


@pytest.mark.ours
@pytest.mark.one_language("it is refused in the words of the SDK of the process that is asked")
async def test_everything_else_is_answered_as_the_sdk_does(farm: Farm) -> None:
    # Steering is an answer of ours to revisions that are not served.
    server = farm.get(engine={"prefer_resumable": False} if farm.kind.language == "python" else {})
    ours, theirs = await server.peer(), await farm.get(stock=True).peer()
    for what, case in PLAIN.items():
        if what in taken(farm.kind):
            continue
        found, wanted = await plain(ours, *case), await plain(theirs, *case)
        if farm.kind.language == "python":
            found, wanted = without_a_parsers_words(found), without_a_parsers_words(wanted)
        assert found == wanted, what
        assert await ours.ask("echo", {"text": what}) == what, "the session is as before"


# How the body is framed is for the host to say.
OF_HOST = ("date", "transfer-encoding", "connection", "keep-alive", "server")


@pytest.mark.ours
async def test_sse_headers_are_those_of_the_sdk(farm: Farm) -> None:
    skipped = (*OF_HOST, "mcp-session-id")

    async def headers(server: Server) -> list[dict[str, str]]:
        peer = await server.peer()
        found = []
        for reply in (await peer.call("echo", {"text": "x"}), await peer.listen()):
            assert reply.headers["mcp-session-id"] == peer.session
            found.append({k: v for k, v in reply.headers.items() if k not in skipped})
        return found

    for mine, other in zip(await headers(farm.get()), await headers(farm.get(stock=True)), strict=True):
        assert mine["content-type"].split(";")[0] == other["content-type"].split(";")[0] == "text/event-stream"
        # Middleware that compresses leaves such an answer alone, and its events leave at once.
        assert mine["cache-control"] == "no-cache, no-transform"
        assert mine == {**other, "x-accel-buffering": "no"}


@pytest.mark.ours
async def test_a_message_that_is_taken_is_answered_as_the_sdk_does(farm: Farm) -> None:
    skipped = (*OF_HOST, "content-length")

    async def answer(server: Server) -> tuple[int, dict[str, str], bytes]:
        peer = await server.peer()
        reply = await peer.notify("notifications/progress", {"progressToken": "p", "progress": 1})
        found = {name: value for name, value in reply.headers.items() if name not in skipped}
        if "mcp-session-id" in found:
            assert found.pop("mcp-session-id") == peer.session
            found["mcp-session-id"] = "its own"
        return reply.status, found, await reply.body()

    assert await answer(farm.get()) == await answer(farm.get(stock=True))


@pytest.mark.ours
async def test_an_event_stream_has_no_length_however_quick_it_is(server: Server) -> None:
    # Middleware may change its bytes, and a host that was told another number of them cuts the answer.
    peer = await server.peer()
    finished = await peer.call("echo", {"text": "x"})
    primed = (await finished.rest())[0]
    quick = [finished, await peer.resume(primed.id), await peer.resume(unknown_like(primed.id or ""))]
    quick += [await peer.call("echo", {"text": "x"}) for _ in range(5)]
    for reply in quick:
        await reply.rest()
        assert reply.is_sse and "content-length" not in reply.headers, reply.headers


@pytest.mark.ours
async def test_an_answer_of_json_has_its_length(farm: Farm) -> None:
    peer = await farm.get(json_response=True).peer()
    reply = await peer.call("echo", {"text": "x"})
    assert int(reply.headers["content-length"]) == len(await reply.body())
