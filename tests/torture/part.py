"""A part of the crowd: what it has found, and how it says so."""

from __future__ import annotations

import re
import statistics
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from kit.servers import Server

# Descriptors of a process for all else, and its sessions beside those of the clients.
SPARE = 500
CRASHED = re.compile(r"Traceback|panicked at|^\s+at .+:\d+:\d+\)?$|Unhandled|Uncaught", re.MULTILINE)


@dataclass
class Part:
    """What one part has found."""

    clients: int
    figures: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    def tell(self, figure: str) -> None:
        self.figures.append(figure)

    def count(self, found: Counter[str], where: str) -> None:
        self.faults += [f"{where}: {count} {what}" for what, count in sorted(found.items())]


def options(clients: int, **engine: Any) -> dict[str, Any]:
    return {"engine": {"max_sessions": clients + SPARE, **engine}}


def check_log(part: Part, server: Server) -> None:
    if CRASHED.search(log := server.log()):
        part.faults.append(f"it logs {log[-2000:]}")


def percent(times: list[float], share: int) -> str:
    """Milliseconds below which so many of a hundred are."""
    if len(times) < 2:
        return "?"
    return f"{statistics.quantiles(times, n=100, method='inclusive')[share - 1] * 1e3:.1f} ms"


def spread(times: list[float]) -> str:
    return f"p50 {percent(times, 50)}, p99 {percent(times, 99)}"
