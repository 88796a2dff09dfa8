"""Tasks under kills and races, in their short form: tasks.py says what befalls them. (T-01 to T-27)"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from torture import task_rules as rules
from torture.hosts import build_rust
from torture.task_races import RACES
from torture.task_rules import Asked, Case, Fates, judge
from torture.tasks import tried

KILLS = 5
RACED = 3
OWNER, OTHER = 1, 2


@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    "server", ["mcp2", *(pytest.param(server, marks=pytest.mark.full) for server in ("handler-v2", "tower"))]
)
def test_tasks_end_once_whatever_befalls_their_processes(tmp_path: Path, server: str) -> None:
    build_rust([server])
    chosen: dict[str, Any] = {"kills": KILLS, "raced": RACED, "owner_lost_ms": 3_000}
    trial = asyncio.run(tried(server, "sqlite", tmp_path, seed="1", calm=False, **chosen))
    assert not trial.faults, str(trial)
    # What provoked nothing would be well, too.
    assert trial.notes["kills"] == KILLS
    assert trial.notes["tasks"] > 20 and trial.notes["tasks completed"] > 5, str(trial)
    assert [sum(of.values()) for of in trial.races.values()] == [RACED] * len(RACES)


# What the rules see.


def get(status: str, began: float, process: int = OTHER, **more: Any) -> Asked:
    task = {"resultType": "complete", "taskId": "t", "status": status, **more}
    return Asked("get", process, began, began + 0.1, 200, {"result": task})


def done(began: float, text: str = "c a", process: int = OTHER) -> Asked:
    return get("completed", began, process, result={"content": [{"type": "text", "text": text}]})


def question(began: float, key: str = "0.0.q0", message: str = "c/ask/0") -> Asked:
    return get("input_required", began, inputRequests={key: {"params": {"message": message}}})


def update(began: float, name: str = "a") -> Asked:
    taken = {"result": {"resultType": "complete"}}
    return Asked("update", OTHER, began, began + 0.1, 200, taken, {"0.0.q0": name})


def whole() -> tuple[Case, list[dict[str, Any]], Fates]:
    """A call that is as it should be."""
    call = Asked("call", OWNER, 0, 1, 200, {"result": {"resultType": "task", "taskId": "t"}})
    asked = [call, get("working", 2), question(3), update(4), done(5), done(6, process=OWNER)]
    case = Case("c", {"token": "c", "asks": 1}, asked, "t")
    return case, [{"fact": "begin", "process": OWNER, "round": 0}, {"fact": "end"}], Fates()


def failed(began: float) -> Asked:
    error = {"code": -32603, "message": "gone"}
    return get("failed", began, statusMessage="gone", error=error, lastUpdatedAt="1970-01-01T00:00:09.000Z")


def test_a_call_that_is_well_breaks_no_rule() -> None:
    assert judge(*whole(), 10) == []
    case, facts, fates = whole()
    case.asked[4:] = [failed(9), failed(10)]
    fates.lost.add(OWNER)
    fates.moments.append(5)
    assert judge(case, facts[:1], fates, 10) == []
    # A process that has ended answers nobody.
    case.asked.insert(2, Asked("get", OWNER, 3, 6, fault="ConnectionResetError"))
    fates.ends[OWNER] = 5
    assert judge(case, facts[:1], fates, 10) == []


def broken(change: Callable[[Case, list[dict[str, Any]], Fates], Any]) -> list[str]:
    case, facts, fates = copy.deepcopy(whole())
    change(case, facts, fates)
    return judge(case, facts, fates, 1)


@pytest.mark.parametrize(
    ("rule", "change"),
    [
        (rules.ANSWERED, lambda case, *_: case.asked.insert(1, Asked("get", OTHER, 1, 2, 503, {"error": {}}))),
        (rules.ANSWERED, lambda case, *_: case.asked.insert(1, Asked("get", OTHER, 1, 2, fault="EOFError"))),
        (rules.ENDS, lambda case, *_: case.asked.__delitem__(slice(4, None))),
        (rules.EXACT, lambda case, *_: case.asked.__setitem__(slice(4, None), [done(5, "c")])),
        (rules.EXACT, lambda _, facts, __: facts.pop()),
        (rules.REASON, lambda case, *_: case.asked.__setitem__(slice(4, None), [failed(5)])),
        (
            rules.IN_TIME,
            lambda case, _, fates: (
                case.asked.__setitem__(slice(4, None), [failed(9)]),
                fates.lost.add(OWNER),
                fates.moments.append(5),
            ),
        ),
        (rules.CANCELLED, lambda case, *_: case.asked.__setitem__(slice(4, None), [get("cancelled", 5)])),
        (
            rules.CANCELLED,
            lambda case, *_: case.asked.insert(1, Asked("cancel", OTHER, 0.5, 1, 200, {"result": {}})),
        ),
        (rules.ONE_OUTCOME, lambda case, *_: case.asked.append(failed(7))),
        (rules.ONE_OUTCOME, lambda case, *_: case.asked.append(get("working", 7))),
        (rules.RUNS_ONCE, lambda _, facts, __: facts.append(facts[0])),
        (rules.ASKED_ONCE, lambda case, *_: case.asked.insert(4, question(4.5))),
        (rules.ASKED_ONCE, lambda case, *_: case.asked.insert(3, question(3.5, "1.0.q0"))),
        (rules.ASKED_ONCE, lambda case, *_: case.asked.insert(3, question(3.5, message="another"))),
        (rules.NOT_LOST, lambda case, *_: case.asked.__setitem__(3, update(4, "b"))),
    ],
)
def test_each_rule_sees_what_breaks_it(rule: str, change: Callable[..., Any]) -> None:
    found = broken(change)
    assert any(fault.startswith(rule) for fault in found), found
