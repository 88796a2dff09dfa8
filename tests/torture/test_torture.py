"""A slice of the torture: every test in every language, a few seconds each. `make torture` runs all of it."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from torture.cell import TESTS
from torture.handoff import LEAST_DROPS
from torture.hosts import FLEETS, KINDS, STOCK, build_rust
from torture.matrix import SLICE, Cell, Outcome, Runner
from torture.recorder import Recorder, checker

# They mostly wait.
AT_ONCE = 3
SEED = os.environ.get("TAILROPE_SEED", "1")


def cell_param(cell: Cell) -> Any:
    variable = f"TAILROPE_TEST_{cell.store.upper()}"
    absent = cell.store in ("redis", "postgres") and variable not in os.environ
    left_out = pytest.mark.skipif(absent, reason=f"{variable} names no server")
    return pytest.param(cell, id=cell.name, marks=left_out)


class Ahead:
    """Runs the cells ahead of their tests, a few at once, in the order in which pytest asks for them."""

    def __init__(self, cells: list[Cell]) -> None:
        self.futures: dict[Cell, Future[Outcome]] = {cell: Future() for cell in cells}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, args=(cells,), daemon=True)
        self._thread.start()

    def _run(self, cells: list[Cell]) -> None:
        async def main() -> None:
            runner = Runner(checker(), short=True, jobs=AT_ONCE, seed=SEED)
            await runner.run(cells, lambda outcome: self.futures[outcome.cell].set_result(outcome))

        try:
            self._loop.run_until_complete(main())
        except BaseException as fault:
            for future in self.futures.values():
                if not future.done():
                    future.set_exception(fault)


@pytest.fixture(scope="module")
def ahead(request: pytest.FixtureRequest) -> Iterator[Ahead]:
    wanted = [
        item.callspec.params["cell"]
        for item in request.session.items
        if isinstance(item, pytest.Function)
        and hasattr(item, "callspec")
        and "cell" in item.callspec.params
        and not any(mark.args and mark.args[0] for mark in item.iter_markers("skipif"))
    ]
    build_rust(cell.server for cell in wanted)
    yield Ahead(wanted)


@pytest.mark.full
@pytest.mark.timeout(500)
@pytest.mark.parametrize("cell", [cell_param(cell) for cell in SLICE])
def test_no_rule_is_broken(cell: Cell, ahead: Ahead) -> None:
    outcome = ahead.futures[cell].result()
    assert outcome.is_clean, outcome.words()
    # A test that provoked nothing would be clean, too.
    notes = outcome.found["notes"]
    assert outcome.found["summary"]["events"] > 200
    provoked = {
        "handoff": "drops",
        "tenants": "probes",
        "kills": "kills",
        "pauses": "pauses",
        "takeover": "takeovers",
        "faults": "drops",
        "outages": "outages",
        "nodes": "restarts",
    }
    least = {"kills": 1, "pauses": 1, "outages": 1, "nodes": 3, "takeover": 100, "handoff": LEAST_DROPS}.get(
        cell.test, 20
    )
    assert notes[provoked[cell.test]] >= least, notes


def test_slice_has_every_test_in_every_language_and_every_store() -> None:
    assert not any(cell.server in STOCK for cell in SLICE)
    for test in TESTS:
        servers = {server for cell in SLICE if cell.test == test for server in FLEETS[cell.server]}
        assert {KINDS[server].language for server in servers} == {"python", "node", "rust"}
    assert {cell.store for cell in SLICE} == {"memory", "sqlite", "redis", "postgres"}
    assert {cell.server for cell in SLICE} == set(FLEETS)


@pytest.mark.full
def test_recorded_facts_are_judged(tmp_path: Path) -> None:
    """The way from a recorder to a verdict, with one event that was taken and never came."""
    recorder = Recorder(tmp_path)
    names = {"session": "s", "stream": "a"}
    recorder.tell("stream", **names, request=1, revision="2025-11-25")
    recorder.tell("open", connection="c1", session="s", stream="a", cursor=None, method="POST")
    recorder.tell("head", connection="c1", status=200, headers={"content-type": "text/event-stream"})
    recorder.bytes("c1", b"id: p\nretry: 20\ndata: \n\n")
    facts = Path(recorder.facts_file("s"))
    told = ['"emit","n":1', '"taken","n":1', '"emit","n":"end"']
    with facts.open("w") as file:
        for fact in told:
            file.write(f'{{"t":{recorder.facts[-1][0] + 1},"fact":{fact},"session":"s","stream":"a"}}\n')
    recorder.bytes("c1", b'id: e\ndata: {"id":1,"result":"[[s/a/end]] \xff"}\n\n'[:-2])
    recorder.bytes("c1", b"\n\n")
    recorder.tell("closed", connection="c1", by="server", clean=True)
    recorder.tell("done", **names)
    report = recorder.report(checker())
    assert set(report.summary["violations"]) == {"I3"}, report
    assert "missing" in report.violations[0]["says"], report
