"""Server processes of the installed SDK line, for the tests of the Python package."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest
import tailrope
from kit import fixtures
from kit.fixtures import *  # noqa: F403
from kit.places import OF_EVERY_RUN
from kit.servers import SERVERS, Kind
from servers.python.flavors import installed
from tailrope import _runtime

HERE = Path(__file__).parent
KINDS = [SERVERS[flavor] for flavor in installed()]
KIND = KINDS[0]


@pytest.fixture(scope="session", params=KINDS, ids=[kind.name for kind in KINDS])
def kind(request: pytest.FixtureRequest) -> Kind:
    """The server under test: each library of the installed SDK line."""
    return request.param


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    fixtures.pytest_collection_modifyitems(items)
    for item in items:
        params = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
        if {"kind", "place"} <= params.keys() and OF_EVERY_RUN[params["kind"].name] != params["place"]:
            item.add_marker(pytest.mark.full)


@pytest.fixture
def uninstalled() -> Iterator[None]:
    """The SDK's own transport again, whatever a test installs in its process."""
    yield
    tailrope.uninstall()


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test asks of all engines of the process is of its own: those of earlier tests drain for ever."""
    monkeypatch.setattr(_runtime, "_engines", weakref.WeakSet())
