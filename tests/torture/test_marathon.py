"""The poll marathon in its short form: marathon.py says what is run, `make torture-marathon` runs all. (F-70, F-24)"""

from __future__ import annotations

import asyncio

import pytest

from torture import nginx
from torture.marathon import BEHIND, Outcome, Run, counted, line, marathon, plan, short_runs

CLOSES = 60
SILENCES = 1


@pytest.mark.full
@pytest.mark.timeout(400)
@pytest.mark.skipif(not nginx.is_there(), reason="no nginx: tests/services/with nginx")
def test_f70_every_client_gets_one_result_and_every_message_once_after_sixty_closes() -> None:
    outcomes = asyncio.run(marathon(short_runs(), CLOSES, SILENCES))
    broken = [outcome for outcome in outcomes if outcome.faults]
    assert not broken, "\n".join(f"{line(outcome)}\n{outcome.story}" for outcome in broken)
    assert all(outcome.closes >= CLOSES for outcome in outcomes if outcome.run.client != "all")


def test_plan_has_closes_that_deliver_nothing_and_bursts() -> None:
    legs = plan(500, 6, 1)
    assert sum(max(1, leg.polls) for leg in legs) == 500
    assert sum(leg.emits == 0 for leg in legs) > 100
    assert sum(leg.emits >= 20 for leg in legs) > 5
    assert sum(leg.is_silent for leg in legs) == 6


def test_closes_that_no_server_made_are_seen_and_cuts_are_none() -> None:
    run = Run("ts2", "node-v2", BEHIND)
    stats = {"closes_asked": 50, "closes_polled": 10}
    assert counted(run.server, stats, [Outcome(run, closes=60)], False) == []
    assert len(counted(run.server, stats, [Outcome(run, closes=61)], False)) == 1
    assert counted(run.server, stats, [Outcome(run, closes=62, cuts=2)], False) == []
