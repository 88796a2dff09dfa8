"""Which tests run on which servers with which stores, and running many of them: each in a process of its own."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torture.cell import TESTS
from torture.hosts import MIXED, OURS, STOCK, STORES

# Whoever takes longer hangs.
LIMIT_S = {True: 240.0, False: 420.0}
# When no test is begun any more.
ALL_S = 60 * 60.0


@dataclass(frozen=True)
class Cell:
    test: str
    server: str
    store: str

    @property
    def name(self) -> str:
        return f"{self.test}-{self.server}-{self.store}"

    @property
    def is_stock(self) -> bool:
        return self.server in STOCK


@dataclass
class Outcome:
    """What became of a cell. `found` is what it printed; without it `failed` says why not."""

    cell: Cell
    found: dict[str, Any] = field(default_factory=dict)
    failed: str = ""

    @property
    def is_clean(self) -> bool:
        return bool(self.found) and not self.found["summary"]["violations"]

    def words(self) -> str:
        """One line, and what was found wrong below it."""
        if self.failed:
            return f"{self.cell.name}: FAILED\n{self.failed}"
        summary, notes = self.found["summary"], self.found["notes"]
        counts = ", ".join(f"{count:,} {what}" for what, count in sorted(notes.items()))
        line = f"{self.cell.name}: {summary['events']:,} events on {summary['connections']:,} connections; {counts}"
        if self.is_clean:
            return f"{line}; clean ({self.found['seconds']} s)"
        line += f"; {self.found['kinds']} {self.found['others']} ({self.found['seconds']} s)"
        if self.cell.is_stock:
            return line
        shown = "\n".join(f"  {json.dumps(violation)}" for violation in self.found["violations"])
        return f"{line}\n{shown}\n  seed {self.found['seed']}, history in {self.found['history']}"


def load(path: Path) -> dict[str, Outcome]:
    """What earlier runs left in a file, by the names of the cells."""
    if not path.exists():
        return {}
    kept = (json.loads(line) for line in path.read_text().splitlines())
    outcomes = [Outcome(Cell(*words), found, failed) for words, found, failed in kept]
    return {outcome.cell.name: outcome for outcome in outcomes}


def keep(path: Path, outcome: Outcome) -> None:
    """Add it to the file; the last one of a cell counts."""
    cell = outcome.cell
    with path.open("a") as file:
        file.write(json.dumps([[cell.test, cell.server, cell.store], outcome.found, outcome.failed]) + "\n")


def applies(test: str, store: str, server: str) -> bool:
    if server in STOCK:
        # Their event stores are objects in memory, one for each process.
        return store == "memory" and test not in ("kills", "pauses", "faults", "outages", "nodes")
    if server == "rmcp" and test in ("nodes", "kills", "pauses", "outages"):
        # It has no word for the end of what is read to its end.
        return False
    if test == "nodes":
        # It takes minutes. Two SDK lines of one language differ in nothing that it is about.
        return store == "postgres" if server in ("mcp1", "node-v1") else store != "memory"
    if server == MIXED:
        return False
    if test in ("kills", "pauses", "outages"):
        return store != "memory"
    # SQLite has no network to break; tests/rust has its faults.
    return test != "faults" or store in ("redis", "postgres")


EVERYTHING = [
    Cell(test, server, store)
    for test in TESTS
    for server in (*OURS, MIXED, *STOCK)
    for store in STORES
    if applies(test, store, server)
]
# A slice of everything: each test in each language, on stores that differ.
SLICE = [
    Cell(*words.split())
    for words in (
        "kills mcp2 postgres",
        "kills node-v2 redis",
        "pauses mcp1 postgres",
        "pauses node-v1 redis",
        "faults mcp1 redis",
        "faults node-v2 postgres",
        "outages mcp2 sqlite",
        "outages mcp1 redis",
        "outages node-v2 postgres",
        "handoff mcp2 memory",
        "handoff mcp1 sqlite",
        "handoff node-v1 redis",
        "handoff node-v2 postgres",
        "tenants mcp2 redis",
        "tenants node-v1 memory",
        "takeover mcp1 postgres",
        "takeover node-v2 sqlite",
        "handoff tower memory",
        "handoff rmcp sqlite",
        "tenants tower postgres",
        "takeover rmcp memory",
        "kills tower redis",
        "pauses tower sqlite",
        "faults tower redis",
        "outages tower postgres",
        # Each has another fault behind its restart.
        "nodes mcp1 postgres",
        "nodes node-v1 postgres",
        "nodes mixed redis",
        "nodes tower redis",
    )
]


async def ended(process: asyncio.subprocess.Process) -> tuple[bytes, bytes]:
    """What it printed. Its standard input stays open, which tells it that somebody waits."""
    assert process.stdout is not None and process.stderr is not None
    out, error = await asyncio.gather(process.stdout.read(), process.stderr.read())
    await process.wait()
    return out, error


class Runner:
    """Runs cells, a few at once. Folders of clean cells are thrown away."""

    def __init__(
        self, checker: Path, *, short: bool, jobs: int, seed: str, sizes: Mapping[str, float | None] | None = None
    ) -> None:
        self.checker, self.short, self.seed, self.sizes = checker, short, seed, sizes or {}
        self._places = asyncio.Semaphore(jobs)
        self._deadline = time.monotonic() + ALL_S
        self._folder = Path(tempfile.mkdtemp(prefix="tailrope-torture-"))

    async def run(self, cells: list[Cell], tell: Callable[[Outcome], None]) -> list[Outcome]:
        async def one(cell: Cell) -> Outcome:
            async with self._places:
                outcome = await self.cell(cell)
            tell(outcome)
            return outcome

        outcomes = await asyncio.gather(*(one(cell) for cell in cells))
        with suppress(OSError):
            self._folder.rmdir()
        return outcomes

    async def cell(self, cell: Cell) -> Outcome:
        if time.monotonic() > self._deadline:
            return Outcome(cell, failed="not begun: the others took too long")
        folder = self._folder / cell.name
        words = [sys.executable, "-m", "torture.cell", cell.test, cell.server, cell.store, "--seed", self.seed]
        words += ["--folder", str(folder), "--checker", str(self.checker), "--leader"]
        words += ["--short"] if self.short else []
        words += [word for name, size in self.sizes.items() if size is not None for word in (f"--{name}", str(size))]
        process = await asyncio.create_subprocess_exec(
            *words,
            cwd=Path(__file__).parents[1],
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
            limit=1 << 24,
        )
        try:
            async with asyncio.timeout(LIMIT_S[self.short]):
                out, error = await ended(process)
        except TimeoutError:
            return Outcome(cell, failed=f"not over after {LIMIT_S[self.short]} s; {folder}")
        finally:
            # With the servers that it could not end itself.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        if process.returncode != 0:
            return Outcome(cell, failed=f"exit status {process.returncode}; {folder}\n{error.decode()[-4000:]}")
        outcome = Outcome(cell, json.loads(out))
        if outcome.is_clean or cell.is_stock:
            for path in folder.iterdir():
                path.unlink()
            folder.rmdir()
        return outcome
