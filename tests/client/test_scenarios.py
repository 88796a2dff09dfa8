"""Every stock client through every scenario of the scripted server, with the one line and without it."""

from __future__ import annotations

import json

import pytest

from client.drivers import CLIENTS, HERE, Drivers
from client.outcome import words
from client.scenarios import SCENARIOS, comes_to_an_end, play

# What the published clients do by themselves: written by table.py, with docs/evidence/stock-clients.md.
STOCK = json.loads((HERE / "stock.json").read_text())
SLOW = "a-server-that-is-down-for-a-minute"

# It mostly waits, and begins before the others.
SLOW_MARKS = (pytest.mark.first, pytest.mark.full)
every_client = pytest.mark.parametrize("client", CLIENTS)
every_scenario = pytest.mark.parametrize(
    "scenario", [pytest.param(name, marks=SLOW_MARKS if name == SLOW else ()) for name in SCENARIOS]
)


@every_scenario
@every_client
async def test_with_the_line(drivers: Drivers, scenario: str, client: str) -> None:
    played = await play(drivers, scenario, client, {})
    assert not played.faults, played.story()


@pytest.mark.full
@every_scenario
@every_client
async def test_without_the_line(drivers: Drivers, scenario: str, client: str) -> None:
    """A test here that fails is good news, or a new fault: the client was changed. Run table.py then."""
    known = STOCK[scenario][client]
    played = await play(drivers, scenario, client, None, comes_to_an_end(known))
    assert words(played.faults) == known, played.story()
