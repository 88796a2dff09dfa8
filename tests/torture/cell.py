"""One test on one server with one store, in a process of its own: what the program and pytest run many of.

    python -m torture.cell TEST SERVER STORE [--seed SEED] [--short] [--seconds S] [--sessions N] --folder FOLDER
        --checker PROGRAM

Prints one line of JSON: what was counted and what the checker found. The history stays in the folder.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import importlib
import json
import os
import signal
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

from torture.recorder import Recorder, Report
from torture.setting import FULL, SHORT, Setting

TESTS = ("handoff", "tenants", "kills", "pauses", "takeover", "faults", "outages", "nodes")
SHOWN = 20


def kind(violation: dict[str, Any]) -> str:
    """The column of the table in which a violation is counted: what a user would call it."""
    says, invariant = violation["says"], violation["invariant"]
    if invariant == "I7":
        return "foreign"
    if says.startswith("lost") or "is missing before it" in says:
        return "lost"
    if invariant in ("I2", "I3") and ("it comes after" in says or "cursor" in says):
        return "repeated"
    return "other"


def outcome(report: Report, setting: Setting, took_s: float) -> dict[str, Any]:
    # The test's own words for what it waited for in vain are counted as such, and as nothing else.
    hangs = report.notes.pop("hangs", 0)
    kinds = Counter(kind(violation) for violation in report.violations)
    others = Counter(each["invariant"] for each in report.violations if kind(each) == "other")
    others["I13"] -= hangs
    return {
        "summary": report.summary,
        "kinds": {**{name: kinds[name] for name in ("lost", "repeated", "foreign")}, "hangs": hangs},
        "others": {name: count for name, count in sorted(others.items()) if count > 0},
        "notes": report.notes,
        "violations": report.violations[:SHOWN],
        "history": str(report.path),
        "seed": setting.seed,
        "seconds": round(took_s, 1),
    }


def run(test: str, setting: Setting, checker: Path) -> dict[str, Any]:
    recorder = Recorder(setting.folder)
    asyncio.run(importlib.import_module(f"torture.{test}").run(recorder, setting))
    took_s = time.monotonic() - setting.started
    return outcome(recorder.report(checker), setting, took_s)


def end_with_parent() -> None:
    """Whoever started this holds its standard input; when that ends, so does all that was started here."""

    def wait() -> None:
        os.read(0, 1)
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=wait, daemon=True).start()


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("test", choices=TESTS)
    parser.add_argument("server")
    parser.add_argument("store")
    parser.add_argument("--seed", default="1")
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--sessions", type=int)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--checker", type=Path, required=True)
    parser.add_argument("--leader", action="store_true", help="end with standard input, and the process group with it")
    args = parser.parse_args(argv)
    if args.leader:
        end_with_parent()
    size = SHORT if args.short else FULL
    given = {name: getattr(args, name) for name in ("seconds", "sessions") if getattr(args, name) is not None}
    size = dataclasses.replace(size, **given)
    args.folder.mkdir(parents=True, exist_ok=True)
    setting = Setting(args.server, args.store, args.seed, size, args.folder)
    json.dump(run(args.test, setting, args.checker), sys.stdout)
    print()


if __name__ == "__main__":
    main()
