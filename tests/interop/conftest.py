"""The tests of this folder run ahead of pytest, a few at once, each with a client process of its own."""

from __future__ import annotations

from pathlib import Path
from subprocess import CalledProcessError

import pytest
from kit import ahead

from interop.driver import RUST, Hosts, build_rust

globals().update({name: getattr(ahead, name) for name in ahead.HOOKS})


def build(items: list[pytest.Function]) -> None:
    """Here, because a first build takes longer than a test may."""
    if any(item.callspec.params["client"].startswith(RUST) for item in items):
        try:
            build_rust()
        except CalledProcessError:
            pytest.exit("the driver of the Rust client did not build", returncode=1)


ahead.suite(Path(__file__).parent, at_once=5, limit_s=180, before=build, hosts=Hosts)


@pytest.fixture
def hosts() -> None:
    """All servers and clients; the tests get them where they are run."""
