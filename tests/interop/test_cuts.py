"""Official clients behind a proxy that cuts connections: at an age, when they are silent, or at any time. (F-47, W-041)

What cuts at an age or at silence is learned; behind that each call gets its result, though the Python clients give up
at the third cut. What cuts at any time teaches nothing.
"""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import dataclass
from random import Random
from typing import Any

import pytest
from kit.cutting import is_cut
from kit.tap import Tap

from interop.driver import PYTHON, TYPESCRIPT, Hosts, drive, gates

pytestmark = pytest.mark.full

LEARNS = "cuts connections"
# As a server has it that sets nothing.
RETRY_MS = 3_000
# The losses that are to teach it come this long after one another: what is lost at one moment counts once.
APART_S = 0.5
# No two tests share a server.
_own = itertools.count(10_000)


@dataclass(frozen=True)
class Road:
    """What is between the clients and the server."""

    tap: dict[str, Any]
    # How long the calls take: the Python clients would see three cuts.
    call_s: float
    # One after the other. At once, one of them would be sent on the connection of another, shortly before that is cut.
    calls: int = 10

    def __str__(self) -> str:
        return "-".join(f"{name.removesuffix('_s')}-{value}s" for name, value in self.tap.items())


ROADS = [Road({"life_s": 3}, 8), Road({"life_s": 15}, 48, 3), Road({"life_s": 60}, 192, 1), Road({"idle_s": 5}, 18, 5)]


@pytest.mark.parametrize("server", ("mcp2", "node-v2", "tower"))
@pytest.mark.parametrize("client", (*PYTHON, *TYPESCRIPT))
@pytest.mark.parametrize("road", ROADS, ids=str)
async def test_f47_what_cuts_connections_is_learned_and_then_every_call_gets_its_result(
    hosts: Hosts, client: str, server: str, road: Road
) -> None:
    host = await hosts.get(server, retry_ms=RETRY_MS, engine={"max_sessions": next(_own)})
    async with Tap(host.port, **road.tap) as tap:

        async def lose(after_s: float) -> None:
            await asyncio.sleep(after_s)
            await is_cut(host, tap.port)

        while LEARNS not in host.log():
            await asyncio.gather(*(lose(APART_S * number) for number in range(6)))
        async with drive(hosts.drivers, client, f"http://127.0.0.1:{tap.port}/mcp", tap, host) as at:
            for name in gates(road.calls):
                await at.driver.call("emit 1", f"gate {name}", "emit 1", f"return {name}", name=name)
                await asyncio.sleep(road.call_s)
                await host.open(name)
                await at.over(name)
                assert at.driver.results(name) == [name], at.story()
                assert at.driver.progress(name) == [1, 2]
            await at.close()
    assert host.log().count(LEARNS) == 1


@pytest.mark.parametrize("server", ("mcp2", "node-v2", "tower"))
async def test_f47_cuts_at_any_time_close_nothing(hosts: Hosts, server: str) -> None:
    host = await hosts.get(server, retry_ms=RETRY_MS, engine={"max_sessions": next(_own)})
    dice = Random(1)
    async with Tap(host.port, life_s=lambda: dice.uniform(0.5, 8)) as tap:
        for _ in range(6):
            assert all(await asyncio.gather(*(is_cut(host, tap.port) for _ in range(5))))
    assert (LEARNS in host.log(), (await host.stats())["closes_limit"]) == (False, 0)
