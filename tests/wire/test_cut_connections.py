"""A proxy that cuts connections when they are old, and clients that do not survive it. (F-47, W-041, W-042)"""

from __future__ import annotations

import asyncio

import pytest
from kit.cutting import is_cut
from kit.fleet import servers_of
from kit.peer import last_id
from kit.servers import Farm, Server, gate
from kit.stock import stock_client
from kit.tap import Tap, until

pytestmark = pytest.mark.first

CUT_S = 1.2
RETRY_MS = 50
# Four losses teach it; a busy machine may need more.
TRIES = 25
# The Python clients give up at the third cut.
COMES_BACK = 4


async def cuts(server: Server, port: int) -> int:
    """How many connections are cut before the server closes one."""
    for count in range(TRIES):
        if not await is_cut(server, port):
            return count
    raise AssertionError(f"{TRIES} connections were cut")


async def test_f47_cuts_at_an_age_are_learned_and_stock_clients_survive_them(farm: Farm) -> None:
    server = farm.get(retry_ms=RETRY_MS, engine={"max_connection_ms": "auto"})
    async with Tap(server.port, life_s=CUT_S) as tap:
        assert await cuts(server, tap.port) >= 4
        name = gate()
        async with stock_client(tap.port) as client:
            before = tap.resumes()
            call = asyncio.create_task(client.script("emit 2", f"gate {name}", "emit 2", "return x"))
            await until(lambda: tap.resumes() - before >= COMES_BACK or call.done(), lambda: str(tap.gets()))
            await server.open(name)
            assert await call == "x"
            assert client.progress == [1, 2, 3, 4]
    await server.logged("cuts connections when they are about age_ms old")
    # Each process learns it by itself, and says so once.
    assert 1 <= server.log().count("cuts connections when") <= len(servers_of(server.kind))


async def test_f47_connections_that_are_not_cut_are_not_closed(farm: Farm) -> None:
    """The same clients, who come back the same way, and no age at which they do."""
    server = farm.get(retry_ms=RETRY_MS + 1)
    peer = await server.peer()
    listening = await peer.listen()
    await listening.event()
    for count in range(6):
        name = gate()
        reply = await peer.call("script", {"steps": [*["emit 1"] * count, f"gate {name}", "return x"]})
        events = [await reply.event(), *await reply.some(count)]
        reply.drop()
        resumed = await peer.resume(last_id([event for event in events if event is not None]))
        await resumed.event()
        await server.open(name)
        await resumed.until_terminal()
    stats = await server.stats()
    assert (stats["closes_limit"], "cuts connections" in server.log()) == (0, False)
