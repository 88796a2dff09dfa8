"""Middleware around the MCP app, and frameworks that it is mounted in: what docs/deploy/frameworks.md says of them."""

from __future__ import annotations

import asyncio
import gzip

import pytest
from conftest import KIND
from kit.peer import Peer, counts, last_id, results
from kit.raw import request as http
from kit.servers import Farm, Kind, gate
from kit.stock import stock_client
from kit.tap import RESET, Tap

AROUND = ["base", "cors", "django", "fastapi", "gzip", "meddling", "starlette"]
MOUNTED = {"fastapi", "starlette"}
ORIGIN = {"Origin": "http://localhost:5173"}
# What a page sends that browsers ask about first.
ASKED = {
    "authorization",
    "content-type",
    "last-event-id",
    "mcp-method",
    "mcp-name",
    "mcp-protocol-version",
    "mcp-session-id",
}


@pytest.fixture(scope="session", params=[KIND], ids=[KIND.name])
def kind(request: pytest.FixtureRequest) -> Kind:
    """One library of the SDK line: all of them make the same kind of app."""
    return request.param


def path(around: str) -> str:
    return "/in/mcp" if around in MOUNTED else "/mcp"


@pytest.mark.parametrize("around", AROUND)
async def test_i3_nothing_is_held_back_and_nothing_lost(farm: Farm, around: str) -> None:
    server = farm.get(around=around)
    peer = await Peer.open(server.port, path=path(around), headers={"Accept-Encoding": "gzip"})
    first, second = gate(), gate()
    steps = [f"gate {first}", "emit 1", "close hold=0", f"gate {second}", "emit 1", "return x"]
    reply = await peer.call("script", {"steps": steps})
    # Priming leaves at once, an event when it is sent, the close at once: the tool waits at its gates.
    priming = await reply.event()
    assert priming is not None and priming.is_priming and priming.retry
    await server.open(first)
    events = [priming, *await reply.rest()]
    assert counts(events) == [1]
    await server.open(second)
    while not results(events):
        events += await (await peer.resume(last_id(events))).rest()
    assert counts(events) == [1, 2] and results(events) == ["x"]


@pytest.mark.parametrize("around", AROUND)
async def test_i3_stock_client_outlives_a_cut(farm: Farm, around: str) -> None:
    server = farm.get(around=around)
    name = gate()
    async with Tap(server.port) as tap, stock_client(tap.port, path=path(around)) as client, asyncio.timeout(45):
        tap.cut('"progress": ?3', RESET)
        call = asyncio.create_task(client.script("emit 6", f"gate {name}", "emit 4", "close", "return x"))
        await server.at(name)
        await server.open(name)
        assert await call == "x"
        assert tap.cuts == 1 and client.progress == list(range(1, 11))


@pytest.mark.parametrize("stock", [False, True], ids=["tailrope", "stock"])
async def test_middleware_may_change_the_bytes_answer_first_and_raise(farm: Farm, stock: bool) -> None:
    server = farm.get(around="meddling", **({"stock": True} if stock else {}))
    peer = await server.peer()
    for _ in range(3):
        reply = await peer.call("echo", {"text": "x"})
        assert results(await reply.rest()) == ["x"] and b": added\n\n" in reply.raw
        early = await peer.call("echo", {"text": "x"}, x_answer_first="1")
        assert (early.status, await early.body()) == (418, b"early")
        assert (await peer.call("echo", {"text": "x"}, x_raise="1")).status == 500


async def test_gzip_compresses_what_is_no_stream(farm: Farm) -> None:
    server = farm.get(around="gzip", json_response=True)
    peer = await Peer.open(server.port)
    headers = {**peer.headers(), "Accept-Encoding": "gzip", "Content-Type": "application/json"}
    reply = await http(server.port, "POST", "/mcp", headers, b'{"jsonrpc":"2.0","id":1,"method":"ping"}')
    assert reply.headers["content-encoding"] == "gzip"
    assert gzip.decompress(await reply.body()) == b'{"jsonrpc":"2.0","id":1,"result":{}}'


async def test_page_of_another_origin_may_send_and_see_what_it_needs(farm: Farm) -> None:
    server = farm.get(around="cors")
    asks = {
        **ORIGIN,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": ",".join(sorted(ASKED)),
    }
    preflight = await http(server.port, "OPTIONS", "/mcp", asks)
    assert preflight.status == 200, await preflight.body()
    allowed = {name.strip().lower() for name in preflight.headers["access-control-allow-headers"].split(",")}
    assert allowed >= ASKED
    peer = await Peer.open(server.port, headers=ORIGIN)
    reply = await peer.call("echo", {"text": "x"})
    assert reply.headers["access-control-allow-origin"] == ORIGIN["Origin"]
    assert reply.headers["access-control-expose-headers"].lower() == "mcp-session-id"


@pytest.mark.parametrize(("around", "body"), [("django", b"django"), ("fastapi", b'{"host":"fastapi"}')])
async def test_the_framework_serves_its_own_paths(farm: Farm, around: str, body: bytes) -> None:
    own = await http(farm.get(around=around).port, "GET", "/own")
    assert await own.body() == body
