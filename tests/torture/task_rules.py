"""What has to hold of a call that may become a task, whatever befalls its processes: `judge`, over all that its client
was answered and all that its handler did. Each rule has a name."""

from __future__ import annotations

import json
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

ANSWERED = "answered: a request about a task is answered by a process that lives, and not with an error"
ENDS = "ends: every task has an end"
EXACT = "exact: a completed task has exactly its result"
REASON = "reason: a task fails where its process was lost, and says so"
IN_TIME = "in time: it fails soon after its process was lost"
CANCELLED = "cancelled: a task is cancelled where its client asked for that, and is over once that is acknowledged"
ONE_OUTCOME = "one outcome: an end never changes, and every process tells the same"
RUNS_ONCE = "runs once: each round of a call runs once"
ASKED_ONCE = "asked once: a question has one key, which is gone once its answer is acknowledged"
NOT_LOST = "not lost: the handler gets the answer that was acknowledged"
RULES = (ANSWERED, ENDS, EXACT, REASON, IN_TIME, CANCELLED, ONE_OUTCOME, RUNS_ONCE, ASKED_ONCE, NOT_LOST)

TERMINAL = ("completed", "failed", "cancelled")
# How long after its owner may be taken for gone a task has its end.
LATE_S = 2.0


@dataclass
class Asked:
    """One request of the client, and what it was answered."""

    # call, get, update or cancel
    what: str
    process: int
    began: float
    ended: float = 0.0
    status: int | None = None
    answer: Any = None
    # Of an update: key by key.
    responses: dict[str, str] = field(default_factory=dict)
    fault: str = ""

    @property
    def task(self) -> dict[str, Any]:
        """How the task stands, by an answer to `get`."""
        told = self.answer.get("result") if isinstance(self.answer, dict) else None
        return told if self.what == "get" and isinstance(told, dict) else {}

    @property
    def is_taken(self) -> bool:
        return self.status == 200 and isinstance(self.answer, dict) and "result" in self.answer


@dataclass
class Fates:
    """What befell the processes."""

    # When a process was killed, or asked to end.
    ends: dict[int, float] = field(default_factory=dict)
    # Processes that others may have taken for gone, or that ended.
    lost: set[int] = field(default_factory=set)
    # When a process was killed or had begun, when a pause began and ended, and when an outage or a stall of this
    # machine was over, by the clock of the servers.
    moments: list[float] = field(default_factory=list)

    def excuses(self, asked: Asked) -> bool:
        return self.ends.get(asked.process, float("inf")) <= asked.ended

    def befell(self) -> None:
        self.moments.append(time.time())

    def last_before(self, moment: float) -> float:
        return max((each for each in self.moments if each <= moment), default=0.0)


@dataclass
class Case:
    """One call."""

    name: str
    plan: dict[str, Any]
    asked: list[Asked] = field(default_factory=list)
    task: str | None = None
    # What the call was answered, where that was no task.
    direct: str | None = None
    # Its first request was not answered: nobody knows its task.
    is_given_up: bool = False
    # The answers that its client gave before the call was a task.
    before: list[str] = field(default_factory=list)

    @property
    def ends(self) -> list[Asked]:
        return [asked for asked in self.asked if asked.task.get("status") in TERMINAL]


def outcome_of(task: dict[str, Any]) -> str:
    """The words of a task's end, which no process may tell otherwise."""
    words = {key: task.get(key) for key in ("status", "result", "error", "statusMessage", "createdAt", "lastUpdatedAt")}
    return json.dumps(words, sort_keys=True)


def text_of(result: Any) -> str:
    return str(result["content"][0]["text"]) if result.get("content") else json.dumps(result)


def judge(case: Case, facts: list[dict[str, Any]], fates: Fates, owner_lost_s: float) -> list[str]:
    """What was broken, with the name of the rule."""
    found = [*_executions(facts)]
    if case.task is None:
        if case.direct is not None:
            found += _direct(case, facts)
        return found
    found += _answers(case, fates)
    found += _questions(case)
    if not case.ends:
        return [*found, f"{ENDS}; last told: {_last(case)}"]
    first = min(case.ends, key=lambda asked: asked.ended)
    found += _outcomes(case, first)
    ran = {fact["process"] for fact in facts if fact["fact"] == "begin"}
    task = first.task
    if task["status"] == "completed":
        found += _completed(case, task, facts)
    elif task["status"] == "failed":
        found += _failed(task, ran, fates, owner_lost_s)
    elif not any(asked.what == "cancel" for asked in case.asked):
        found.append(f"{CANCELLED}; nobody cancelled it")
    found += _cancellations(case)
    return found


def _last(case: Case) -> str:
    return json.dumps(next((asked.task for asked in reversed(case.asked) if asked.task), None))[:300]


def _executions(facts: list[dict[str, Any]]) -> Iterator[str]:
    rounds = Counter(fact["round"] for fact in facts if fact["fact"] == "begin")
    for number, count in sorted(rounds.items()):
        if count > 1:
            yield f"{RUNS_ONCE}; round {number} ran {count} times"


def _direct(case: Case, facts: list[dict[str, Any]]) -> Iterator[str]:
    expected = " ".join([case.plan["token"], *case.before])
    if case.direct != expected:
        yield f"{EXACT}; answered {case.direct!r}, not {expected!r}"
    if sum(fact["fact"] == "end" for fact in facts) != 1:
        yield f"{RUNS_ONCE}; it has a result, and its handler did not end once"


def _answers(case: Case, fates: Fates) -> Iterator[str]:
    for asked in case.asked:
        if asked.what == "call" or asked.is_taken or fates.excuses(asked):
            continue
        words = asked.fault or json.dumps(asked.answer)[:200]
        yield f"{ANSWERED}; {asked.what} after {asked.ended - asked.began:.1f} s: {asked.status} {words}"


def _questions(case: Case) -> Iterator[str]:
    words: dict[str, set[str]] = defaultdict(set)
    keys: dict[str, set[str]] = defaultdict(set)
    answered: dict[str, float] = {}
    for asked in case.asked:
        if asked.what == "update" and asked.is_taken:
            for key in asked.responses:
                answered[key] = min(answered.get(key, float("inf")), asked.ended)
    for asked in case.asked:
        for key, question in asked.task.get("inputRequests", {}).items():
            message = question["params"]["message"]
            words[key].add(message)
            keys[message].add(key)
            if answered.get(key, float("inf")) <= asked.began:
                yield f"{ASKED_ONCE}; {key} is listed {asked.began - answered[key]:.3f} s later by {asked.process}"
    for name, of in ((name, of) for names in (words, keys) for name, of in names.items()):
        if len(of) > 1:
            yield f"{ASKED_ONCE}; {name} is {sorted(of)}"


def _outcomes(case: Case, first: Asked) -> Iterator[str]:
    told = {outcome_of(asked.task): asked for asked in case.ends}
    if len(told) > 1:
        yield f"{ONE_OUTCOME}; {sorted(told)}"
    for asked in case.asked:
        status = asked.task.get("status")
        if status is not None and status not in TERMINAL and asked.began >= first.ended:
            yield f"{ONE_OUTCOME}; {status} at {asked.process} {asked.began - first.ended:.3f} s after its end"


def _given(case: Case) -> dict[str, set[str]]:
    """The answers that may be those of a question, by its words: what is not acknowledged may be taken all the same."""
    messages = {key: question["params"]["message"] for asked in case.asked for key, question in _listed(asked)}
    given: dict[str, set[str]] = defaultdict(set)
    for asked in case.asked:
        for key, name in asked.responses.items():
            given[messages[key]].add(name)
    return given


def _listed(asked: Asked) -> Iterable[tuple[str, Any]]:
    return asked.task.get("inputRequests", {}).items()


def _expected(plan: dict[str, Any], skipped: int) -> list[str]:
    """The words of its questions, in the order of the answers in its result, without those before it was a task."""
    token = plan["token"]
    rounds = [f"{token}/{number}/{at}" for number in range(plan.get("rounds", 0)) for at in range(plan.get("keys", 1))]
    return [*rounds, *(f"{token}/ask/{at}" for at in range(plan.get("asks", 0)))][skipped:]


def _completed(case: Case, task: dict[str, Any], facts: list[dict[str, Any]]) -> Iterator[str]:
    text = text_of(task["result"])
    token, *answers = text.split(" ")
    questions, given = _expected(case.plan, len(case.before)), _given(case)
    told = answers[len(case.before) :]
    if (token, answers[: len(case.before)], len(told)) != (case.plan["token"], case.before, len(questions)):
        yield f"{EXACT}; it is {text!r}"
    else:
        for question, name in zip(questions, told, strict=True):
            if name not in given[question]:
                yield f"{NOT_LOST}; {question} has {name!r}, of {sorted(given[question])}"
    if sum(fact["fact"] == "end" for fact in facts) != 1:
        yield f"{EXACT}; its handler did not end once"
    ran = sorted(fact["round"] for fact in facts if fact["fact"] == "begin")
    if set(ran) != set(range(case.plan.get("rounds", 0) + 1)):
        yield f"{RUNS_ONCE}; its rounds were {ran}"


def _failed(task: dict[str, Any], ran: set[int], fates: Fates, owner_lost_s: float) -> Iterator[str]:
    error = task.get("error") or {}
    if error.get("code") != -32603 or not error.get("message") or not task.get("statusMessage"):
        yield f"{REASON}; {json.dumps(task)[:400]}"
    if not ran & fates.lost:
        yield f"{REASON}; its processes {sorted(ran)} are well: {json.dumps(error)}"
        return
    failed_at = datetime.fromisoformat(task["lastUpdatedAt"]).timestamp()
    late_s = failed_at - fates.last_before(failed_at)
    if late_s > owner_lost_s + LATE_S:
        yield f"{IN_TIME}; {late_s:.1f} s"


def _cancellations(case: Case) -> Iterator[str]:
    done = min((asked.ended for asked in case.asked if asked.what == "cancel" and asked.is_taken), default=None)
    if done is None:
        return
    for asked in case.asked:
        status = asked.task.get("status")
        if status is not None and status not in TERMINAL and asked.began >= done:
            yield f"{CANCELLED}; {status} at {asked.process} {asked.began - done:.3f} s after it was acknowledged"
