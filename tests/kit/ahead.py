"""Runs `async def` tests ahead of pytest, several at once: they mostly wait, and what they wait for is shared.

A conftest takes the hooks of this module, and says with `suite` what its tests are given. pytest reports them in its
own order all the same; the durations that it shows are what it waited for a test.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kit.fleet import FLEETS
from kit.servers import FRONTS, RUST, SERVERS, Server

# Of those marked `first`, some wait for one another.
FIRST_LIMIT_S = 900.0


class Started:
    """Servers by their names and options, each started when a test first asks for it."""

    def __init__(self) -> None:
        self._starting: dict[tuple[str, str], asyncio.Task[Server]] = {}

    async def get(self, name: str, **options: Any) -> Server:
        key = (name, json.dumps(options, sort_keys=True))
        if key not in self._starting:
            kind = {**SERVERS, **FRONTS, **RUST, **FLEETS}[name]
            self._starting[key] = asyncio.create_task(asyncio.to_thread(kind.start, options))
        # Several tests wait for one start; one that gives up must not take it from the others.
        return await asyncio.shield(self._starting[key])

    async def stop(self) -> None:
        started = await asyncio.gather(*self._starting.values(), return_exceptions=True)
        for server in started:
            if isinstance(server, Server):
                server.stop()


@dataclass(frozen=True)
class Suite:
    """The tests of one folder: how many run at once, how long each may take, and what their arguments are made by."""

    at_once: int
    limit_s: float
    given: dict[str, Callable[[], Any]]
    # Told the tests that will run, before the first of them does.
    before: Callable[[list[pytest.Function]], None] | None


_suites: dict[Path, Suite] = {}


def suite(
    folder: Path,
    at_once: int,
    limit_s: float,
    before: Callable[[list[pytest.Function]], None] | None = None,
    **given: Callable[[], Any],
) -> None:
    """Run the tests of this folder ahead. What `given` makes is made once, and has an async `stop`."""
    _suites[folder] = Suite(at_once, limit_s, given, before)


def suite_of(item: pytest.Item) -> Suite:
    return _suites[item.path.parent]


class Ahead:
    """Runs tests on an event loop of its own; those marked `first` first, the rest in pytest's order."""

    def __init__(self, items: list[pytest.Function]) -> None:
        self.loop = asyncio.new_event_loop()
        suites = {id(suite_of(item)): suite_of(item) for item in items}
        self._given = {name: make() for each in suites.values() for name, make in each.given.items()}
        self._places = {each: asyncio.Semaphore(suites[each].at_once) for each in suites}
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()
        in_turn = sorted(items, key=lambda item: item.get_closest_marker("first") is None)
        self._runs: dict[pytest.Function, Future[None]] = {
            item: asyncio.run_coroutine_threadsafe(self._run(item), self.loop) for item in in_turn
        }

    async def _run(self, item: pytest.Function) -> None:
        known = {**self._given, **(item.callspec.params if hasattr(item, "callspec") else {})}
        names = inspect.signature(item.obj).parameters
        async with self._places[id(suite_of(item))]:
            limit_s = limit_of(item)
            try:
                async with asyncio.timeout(limit_s):
                    await item.obj(**{name: known[name] for name in names})
            except TimeoutError as late:
                # As it is, it would lose its traceback on the way to pytest's thread.
                raise AssertionError(f"not over after {limit_s} s") from late

    def result(self, item: pytest.Function) -> None:
        self._runs[item].result()

    def stop(self) -> None:
        for run in self._runs.values():
            run.cancel()
        for holder in self._given.values():
            asyncio.run_coroutine_threadsafe(holder.stop(), self.loop).result(60)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(20)
        self.loop.close()


def limit_of(item: pytest.Item) -> float:
    return FIRST_LIMIT_S if item.get_closest_marker("first") else suite_of(item).limit_s


AHEAD = pytest.StashKey[Ahead]()


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "first: takes longest and mostly waits, so it is begun before the others")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if is_ahead(item):
            # What pytest waits for may have been begun late.
            item.add_marker(pytest.mark.timeout(suite_of(item).limit_s + FIRST_LIMIT_S))


def is_ahead(item: pytest.Item) -> bool:
    is_ours = item.path.parent in _suites
    is_left_out = item.get_closest_marker("skip") is not None
    is_async = isinstance(item, pytest.Function) and inspect.iscoroutinefunction(item.obj)
    return is_ours and is_async and not is_left_out


def pytest_collection_finish(session: pytest.Session) -> None:
    items = [item for item in session.items if isinstance(item, pytest.Function) and is_ahead(item)]
    # Each conftest that has taken the hooks calls this one.
    if session.config.option.collectonly or not items or AHEAD in session.config.stash:
        return
    for each in {id(suite_of(item)): suite_of(item) for item in items}.values():
        if each.before is not None:
            each.before([item for item in items if suite_of(item) is each])
    session.config.stash[AHEAD] = Ahead(items)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if not is_ahead(pyfuncitem):
        return None
    pyfuncitem.config.stash[AHEAD].result(pyfuncitem)
    return True


def pytest_sessionfinish(session: pytest.Session) -> None:
    if AHEAD in session.config.stash:
        session.config.stash[AHEAD].stop()
        del session.config.stash[AHEAD]


HOOKS = [
    "pytest_collection_finish",
    "pytest_collection_modifyitems",
    "pytest_configure",
    "pytest_pyfunc_call",
    "pytest_sessionfinish",
]
