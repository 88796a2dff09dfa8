"""A server with its defaults and a client with its defaults: both know 2026-07-28, and the call can be resumed.

Of revision 2026-07-28 nothing can be resumed. Clients of both eras fall back to 2025-11-25 when they are told to.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import tailrope.client
from kit.raw import request
from kit.servers import Farm, Kind, gate
from kit.stock import LINE
from kit.tap import RESET, Tap

MODERN = "2026-07-28"
STEPS = 24

only_modern = pytest.mark.skipif(LINE == 1, reason="1.x knows no 2026-07-28")


@asynccontextmanager
async def default_client(farm: Farm, port: int, transport: Callable[[str], Any] = str) -> AsyncIterator[Any]:
    """The client of the server's own library, with its defaults."""
    url = f"http://127.0.0.1:{port}/mcp"
    if farm.kind.name.startswith("fastmcp"):
        from fastmcp import Client as FastClient

        async with FastClient(transport(url)) as client:
            yield client
    elif LINE == 1:
        from mcp import ClientSession
        from mcp.client.streamable_http import streamablehttp_client

        async with streamablehttp_client(url) as (read, write, _), ClientSession(read, write) as session:
            await session.initialize()
            yield session
    else:
        from mcp import Client

        async with Client(transport(url)) as client:
            yield client


async def call(client: Any, *steps: str, **how: Any) -> str:
    result = await client.call_tool("script", {"steps": list(steps)}, **how)
    return str(result.content[0].text)


def modern_request() -> tuple[dict[str, str], bytes]:
    headers = {
        "Accept": "application/json, text/event-stream",
        "Content-Type": "application/json",
        "Mcp-Protocol-Version": MODERN,
        "Mcp-Method": "server/discover",
    }
    meta = {
        "io.modelcontextprotocol/protocolVersion": MODERN,
        "io.modelcontextprotocol/clientCapabilities": {},
        "io.modelcontextprotocol/clientInfo": {"name": "raw", "version": "1"},
    }
    body = {"jsonrpc": "2.0", "id": 7, "method": "server/discover", "params": {"_meta": meta}}
    return headers, json.dumps(body).encode()


@pytest.mark.parametrize(
    "options",
    [{}, {"store": "event-store"}, {"late": True}, {"way": "resumable"}],
    ids=["install", "store", "late", "resumable"],
)
@pytest.mark.ours
async def test_a_default_client_of_a_default_server_gets_its_result_across_a_close(
    farm: Farm, options: dict[str, Any]
) -> None:
    server = farm.get(**options)
    before = (await server.stats()).get("resumes_accepted", 0)
    async with default_client(farm, server.port) as client:
        assert await call(client, "emit 2", "close", "emit 2", "return whole") == "whole"
    assert (await server.stats())["resumes_accepted"] > before


@only_modern
@pytest.mark.ours
async def test_steering_names_the_revisions_that_can_resume(farm: Farm) -> None:
    server = farm.get()
    before = (await server.stats())["requests_steered"]
    headers, body = modern_request()
    reply = await request(server.port, "POST", "/mcp", headers, body)
    assert (reply.status, reply.headers["content-type"]) == (400, "application/json")
    answer = await reply.json()
    assert (answer["id"], answer["error"]["code"]) == (7, -32022)
    assert answer["error"]["data"] == {
        "supported": ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"],
        "requested": MODERN,
    }
    stats = await server.stats()
    assert (stats["requests_steered"], stats["requests_unresumable"]) == (before + 1, 0)


@only_modern
@pytest.mark.ours
async def test_without_steering_each_request_is_counted_and_the_first_is_a_warning(farm: Farm) -> None:
    server = farm.get(engine={"prefer_resumable": False})
    before = (await server.stats())["requests_unresumable"]
    headers, body = modern_request()
    for _ in range(2):
        assert (await request(server.port, "POST", "/mcp", headers, body)).status == 200
    stats = await server.stats()
    assert (stats["requests_unresumable"], stats["requests_steered"]) == (before + 2, 0)
    log = await server.logged("requests_unresumable")
    warnings = [line for line in log.splitlines() if "requests_unresumable" in line]
    assert len(warnings) == 1 and "WARNING" in warnings[0] and "prefer_resumable" in warnings[0], warnings


@only_modern
@pytest.mark.ours
@pytest.mark.parametrize("options", [{"stateless_http": True}, {"store": "absent"}], ids=["stateless", "not-installed"])
async def test_a_server_that_resumes_nothing_is_not_steered(farm: Farm, options: dict[str, Any]) -> None:
    server = farm.get(**options)
    headers, body = modern_request()
    assert (await request(server.port, "POST", "/mcp", headers, body)).status == 200


@pytest.fixture
def fast(kind: Kind) -> None:
    if not kind.name.startswith("fastmcp"):
        pytest.skip("it is about fastmcp's own client, which is tried before fastmcp's own server")


def with_our_line(url: str) -> Any:
    from fastmcp.client.transports import StreamableHttpTransport

    return StreamableHttpTransport(url, httpx_client_factory=tailrope.client.http_client_factory())


@pytest.mark.ours
@pytest.mark.usefixtures("fast")
async def test_fastmcps_client_gets_each_step_once_where_each_of_them_breaks_its_connection(farm: Farm) -> None:
    server = farm.get()
    seen: list[int] = []
    async with Tap(server.port) as tap:

        async def on_progress(progress: float, total: float | None, message: str | None) -> None:
            seen.append(int(progress))
            if progress < STEPS:
                tap.cut(rf'"progress": ?{int(progress) + 1}\b', RESET)
            await server.open(gates[len(seen) - 1])

        gates = [gate() for _ in range(STEPS)]
        steps = [step for name in gates for step in ("emit 1", f"gate {name}")]
        tap.cut(r'"progress": ?1\b', RESET)
        async with default_client(farm, tap.port, with_our_line) as client:
            assert await call(client, *steps, "return whole", progress_handler=on_progress) == "whole"
        assert (seen, tap.cuts) == (list(range(1, STEPS + 1)), STEPS)


@pytest.mark.ours
@pytest.mark.full
@pytest.mark.usefixtures("fast")
async def test_fastmcps_client_gets_each_step_once_where_connections_live_two_seconds(farm: Farm) -> None:
    server = farm.get()
    seen: list[int] = []
    gates = [gate() for _ in range(STEPS)]

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        seen.append(int(progress))

    async def pace() -> None:
        for name in gates:
            await asyncio.sleep(0.4)
            await server.open(name)

    steps = [step for name in gates for step in ("emit 1", f"gate {name}")]
    async with Tap(server.port, life_s=2) as tap, default_client(farm, tap.port, with_our_line) as client:
        pacing = asyncio.create_task(pace())
        assert await call(client, *steps, "return whole", progress_handler=on_progress) == "whole"
        await pacing
        assert seen == list(range(1, STEPS + 1)) and tap.resumes() >= 3
