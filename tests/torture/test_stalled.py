"""A reader that stalls, in its short form: stalled.py says what is compared. (F-20, F-56, F-57, I10)"""

from __future__ import annotations

import asyncio

import pytest

from torture.stalled import READ, SHORT_MB, STALLED, Measured, judge, stalled


@pytest.mark.full
@pytest.mark.timeout(180)
@pytest.mark.parametrize("server", ["mcp2", "node-v2", "tower", "rmcp"])
def test_f57_stalled_stream_harms_neither_its_siblings_nor_the_servers_memory(server: str) -> None:
    found, faults = asyncio.run(stalled(server, SHORT_MB))
    told = "\n".join(map(str, found.values()))
    assert not faults, f"{faults}\n{told}"
    assert found[STALLED].read > 0 and found[STALLED].missing > 0, told


def test_judge_sees_latency_and_memory_that_grow() -> None:
    good = Measured(READ, [0.01] * 10, 5 << 20)
    assert judge({READ: good, STALLED: good}) == []
    assert len(judge({READ: good, STALLED: Measured(STALLED, [0.01] * 5 + [0.9] * 5, 5 << 20)})) == 2
    assert len(judge({READ: good, STALLED: Measured(STALLED, [0.01] * 10, 500 << 20)})) == 1
