"""Runs the tests of this directory ahead of pytest, many at once: they mostly wait.

pytest reports them in its order all the same. The durations that it shows are therefore what it waited for a test.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
import threading
from concurrent.futures import Future
from pathlib import Path

import pytest

# Hosts and taps are those of the matrix of clients and servers.
sys.path.append(str(Path(__file__).resolve().parents[1] / "interop"))

from drivers import Drivers

AT_ONCE = 24
LIMIT_S = 300
# Of those marked `first`, some wait for one another.
FIRST_LIMIT_S = 900


class Ahead:
    """Runs `async def` tests on an event loop of its own; those marked `first` first, the rest in pytest's order."""

    def __init__(self, items: list[pytest.Function]) -> None:
        from hosts import Hosts

        self.loop = asyncio.new_event_loop()
        self.drivers = Drivers()
        self.hosts = Hosts()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()
        self._places = asyncio.Semaphore(AT_ONCE)
        in_turn = sorted(items, key=lambda item: item.get_closest_marker("first") is None)
        self._runs: dict[pytest.Function, Future[None]] = {
            item: asyncio.run_coroutine_threadsafe(self._run(item), self.loop) for item in in_turn
        }

    async def _run(self, item: pytest.Function) -> None:
        given = {"drivers": self.drivers, "hosts": self.hosts}
        params = item.callspec.params if hasattr(item, "callspec") else {}
        names = inspect.signature(item.obj).parameters
        limit_s = LIMIT_S if item.get_closest_marker("first") is None else FIRST_LIMIT_S
        async with self._places:
            try:
                async with asyncio.timeout(limit_s):
                    await item.obj(**{name: given[name] if name in given else params[name] for name in names})
            except TimeoutError as late:
                # As it is, it would lose its traceback on the way to pytest's thread.
                raise AssertionError(f"not over after {limit_s} s") from late

    def result(self, item: pytest.Function) -> None:
        self._runs[item].result()

    def stop(self) -> None:
        for run in self._runs.values():
            run.cancel()
        for holder in (self.drivers, self.hosts):
            asyncio.run_coroutine_threadsafe(holder.stop(), self.loop).result(20)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(20)
        self.loop.close()


AHEAD = pytest.StashKey[Ahead]()


@pytest.fixture
def drivers() -> None:
    """All client processes; the tests get them where they are run."""


@pytest.fixture
def hosts() -> None:
    """All servers, likewise."""


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "first: takes longest and mostly waits, so it is begun before the others")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        # What pytest waits for may have been begun late.
        item.add_marker(pytest.mark.timeout(LIMIT_S + FIRST_LIMIT_S))


def pytest_collection_finish(session: pytest.Session) -> None:
    items = [item for item in session.items if isinstance(item, pytest.Function)]
    ahead = [item for item in items if inspect.iscoroutinefunction(item.obj)]
    if not session.config.option.collectonly and ahead:
        session.config.stash[AHEAD] = Ahead(ahead)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    pyfuncitem.config.stash[AHEAD].result(pyfuncitem)
    return True


def pytest_sessionfinish(session: pytest.Session) -> None:
    if AHEAD in session.config.stash:
        session.config.stash[AHEAD].stop()
