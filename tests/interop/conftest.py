"""Runs the tests of this directory ahead of pytest, a few at once: they mostly wait, each on processes of its own.

pytest reports them in its order all the same. The durations that it shows are therefore what it waited for a test.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from concurrent.futures import Future
from subprocess import CalledProcessError

import pytest
from driver import RUST, build_rust
from hosts import Hosts

AT_ONCE = 3
LIMIT_S = 50


class Ahead:
    """Runs `async def` tests on an event loop of its own, in the order in which pytest will ask for them."""

    def __init__(self, items: list[pytest.Function]) -> None:
        self.loop = asyncio.new_event_loop()
        self.hosts = Hosts()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()
        self._places = asyncio.Semaphore(AT_ONCE)
        self._runs: dict[pytest.Function, Future[None]] = {
            item: asyncio.run_coroutine_threadsafe(self._run(item), self.loop) for item in items
        }

    async def _run(self, item: pytest.Function) -> None:
        async with self._places:
            try:
                async with asyncio.timeout(LIMIT_S):
                    await item.obj(self.hosts, **item.callspec.params)
            except TimeoutError as late:
                # As it is, it would lose its traceback on the way to pytest's thread.
                raise AssertionError(f"not over after {LIMIT_S} s") from late

    def result(self, item: pytest.Function) -> None:
        self._runs[item].result()

    def stop(self) -> None:
        for run in self._runs.values():
            run.cancel()
        asyncio.run_coroutine_threadsafe(self.hosts.stop(), self.loop).result(20)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(20)
        self.loop.close()


AHEAD = pytest.StashKey[Ahead]()


@pytest.fixture
def hosts() -> None:
    """All servers; the tests get them where they are run."""


def pytest_collection_finish(session: pytest.Session) -> None:
    items = [item for item in session.items if isinstance(item, pytest.Function)]
    if session.config.option.collectonly or not items:
        return
    # Here, because a first build takes longer than a test may.
    if any(item.callspec.params["client"].startswith(RUST) for item in items):
        try:
            build_rust()
        except CalledProcessError:
            pytest.exit("the driver of the Rust client did not build", returncode=1)
    session.config.stash[AHEAD] = Ahead(items)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    pyfuncitem.config.stash[AHEAD].result(pyfuncitem)
    return True


def pytest_sessionfinish(session: pytest.Session) -> None:
    if AHEAD in session.config.stash:
        session.config.stash[AHEAD].stop()
