"""Rude clients, in their short form: soak.py says what they do and what is looked at. (F-50 to F-54, I11)"""

from __future__ import annotations

import asyncio
import os

import pytest

from torture.soak import MOST_PAUSES, is_enough, judge, soak

LENGTH_S = 6
PAUSES = 2


@pytest.mark.full
@pytest.mark.timeout(400)
def test_f50_rude_clients_leave_nothing_behind_and_take_nothing_from_those_who_work() -> None:
    pairs = [("mcp2", "memory"), ("node-v2", "sqlite")]
    if "TAILROPE_TEST_REDIS" in os.environ:
        pairs[0] = ("mcp2", "redis")
    if "TAILROPE_TEST_POSTGRES" in os.environ:
        pairs[1] = ("node-v2", "postgres")

    async def both() -> list[object]:
        return list(await asyncio.gather(*(soak(server, store, LENGTH_S, PAUSES) for server, store in pairs)))

    soaks = asyncio.run(both())
    assert not any(found.faults for found in soaks), "\n".join(map(str, soaks))


def test_judge_sees_what_grows() -> None:
    calm = {"sessions": 4, "tasks": 40, "rss_kb": 90_000}
    assert judge([calm] * 4, 4, 4) == []
    assert len(judge([{**calm, "tasks": 40 * (1 + number)} for number in range(4)], 4, 4)) == 1
    assert len(judge([calm, {**calm, "sessions": 5}], 4, 2)) == 1
    grown = {**calm, "rss_kb": 150_000}
    assert len(judge([calm, grown], 4, 2)) == 1


def test_more_pauses_tell_what_was_taken_once_from_what_is_lost_each_time() -> None:
    calm = {"sessions": 4, "tasks": 40, "rss_kb": 90_000}
    leaking = [{**calm, "rss_kb": 90_000 + 60_000 * number} for number in range(MOST_PAUSES)]
    assert not any(is_enough(leaking[:count], 4, 2) for count in range(MOST_PAUSES))
    assert is_enough(leaking, 4, 2)
    assert len(judge(leaking, 4, 2)) == 1
    # Taken once.
    once = [calm, leaking[1], leaking[1]]
    assert is_enough(once, 4, 2)
    assert judge(once, 4, 2) == []
    # What is wrong all the same is not waited for.
    assert is_enough([calm, {**leaking[1], "tasks": 100}], 4, 2)
