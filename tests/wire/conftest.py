"""The wire suite: what a server does on the wire, said once and asked of every server of the list.

`TAILROPE_TEST_SERVERS=mcp2,node-v2` names the servers; without it they all run.
"""

from __future__ import annotations

import os

import pytest
from kit.fixtures import *
from kit.servers import SERVERS, Kind

CHOSEN = os.environ.get("TAILROPE_TEST_SERVERS", ",".join(SERVERS)).split(",")


@pytest.fixture(scope="session", params=[SERVERS[name] for name in CHOSEN], ids=CHOSEN)
def kind(request: pytest.FixtureRequest) -> Kind:
    """The server under test."""
    return request.param
