"""Run the fault tests against the stock transports and ours, and write docs/stock-faults.md.

    python tests/python/table.py --python .venv/mcp1/bin/python --python .venv/mcp2/bin/python

Each interpreter is one SDK line; it runs its flavours on `--transport stock`, then on `tailrope`. In a stock run a
failed test is a result. A fault counts as present when any of its tests fails. It takes about a quarter of an hour,
because stock servers that never answer are waited for.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from itertools import repeat
from pathlib import Path

HERE = Path(__file__).resolve().parent
OUT = HERE.parents[1] / "docs" / "stock-faults.md"

FAULTS = {
    "F-01": "Another session's tool result is replayed",
    "F-02": "Another session's notifications on the standalone stream",
    "F-03": "A foreign event id opens the stream",
    "F-08": "Repeated id in flight silences the first call",
    "F-09": "A request id captures the standalone stream",
    "F-10": "Events emitted during a replay are lost",
    "F-12": "Wire order differs from emission order",
    "F-16": "A result made while disconnected is lost",
    "F-19": "Unknown cursor: empty 200, client asks for ever",
    "F-20": "Trimmed history is left out in silence",
    "F-22": "Client leaving during replay leaves a stale reader",
    "F-23": "A resumed stream never ends after the response",
    "F-24": "No id before the first message of a call",
    "F-25": "The standalone stream starts without an id",
    "F-26": "A resume that delivers nothing gives no id",
    "F-28": "Control rows in a replay break or pollute it",
    "F-30": "Reconnect refused because of a dead socket",
    "F-31": "Second resume: empty, events go elsewhere",
    "F-32": "Two readers evict each other for ever",
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
COMMAND = "python tests/python/table.py --python .venv/mcp1/bin/python --python .venv/mcp2/bin/python"
COLUMNS = ["mcp1", "mcp2", "fastmcp3", "fastmcp4"]

# (transport, flavour) -> fault -> [passed, all]
Counts = dict[tuple[str, str], dict[str, list[int]]]


def run(python: str, transport: str, counts: Counts) -> None:
    """Run the fault tests once with this interpreter and add what they found."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [python, "-m", "pytest", "-q", "--tb=no", "-k", "test_f", "--timeout", "30", "-p", "no:cacheprovider"]
        command += [f"--junitxml={report}", "-o", "junit_family=xunit1", str(HERE)]
        subprocess.run(
            command,
            cwd=HERE,
            env={**os.environ, "TAILROPE_TEST_TRANSPORT": transport},
            stdout=subprocess.DEVNULL,
            check=False,
        )
        for case in ElementTree.parse(report).iter("testcase"):
            found = re.match(r"test_f(\d\d)_.*\[(mcp\d|fastmcp\d)", case.get("name", ""))
            if not found or case.find("skipped") is not None:
                continue
            passed, total = counts[transport, found[2]].setdefault(f"F-{found[1]}", [0, 0])
            bad = case.find("failure") is not None or case.find("error") is not None
            counts[transport, found[2]][f"F-{found[1]}"] = [passed + (not bad), total + 1]


def cell(found: list[int] | None) -> str:
    if found is None:
        return "-"
    passed, total = found
    return "ok" if passed == total else f"**fails** {total - passed}/{total}"


def versions(python: str) -> dict[str, str]:
    code = """
import importlib.metadata, json, platform
found = {name: importlib.metadata.version(name) for name in ("mcp", "fastmcp", "uvicorn", "tailrope")}
print(json.dumps({**found, "Python": platform.python_version()}))
"""
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout))


def page(counts: Counts, names: list[str]) -> str:
    ours = defaultdict(lambda: [0, 0])
    for (transport, _), found in counts.items():
        if transport == "tailrope":
            for fault, (passed, total) in found.items():
                ours[fault] = [ours[fault][0] + passed, ours[fault][1] + total]
    lines = [
        "# Faults of the stock transports",
        "",
        "Each fault has tests of its own, named after it, in `tests/python`. They start a server process and talk to",
        "it over HTTP, with a raw client and with the SDK's own. This table is the outcome of running them on the",
        "SDK's own transport, with a plain in-memory event store (`tests/python/servers/stores.py`), and on Tailrope:",
        "",
        "```sh",
        COMMAND,
        "```",
        "",
        "The command writes this file; do not edit it. This run had",
        "",
        *(f"- {name}" for name in names),
        "",
        "`**fails** 2/3`: two of the fault's three tests fail: they saw what the row names, or waited in vain for what",
        "they expect. `ok`: all pass; of a stock transport that says no more than that they did not provoke the fault.",
        "`-`: none of them applies.",
        "",
        "| fault | what goes wrong | " + " | ".join(f"stock {name}" for name in COLUMNS) + " | tailrope (all four) |",
        "|---|---|" + "---|" * (len(COLUMNS) + 1),
    ]
    for fault, words in FAULTS.items():
        stock = [cell(counts.get(("stock", name), {}).get(fault)) for name in COLUMNS]
        lines.append(f"| {fault} | {words} | " + " | ".join(stock) + f" | {cell(ours.get(fault))} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", action="append", help="interpreter of one SDK line; repeat for more")
    parser.add_argument("--transport", action="append", choices=["stock", "tailrope"], help="default: both")
    parser.add_argument("--out", type=Path, default=OUT)
    args = parser.parse_args()
    counts: Counts = defaultdict(dict)
    pythons = [str(Path(python).absolute()) for python in args.python or [sys.executable]]
    names = [", ".join(f"{package} {number}" for package, number in versions(python).items()) for python in pythons]
    with ThreadPoolExecutor() as pool:
        # Runs of different lines share no flavour, and a stock run mostly waits.
        for transport in args.transport or ["stock", "tailrope"]:
            list(pool.map(run, pythons, repeat(transport), repeat(counts)))
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(page(counts, names))
    faulty = sorted(
        fault for (kind, _), found in counts.items() if kind == "tailrope" for fault, (p, t) in found.items() if p < t
    )
    if faulty:
        sys.exit(f"tailrope fails: {', '.join(sorted(set(faulty)))}")


if __name__ == "__main__":
    main()
