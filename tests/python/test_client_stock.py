"""The stock clients with the one line."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import tailrope.client
from conftest import KIND
from kit.servers import Farm, Kind, gate
from kit.stock import LINE, CallFailed, Stock
from scripted import Exchange, scripted


@pytest.fixture(scope="session", params=[KIND], ids=[KIND.name])
def kind(request: pytest.FixtureRequest) -> Kind:
    """One server: these tests are about the client."""
    return request.param


@asynccontextmanager
async def stock(url: str, how: str = "client", **options: Any) -> AsyncIterator[Stock]:
    """The official client of the installed SDK line on our HTTP client."""
    if LINE == 1:
        from mcp import ClientSession
        from mcp.client import streamable_http

        if how == "factory":
            factory = tailrope.client.http_client_factory(**options)
            transport = streamable_http.streamablehttp_client(url, httpx_client_factory=factory)
        else:
            transport = streamable_http.streamable_http_client(url, http_client=tailrope.client.http_client(**options))

        async def log(params: Any) -> None:
            face.logs.append(params.data)

        async with transport as (read, write, _), ClientSession(read, write, logging_callback=log) as session:
            answer = await session.initialize()
            face = Stock(session.call_tool, str(answer.protocolVersion))
            yield face
        return

    from mcp import Client
    from mcp.client.streamable_http import streamable_http_client

    async def log_v2(params: Any) -> None:
        face.logs.append(params.data)

    async with tailrope.client.http_client(**options) as http:
        transport_v2 = streamable_http_client(url, http_client=http)
        async with Client(transport_v2, mode="legacy", logging_callback=log_v2) as client:
            face = Stock(client.call_tool, str(client.protocol_version))
            yield face


@asynccontextmanager
async def cutting(port: int, after_bytes: int) -> AsyncIterator[tuple[str, list[int]]]:
    """A proxy that cuts the answers to tool calls and to resumes in the middle, after so many bytes."""
    cuts: list[int] = []

    async def serve(exchange: Exchange) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            names = {**exchange.headers, "connection": "close"}
            head = [f"{exchange.method} {exchange.target} HTTP/1.1", *(f"{name}: {names[name]}" for name in names)]
            writer.write("\r\n".join([*head, "", ""]).encode() + exchange.body)
            is_cut = b"tools/call" in exchange.body or exchange.last_event_id is not None
            left = after_bytes if is_cut else 1 << 30
            while left and (data := await reader.read(min(left, 1 << 16))):
                left -= len(data)
                exchange.writer.write(data)
                await exchange.writer.drain()
            if not left:
                cuts.append(after_bytes)
            exchange.drop()
        finally:
            writer.close()

    async with scripted(serve) as proxy:
        yield proxy.url, cuts


@pytest.mark.ours
@pytest.mark.parametrize("how", ["client", "factory"] if LINE == 1 else ["client"])
async def test_stock_client_survives_breaks(farm: Farm, how: str) -> None:
    server = farm.get(retry_ms=20)
    options = {"initial_delay_ms": 20, "jitter": 0}
    async with cutting(server.port, 2_000) as (url, cuts), stock(url, how, **options) as client:
        async with asyncio.timeout(60):
            steps = ["emit 30", "close", "emit 10", "close_standalone", "standalone s", "return x"]
            assert await client.script(*steps) == "x"
            assert client.progress == list(range(1, 41))
            while client.logs != ["s"]:
                await asyncio.sleep(0.02)
        assert len(cuts) >= 3


@pytest.mark.ours
async def test_stock_client_survives_ten_closes_that_deliver_nothing(farm: Farm) -> None:
    server = farm.get(retry_ms=20)
    async with stock(f"http://127.0.0.1:{server.port}/mcp", jitter=0) as client:
        before, name = (await server.state())["requests"]["GET"], gate()
        call = asyncio.ensure_future(client.script("close hold=0", f"gate {name}", "emit 2", "return x"))
        async with asyncio.timeout(60):
            while (await server.state())["requests"]["GET"] < before + 10:
                await asyncio.sleep(0.02)
        await server.open(name)
        assert await call == "x"
        assert client.progress == [1, 2]


@pytest.mark.ours
async def test_stock_client_fails_in_time(farm: Farm) -> None:
    server = farm.fresh(retry_ms=20)
    try:
        async with stock(f"http://127.0.0.1:{server.port}/mcp", max_attempts=3) as client:
            calling = asyncio.ensure_future(client.script("emit 1", "sleep 60000"))
            async with asyncio.timeout(60):
                while not client.progress:
                    await asyncio.sleep(0.01)
            server.kill()
            with pytest.raises(CallFailed, match="tries to resume"):
                await asyncio.wait_for(calling, 15)
    finally:
        if server.process.poll() is None:
            server.kill()
