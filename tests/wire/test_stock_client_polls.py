"""The official Python client, unmodified, comes back after every close, and loses nothing. (W-041 to W-047)"""

from __future__ import annotations

import asyncio

import pytest
from kit.servers import Farm, Server, gate, until
from kit.stock import LINE, MODES, stock_client

# Far more than it takes: only what hangs takes longer.
PATIENCE_S = 45
# Servers of the newest revision steer their clients to one that can resume.
STEERING = {"prefer_resumable": True}


@pytest.mark.parametrize("mode", MODES)
async def test_stock_client_loses_nothing_in_twenty_polls(farm: Farm, mode: str) -> None:
    server = farm.get(engine=STEERING)
    async with stock_client(server.port, mode) as client:
        assert client.revision == "2025-11-25"
        steps = ["emit 3", "close", "emit 2"] * 20
        async with asyncio.timeout(PATIENCE_S):
            assert await client.script(*steps, "return x") == "x"
        assert client.progress == list(range(1, 101))


@pytest.mark.parametrize("mode", MODES)
async def test_stock_client_survives_ten_closes_that_deliver_nothing(farm: Farm, mode: str) -> None:
    server = farm.get(engine=STEERING)
    async with stock_client(server.port, mode) as client:
        name = gate()
        # Closed, and closed again each time the client is back, with nothing in between.
        steps = ["close hold=0", f"gate {name}", "emit 2", f"return {name}"]
        before = (await server.state())["requests"]["GET"]
        call = asyncio.create_task(client.script(*steps))
        await until(server.state, lambda state: state["requests"]["GET"] >= before + 10)
        await server.open(name)
        async with asyncio.timeout(PATIENCE_S):
            assert await call == name
        assert client.progress == [1, 2]


@pytest.mark.ours
async def test_without_prefer_resumable_a_default_client_stays_modern(server: Server) -> None:
    if LINE == 1 or (server.kind.language, server.kind.major) != ("python", 2):
        pytest.skip("only the second line of the Python SDK has what 2026-07-28 asks for")
    async with stock_client(server.port, "auto") as client:
        assert client.revision == "2026-07-28"
        assert await client.ask("echo", {"text": "hi"}) == "hi"
