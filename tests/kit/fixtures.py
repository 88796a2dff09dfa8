"""Fixtures and hooks for suites whose tests talk to servers under test. A conftest imports them and defines `kind`."""

from __future__ import annotations

import asyncio
import inspect
import os
from collections.abc import Iterator
from typing import Any

import pytest

from kit.places import empty_place
from kit.raw import hang_up
from kit.servers import TRANSPORT, Farm, Kind, Server


@pytest.fixture(scope="session")
def farms() -> Iterator[list[Farm]]:
    """The farm whose servers run: at most one."""
    running: list[Farm] = []
    yield running
    for farm in running:
        farm.stop(everything=True)


@pytest.fixture(scope="module")
def farm(farms: list[Farm], kind: Kind) -> Iterator[Farm]:
    # A module may have a `kind` of its own, so no fixture of the session can depend on it.
    if farms and farms[0].kind != kind:
        farms.pop().stop(everything=True)
    if not farms:
        farms.append(Farm(kind))
    yield farms[0]
    farms[0].stop(everything=False)


@pytest.fixture(autouse=True)
def no_tool_left_waiting(request: pytest.FixtureRequest) -> Iterator[None]:
    """A failed test leaves gates shut; its tools must not run on beside the next test."""
    yield
    if "farm" in request.fixturenames:
        asyncio.run(request.getfixturevalue("farm").open_all())


@pytest.fixture
def server(farm: Farm) -> Server:
    return farm.get()


@pytest.fixture
def lab(farm: Farm) -> Iterator[Server]:
    """A server whose event store is a user's own, back to good behaviour after each test."""
    server = farm.get(store="lab")
    yield server
    if server.process.poll() is None:
        asyncio.run(server.plan())


def named(kind: str) -> Any:
    """A kind of store that a variable of the environment names, or its reason to be left out."""
    variable = f"TAILROPE_TEST_{kind.upper()}"
    left_out = pytest.mark.skipif(not os.environ.get(variable), reason=f"{variable} names no server")
    return pytest.param(kind, id=kind, marks=left_out)


@pytest.fixture(scope="module", params=["sqlite", named("redis"), named("postgres")])
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    return empty_place(request.param, tmp_path_factory.mktemp("store"))


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run `async def` tests, each in an event loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = pyfuncitem._fixtureinfo.argnames

    async def run() -> None:
        try:
            await pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names})
        finally:
            hang_up()

    asyncio.run(run())
    return True


def pytest_configure(config: pytest.Config) -> None:
    if TRANSPORT == "stock":
        # The 2.x client recurses at each reconnect; a traceback that deep breaks pytest's own printing of sources.
        config.option.tbstyle = "native"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if TRANSPORT == "stock":
        for item in items:
            if item.get_closest_marker("ours"):
                item.add_marker(pytest.mark.skip(reason="about Tailrope itself"))


__all__ = [
    "farm",
    "farms",
    "lab",
    "no_tool_left_waiting",
    "place",
    "pytest_collection_modifyitems",
    "pytest_configure",
    "pytest_pyfunc_call",
    "server",
]
