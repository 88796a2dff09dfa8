"""The wire suite: what a server does on the wire, said once and asked of every server of the list, and of every fleet.

`TAILROPE_TEST_SERVERS=mcp2,node-v2` names the servers; without it they all run.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import zlib
from collections.abc import Generator

import pytest
from kit import fixtures
from kit.fixtures import *  # noqa: F403
from kit.fleet import FLEETS, MIXED, Fleet, servers_of
from kit.places import OF_EVERY_RUN
from kit.servers import FRONTS, ROOT, RUST, RUST_STOCK, RUST_STORES, SERVERS, TRANSPORT, Kind, built_rust, rust_build
from wire.rmcp import left_out, unseen

KINDS: dict[str, Kind] = {**SERVERS, **RUST, **(RUST_STOCK if TRANSPORT == "stock" else {**FRONTS, **FLEETS})}
CHOSEN = os.environ.get("TAILROPE_TEST_SERVERS", ",".join(KINDS)).split(",")
# What every run asks; the long run asks every server on every store.
# What has a store, and what the mark `first` is on, says nothing about the SDKs of a language. A Rust server starts in
# no time, and is asked all.
FIRST = {"mcp2", "node-v2"}
# Any other test goes to one of these halves, by its name: each has every SDK line and every library of a language.
HALVES = ({"mcp2", "fastmcp3", "node-v2", "web-v1"}, {"mcp1", "fastmcp4", "node-v1", "web-v2"})


# What every run asks of one fleet: resumes, questions, cancellations and ends of sessions, each request anywhere.
FLEET = "mixed-redis"
OF_FLEET = {"test_fleet.py", "test_replay.py"}
FIRST_FRONTS = {"tower-front", "mcp2-front", "node-v2-front"}
# What every run asks of a front: what goes through it or past it. The rest is the engine's, which the service behind it
# is asked for.
OF_FRONT = {"test_drain.py", "test_malformed.py", "test_polling.py", "test_replay.py"}


@pytest.fixture(scope="session", params=[KINDS[name] for name in CHOSEN], ids=CHOSEN)
def kind(request: pytest.FixtureRequest) -> Kind:
    """The server under test."""
    return request.param


def is_asked(item: pytest.Item, kind: Kind) -> bool:
    """Of a fleet not: what starts its processes by itself, what is about a user's own event store, which tells nothing
    of the sessions of others, and what its test says cannot be asked of several."""
    if not isinstance(kind, Fleet):
        return True
    names = item.fixturenames
    has_own_store = not {"lab", "users"}.isdisjoint(names)
    is_of_one = "farm" not in names or has_own_store or item.get_closest_marker("one_process")
    return not is_of_one and not (kind.language == MIXED and item.get_closest_marker("one_language"))


def takes_long(item: pytest.Item, kind: Kind, params: dict[str, object]) -> bool:
    if isinstance(kind, Fleet):
        return kind.name != FLEET or item.path.name not in OF_FLEET
    if params.get("place", OF_EVERY_RUN.get(kind.name)) != OF_EVERY_RUN.get(kind.name):
        return True
    if kind.has_front:
        return kind.name not in FIRST_FRONTS or item.path.name not in OF_FRONT
    if kind.language == "rust":
        return False
    if "place" in params or item.get_closest_marker("first") is not None:
        return kind.name not in FIRST
    test = item.nodeid.replace(kind.name, "").encode()
    return kind.name not in HALVES[zlib.crc32(test) % 2]


def pytest_configure(config: pytest.Config) -> None:
    fixtures.pytest_configure(config)
    has_rust = any(member.language == "rust" for name in CHOSEN for member in servers_of(KINDS[name]))
    if not has_rust or hasattr(config, "workerinput") or config.option.collectonly:
        return
    if config.option.markexpr != "not full":
        os.environ[RUST_STORES] = "every"
    # A first build goes on beside the tests of other servers, which come first. A test that needs it waits for it.
    building = subprocess.Popen(rust_build(), cwd=ROOT)
    if SERVERS.keys().isdisjoint(CHOSEN):
        building.wait()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """A first build is no part of the time that a test may take."""
    kind = item.callspec.params.get("kind") if isinstance(item, pytest.Function) and hasattr(item, "callspec") else None
    if kind is not None and any(member.language == "rust" for member in servers_of(kind)):
        # The test says why there is no server.
        with contextlib.suppress(subprocess.CalledProcessError):
            built_rust()
    return (yield)


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
        for member in servers_of(kind) if kind is not None else ():
            if member.language == "rust":
                left_out(item, member.name)
            if member.has_front:
                unseen(item, member)
        if isinstance(kind, Fleet) and (reason := kind.lacks()) is not None:
            item.add_marker(pytest.mark.skip(reason=reason))
    config.hook.pytest_deselected(items=others)
    items[:] = asked
