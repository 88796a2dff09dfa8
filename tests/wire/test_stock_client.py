"""The official Python client, unmodified, in this process. (F-01, F-19, F-59, F-60, F-73, F-77, W-041 to W-047)

tests/interop puts every official client before servers of each language; here one of them meets the whole list.
"""

from __future__ import annotations

import asyncio

import pytest
from kit.servers import Farm, Server, gate
from kit.servers import until as until_told
from kit.stock import LINE, MODES, CallFailed, stock_client
from kit.tap import Tap, until

# A server that forgets what is finished, and takes no result that this client would drop without a word: over 1 MiB.
SMALL = {"retention_ms": 50, "max_event_bytes": 1_000_000}
# What clients that do not stop ask for in this time is far more than what is allowed: they come back every 20 ms.
QUIET_S = 0.5
# Far more than it takes: only what hangs takes longer.
PATIENCE_S = 45


async def test_f01_stock_client_accepts_only_its_own_result(server: Server) -> None:
    first, second = gate(), gate()
    async with Tap(server.port) as tap, stock_client(tap.port) as alice, stock_client(tap.port) as bob:
        # Both stay away until both calls have finished.
        tap.hold()
        calls = []
        for client, name in ((alice, first), (bob, second)):
            calls.append(asyncio.create_task(client.script("close", f"gate {name}", f"return {name}")))
            await server.at(name)
        for name in (second, first):
            await server.open(name)
            await server.mark(f"finished return {name}")
        tap.release()
        assert await asyncio.gather(*calls) == [first, second]


@pytest.mark.one_process("a store with a server forgets seconds later than its owner says")
async def test_f73_stock_client_fails_its_call_and_stops_when_the_stream_is_gone(farm: Farm) -> None:
    """F-19 asks for the end of the call, F-73 for that of the requests."""
    server = farm.get(engine=SMALL)
    name = gate()
    async with Tap(server.port) as tap, stock_client(tap.port) as client:
        # Its standalone stream is the one that stays.
        await until(lambda: tap.listens() == 1, lambda: str(tap.gets()))
        tap.hold()
        call = asyncio.create_task(client.script("close", f"return {name}"))
        await server.mark(f"finished return {name}")
        await server.lost()
        tap.release()
        async with asyncio.timeout(60):
            with pytest.raises(CallFailed):
                await call
        assert len(tap.gets()) <= 4, tap.gets()
        before = len(tap.gets())
        await asyncio.sleep(QUIET_S)
        # One is the client's standalone stream, at most; the call's stream is not asked for again.
        assert len(tap.gets()) - before <= 1, tap.gets()


@pytest.mark.one_process("what is not stored reaches the readers of its own process alone")
async def test_f60_stock_client_is_told_of_a_result_it_could_not_take(farm: Farm) -> None:
    server = farm.get(engine=SMALL)
    async with stock_client(server.port) as client, asyncio.timeout(60):
        if LINE == 1:
            assert len(await client.script("big 2000000")) == 2_000_000
        else:
            # It takes events of 1 MiB; the one wrong answer is none.
            with pytest.raises(CallFailed):
                await client.script("big 2000000")
        assert await client.ask("echo", {"text": "after"}) == "after"


async def test_f59_stock_client_gets_a_result_that_is_not_stored(lab: Server) -> None:
    async with stock_client(lab.port) as client:
        await lab.plan(fail="terminal", times=1)
        async with asyncio.timeout(60):
            assert await client.ask("echo", {"text": "x"}) == "x"
            assert await client.ask("echo", {"text": "after"}) == "after"


@pytest.mark.parametrize("mode", MODES)
async def test_f77_stock_client_takes_primed_streams(farm: Farm, mode: str) -> None:
    server = farm.get()
    async with stock_client(server.port, mode) as client:
        assert await client.script("emit 3", "return x") == "x"
        assert client.progress == [1, 2, 3]


@pytest.mark.parametrize("mode", MODES)
async def test_stock_client_hears_standalone_notifications_across_a_close(farm: Farm, mode: str) -> None:
    server = farm.get()
    async with stock_client(server.port, mode) as client, asyncio.timeout(60):
        await client.script("standalone one", "close_standalone", "standalone two", "return x")
        while client.logs != ["one", "two"]:
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("mode", MODES)
async def test_stock_client_loses_nothing_in_twenty_polls(farm: Farm, mode: str) -> None:
    server = farm.get()
    async with stock_client(server.port, mode) as client:
        assert client.revision == "2025-11-25"
        steps = ["emit 3", "close", "emit 2"] * 20
        async with asyncio.timeout(PATIENCE_S):
            assert await client.script(*steps, "return x") == "x"
        assert client.progress == list(range(1, 101))


@pytest.mark.parametrize("mode", MODES)
async def test_stock_client_survives_ten_closes_that_deliver_nothing(farm: Farm, mode: str) -> None:
    server = farm.get()
    async with stock_client(server.port, mode) as client:
        name = gate()
        # Closed, and closed again each time the client is back, with nothing in between.
        steps = ["close hold=0", f"gate {name}", "emit 2", f"return {name}"]
        before = (await server.state())["requests"]["GET"]
        call = asyncio.create_task(client.script(*steps))
        await until_told(server.state, lambda state: state["requests"]["GET"] >= before + 10)
        await server.open(name)
        async with asyncio.timeout(PATIENCE_S):
            assert await call == name
        assert client.progress == [1, 2]


@pytest.mark.ours
@pytest.mark.one_language("each SDK serves 2026-07-28 in its own way")
async def test_without_prefer_resumable_a_default_client_stays_modern(farm: Farm) -> None:
    if LINE == 1 or (farm.kind.language, farm.kind.major) != ("python", 2):
        pytest.skip("only the second line of the Python SDK has what 2026-07-28 asks for")
    server = farm.get(engine={"prefer_resumable": False})
    async with stock_client(server.port, "auto") as client:
        assert client.revision == "2026-07-28"
        assert await client.ask("echo", {"text": "hi"}) == "hi"
