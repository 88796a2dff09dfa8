"""The tests of this folder run ahead of pytest, many at once: they mostly wait."""

from __future__ import annotations

from pathlib import Path

import pytest
from interop.driver import Hosts
from kit import ahead

from client.drivers import Drivers

globals().update({name: getattr(ahead, name) for name in ahead.HOOKS})

ahead.suite(Path(__file__).parent, at_once=24, limit_s=300, drivers=Drivers, hosts=Hosts)


@pytest.fixture
def drivers() -> None:
    """All client processes; the tests get them where they are run."""


@pytest.fixture
def hosts() -> None:
    """All servers, likewise."""
