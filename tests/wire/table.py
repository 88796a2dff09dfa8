"""Run the fault tests against the SDKs' own transports and ours, and write docs/evidence/stock-faults.md.

    .venv/mcp2/bin/python tests/wire/table.py [--server NAME] [--transport stock|tailrope] [--out FILE] [TEST...]

In a stock run a failed test is a result. A fault counts as present when any of its tests fails. It takes about a
quarter of an hour, because stock servers that never answer are waited for. The page has all of it; with arguments that
leave something out give `--out`, too.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import tomllib
import xml.etree.ElementTree as ElementTree
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
OUT = ROOT / "docs" / "evidence" / "stock-faults.md"
COMMAND = ".venv/mcp2/bin/python tests/wire/table.py"

# The columns of stock servers, and the servers that the one for Tailrope counts.
PACKAGES = ["mcp1", "mcp2", "fastmcp3", "fastmcp4", "node-v1", "node-v2"]
STOCK = [*PACKAGES, "rmcp", "rmcp-cache"]
OURS = [*PACKAGES, "web-v1", "web-v2", "tower", "rmcp"]

FAULTS = {
    "F-01": "Another session's tool result is replayed",
    "F-02": "Another session's notifications on the standalone stream",
    "F-03": "A foreign event id opens the stream",
    "F-05": "A session id of another principal opens the session",
    "F-08": "Repeated id in flight silences the first call",
    "F-09": "A request id captures the standalone stream",
    "F-10": "Events emitted during a replay are lost",
    "F-11": "The last event comes again on a resume",
    "F-12": "Wire order differs from emission order",
    "F-16": "A result made while disconnected is lost",
    "F-19": "Unknown cursor: no answer that ends the call",
    "F-20": "Trimmed history: left out in silence, or nothing at all",
    "F-22": "Client leaving during replay leaves a stale reader",
    "F-23": "A resumed stream never ends after the response",
    "F-24": "No id before the first message of a call",
    "F-25": "The standalone stream starts without an id",
    "F-26": "A resume that delivers nothing gives no id",
    "F-28": "Control rows in a replay break or pollute it",
    "F-30": "Reconnect refused because of a dead socket",
    "F-31": "Second resume refused or empty, events go elsewhere",
    "F-32": "Two readers evict each other, or ask, for ever",
    "F-44": "SIGTERM hangs or cuts the open streams",
    "F-50": "Sessions without DELETE never end",
    "F-51": "A session with running work is reaped",
    "F-54": "The event log outlives its session",
    "F-56": "One stalled reader stalls the other calls",
    "F-57": "A slow reader costs memory or blocks",
    "F-58": "One failed store write silences the session",
    "F-59": "Store fails on the result: client waits for ever",
    "F-60": "A too large result vanishes without an error",
    "F-61": "Line separators go raw onto the wire",
    "F-73": "Client reconnects to a lost stream for ever",
    "F-77": "Priming reaches clients that cannot parse it",
}

# Fault -> tests that passed, and all.
Counts = dict[str, tuple[int, int]]


def run(server: str, transport: str, tests: list[str]) -> Counts:
    """Run the fault tests once against one server."""
    counts: Counts = {}
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", "--tb=no", "-k", "test_f", "-m", "", "--timeout", "60"]
        command += ["-p", "no:cacheprovider", f"--junitxml={report}", "-o", "junit_family=xunit1", *tests]
        env = {**os.environ, "TAILROPE_TEST_TRANSPORT": transport, "TAILROPE_TEST_SERVERS": server}
        done = subprocess.run(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True, check=False)
        if not report.exists():
            raise RuntimeError(f"{server} on {transport}: no test ran\n{done.stdout[-2000:]}")
        for case in ElementTree.parse(report).iter("testcase"):
            found = re.match(r"test_f(\d\d)_", case.get("name", ""))
            if found is None or case.find("skipped") is not None:
                continue
            is_bad = case.find("failure") is not None or case.find("error") is not None
            if is_bad and transport == "tailrope":
                print(f"tailrope on {server} fails: {case.get('name')}", file=sys.stderr)
            passed, total = counts.get(f"F-{found[1]}", (0, 0))
            counts[f"F-{found[1]}"] = passed + (not is_bad), total + 1
    return counts


def cell(found: tuple[int, int] | None) -> str:
    if found is None:
        return "-"
    passed, total = found
    return "ok" if passed == total else f"**fails** {total - passed}/{total}"


def versions() -> list[str]:
    """What the servers are made of, one line for each environment."""
    code = """
import importlib.metadata, platform
found = [f"{name} {importlib.metadata.version(name)}" for name in ("mcp", "fastmcp", "uvicorn", "tailrope")]
print(", ".join([*found, f"Python {platform.python_version()}"]))
"""
    pythons = [ROOT / ".venv" / line / "bin" / "python" for line in ("mcp1", "mcp2")]
    python = [subprocess.run([each, "-c", code], capture_output=True, text=True, check=True).stdout for each in pythons]
    packages = [f"@modelcontextprotocol/{name}" for name in ("sdk", "server", "node")]
    manifests = [ROOT / "node_modules" / name / "package.json" for name in packages]
    found = [json.loads(path.read_text()) for path in manifests]
    node = subprocess.run(["node", "--version"], capture_output=True, text=True, check=True).stdout
    crates = {each["name"]: each["version"] for each in tomllib.loads((ROOT / "Cargo.lock").read_text())["package"]}
    names = [*(f"{each['name']} {each['version']}" for each in found), f"tailrope {crates['tailrope-core']}"]
    rust = ", ".join(f"{name} {crates[name]}" for name in ("rmcp", "axum", "hyper", "tailrope-server"))
    return [*(line.strip() for line in python), ", ".join([*names, f"Node {node.strip('v ' + chr(10))}"]), rust]


def page(stock: dict[str, Counts], ours: dict[str, Counts]) -> str:
    total: Counts = {}
    for counts in ours.values():
        for fault, found in counts.items():
            before = total.get(fault, (0, 0))
            total[fault] = before[0] + found[0], before[1] + found[1]
    columns = [*(f"stock {name}" for name in stock), f"tailrope ({len(ours)} servers)"]
    lines = [
        "# Faults of the stock transports",
        "",
        "Each fault has tests of its own, named after it, in `tests/wire`. They start a server process and talk to it",
        "over HTTP, with a raw client and with the SDK's own. This table is the outcome of running them on the SDKs'",
        "own transports, with plain event stores in memory (`tests/servers/python/stores.py`,",
        "`tests/servers/node/stores.mjs`, `tests/servers/rust/src/plain_store.rs`), and on Tailrope:",
        "",
        "```sh",
        COMMAND,
        "```",
        "",
        "The command writes this file; do not edit it. `mcp1`, `mcp2`: the Python SDK 1.x and 2.x; `fastmcp3`,",
        "`fastmcp4`: FastMCP on them; `node-v1`, `node-v2`: the TypeScript SDK 1.x and 2.x; `rmcp`: the Rust SDK 3.x,",
        "and `rmcp-cache` as it comes, without an event store: it replays from a cache of 16 messages. This run had",
        "",
        *(f"- {line}" for line in versions()),
        "",
        "`**fails** 2/3`: two of the fault's three tests fail: they saw what the row names, or waited in vain for what",
        "they expect. `ok`: all pass; of a stock transport that says no more than that they did not provoke the fault.",
        "`-`: none of them applies.",
        "",
        "| fault | what goes wrong | " + " | ".join(columns) + " |",
        "|---|---|" + "---|" * len(columns),
    ]
    for fault, words in FAULTS.items():
        cells = [*(cell(counts.get(fault)) for counts in stock.values()), cell(total.get(fault))]
        lines.append(f"| {fault} | {words} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tests", nargs="*", default=[str(HERE)], help="files of tests/wire (all)")
    parser.add_argument("--server", action="append", help="repeat for more (all)")
    parser.add_argument("--transport", choices=["stock", "tailrope"], help="one of them alone")
    parser.add_argument("--out", type=Path, default=OUT)
    args = parser.parse_args()

    def wanted(transport: str, names: list[str]) -> list[str]:
        return [] if args.transport not in (None, transport) else [n for n in names if n in (args.server or names)]

    with ThreadPoolExecutor(3) as pool:
        # A stock run mostly waits.
        stock = {name: pool.submit(run, name, "stock", args.tests) for name in wanted("stock", STOCK)}
        ours = {name: pool.submit(run, name, "tailrope", args.tests) for name in wanted("tailrope", OURS)}
    found = {name: future.result() for name, future in ours.items()}
    args.out.write_text(page({name: future.result() for name, future in stock.items()}, found))
    unknown = {fault for counts in found.values() for fault in counts} - set(FAULTS)
    if unknown:
        sys.exit(f"no words for {', '.join(sorted(unknown))}")
    faulty = {fault for counts in found.values() for fault, (passed, total) in counts.items() if passed < total}
    if faulty:
        sys.exit(f"tailrope fails: {', '.join(sorted(faulty))}")


if __name__ == "__main__":
    main()
