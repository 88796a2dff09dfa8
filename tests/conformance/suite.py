"""The official suite as a command, and what its checks.json say: shared by `run` (servers) and `run-clients`."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
MODULES = HERE / "node_modules"
# The suite does not start on Node 20; what it tests runs on the one that the caller has.
NODE_22 = MODULES / "node" / "bin" / "node"
PACKAGES = {"0.2.0-alpha.12": "@modelcontextprotocol/conformance", "0.1.16": "conformance-0-1"}
# Entries of these kinds tell what was seen, not whether it was right.
NOTES = {"INFO"}
SUITE_S = 120

Faults = list[str]


class RunError(Exception):
    pass


def suite(version: str, *args: str) -> subprocess.CompletedProcess[str]:
    command = [str(NODE_22), str(MODULES / PACKAGES[version] / "dist" / "index.js"), *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=SUITE_S, cwd=HERE)


def judge(checks: list[dict[str, Any]], expected: list[str]) -> tuple[set[str], Faults]:
    """The ids that succeeded each time they were noted, and what is wrong."""
    faults = []
    if not checks:
        faults.append("no check at all")
    passed = {check["id"] for check in checks if check["status"] == "SUCCESS"}
    for check in checks:
        if check["status"] not in ("SUCCESS", *NOTES):
            passed.discard(check["id"])
            why = check.get("errorMessage") or json.dumps(check.get("details", ""))
            faults.append(f"{check['id']}: {check['status']}: {why[:500]}")
    complained = {fault.split(":")[0] for fault in faults}
    faults += [f"{name}: did not succeed" for name in sorted(set(expected) - passed - complained)]
    faults += [f"{name}: succeeded, but is not expected" for name in sorted(passed - set(expected))]
    return passed & set(expected), faults


def judge_all(
    noted: dict[str, list[dict[str, Any]]], names: set[str], expected: dict[str, list[str]]
) -> tuple[dict[str, str], int, Faults]:
    """A cell for each scenario, how many checks passed, and what is wrong."""
    cells: dict[str, str] = {}
    faults: Faults = []
    count = 0
    for name in sorted(names | set(expected) | set(noted)):
        if name not in names:
            wrong = ["the suite does not list this scenario"]
        elif name not in expected:
            wrong = ["this scenario is not expected"]
        elif name not in noted:
            wrong = ["this scenario did not run"]
        else:
            passed, wrong = judge(noted[name], expected[name])
            count += len(passed)
            cells[name] = f"{len(passed)}"
        if wrong:
            cells[name] = "FAILED"
        faults += [f"{name}: {fault}" for fault in wrong]
    return cells, count, faults


def table(columns: dict[str, dict[str, str]]) -> None:
    names = sorted({name for cells in columns.values() for name in cells})
    width = max(map(len, names), default=0)
    print(" " * width, *columns)
    for name in names:
        print(f"{name:<{width}}", *(f"{cells.get(name, '-'):>{len(title)}}" for title, cells in columns.items()))
