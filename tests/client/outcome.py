"""What a client made of a scenario, against what is wanted of it: a list of faults, each a word and the details.

`want` of a scenario:

    calls     by stream, what its call shows: {"result": TEXT}, {"failure": TEXT}, {"error": PATTERN},
              {"cancelled": true}, {"waiting": true}
    progress  by stream, the numbers in order; {"to": N} for 1 to N
    logs, asked  in order
    resumes   by stream, the least and the most GETs after its first answer
    cursors   by stream, the Last-Event-ID of each of them
    most_gets  of all kinds
    cancels   how many notifications/cancelled
    may_break  the SDKs for Python end with an error of their own where a request gets no answer at all

Of every scenario is wanted that no request is sent twice, that no GET is earlier than the `retry` (or Retry-After) that
its stream was told after the end of its last connection, that no GET has a cursor that nobody gave out, and that a
server without a standalone stream is not asked for one for ever.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

# The words of the generated table, in the order in which they matter.
WORDS = {
    "broken": "the client itself breaks",
    "hangs": "the call waits for ever",
    "fails": "the call fails",
    "other": "the call shows something else",
    "lost": "notifications or questions are lost",
    "twice": "notifications or questions are shown twice, or in another order",
    "early": "comes back before the time that it was told",
    "polls": "asks more often than it has to",
    "cursor": "comes back with another cursor than the last one",
    "stays away": "does not come back",
    "repeats": "sends the request itself again",
    "holds up": "closing the client takes long",
    "no cancel": "the server is not told that the call was cancelled",
}
WANTED = {"calls", "progress", "logs", "asked", "resumes", "cursors", "most_gets", "cancels", "may_break"}
# Timers of Node may be early by one, and both clocks are rounded.
CLOCK_MS = 2
# Far below the `retry` of an hour that a client could wait for, and far above what a busy machine takes.
CLOSED_MS = 60_000
# The Python clients ask twice for a standalone stream, whatever the answer.
STRAYS = 2

Fault = tuple[str, str]
Data = dict[str, Any]


def judge(scenario: Data, report: Data, record: list[Data]) -> list[Fault]:
    want = scenario["want"]
    unknown = set(want) - WANTED
    assert not unknown, f"{scenario['name']}: {unknown}"
    if "fault" in report:
        return asked_for(want, record) if want.get("may_break") else [("broken", report["fault"])]
    faults = [*shown(want, report), *asked_for(want, record)]
    if report["closed_ms"] > CLOSED_MS:
        faults.append(("holds up", f"closed after {report['closed_ms']} ms"))
    return sorted(faults, key=lambda fault: list(WORDS).index(fault[0]))


def shown(want: Data, report: Data) -> list[Fault]:
    """What its user sees."""
    faults: list[Fault] = []
    for name, wanted in want.get("calls", {}).items():
        ((kind, text),) = wanted.items()
        found = report["calls"].get(name, {"waiting": True})
        if kind in found and (re.search(text, found[kind]) if kind == "error" else found[kind] == text):
            continue
        word = "hangs" if "waiting" in found else "fails" if "error" in found and kind != "error" else "other"
        faults.append((word, f"{name}: {found}, not {wanted}"))
    for name, numbers in want.get("progress", {}).items():
        expected = list(range(1, numbers["to"] + 1)) if isinstance(numbers, dict) else numbers
        faults += in_order(f"progress of {name}", expected, report["progress"].get(name, []))
    for key in ("logs", "asked"):
        faults += in_order(key, want.get(key, []), report[key])
    return faults


def in_order(what: str, expected: list[Any], found: list[Any]) -> list[Fault]:
    if found == expected:
        return []
    word = "lost" if Counter(expected) - Counter(found) else "twice"
    return [(word, f"{what}: {found}, not {expected}")]


def asked_for(want: Data, record: list[Data]) -> list[Fault]:
    """What its server sees."""
    faults: list[Fault] = []
    gets = [entry for entry in record if entry["method"] == "GET"]
    resumes: dict[str, list[Data]] = {}
    for entry in gets:
        if entry["stream"] is not None and entry["number"] > 0:
            resumes.setdefault(entry["stream"], []).append(entry)
    for name, (least, most) in want.get("resumes", {}).items():
        count = len(resumes.get(name, []))
        if not least <= count <= most:
            word = "polls" if count > most else "stays away"
            faults.append((word, f"{name}: {count} resumes, not {least} to {most}"))
    for name, cursors in want.get("cursors", {}).items():
        found = [entry["cursor"] for entry in resumes.get(name, [])]
        if found != cursors[: len(found)]:
            faults.append(("cursor", f"{name}: {found}, not {cursors}"))
    for name, entries in resumes.items():
        faults += [("early", early) for entry in entries if (early := too_early(name, entry))]
    unknown = [entry["cursor"] for entry in gets if entry["stream"] is None and entry["cursor"] is not None]
    if unknown:
        faults.append(("cursor", f"nobody gave out {unknown}"))
    strays = sum(entry["stream"] is None and entry["cursor"] is None for entry in gets)
    if strays > STRAYS:
        faults.append(("polls", f"asked {strays} times for a standalone stream that there is not"))
    if len(gets) > want.get("most_gets", len(gets)):
        faults.append(("polls", f"{len(gets)} GETs, not {want['most_gets']}"))
    calls = Counter(entry["params"]["arguments"]["stream"] for entry in record if entry["rpc"] == "tools/call")
    faults += [("repeats", f"{name}: {count} POSTs") for name, count in calls.items() if count > 1]
    cancels = sum(entry["rpc"] == "notifications/cancelled" for entry in record)
    if "cancels" in want and cancels != want["cancels"]:
        faults.append(("no cancel", f"{cancels} cancellations, not {want['cancels']}"))
    return faults


def too_early(name: str, entry: Data) -> str | None:
    if entry["told_ms"] is None or entry["ended_ms"] is None:
        return None
    away_ms = entry["at_ms"] - entry["ended_ms"]
    if away_ms >= entry["told_ms"] - CLOCK_MS:
        return None
    return f"{name}: resume {entry['number']} came after {away_ms:.0f} ms, not {entry['told_ms']}"


def words(faults: list[Fault]) -> str:
    """A cell of the table."""
    return ", ".join(dict.fromkeys(word for word, _ in faults)) or "ok"
