"""What must stay as it was: everything that users have around and beside the stock transport."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from typing import Any

import pytest
from kit.stock import LINE, stock_client
from conftest import HERE, Farm, Server, gate
from kit.peer import NEWEST, Peer, counts, last_id, logs, results, text
from kit.raw import request


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


async def test_stateless_mode_serves_without_sessions(farm: Farm) -> None:
    server = farm.get(stateless_http=True)
    peer = await server.peer()
    assert peer.session is None
    reply = await peer.call("script", {"steps": ["emit 2", "return x"]})
    events = await reply.rest()
    assert counts(events) == [1, 2] and results(events) == ["x"]
    assert not any(event.is_priming for event in events), "nothing to resume, so nothing to prime"


async def test_json_response_mode(farm: Farm) -> None:
    server = farm.get(json_response=True)
    peer = await server.peer()
    reply = await peer.call("echo", {"text": "hi"}, Accept="application/json")
    assert reply.status == 200
    assert reply.headers["content-type"].startswith("application/json")
    assert text(await reply.json()) == "hi"
    reply = await peer.call("script", {"steps": ["emit 2", "log x", "return done"]})
    assert text(await reply.json()) == "done", "what belongs to the call has no wire here"
    stream = await peer.listen()
    await peer.ask("script", {"steps": ["standalone heard"]})
    assert logs(await stream.some(1)) == ["heard"]


async def test_json_response_mode_refuses_a_duplicate_id(farm: Farm) -> None:
    server = farm.get(json_response=True)
    peer = await server.peer()
    name = gate()
    first = asyncio.create_task(peer.call("script", {"steps": [f"gate {name}", "return x"]}, id=4))
    await server.at(name)
    second = asyncio.create_task(peer.call("script", {"steps": ["return y"]}, id=4))
    if server.transport == "tailrope":
        assert (await second).status == 400
    await server.open(name)
    assert text(await (await first).json()) == "x"


async def test_handlers_see_the_http_request(server: Server) -> None:
    peer = await server.peer()
    peer.extra["X-Trace"] = "abc"
    assert await peer.ask("header", {"name": "x-trace"}) == "abc"
    peer.extra["X-Trace"] = "def"
    assert await peer.ask("header", {"name": "x-trace"}) == "def"


async def test_request_ids_in_handlers_are_text(server: Server) -> None:
    peer = await server.peer()
    assert await peer.ask("request_id", id=17) == "'17'"
    assert await peer.ask("request_id", id="k") == "'k'"


@pytest.mark.parametrize("header", [{"Host": "evil.example"}, {"Origin": "http://evil.example"}])
async def test_dns_rebinding_is_refused_also_on_resumes(server: Server, header: dict[str, str]) -> None:
    peer = await server.peer()
    reply = await peer.call("script", {"steps": ["return x"]})
    cursor = (await reply.rest())[0].id
    for method, more, body in (
        ("POST", {"Content-Type": "application/json"}, b'{"jsonrpc":"2.0","id":1,"method":"ping"}'),
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


async def test_body_limit_is_413(server: Server) -> None:
    peer = await server.peer()
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "ping", "params": {"x": "y" * (5 << 20)}}).encode()
    # The server may stop reading and hang up while the body is still on its way.
    try:
        reply = await peer.post(body)
    except ConnectionError:
        return
    assert reply.status == 413


@pytest.mark.parametrize("mount", ["starlette", "fastapi"])
async def test_mounted_in_a_host_application(farm: Farm, mount: str) -> None:
    server = farm.get(mount=mount)
    peer = await server.peer(path="/in/mcp")
    reply = await peer.call("script", {"steps": ["emit 1", "close", "emit 1", "return x"]})
    events = await reply.rest()
    rest = await (await peer.resume(last_id(events))).until_terminal()
    assert counts(events + rest) == [1, 2] and results(rest) == ["x"]
    if mount == "fastapi":
        own = await request(server.port, "GET", "/own")
        assert await own.json() == {"host": "fastapi"}


async def test_custom_routes_and_lifespan(server: Server) -> None:
    reply = await request(server.port, "GET", "/health")
    assert await reply.json() == {"health": "good"}
    peer = await server.peer()
    assert json.loads(await peer.ask("lifespan")) == {"pool": "ready"}


async def test_auth_reaches_handlers_and_binds_the_session(farm: Farm) -> None:
    server = farm.get(auth=True)
    refused = await Peer(server.port).post({"jsonrpc": "2.0", "id": 1, "method": "ping"})
    assert refused.status == 401
    alice = await server.peer(headers=bearer("alice-token"))
    assert await alice.ask("whoami") == "alice"
    reply = await alice.call("script", {"steps": ["emit 1", "return private"]})
    cursor = (await reply.rest())[0].id
    # F-05: somebody else's valid token on alice's session is answered as if there were no such session.
    thief = Peer(server.port, headers=bearer("bob-token"))
    thief.revision = NEWEST
    thief.session = alice.session
    answers = [await thief.call("echo", {"text": "x"}), await thief.get(), await thief.resume(cursor)]
    assert [answer.status for answer in answers] == [404, 404, 404]
    assert (await thief.delete()).status == 404
    thief.session = "0" * 32
    for answer, unknown in zip(
        answers, [await thief.call("echo", {"text": "x"}), await thief.get(), await thief.resume(cursor)], strict=True
    ):
        assert await answer.body() == await unknown.body()
    assert results(await (await alice.resume(cursor)).until_terminal()) == ["private"]
    # Another token of the same user is the same principal.
    alice.extra = bearer("alice-second-token")
    assert await alice.ask("echo", {"text": "again"}) == "again"
    bob = await server.peer(headers=bearer("bob-token"))
    assert await bob.ask("whoami") == "bob"


@pytest.mark.ours
async def test_cancelled_request_gets_its_terminal(server: Server) -> None:
    peer = await server.peer()
    name = gate()
    reply = await peer.call("script", {"steps": ["emit 1", f"gate {name}", f"return {name}"]}, id=6)
    events = await reply.some(1)
    await server.at(name)
    assert (await peer.cancel(6)).status == 202
    rest = await reply.rest()
    assert rest[-1].message["id"] == 6 and rest[-1].message["error"]["code"] == -32800
    await server.mark(f"cancelled return {name}")
    # A client that was away learns the same.
    again = await (await peer.resume(last_id(events))).rest()
    assert [result["code"] for result in results(again)] == [-32800]
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
    assert [result["code"] for result in results(events)] == [-32800]


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
    question = (await reply.some(1))[0].message
    assert question["method"] == "sampling/createMessage"
    content = {"type": "text", "text": "world"}
    await peer.respond(question["id"], {"role": "assistant", "model": "m", "content": content})
    assert results(await reply.until_terminal()) == ["world"]


async def test_raising_tool_is_an_error_result(server: Server) -> None:
    peer = await server.peer()
    reply = await peer.call("script", {"steps": ["emit 1", "raise sorry"]})
    events = await reply.rest()
    answer = events[-1].message
    assert counts(events) == [1]
    # The words are the SDK's: some repeat the exception's, some hide them.
    assert answer["result"]["isError"]


@pytest.mark.skipif(LINE == 1, reason="1.x knows no 2026-07-28")
async def test_modern_requests_pass_through_untouched(farm: Farm) -> None:
    async def modern(server: Server) -> tuple[Any, ...]:
        version = "2026-07-28"
        meta = {
            "io.modelcontextprotocol/protocolVersion": version,
            "io.modelcontextprotocol/clientCapabilities": {},
            "io.modelcontextprotocol/clientInfo": {"name": "raw", "version": "1"},
        }
        found: list[Any] = []
        for method, params, more in (
            ("server/discover", {}, {}),
            ("tools/call", {"name": "echo", "arguments": {"text": "hi"}}, {"Mcp-Name": "echo"}),
            ("no/such", {}, {}),
        ):
            headers = {
                "Accept": "application/json, text/event-stream",
                "Content-Type": "application/json",
                "Mcp-Protocol-Version": version,
                "Mcp-Method": method,
                "Last-Event-ID": "ignored",
                "Mcp-Session-Id": "ignored",
                **more,
            }
            body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": meta}})
            reply = await request(server.port, "POST", "/mcp", headers, body.encode())
            payload = await reply.body()
            kept = {k: v for k, v in reply.headers.items() if k not in ("date", "content-length")}
            found.append((reply.status, kept, payload))
        get = await request(
            server.port, "GET", "/mcp", {"Mcp-Protocol-Version": version, "Accept": "text/event-stream"}
        )
        return (*found, get.status)

    ours = await modern(farm.get())
    assert ours[0][0] == ours[1][0] == 200, ours
    assert ours == await modern(farm.get(stock=True))


@pytest.mark.skipif(LINE == 1, reason="1.x knows no 2026-07-28")
@pytest.mark.ours
async def test_prefer_resumable_refuses_modern_requests_with_the_legacy_revisions(farm: Farm) -> None:
    server = farm.get(engine={"prefer_resumable": True})
    headers = {
        "Accept": "application/json, text/event-stream",
        "Content-Type": "application/json",
        "Mcp-Protocol-Version": "2026-07-28",
        "Mcp-Method": "server/discover",
    }
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "server/discover", "params": {}}).encode()
    reply = await request(server.port, "POST", "/mcp", headers, body)
    assert reply.status == 400
    error = (await reply.json())["error"]
    assert error["code"] == -32022
    assert "2025-11-25" in error["data"]["supported"] and "2026-07-28" not in error["data"]["supported"]
    async with stock_client(server.port, "auto") as client:
        assert client.revision == "2025-11-25"


@pytest.mark.ours
@pytest.mark.parametrize("how", ["tailrope", "lab"])
async def test_an_event_store_alone_or_with_install_is_resumable(farm: Farm, how: str) -> None:
    server = farm.get(store=how, retry_ms=33)
    peer = await server.peer()
    reply = await peer.call("script", {"steps": ["emit 1", "close", "emit 1", "return x"]})
    events = await reply.rest()
    assert events[0].retry == 33
    rest = await (await peer.resume(last_id(events))).rest()
    assert counts(events + rest) == [1, 2] and results(rest) == ["x"]
    # The stock transport would hold the connection open here.
    assert rest[0].is_priming


@pytest.mark.ours
async def test_disabled_by_the_environment_is_stock(farm: Farm) -> None:
    server = Server(farm.kind.name, {}, "tailrope", TAILROPE_DISABLE="1")
    try:
        peer = await server.peer()
        events = await (await peer.call("script", {"steps": ["emit 1", "return x"]})).rest()
        assert [event.id for event in events] == [None, None], "the stock transport without a store sends no ids"
        assert results(events) == ["x"]
    finally:
        server.kill()


def python(code: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", "-c", code]
    return subprocess.run(command, cwd=HERE, capture_output=True, text=True, timeout=25, check=False)


@pytest.mark.ours
def test_uninstall_puts_the_sdk_back() -> None:
    done = python("""
import mcp.server.streamable_http as a, mcp.server.streamable_http_manager as b, tailrope
before = (a.StreamableHTTPServerTransport, b.StreamableHTTPServerTransport)
tailrope.install()
tailrope.install()
assert b.StreamableHTTPServerTransport is not before[1]
assert issubclass(b.StreamableHTTPServerTransport, before[1])
tailrope.uninstall()
tailrope.uninstall()
assert (a.StreamableHTTPServerTransport, b.StreamableHTTPServerTransport) == before
""")
    assert done.returncode == 0, done.stderr


OTHER_SEAM = """
import inspect, warnings, mcp.server.streamable_http_manager as m, mcp.server.streamable_http as t
class Other:
    def __init__(self, something_else): pass
m.StreamableHTTPServerTransport = t.StreamableHTTPServerTransport = Other
import tailrope
"""


@pytest.mark.ours
def test_unsupported_seam_is_refused_with_the_versions() -> None:
    from importlib.metadata import version

    done = python(OTHER_SEAM + "tailrope.install()")
    assert done.returncode != 0
    assert version("mcp") in done.stderr, done.stderr
    last = done.stderr.strip().splitlines()[-1]
    assert "1.30" in last and "2." in last, "says what is supported"


@pytest.mark.ours
def test_unsupported_seam_is_left_stock_with_a_warning() -> None:
    from importlib.metadata import version

    done = python(
        OTHER_SEAM
        + """
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    tailrope.install(on_unsupported="stock")
assert m.StreamableHTTPServerTransport is Other
print(*(str(warning.message) for warning in caught))
"""
    )
    assert done.returncode == 0, done.stderr
    assert version("mcp") in done.stdout


@pytest.mark.ours
@pytest.mark.parametrize(
    "options",
    [
        {"retry_ms": -1},
        {"retry_ms": "soon"},
        {"max_sessions": 0},
        {"store": "floppy:"},
        {"on_unsupported": "shrug"},
        {"no_such_option": 1},
    ],
    ids=str,
)
def test_wrong_options_are_refused_at_once(options: dict[str, Any]) -> None:
    done = python(f"import tailrope; tailrope.install(**{options!r})")
    assert done.returncode != 0
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith(("ValueError", "TypeError", "tailrope.TailropeError")), done.stderr
    assert next(iter(options)) in last or str(next(iter(options.values()))) in last
