"""install(): its options, its logger and its switch. No sockets."""

from __future__ import annotations

import json
import logging
import sys
from typing import Any

import mcp.server.streamable_http_manager as sdk_manager
import pytest
import tailrope
import tailrope.mcp
from asgi import note, transport
from mcp.server.streamable_http import EventMessage
from servers.python.stores import LabStore
from tailrope import _runtime
from tailrope.mcp import _engage, _sdk

pytestmark = [pytest.mark.ours, pytest.mark.usefixtures("uninstalled")]


def test_install_with_a_wrong_option_changes_nothing() -> None:
    stock = sdk_manager.StreamableHTTPServerTransport
    for wrong in ({"retry_ms": -1}, {"nonsense": 1}, {"store_timeout_ms": 0}, {"store_timeout_ms": "1"}):
        with pytest.raises(ValueError):
            tailrope.install(prefer_resumable=True, **wrong)  # type: ignore[arg-type]
        assert _engage.runtime_for(None, explicit=False) is None
        assert sdk_manager.StreamableHTTPServerTransport is stock
    tailrope.install(retry_ms=1_234)
    with pytest.raises(ValueError):
        tailrope.install(retry_ms=-1)
    runtime = _engage.runtime_for(None, explicit=False)
    assert runtime is not None and runtime.engine.options()["retry_ms"] == 1_234


async def test_install_again_replaces_the_options_of_user_stores_too() -> None:
    store = LabStore()
    tailrope.install(retry_ms=1_111)
    async with transport(store) as (first, _inbox, _outbox):
        assert first._runtime.engine.options()["retry_ms"] == 1_111
    tailrope.install(retry_ms=2_222)
    async with transport(store) as (second, _inbox, _outbox):
        assert second._runtime.engine.options()["retry_ms"] == 2_222


@pytest.mark.parametrize("level", [1_000, sys.maxsize])
async def test_a_logger_that_is_silenced_by_a_high_level_serves(level: int) -> None:
    logger = logging.getLogger("tailrope")
    before = logger.level
    logger.setLevel(level)
    try:
        tailrope.install()
        async with transport() as (made, _inbox, _outbox):
            here = _runtime.current_loop()
            here.arm(made._runtime, 0)
            here._timers[made._runtime][1].cancel()
            here._tick(made._runtime)
    finally:
        logger.setLevel(before)


async def test_the_kill_switch_leaves_a_server_with_our_store_working(monkeypatch: pytest.MonkeyPatch) -> None:
    """`event_store=tailrope.mcp.EventStore()` on the SDK's own transport: within its limits, but working."""
    monkeypatch.setenv("TAILROPE_DISABLE", "1")
    store = tailrope.mcp.EventStore(max_events_per_stream=3)
    ids = [await store.store_event("a", _sdk.parse(json.dumps(note(number)).encode())) for number in range(5)]
    other = await store.store_event("b", None)
    assert len({*ids, other}) == 6
    got: list[Any] = []

    async def collect(event: EventMessage) -> None:
        got.append(event)

    assert await store.replay_events_after(ids[2], collect) == "a"
    assert [event.event_id for event in got] == ids[3:]
    for gone in (ids[0], "nonsense"):
        assert await store.replay_events_after(gone, collect) is None
    assert await store.replay_events_after(other, collect) == "b"
    assert len(got) == 2
