"""Writes down what was asked of servers and what their clients got, and has it judged by `tailrope-check`.

Facts of this process are noted as they happen, those of the servers' tools come from the files of the tool `marked`;
all of them have the time of one clock and are put in its order. What a fact is, and what is wrong in a history, is the
checker's to know (tests/checker); here nothing is judged.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def checker() -> Path:
    """The program that judges, built when a test needs it first."""
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    # It reads a gigabyte in a long run.
    command = ["cargo", "build", "--quiet", "--locked", "--profile", "deep", "-p", "tailrope-checker"]
    subprocess.run(command, cwd=ROOT, check=True)
    return target / "deep" / "tailrope-check"


@dataclass
class Report:
    """The checker's words."""

    violations: list[dict[str, Any]]
    summary: dict[str, Any]
    path: Path
    notes: Counter[str] = field(default_factory=Counter)


class Recorder:
    """One history. `folder` keeps the files of the servers' tools, and the history in the end."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for old in folder.glob("*.facts"):
            old.unlink()
        self.facts: list[tuple[int, str]] = []
        self._connections = 0
        # The test breaks things now: a connection that breaks off is not the server's doing.
        self.breaks = False
        self.notes: Counter[str] = Counter()
        # The number of the last event that a reader had, for each SESSION-STREAM.
        self.last_seen: Counter[str] = Counter()

    def tell(self, fact: str, **more: Any) -> None:
        if fact == "hung":
            self.count("hangs")
        now = time.monotonic_ns()
        self.facts.append((now, json.dumps({"fact": fact, "at": now // 1_000_000, **more})))

    def count(self, what: str) -> None:
        """What happened, for the table; no verdict."""
        self.notes[what] += 1

    def longest(self, what: str, number: float) -> None:
        self.notes[what] = max(self.notes[what], round(number))

    def connection(self) -> str:
        self._connections += 1
        return f"c{self._connections}"

    def bytes(self, connection: str, data: bytes) -> None:
        try:
            self.tell("bytes", connection=connection, text=data.decode())
        except UnicodeDecodeError:
            self.tell("bytes", connection=connection, data=base64.b64encode(data).decode())

    def facts_file(self, name: str) -> str:
        """Where a server's tool writes its facts."""
        return str(self.folder / f"{name}.facts")

    def told(self, name: str) -> list[dict[str, Any]]:
        """What a tool has written so far."""
        path = Path(self.facts_file(name))
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def last_emitted(self, name: str) -> int:
        """The number of the last event that a tool has handed to the server."""
        return max((fact["n"] for fact in self.told(name) if fact["fact"] == "emit" and fact["n"] != "end"), default=0)

    def write(self) -> Path:
        facts = list(self.facts)
        for path in sorted(self.folder.glob("*.facts")):
            for line in path.read_text().splitlines():
                fact = json.loads(line)
                moment = fact.pop("t")
                facts.append((moment, json.dumps({**fact, "at": moment // 1_000_000})))
        # Stable: two facts of one moment stay in the order in which one process told them.
        facts.sort(key=lambda fact: fact[0])
        history = self.folder / "history.jsonl"
        history.write_text("".join(f"{line}\n" for _, line in facts))
        return history

    def report(self, program: Path) -> Report:
        """Judge what was written. Raises RuntimeError when the checker cannot read it."""
        history = self.write()
        done = subprocess.run(
            [program, "--tell", "1000000", history], capture_output=True, text=True, timeout=300, check=False
        )
        if done.returncode not in (0, 1):
            raise RuntimeError(f"{program.name} ended with {done.returncode}: {done.stderr}{done.stdout[-1000:]}")
        *violations, summary = (json.loads(line) for line in done.stdout.splitlines())
        return Report(violations, summary["summary"], history, self.notes)
