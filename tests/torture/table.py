"""What the program writes in the end: docs/evidence/torture.md, or the same on a terminal."""

from __future__ import annotations

import json
import subprocess
import tomllib
from collections import Counter, defaultdict
from pathlib import Path

from kit.servers import ROOT

from torture.cell import TESTS
from torture.hosts import MIXED, OURS, STOCK, STORES
from torture.matrix import Outcome

OUT = ROOT / "docs" / "evidence" / "torture.md"
COMMAND = 'make torture-faults TORTURE_ARGS="--write"'
KINDS = ("lost", "repeated", "foreign", "hangs")
NAMES = {
    "mcp1": "Tailrope, Python, mcp 1.x",
    "mcp2": "Tailrope, Python, mcp 2.x",
    "node-v1": "Tailrope, Node, TypeScript SDK 1.x",
    "node-v2": "Tailrope, Node, TypeScript SDK 2.x",
    "tower": "Tailrope, Rust, our service",
    "rmcp": "Tailrope, Rust, rmcp 3.x with our session manager",
    MIXED: "Tailrope, two processes of mcp 2.x and one of TypeScript SDK 2.x",
    "stock-mcp1": "stock Python, mcp 1.x",
    "stock-mcp2": "stock Python, mcp 2.x",
    "stock-node-v1": "stock TypeScript SDK 1.x",
    "stock-node-v2": "stock TypeScript SDK 2.x",
    "stock-rmcp": "stock rmcp 3.x",
    "stock-rmcp-cache": "stock rmcp 3.x without an event store",
}
WORDS = {
    "handoff": "readers that drop and resume at random, many through a bad network, while tools emit",
    "tenants": "two tenants with equal request ids; own, foreign, guessed and changed cursors",
    "kills": "servers that are killed between the steps of an event; clients go on at the next process or another one",
    "pauses": "owners that stand still for longer than they may be silent; readers at the other process take over",
    "takeover": "the path of a reader dies without a word, the next one comes within 50 ms, the path is alive again",
    "outages": "a store that stands still for longer than an owner may be silent, amid calls read at both processes",
    "faults": "the network between server and store is cut in the middle of an append, silent, slow, refusing",
    "nodes": "three processes of one store, a random one for each request; a rolling restart, then one of them is "
    "killed, stands still, or is cut off from the store",
}


def totals(outcomes: list[Outcome]) -> Counter[str]:
    sum_: Counter[str] = Counter()
    for outcome in outcomes:
        if outcome.found:
            sum_.update({name: outcome.found["summary"][name] for name in ("streams", "connections", "events")})
            sum_.update(outcome.found["kinds"])
            sum_["others"] += sum(outcome.found["others"].values())
            sum_.update(outcome.found["notes"])
        else:
            sum_["failed"] += 1
    return sum_


def others(outcomes: list[Outcome]) -> str:
    found: Counter[str] = Counter()
    for outcome in outcomes:
        found.update(outcome.found.get("others", {}))
    return ", ".join(f"{name} {count:,}" for name, count in sorted(found.items(), key=lambda each: int(each[0][1:])))


def by_server(outcomes: list[Outcome]) -> list[str]:
    lines = [
        "| | tests | streams | connections | events got | lost | repeated | foreign | hangs | other rules broken |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    grouped: dict[str, list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        grouped[outcome.cell.server].append(outcome)
    for server in (*OURS, MIXED, *STOCK):
        if not (mine := grouped.get(server)):
            continue
        sum_ = totals(mine)
        cells = [f"{sum_[name]:,}" for name in ("streams", "connections", "events")]
        cells += [f"**{sum_[kind]:,}**" if sum_[kind] else "0" for kind in KINDS]
        failed = f", {sum_['failed']} failed" if sum_["failed"] else ""
        lines.append(f"| {NAMES[server]} | {len(mine)}{failed} | {' | '.join(cells)} | {others(mine) or '0'} |")
    return lines


def by_test(outcomes: list[Outcome]) -> list[str]:
    lines = ["| | " + " | ".join(STORES) + " | |", "|---|" + "---|" * len(STORES) + "---|"]
    for test in TESTS:
        cells = []
        for store in STORES:
            mine = [each for each in outcomes if (each.cell.test, each.cell.store) == (test, store)]
            sum_ = totals(mine)
            wrong = sum_["others"] + sum(sum_[kind] for kind in KINDS) + sum_["failed"]
            cells.append(f"{sum_['events']:,} / {wrong}" if mine else "-")
        notes = totals([each for each in outcomes if each.cell.test == test])
        shown = [
            f"{notes[what]:,} {what}"
            for what in ("restarts", "kills", "pauses", "partitions", "takeovers", "probes", "drops", "resumes")
            if notes[what]
        ]
        lines.append(f"| {test} | {' | '.join(cells)} | {', '.join(shown)} |")
    return lines


def versions() -> list[str]:
    """Of what the tables are about."""
    code = """
import importlib.metadata, platform
print(*map(importlib.metadata.version, ("mcp", "uvicorn")), platform.python_version())
"""
    found = []
    for line in ("mcp1", "mcp2"):
        python = ROOT / ".venv" / line / "bin" / "python"
        done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
        mcp, uvicorn, number = done.stdout.split()
        found.append(f"mcp {mcp}, uvicorn {uvicorn}, Python {number}")
    wanted = json.loads((ROOT / "package.json").read_text())["devDependencies"]
    node = subprocess.run(["node", "--version"], capture_output=True, text=True, check=True).stdout.strip()
    sdk, server = (wanted[f"@modelcontextprotocol/{name}"] for name in ("sdk", "server"))
    found.append(f"TypeScript SDK {sdk} and {server}, Node {node}")
    lock = tomllib.loads((ROOT / "Cargo.lock").read_text())
    found.append(f"rmcp {next(each['version'] for each in lock['package'] if each['name'] == 'rmcp')}")
    return found


def page(outcomes: list[Outcome]) -> str:
    ours = [each for each in outcomes if not each.cell.is_stock]
    seeds = sorted({each.found["seed"] for each in outcomes if each.found})
    lines = [
        "# Servers under torture",
        "",
        "`tests/torture` starts server processes, breaks connections, processes and stores under them, and writes down",
        "everything that the servers were asked to send and everything that clients got. `tests/checker` judges these",
        "histories against the invariants of ARCHITECTURE.md. The same tests run on the SDKs' own transports, with the",
        "plain event stores in memory of `tests/servers/python/stores.py`, `tests/servers/node/stores.mjs` and",
        "`tests/servers/rust/src/plain_store.rs`; the Rust SDK also without one, as it keeps the last messages of a",
        "stream by itself.",
        "",
        "```sh",
        COMMAND,
        "```",
        "",
        "The command writes this file; do not edit it. It may be put together from several runs, shorter ones among",
        "them (`--results FILE`, `--seconds 0`). This one has",
        "",
        f"- {'the seed' if len(seeds) == 1 else 'the seeds'} {', '.join(seeds)}",
        *(f"- {version}" for version in versions()),
        "",
        *by_server(outcomes),
        "",
        "`lost`: events that the server had taken and that no connection got, or that were left out on one.",
        "`repeated`: events that come again on a connection, or from before its cursor. `foreign`: events of another",
        "session or stream, and answers that tell a foreign cursor from an unknown one. `hangs`: what was waited for",
        "in vain, 60 seconds for Tailrope, 4 for a stock server. Of the other rules the table names the invariants.",
        "A client that hangs is read no further, so rows of stock servers count what was seen until then. Stock",
        "servers do not take the tests that kill processes or break the network of a store: their stores are memory.",
        "",
        "## Tailrope, by test and store",
        "",
        "Events got, and violations of any rule:",
        "",
        *by_test(ours),
        "",
        *(f"- {test}: {words}" for test, words in WORDS.items()),
    ]
    return "\n".join(lines) + "\n"


def write(outcomes: list[Outcome], path: Path = OUT) -> None:
    path.write_text(page(outcomes))
