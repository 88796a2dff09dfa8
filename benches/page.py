"""Writes what a full run has measured: results/latest.md with its plots, and the figures in the documents.

All figures come from one report, the dictionary that `benches/run` makes and that `--json` saves. The documents get
theirs from here alone, so that they cannot say anything else than latest.md.
"""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from typing import Any

from breakdown import Breakdown, breakdowns
from plot import plot
from rows import (
    BESIDE_STOCK,
    FRONT_BESIDE_STOCK,
    ROWS,
    SIDES,
    Results,
    Row,
    names,
    number,
    ratio,
    ratios,
    shown,
    times,
    value,
)

RESULTS = Path(__file__).resolve().parent / "results"
ROOT = RESULTS.parent.parent
# Where figures are: a few of them, and those that need no explanation.
README, PAGE = "README.md", "docs/evidence/benchmarks.md"
BEGIN, END = "<!-- figures of `make bench`: benches/page.py writes them -->", "<!-- end of the figures -->"
BLOCK = re.compile(re.escape(BEGIN) + ".*?" + re.escape(END), re.DOTALL)
LANGUAGES = {"python": "Python", "node": "Node"}
WIDTH = 120
FRONT = "The front is what `tailrope.serve()` and `serve()` start: Tailrope's own listener, with the SDK behind it."
# A measurement that has the machine for itself ends with a load average of about 2; before it, packages are built.
BUSY = 3.0
# What the title of a language names of its versions.
NAMED = (
    "Python",
    "Node",
    "mcp",
    "fastmcp",
    "uvicorn",
    "@modelcontextprotocol/server",
    "@modelcontextprotocol/sdk",
    "zod",
)
CALLED = {"@modelcontextprotocol/server": "TypeScript SDK", "@modelcontextprotocol/sdk": "TypeScript SDK"}


def without_place() -> list[str]:
    """The documents that have no place for figures."""
    return [name for name in (README, PAGE) if BLOCK.search((ROOT / name).read_text()) is None]


def write(report: dict[str, Any], folder: Path = RESULTS, root: Path = ROOT) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for language, part in report["languages"].items():
        (folder / f"{language}.svg").write_text(plot(part["results"], heading(language, part)))
    (folder / "latest.md").write_text(latest(report))
    for name, made in ((README, summary(report)), (PAGE, figures(report))):
        block = f"{BEGIN}\n{made}\n{END}"
        (root / name).write_text(BLOCK.sub(lambda _, block=block: block, (root / name).read_text(), count=1))


def heading(language: str, part: dict[str, Any]) -> str:
    versions = part["versions"]
    named = [f"{CALLED.get(name, name)} {versions[name]}" for name in NAMED if name in versions]
    return ", ".join(named) or LANGUAGES[language]


def cells(results: Results, row: Row) -> str:
    stock, ours, front = (shown(value(results, side, row.measure, row.field), row.unit) for side in SIDES)
    return (
        f"{stock} | {ours} | {times(ratio(results, row))} | {front} | {times(ratio(results, row, FRONT_BESIDE_STOCK))}"
    )


def table(results: Results) -> list[str]:
    """Every row, with how far its rounds lie apart."""
    lines = ["| | stock | Tailrope | ratio | its front | ratio | of the rounds |", f"|---{'|---' * 6}|"]
    for row, title in names(ROWS).items():
        both = [ratios(results, row, sides) for sides in (BESIDE_STOCK, FRONT_BESIDE_STOCK)]
        spread = "; ".join(f"{times(min(found))} to {times(max(found))}" for found in both if found)
        lines.append(f"| {title} | {cells(results, row)} | {spread} |")
    return lines


def parts_table(part: Breakdown) -> list[str]:
    lines = ["", f"| CPU of {part.title}, µs | stock | Tailrope |", "|---|---|---|"]
    for name, stock, ours in part.rows():
        lines.append(f"| {name} | {number(stock, 1) if stock is not None else ''} | {number(ours, 1)} |")
    return lines


def latest(report: dict[str, Any]) -> str:
    before, after = report["load"]
    lines = [
        "# The last full measurement",
        "",
        "Written by `make bench`, as are its plots and the figures in README.md and docs/evidence/benchmarks.md;",
        "`benches/run --help` has the options.",
        "",
        "| | |",
        "|---|---|",
        f"| Date | {report['date']}, {report['seconds'] / 60:.0f} minutes |",
        f"| Command | `{report['command']}` |",
        *(f"| {name} | {text} |" for name, text in report["machine"].items()),
        f"| Load average | {before:.1f} when it began, {after:.1f} when it ended; its own work makes about 2 |",
        f"| Tailrope | {report['tailrope']} |",
    ]
    for language, part in report["languages"].items():
        versions = ", ".join(f"{name} {version}" for name, version in part["versions"].items())
        lines.append(f"| Versions, {LANGUAGES[language]} | {versions} |")
    lines += [
        "",
        FRONT,
        f"Values are medians of {report['rounds']} rounds. A ratio is Tailrope's value by stock's within a round,",
        "and the median of the rounds. The sides of a round run next to each other: what else the",
        "machine does weighs on both, so that ratios are what to look at, and CPU more than rates. Above 1 is better",
        "for what is counted by the second, below 1 for times, CPU and memory. CPU is the processor time of the",
        "server's process, divided by the calls or events. The server has one process, and the load client takes most",
        "of a second core. With one session the client polls without sleeping, so that waking an idle processor is",
        f"not counted.{busy(report)}",
    ]
    for language, part in report["languages"].items():
        lines += ["", f"## {heading(language, part)}", "", f"![Bars of the rows below]({language}.svg)", ""]
        lines += table(part["results"])
        for each in breakdowns(language, part["results"]):
            lines += parts_table(each)
    return "\n".join(lines) + "\n"


def busy(report: dict[str, Any]) -> str:
    """A warning, when something else ran beside the measurement."""
    after = report["load"][1]
    if after < BUSY:
        return ""
    said = f" The machine was busy with other work (load average {after:.0f}): rates are too low, and of the ratios"
    return f"{said} only those of CPU and memory are to be relied on."


def summary(report: dict[str, Any]) -> str:
    """The block of README: rates and memory, as ratios."""
    languages = report["languages"]
    titles = [heading(language, part) for language, part in languages.items()]
    said = f"Tailrope by the SDK's own transport, measured on {report['date']} by `{report['command']}` with"
    said += f" {' and '.join(titles)}. Above 1 is better for rates, below 1 for memory. {FRONT}{busy(report)}"
    names = [LANGUAGES[language] for language in languages]
    heads = [head for name in names for head in (name, f"{name}, front")]
    lines = [*textwrap.wrap(said, WIDTH), "", f"| | {' | '.join(heads)} |", f"|---|{'---|' * len(heads)}"]
    for row in ROWS:
        if row.plain and (row.is_rate or row.unit == "bytes"):
            pairs = (BESIDE_STOCK, FRONT_BESIDE_STOCK)
            found = [times(ratio(part["results"], row, pair)) for part in languages.values() for pair in pairs]
            lines.append(f"| {row.plain} | {' | '.join(found)} |")
    return "\n".join(lines)


def figures(report: dict[str, Any]) -> str:
    """The block of the page: the rows that need no explanation."""
    made = f"on {report['date']} by `{report['command']}`, with Tailrope {report['tailrope']}"
    machine = "; ".join(report["machine"].values())
    said = f"Measured {made}; medians of {report['rounds']} rounds. {machine}.{busy(report)}"
    lines = textwrap.wrap(said, WIDTH)
    for language, part in report["languages"].items():
        results = part["results"]
        lines += [
            "",
            f"{heading(language, part)}:",
            "",
            "| | stock | Tailrope | ratio | its front | ratio |",
            f"|---{'|---' * 5}|",
        ]
        lines += [f"| {row.plain} | {cells(results, row)} |" for row in ROWS if row.plain]
        for each in breakdowns(language, results)[:1]:
            lines += ["", *textwrap.wrap(sentence(each), WIDTH)]
    return "\n".join(lines)


def sentence(call: Breakdown) -> str:
    http, sdk = call.floors[0], call.floors[1]
    server = http[0].partition(",")[0]
    ours, stock = (number(call.totals[side], 0) for side in ("tailrope", "stock"))
    said = f"Of the {ours} µs of processor time that a call takes, {number(http[1], 0)} are {server}'s"
    said += f" and {number(sdk[1], 0)} the SDK's and the tool's"
    if call.engine is not None:
        said += f"; the engine itself takes {number(call.engine, 0)}"
    return f"{said}. On the stock transport it takes {stock} µs."
