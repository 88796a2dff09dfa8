"""The tests of this folder run ahead of pytest, a few at once, each with a client process of its own."""

from __future__ import annotations

import os
from pathlib import Path
from subprocess import CalledProcessError

import pytest
from kit import ahead
from kit.fleet import FLEETS, servers_of
from kit.servers import RUST as RUST_SERVERS
from kit.servers import RUST_STORES, built_rust

from interop.driver import APART, RUST, Hosts, build_rust, install_apart

globals().update({name: getattr(ahead, name) for name in ahead.HOOKS})


def build(items: list[pytest.Function]) -> None:
    """Here, because a first build takes longer than a test may."""
    params = [item.callspec.params for item in items]
    servers = {each.get("server") for each in params}
    fleets = [FLEETS[name] for name in servers & FLEETS.keys()]
    try:
        clients = {each.get("client", "") for each in params}
        if any(client.startswith(RUST) for client in clients):
            build_rust()
        if clients.intersection(APART):
            install_apart()
        if any(member.language == "rust" for fleet in fleets for member in servers_of(fleet)):
            os.environ[RUST_STORES] = "every"
            built_rust()
        elif servers & RUST_SERVERS.keys():
            built_rust()
    except CalledProcessError:
        pytest.exit("a client or a server was not built", returncode=1)


ahead.suite(Path(__file__).parent, at_once=5, limit_s=400, before=build, hosts=Hosts)


@pytest.fixture
def hosts() -> None:
    """All servers and clients; the tests get them where they are run."""
