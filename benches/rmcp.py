"""The Rust servers: what is measured of them, what each should reach, and results/rust.md.

There are five of them (benches/rust): rmcp's own service with an event store in memory, which is `stock` here; the same
service with our session manager; our service; the same with tools that have no SDK; and hyper with nothing behind it,
which is what HTTP takes at least.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from rows import ROWS as OF_ALL
from rows import Results, Row, names, number, ratio, ratios, shown, times, value

OUT = Path(__file__).resolve().parent / "results" / "rust.md"
STOCK, BARE = "stock", "bare"
OURS = ("tower", "json", "rmcp")
SIDES = (STOCK, "rmcp", "tower", "json", BARE)
TITLES = {
    STOCK: "rmcp",
    "rmcp": "rmcp, our session manager",
    "tower": "our service",
    "json": "our service, no SDK",
    BARE: "hyper alone",
}
# What is set beside what.
PAIRS = ((STOCK, "rmcp"), (STOCK, "tower"), (BARE, "tower"), (BARE, "json"))


def _row(row: Row) -> Row:
    """Rust servers are measured with more sessions: fewer do not keep a server busy. Polls wait 10 ms in each cycle, so
    32 sessions are at most 3,200 cycles a second, whatever serves them.
    """
    before, now = ("32", "256") if row.group == "poll" else ("16", "32")
    return replace(row, **{name: getattr(row, name).replace(before, now) for name in ("title", "measure", "plain")})


ROWS = [
    *(_row(row) for row in OF_ALL if "64" not in row.measure and row.group != "tasks"),
    Row("herd", "10,000 resumes at once", "herd:10000", "last_ms", "ms"),
    Row("herd", "  p50", "herd:10000", "p50_ms", "ms"),
    Row("herd", "  CPU of the server", "herd:10000", "cpu_us", "us/client"),
]
NAMES = names(ROWS)
# What has no sessions and stores nothing cannot be asked for more. What a plain store of rmcp's replays has no live
# end, so that a herd of its clients would ask again and again.
GROUPS = {
    BARE: {"echo", "emit", "memory"},
    "json": {"echo", "emit"},
    STOCK: {"echo", "emit", "replay", "poll", "memory", "events"},
}
# How many times rmcp's value a row takes; of what is no rate, at most.
BARS = {
    "tower": {
        "echo, 32 sessions": 2.0,
        "emit, 10,000 x 100 B": 3.0,
        "poll, 256 sessions": 1.7,
        "session + idle GET": 0.6,
    },
    "rmcp": {row.title: 1.0 for row in ROWS if row.plain},
}
# What part of the calls that hyper alone answers.
OF_BARE = {side: {"echo, 32 sessions": 0.5} for side in ("tower", "json")}


def is_asked(side: str, row: Row) -> bool:
    return row.group in GROUPS.get(side, {row.group})


def missed(results: Results, side: str, row: Row) -> list[str]:
    """The bars of a row that one of our sides misses, in words."""
    found = []
    bars = ((STOCK, BARS.get(side, {}).get(row.title)), (BARE, OF_BARE.get(side, {}).get(row.title)))
    for beside, bar in bars:
        reached = ratio(results, row, (beside, side)) if bar is not None else None
        if bar is None or reached is None or (reached >= bar if row.is_rate else reached <= bar):
            continue
        found.append(f"{NAMES[row]}, {side}: {number(reached)} of {beside}, not {bar}")
    return found


def table(results: Results, groups: list[str]) -> list[str]:
    """Print all rows; give the bars that were missed."""
    print(
        f"\n{'rust':24}" + "".join(f"{side:>12}" for side in SIDES) + "".join(f"{f'{side}/stock':>14}" for side in OURS)
    )
    wrong = []
    for row in ROWS:
        if row.group not in groups:
            continue
        cells = "".join(f"{number(value(results, side, row.measure, row.field)):>12}" for side in SIDES)
        reached = "".join(f"{times(ratio(results, row, (STOCK, side))) or '-':>14}" for side in OURS)
        misses = [each for side in OURS for each in missed(results, side, row)]
        print(f"{row.title:24}{cells}{reached}  {'MISSED' if misses else ''}".rstrip())
        wrong += misses
    for words in wrong:
        print(f"MISSED {words}")
    return wrong


def _spread(results: Results, row: Row, pair: tuple[str, str]) -> str:
    found = sorted(ratios(results, row, pair))
    if not found:
        return ""
    low, high = found[len(found) // 4], found[-1 - len(found) // 4]
    return f"{times(ratio(results, row, pair))} ({times(low)} to {times(high)})"


def page(report: dict[str, Any], part: dict[str, Any]) -> str:
    """results/rust.md."""
    results: Results = part["results"]
    before, after = report["load"]
    lines = [
        "# Servers in Rust",
        "",
        "Written by `benches/run --language rust`, and by `make bench` with all others.",
        "",
        "| | |",
        "|---|---|",
        f"| Date | {report['date']} |",
        f"| Command | `{report['command']}` |",
        *(f"| {name} | {text} |" for name, text in report["machine"].items()),
        f"| Load average | {before:.1f} when it began, {after:.1f} when it ended; its own work makes about 2 |",
        f"| Tailrope | {report['tailrope']} |",
        f"| Versions | {', '.join(f'{name} {version}' for name, version in part['versions'].items())} |",
        "",
        f"Medians of {report['rounds']} rounds with fresh servers. In a round, the servers take short turns at each",
        "rate, so that a machine that is slower for a while is so for all. All have the same tools and one",
        "thread; the load client takes most of a second core. `rmcp` is the SDK's own service with its own session",
        "manager and an event store in memory; `our session manager` is that service with `Sessions`, `our service` is",
        "`TailropeService` with tools of rmcp, and with `no SDK` its tools take and give JSON. `hyper alone` parses",
        "each request, answers it and stores nothing. A ratio is the median of the turns; in brackets is between which",
        "values the middle half of them lies.",
        "",
        f"| | {' | '.join([*TITLES.values(), *(f'{TITLES[ours]} / {TITLES[beside]}' for beside, ours in PAIRS)])} |",
        "|---|" + "---|" * (len(SIDES) + len(PAIRS)),
    ]
    for row, title in NAMES.items():
        cells = [shown(value(results, side, row.measure, row.field), row.unit) for side in SIDES]
        lines.append(f"| {title} | {' | '.join([*cells, *(_spread(results, row, pair) for pair in PAIRS)])} |")
    wrong = [each for row in ROWS for side in OURS for each in missed(results, side, row)]
    lines += ["", "Below what is aimed at: " + "; ".join(wrong) + "." if wrong else "All that is aimed at is reached."]
    return "\n".join(lines) + "\n"


def write(report: dict[str, Any], part: dict[str, Any]) -> None:
    OUT.write_text(page(report, part))
