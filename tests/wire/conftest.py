"""The wire suite: what a server does on the wire, said once and asked of every server of the list, and of every fleet.

`TAILROPE_TEST_SERVERS=mcp2,node-v2` names the servers; without it they all run.
"""

from __future__ import annotations

import os
import subprocess

import pytest
from kit import fixtures
from kit.fixtures import *  # noqa: F403
from kit.servers import ROOT, RUST, RUST_STORES, SERVERS, Kind, rust_build
from wire.rmcp import left_out

ALL = {**SERVERS, **RUST}
CHOSEN = os.environ.get("TAILROPE_TEST_SERVERS", ",".join(ALL)).split(",")
# One of each language goes through every store, and takes what the mark `first` is on. The way to a store is its
# language's, so the others take the long run.
FIRST = {"mcp2", "node-v2"}


@pytest.fixture(scope="session", params=[ALL[name] for name in CHOSEN], ids=CHOSEN)
def kind(request: pytest.FixtureRequest) -> Kind:
    """The server under test."""
    return request.param


def pytest_configure(config: pytest.Config) -> None:
    fixtures.pytest_configure(config)
    if RUST.keys().isdisjoint(CHOSEN) or hasattr(config, "workerinput") or config.option.collectonly:
        return
    if config.option.markexpr != "not full":
        os.environ[RUST_STORES] = "every"
    # A first build takes longer than a test may, so it goes on beside the tests of other servers, which come first. Who
    # needs it waits for it.
    building = subprocess.Popen(rust_build(), cwd=ROOT)
    if SERVERS.keys().isdisjoint(CHOSEN):
        building.wait()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    fixtures.pytest_collection_modifyitems(items)
    asked, others = [], []
    for item in items:
        params = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
        kind = params.get("kind")
        (asked if kind is None or is_asked(item, kind) else others).append(item)
        if kind is not None and takes_long(item, kind, params):
            item.add_marker(pytest.mark.full)
        if "kind" in params and params["kind"].language == "rust":
            left_out(item, params["kind"].name)
