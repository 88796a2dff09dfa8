"""What must stay as it was: everything that users have around and beside the stock transports."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from kit.peer import NEWEST, Peer, counts, last_id, logs, results, text
from kit.raw import Wire, request
from kit.servers import Farm, Server, gate

CANCELLED = -32800
STRICT = {"guard": True, "max_request_body_size": 2_000}


def ping(id: int) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": id, "method": "ping"}


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


# Modes


async def test_stateless_mode_serves_without_sessions(farm: Farm) -> None:
    server = farm.get(stateless_http=True)
    peer = await server.peer()
    assert peer.session is None
    reply = await peer.call("script", {"steps": ["emit 2", "return x"]})
    events = await reply.rest()
    assert counts(events) == [1, 2] and results(events) == ["x"]
    assert not any(event.id for event in events), "nothing to resume, so nothing to prime"


@pytest.mark.one_language("the SDKs ask for different headers there")
async def test_json_response_mode(farm: Farm) -> None:
    server = farm.get(json_response=True)
    peer = await server.peer()
    reply = await peer.call("echo", {"text": "hi"}, Accept="application/json")
    assert reply.status == (406 if server.kind.language == "node" else 200)
    reply = await peer.call("script", {"steps": ["emit 2", "close", "log x", "return done"]})
    assert reply.headers["content-type"].startswith("application/json")
    assert text(await reply.json()) == "done", "what belongs to the call has no wire here"
    stream = await peer.listen()
    await peer.ask("script", {"steps": ["standalone heard"]})
    assert logs(await stream.some(1)) == ["heard"]
    if server.kind.language == "node":
        # The Python SDKs take no batches.
        both = await peer.post([ping(1), ping(2), {"jsonrpc": "2.0", "method": "notifications/x"}])
        assert await both.json() == [{"jsonrpc": "2.0", "id": id, "result": {}} for id in (1, 2)]


@pytest.mark.ours
@pytest.mark.one_process("another process answers 200, with the error in the body: docs/deploy/several-processes.md")
async def test_json_response_mode_refuses_a_duplicate_id(farm: Farm) -> None:
    server = farm.get(json_response=True)
    peer = await server.peer()
    name = gate()
    first = asyncio.create_task(peer.call("script", {"steps": [f"gate {name}", "return x"]}, id=4))
    await server.at(name)
    # In a batch, too, where an SDK takes batches.
    for again in (ping(4), [ping(3), ping(4)]):
        refused = await peer.post(again)
        assert refused.status == 400, again
        assert (await refused.json())["error"]["code"] == -32600 or server.kind.language != "node", again
    await server.open(name)
    assert text(await (await first).json()) == "x"


@pytest.mark.ours
async def test_json_response_mode_answers_what_was_cancelled(farm: Farm) -> None:
    server = farm.get(json_response=True)
    peer = await server.peer()
    name = gate()
    call = asyncio.create_task(peer.call("script", {"steps": [f"gate {name}", "return x"]}, id=4))
    await server.at(name)
    await peer.cancel(4)
    assert (await (await call).json())["error"]["code"] == CANCELLED


@pytest.mark.ours
@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"store": "event-store", "retry_ms": 33}, id="ours"),
        pytest.param({"store": "lab"}, id="lab", marks=pytest.mark.one_process("its event store is in memory")),
    ],
)
async def test_an_event_store_alone_or_with_install_is_resumable(farm: Farm, options: dict[str, Any]) -> None:
    server = farm.get(**options)
    peer = await server.peer()
    reply = await peer.call("script", {"steps": ["emit 1", "close", "emit 1", "return x"]})
    events = await reply.rest()
    assert events[0].retry == options.get("retry_ms", 20)
    rest = await (await peer.resume(last_id(events))).rest()
    assert counts(events + rest) == [1, 2] and results(rest) == ["x"]
    # The stock transport would hold the connection open here.
    assert rest[0].is_priming


@pytest.mark.ours
@pytest.mark.one_process("without Tailrope a session is there for its own process alone")
async def test_disabled_by_the_environment_is_stock(farm: Farm) -> None:
    # In Node it is the store that makes a server resumable with its SDK's transport.
    store = "absent" if farm.kind.language == "node" else "none"
    server = farm.kind.start({"store": store}, "tailrope", TAILROPE_DISABLE="1")
    try:
        peer = await server.peer()
        events = await (await peer.call("script", {"steps": ["emit 1", "return x"]})).rest()
        assert [event.id for event in events] == [None, None], "the stock transport without a store sends no ids"
        assert results(events) == ["x"]
    finally:
        server.stop()


@pytest.mark.ours
@pytest.mark.one_process("without Tailrope a session is there for its own process alone")
async def test_the_kill_switch_leaves_a_server_with_our_store_working(farm: Farm) -> None:
    server = farm.kind.start({"store": "event-store"}, "tailrope", TAILROPE_DISABLE="1")
    try:
        peer = await server.peer()
        name = gate()
        reply = await peer.call("script", {"steps": ["emit 2", f"gate {name}", "emit 1", f"return {name}"]})
        cursor = last_id(await reply.some(2))
        reply.drop()
        await server.open(name)
        await server.mark(f"finished return {name}")
        rest = await (await peer.resume(cursor)).until_terminal()
        assert counts(rest) == [3] and results(rest) == [name]
        assert (await server.stats())["sessions"] == 0, "it is the SDK's transport"
    finally:
        server.stop()


# Requests


@pytest.mark.one_process("of a request that is relayed handlers see what is built anew: docs/security.md")
async def test_handlers_see_the_http_request(server: Server) -> None:
    peer = await server.peer()
    for value in ("abc", "def"):
        peer.extra["X-Trace"] = value
        assert await peer.ask("header", {"name": "x-trace"}) == value


@pytest.mark.one_language("handlers get an id that is a number as text in Python alone")
async def test_handlers_see_the_ids_of_their_requests(server: Server) -> None:
    peer = await server.peer()
    for id in (17, "17"):
        seen = json.loads(await peer.ask("request_id", id=id))
        # The Python libraries hand them out as text.
        assert seen == (str(id) if server.kind.language == "python" else id)


@pytest.mark.parametrize("header", [{"Host": "evil.example"}, {"Origin": "http://evil.example"}])
async def test_dns_rebinding_is_refused_also_on_resumes(farm: Farm, header: dict[str, str]) -> None:
    server = farm.get(**STRICT)
    peer = await server.peer()
    reply = await peer.call("script", {"steps": ["return x"]})
    cursor = (await reply.rest())[0].id
    for method, more, body in (
        ("POST", {"Content-Type": "application/json"}, json.dumps(ping(1)).encode()),
        ("GET", {}, None),
        ("GET", {"Last-Event-ID": str(cursor)}, None),
        ("DELETE", {}, None),
    ):
        answer = await request(server.port, method, "/mcp", {**peer.headers(), **more, **header}, body)
        if answer.status == 200 and server.kind.name.startswith("fastmcp"):
            # fastmcp's guard has rules of its own, compared with stock in test_answers.
            answer.drop()
            continue
        assert answer.status in (403, 421)
        await answer.body()
    assert server.kind.name.startswith("fastmcp") or await peer.ask("echo", {"text": "still"}) == "still"


async def test_body_limit_is_413(farm: Farm) -> None:
    server = farm.get(**STRICT)
    # fastmcp has no option for it; its limit is the SDK's.
    small = not farm.kind.name.startswith("fastmcp")
    peer = await server.peer()
    body = json.dumps({**ping(1), "params": {"x": "y" * (3_000 if small else 5 << 20)}}).encode()
    # The server may stop reading and hang up while the body is still on its way.
    try:
        reply = await peer.post(body)
    except ConnectionError:
        reply = None
    assert reply is None or reply.status == 413
    assert await peer.ask("echo", {"text": "fine"}) == "fine"


@pytest.mark.one_language("it is refused in the words of the SDK of the process that is asked")
async def test_auth_reaches_handlers_and_binds_the_session(farm: Farm) -> None:
    server = farm.get(auth=True)
    refused = await Peer(server.port).post(ping(1))
    assert refused.status == 401
    alice = await server.peer(headers=bearer("alice-token"))
    assert await alice.ask("whoami") == "alice"
    reply = await alice.call("script", {"steps": ["emit 1", "return private"]})
    cursor = (await reply.rest())[0].id
    # F-05: somebody else's valid token on alice's session is answered as if there were no such session.
    thief = Peer(server.port, headers=bearer("bob-token"))
    thief.revision = NEWEST
    bodies = []
    for session in (alice.session, "0" * 32):
        thief.session = session
        answers = [await thief.call("echo", {"text": "x"}), await thief.get(), await thief.resume(cursor)]
        assert [answer.status for answer in answers] == [404, 404, 404]
        assert (await thief.delete()).status == 404
        bodies.append([await answer.body() for answer in answers])
    assert bodies[0] == bodies[1]
    assert results(await (await alice.resume(cursor)).until_terminal()) == ["private"]
    # Another token of the same user is the same principal.
    alice.extra = bearer("alice-second-token")
    assert await alice.ask("echo", {"text": "again"}) == "again"
    bob = await server.peer(headers=bearer("bob-token"))
    assert await bob.ask("whoami") == "bob"


@pytest.mark.ours
async def test_f22_a_client_that_leaves_in_its_own_message_is_no_fault(farm: Farm) -> None:
    server = farm.get(**STRICT)
    before = (await server.state()).get("errors")
    peer = await server.peer()
    for part in (b" ", b'{"jsonrpc"'):
        wire = await Wire.open(server.port)
        lines = {"Host": f"127.0.0.1:{server.port}", **peer.headers(Content_Type="application/json")}
        await wire.send("POST", "/mcp", {**lines, "Content-Length": "1000"}, None)
        wire.writer.write(part)
        await wire.writer.drain()
        wire.close()
    assert await peer.ask("echo", {"text": "fine"}) == "fine"
    assert (await peer.delete()).status == 200
    assert (await server.state()).get("errors") == before
    assert "Traceback" not in server.log(), server.log()


# Calls


@pytest.mark.ours
async def test_cancelled_request_gets_its_terminal(server: Server) -> None:
    peer = await server.peer()
    name = gate()
    reply = await peer.call("script", {"steps": ["emit 1", f"gate {name}", f"return {name}"]}, id=6)
    events = await reply.some(1)
    await server.at(name)
    assert (await peer.cancel(6)).status == 202
    rest = await reply.rest()
    assert rest[-1].message["id"] == 6 and rest[-1].message["error"]["code"] == CANCELLED
    await server.mark(f"cancelled return {name}")
    # A client that was away learns the same.
    again = await (await peer.resume(last_id(events))).rest()
    assert [result["code"] for result in results(again)] == [CANCELLED]
    assert await peer.ask("echo", {"text": "fine"}) == "fine"


@pytest.mark.ours
async def test_cancelled_request_that_nobody_reads_gets_its_terminal(server: Server) -> None:
    peer = await server.peer()
    name = gate()
    reply = await peer.call("script", {"steps": ["close", f"gate {name}", "return x"]}, id="c")
    cursor = last_id(await reply.rest())
    await server.at(name)
    await peer.cancel("c")
    events = await (await peer.resume(cursor)).rest()
    assert [result["code"] for result in results(events)] == [CANCELLED]


async def test_cancelling_nothing_harms_nothing(server: Server) -> None:
    peer = await server.peer()
    for id in (999, "nobody", None):
        assert (await peer.cancel(id)).status in (202, 400)
    assert await peer.ask("echo", {"text": "fine"}) == "fine"


async def test_lost_connection_cancels_nothing(server: Server) -> None:
    # I12; the tool's own mark shows that it ran to its end.
    peer = await server.peer()
    name = gate()
    reply = await peer.call("script", {"steps": [f"gate {name}", f"return {name}"]})
    cursor = last_id([event for event in [await reply.event()] if event])
    await server.at(name)
    reply.drop()
    await server.open(name)
    await server.mark(f"finished return {name}")
    assert results(await (await peer.resume(cursor)).until_terminal()) == [name]


async def test_sampling_and_elicitation_work_over_raw_http(server: Server) -> None:
    peer = await server.peer()
    reply = await peer.call("script", {"steps": ["sample hello"]})
    question = (await reply.some(1))[-1].message
    assert question["method"] == "sampling/createMessage"
    content = {"type": "text", "text": "world"}
    await peer.respond(question["id"], {"role": "assistant", "model": "m", "content": content})
    assert results(await reply.until_terminal()) == ["world"]


async def test_raising_tool_is_an_error_result(server: Server) -> None:
    peer = await server.peer()
    reply = await peer.call("script", {"steps": ["emit 1", "raise sorry"]})
    events = await reply.rest()
    assert counts(events) == [1]
    # The words are the SDK's: some repeat the exception's, some hide them.
    assert events[-1].message["result"]["isError"]
