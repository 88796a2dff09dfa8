"""Run every scenario with the stock clients, without the line and with it, and write docs/evidence/stock-clients.md.

    .venv/mcp2/bin/python tests/client/table.py [--line without|with] [--client NAME] [--out FILE]

In a run without the line a fault is a result; stock.json gets it too, which test_scenarios.py holds the clients to. It
takes about two minutes for each of both.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))

# isort: split
from kit.servers import ROOT, SERVERS

from client.drivers import CLIENTS, HERE, PYTHON, Drivers
from client.outcome import WORDS, words
from client.scenarios import SCENARIOS, comes_to_an_end, play

OUT = ROOT / "docs" / "evidence" / "stock-clients.md"
STOCK = HERE / "stock.json"
COMMAND = ".venv/mcp2/bin/python tests/client/table.py"
NAMES = {"mcp1": "mcp 1.x", "mcp2": "mcp 2.x", "ts1": "TypeScript 1.x", "ts2": "TypeScript 2.x"}
PACKAGES = ("@modelcontextprotocol/sdk", "@modelcontextprotocol/client")
AT_ONCE = 16

# scenario -> client -> words
Cells = dict[str, dict[str, str]]


async def run(clients: Iterable[str], line: dict[str, object] | None, known: Cells) -> Cells:
    cells: Cells = {name: {} for name in SCENARIOS}
    places = asyncio.Semaphore(AT_ONCE)
    drivers = Drivers()

    async def one(name: str, client: str) -> None:
        async with places:
            is_patient = comes_to_an_end(known.get(name, {}).get(client))
            played = await play(drivers, name, client, line, is_patient)
        cells[name][client] = words(played.faults)
        if line is not None and played.faults:
            print(f"with the line, {client}, {name}:\n{played.story()}", file=sys.stderr)

    try:
        await asyncio.gather(*(one(name, client) for name in SCENARIOS for client in clients))
    finally:
        await drivers.stop()
    return cells


def version(client: str) -> str:
    code = "import importlib.metadata as m, platform as p; print(f'{m.version(\"mcp\")}, Python {p.python_version()}')"
    done = subprocess.run([SERVERS[client].python, "-c", code], capture_output=True, text=True, check=True)
    return f"mcp {done.stdout.strip()}"


def versions() -> list[str]:
    packages = [
        f"{name} {json.loads((ROOT / 'node_modules' / name / 'package.json').read_text())['version']}"
        for name in PACKAGES
    ]
    node = subprocess.run(["node", "--version"], capture_output=True, text=True, check=True).stdout.strip()
    ours = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]["version"]
    return [*map(version, PYTHON), f"{', '.join(packages)}, Node {node.removeprefix('v')}", f"tailrope {ours}"]


def title(name: str) -> str:
    return name.replace("-s-", "'s ").replace("-", " ")


def with_line(cells: dict[str, str]) -> str:
    bad = {NAMES[client]: found for client, found in cells.items() if found != "ok"}
    return "ok" if not bad else "**" + "; ".join(f"{client}: {found}" for client, found in bad.items()) + "**"


def page(stock: Cells, ours: Cells) -> str:
    lines = [
        "# What stock clients do when connections end",
        "",
        "Each row is a scenario of `tests/vectors/client_scenarios.json`: what a scripted server does to a client over",
        "real sockets, and what its user has to see. Each was run with the official clients as they are published, and",
        "with the one line of Tailrope (all four clients):",
        "",
        "```sh",
        COMMAND,
        "```",
        "",
        "The command writes this file; do not edit it. This run had",
        "",
        *(f"- {name}" for name in versions()),
        "",
        "`ok`: the call shows its result or its error, and every notification once and in order, and the server was",
        "asked neither too often nor too early. Otherwise:",
        "",
        *(f"- `{word}`: {meaning}" for word, meaning in WORDS.items()),
        "",
        "A call counts as waiting for ever after 6 seconds, or 15 after the server that was down for a minute is back.",
        "",
        "| scenario | " + " | ".join(NAMES.values()) + " | with the line (all four) |",
        "|---|" + "---|" * (len(NAMES) + 1),
    ]
    for name in SCENARIOS:
        found = [stock[name].get(client, "-") for client in NAMES]
        shown = [cell if cell in ("ok", "-") else f"**{cell}**" for cell in found]
        last = with_line(ours[name]) if ours.get(name) else "-"
        lines.append(f"| {title(name)} | " + " | ".join(shown) + f" | {last} |")
    return "\n".join(lines) + "\n"


async def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--line", action="append", choices=["without", "with"], help="default: both")
    parser.add_argument("--client", action="append", choices=CLIENTS, help="default: all")
    parser.add_argument("--out", type=Path, default=OUT)
    args = parser.parse_args()
    clients = args.client or CLIENTS
    wanted = args.line or ["without", "with"]
    stock: Cells = json.loads(STOCK.read_text()) if STOCK.exists() else {name: {} for name in SCENARIOS}
    if "without" in wanted:
        found = await run(clients, None, stock)
        stock = {name: {**stock.get(name, {}), **found[name]} for name in SCENARIOS}
        STOCK.write_text(json.dumps(stock, indent=2) + "\n")
    ours = await run(clients, {}, stock) if "with" in wanted else {}
    args.out.write_text(page(stock, ours))
    return int(any(cell != "ok" for cells in ours.values() for cell in cells.values()))


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
