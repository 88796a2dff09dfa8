"""Makes the checks one after the other, and says what came of them."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import json
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tailrope.probe import _live, _short
from tailrope.probe._facts import Facts, NotChecked, Options, Outcome, Unusable
from tailrope.probe._http import NoAnswer

WORDS: dict[str, Any] = json.loads(Path(__file__).with_name("probe.json").read_text())
CHECKS: list[dict[str, str]] = WORDS["checks"]
OUTCOMES = ("ok", "warn", "fault", "skipped")
# It waits longest and disturbs nothing, so it runs beside the others.
BESIDE = "keep-alive"

Check = Callable[[Facts], Awaitable[Outcome]]


@dataclass
class Finding:
    """What came of one check."""

    name: str
    title: str
    requirement: str
    outcome: str
    reason: str
    evidence: list[str]


@dataclass
class Report:
    """What came of all. `exit` is the exit status."""

    url: str
    server: dict[str, str] = field(default_factory=dict)
    revision: str | None = None
    checks: list[Finding] = field(default_factory=list)
    sessions: int = 0
    calls: int = 0

    @property
    def counts(self) -> dict[str, int]:
        counted = Counter(finding.outcome for finding in self.checks)
        return {outcome: counted[outcome] for outcome in OUTCOMES}

    @property
    def exit(self) -> int:
        return 1 if self.counts["fault"] else 0

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "counts": self.counts, "exit": self.exit}

    def as_text(self) -> str:
        about = " ".join(self.server.values())
        lines = [f"{self.url}: {', '.join(word for word in (about, self.revision) if word)}", ""]
        for finding in self.checks:
            lines.append(f"{finding.outcome:<8} {finding.name:<20} {finding.reason}")
            if finding.outcome in ("fault", "warn"):
                told = [f"{finding.title}: {finding.requirement}", *finding.evidence]
                lines += [f"{'':<8} {'':<20} {line}" for line in told]
        counted = ", ".join(f"{number} {outcome}" for outcome, number in self.counts.items())
        return "\n".join([*lines, "", f"{counted}; {self.sessions} sessions, {self.calls} calls of a tool"])


def find(name: str) -> Check:
    function = name.replace("-", "_")
    found: Check = getattr(_short, function, None) or getattr(_live, function)
    return found


async def made(facts: Facts, check: dict[str, str]) -> Finding:
    """One check: it ends in an outcome, whatever the server does."""
    facts.evidence = []
    try:
        outcome = await find(check["name"])(facts)
        kind, reason = outcome.kind, outcome.reason
    except Outcome as found:
        kind, reason = found.kind, found.reason
    except NotChecked as why:
        kind, reason = "skipped", str(why)
    except NoAnswer as why:
        kind, reason = "fault", str(why)
    return Finding(**check, outcome=kind, reason=reason, evidence=[say() for say in facts.evidence])


async def probe(options: Options) -> Report:
    """Check a server. Raises `Unusable` where there is none."""
    facts = Facts(options)
    report = Report(plain(options.url))
    beside: asyncio.Task[Finding] | None = None
    try:
        try:
            session = await facts.opening()
            report.server, report.revision = facts.server, session.revision
        except NoAnswer as fault:
            raise Unusable(f"not reachable: {fault}") from fault
        except NotChecked:
            # The check says so.
            pass
        wanted = [check for check in CHECKS if is_wanted(check["name"], options)]
        for check in wanted:
            if check["name"] == BESIDE:
                beside = asyncio.create_task(made(copy.copy(facts), check))
        for check in wanted:
            if check["name"] == BESIDE and beside is not None:
                report.checks.append(await beside)
            else:
                report.checks.append(await made(facts, check))
        report.sessions = sum(
            1 for session in facts.sessions if session.revision is not None and session.name != "unknown"
        )
        report.calls = facts.calls
        return report
    finally:
        if beside is not None:
            beside.cancel()
        await leave(facts)


async def leave(facts: Facts) -> None:
    """End what was opened, as far as the server lets us."""
    for session in facts.sessions:
        session.cut()
        if session.id is not None and session.name != "unknown":
            with contextlib.suppress(NoAnswer):
                (await session.delete()).cut()


def is_wanted(name: str, options: Options) -> bool:
    return (not options.only or name in options.only) and name not in options.skip


def plain(url: str) -> str:
    """The address without what may be secret in it."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()
