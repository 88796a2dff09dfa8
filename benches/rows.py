"""What is measured: the rows of the tables, what each should reach, and how values are written. Runs nothing."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Any

# The first flavor is the one that is measured by default, and the one that the bars hold for.
FLAVORS = {"python": ["mcp2", "mcp1", "fastmcp"], "node": ["v2", "v1"], "rust": ["rmcp3"]}
# The SDK's own transport, Tailrope behind the host's HTTP server, and Tailrope's own listener before the host.
SIDES = ("stock", "tailrope", "front")
BESIDE_STOCK = ("stock", "tailrope")
FRONT_BESIDE_STOCK = ("stock", "front")
GROUPS = ["echo", "emit", "replay", "poll", "tasks", "memory", "events", "herd"]
# Measured when they are asked for alone: they need the servers of the stores.
STORES = "stores"
RELAY = "relay"
# Memory is measured in a process of its own, and ten thousand clients at once; the rates share one.
ALONE = {"memory", "events", "herd"}
# What answers 2026-07-28: clients of it take tasks on both sides, where only ours makes them.
MODERN = {"mcp2", "fastmcp", "v2"}


@dataclass(frozen=True)
class Row:
    # For --only.
    group: str
    title: str
    # What the load client is asked for (with sessions), and the field of its answer.
    measure: str
    field: str
    unit: str
    # For readers who have not seen `benches/serve`: in the documents and in the plots. Rows without are details.
    plain: str = ""
    # Whether more is better.
    is_rate: bool = False


# Polls wait 10 ms in each cycle: 32 sessions keep the server busy meanwhile.
ROWS = [
    Row("echo", "echo, 1 session", "echo:1", "per_second", "calls/s", "calls, 1 session", True),
    Row("echo", "  p50", "echo:1", "p50_ms", "ms"),
    Row("echo", "  p99", "echo:1", "p99_ms", "ms"),
    Row("echo", "  CPU of the server", "echo:1", "cpu_us", "us/call"),
    Row("echo", "echo, 16 sessions", "echo:16", "per_second", "calls/s", "calls, 16 sessions", True),
    Row("echo", "  p50", "echo:16", "p50_ms", "ms"),
    Row("echo", "  p99", "echo:16", "p99_ms", "ms"),
    Row("echo", "  CPU of the server", "echo:16", "cpu_us", "us/call", "CPU of a call, 16 sessions"),
    Row("echo", "echo, 64 sessions", "echo:64", "per_second", "calls/s"),
    Row("emit", "emit, 10,000 x 100 B", "emit", "per_second", "events/s", "progress events of one call", True),
    Row("emit", "  CPU of the server", "emit", "cpu_us", "us/event", "CPU of a progress event"),
    Row("replay", "replay of the same", "replay", "per_second", "events/s", "replay of 10,000 events", True),
    Row("replay", "  CPU of the server", "replay", "cpu_us", "us/event", "CPU of a replayed event"),
    Row("poll", "poll, 32 sessions", "poll:32", "per_second", "cycles/s", "call, close, resume; 32 sessions", True),
    Row("poll", "  p50", "poll:32", "p50_ms", "ms"),
    Row("poll", "  CPU of the server", "poll:32", "cpu_us", "us/cycle", "CPU of call, close, resume"),
    Row(
        "tasks",
        "quick call, 2026-07-28",
        "quick:16",
        "cpu_us",
        "us/call",
        "CPU of a call of 2026-07-28 that is no task",
    ),
    Row("tasks", "  rate", "quick:16", "per_second", "calls/s", is_rate=True),
    Row("tasks", "  p50", "quick:16", "p50_ms", "ms"),
    Row(
        "tasks",
        "poll, by tools/list",
        "polls:16",
        "cpu_us",
        "us/poll",
        "CPU of a poll of a task, by that of `tools/list`",
    ),
    Row("tasks", "  rate", "polls:16", "per_second", "polls/s", is_rate=True),
    Row("tasks", "  p50", "polls:16", "p50_ms", "ms"),
    Row("memory", "session + idle GET", "memory", "both_bytes", "bytes", "memory of a session with an idle GET"),
    Row("memory", "  session", "memory", "session_bytes", "bytes"),
    Row("memory", "  idle GET", "memory", "get_bytes", "bytes"),
    Row("events", "stored event of 100 B", "event_memory", "event_bytes", "bytes", "memory of a stored event of 100 B"),
]
# How many times stock's value a row takes; of what is no rate, at most.
BARS: dict[str, dict[str, float]] = {
    "python": {
        "echo, 16 sessions": 2.2,
        "emit, 10,000 x 100 B": 5,
        "replay of the same": 40,
        "poll, 32 sessions": 2.5,
        "quick call, 2026-07-28": 1.05,
        "poll, by tools/list": 1,
        "session + idle GET": 0.6,
    },
    "node": {
        "echo, 1 session": 1.2,
        "echo, 16 sessions": 1.2,
        "emit, 10,000 x 100 B": 4,
        "replay of the same": 4,
        "poll, 32 sessions": 1.1,
        "quick call, 2026-07-28": 1.05,
        "poll, by tools/list": 1,
        "session + idle GET": 1.2,
    },
}
# The same of the front.
FRONT_BARS: dict[str, dict[str, float]] = {
    "python": {
        "echo, 1 session": 4,
        "echo, 16 sessions": 5.5,
        "emit, 10,000 x 100 B": 8,
        "poll, 32 sessions": 9,
        "session + idle GET": 0.35,
    },
    "node": {
        "echo, 1 session": 8,
        "echo, 16 sessions": 4.5,
        "emit, 10,000 x 100 B": 7,
        "poll, 32 sessions": 5,
        "session + idle GET": 0.5,
    },
}
# What part of its rate over `memory:` one call with 10,000 events keeps over a durable store, with its first word in
# addresses.
STORE_BARS: dict[str, dict[str, float]] = {
    "python": {"sqlite": 0.4, "redis": 0.35, "postgres": 0.2},
    "node": {"sqlite": 0.2, "redis": 0.175, "postgres": 0.1},
}
# How many milliseconds longer a call may take, at the 99th percentile, when another process relays it to its owner.
RELAY_BARS: dict[str, float] = {"sqlite": 25, "redis": 3, "postgres": 25}


def names(rows: list[Row]) -> dict[Row, str]:
    """The title of each row, for where it stands alone: a detail is named after the row that it belongs to."""
    found, whole = {}, ""
    for row in rows:
        if row.title.startswith(" "):
            found[row] = f"{whole}: {row.title.strip()}"
        else:
            found[row] = whole = row.title
    return found


# Per side and measure, what the load client said in each turn.
Results = dict[str, dict[str, list[dict[str, Any]]]]


def value(results: Results, side: str, measure: str, field: str) -> float | None:
    """The median of all turns."""
    found = [run.get(field) for run in results.get(side, {}).get(measure, [])]
    numbers = [number for number in found if number is not None]
    return statistics.median(numbers) if numbers else None


def ratios(results: Results, row: Row, sides: tuple[str, str] = BESIDE_STOCK) -> list[float]:
    """Tailrope's value by stock's, or one side's by another's, turn by turn: they run next to each other, so that what
    else the machine does weighs on both.
    """
    stock, ours = ([run.get(row.field) for run in results.get(side, {}).get(row.measure, [])] for side in sides)
    return [mine / theirs for theirs, mine in zip(stock, ours, strict=False) if theirs and mine is not None]


def ratio(results: Results, row: Row, sides: tuple[str, str] = BESIDE_STOCK) -> float | None:
    found = ratios(results, row, sides)
    return statistics.median(found) if found else None


def number(value: float | None, digits: int | None = None) -> str:
    """As the tables show it: three digits that count, or whole numbers."""
    if value is None:
        return "-"
    if digits is None:
        digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2
    return f"{value:,.{digits}f}"


def shown(amount: float | None, unit: str) -> str:
    """For readers: three digits that count, with the unit."""
    if amount is None:
        return ""
    rounded = float(f"{amount:.3g}")
    kind, _, of = unit.partition("/")
    if kind == "us":
        return f"{number(rounded)} µs"
    if unit == "ms":
        return f"{number(rounded)} ms"
    if unit == "bytes":
        return f"{number(rounded / 1_000)} kB" if abs(rounded) >= 10_000 else f"{number(rounded)} B"
    assert of == "s", unit
    return f"{number(rounded)}/s"


def times(amount: float | None) -> str:
    if amount is None:
        return ""
    return f"{number(amount, 3 if amount < 0.095 else None)}x"
