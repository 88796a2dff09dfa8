"""install(): its options, its logger and its switch. No sockets."""

from __future__ import annotations

import gc
import json
import logging
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import mcp.server.streamable_http_manager as sdk_manager
import pytest
import tailrope
import tailrope.mcp
from asgi import end, note, running_call, transport
from kit.servers import ROOT
from mcp.server.lowlevel import Server
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
        assert _engage.installed is None
        assert sdk_manager.StreamableHTTPServerTransport is stock
    tailrope.install(retry_ms=1_234)
    with pytest.raises(ValueError):
        tailrope.install(retry_ms=-1)
    assert _engage.installed is not None
    assert _engage.installed.runtime.engine.options()["retry_ms"] == 1_234


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"store": None}, "not None"),
        ({"retryMs": 1}, "did you mean retry_ms?"),
        ({"event_store": "memory:"}, "an option of a server"),
        ({"prefer_resumable": 1}, "True or False"),
        ({"paces": {}}, "did you mean pace?"),
        ({"heartbeat_ms": 1}, "heartbeat_ms is an option of tailrope.Pace()"),
        ({"zzz": 1}, "unknown option zzz: docs/reference/options.md has all of them"),
        ({"pace": tailrope.Pace()}, "a mapping of names of tools to tailrope.Pace(...)"),
        ({"pace": {"a": {"retry_ms": 1}}}, "names of tools to tailrope.Pace(...), not 'a' to {'retry_ms': 1}"),
        ({"pace": {"*a": tailrope.Pace()}}, 'a * at the end, not "*a"'),
        ({"max_connection_ms": "never"}, "max_connection_ms must be 'auto', or a whole number that is not negative"),
        ({"keep_alive_ms": "auto"}, "keep_alive_ms must be a whole number that is not negative"),
        ({"pace": {"a": tailrope.Pace(max_connection_ms="auto")}}, 'max_connection_ms of the pace "a" must be a whole'),  # type: ignore[arg-type]
        ({"pace": {"a": tailrope.Pace(hold_ms=-1)}}, 'hold_ms of the pace "a" must be a whole number'),
        ({"pace": {"a": tailrope.Pace(retention_ms=0)}}, 'retention_ms of the pace "a" must be at least 1'),
        ({"pace": {"a": tailrope.Pace(retry_ms=True)}}, 'retry_ms of the pace "a" must be a whole number'),
        ({"max_sessions": True}, "max_sessions must be a whole number that is not negative"),
        ({"retention_ms": True}, "retention_ms must be a whole number that is not negative"),
        ({"max_connection_ms": False}, "max_connection_ms must be 'auto', or a whole number that is not negative"),
    ],
)
def test_a_wrong_option_says_what_was_meant(wrong: dict[str, Any], told: str) -> None:
    with pytest.raises((ValueError, TypeError), match=re.escape(told)):
        tailrope.install(**wrong)
    if "prefer_resumable" not in wrong:
        with pytest.raises((ValueError, TypeError), match=re.escape(told)):
            tailrope.mcp.EventStore(**wrong)


WRONG = (True, -1, 1.5, "1", 1 << 70)


@pytest.mark.parametrize("name", ["retry_ms", "spread_ms", "within_ms"])
@pytest.mark.parametrize("wrong", WRONG)
async def test_a_drain_takes_whole_numbers(name: str, wrong: Any) -> None:
    tailrope.install()
    with pytest.raises(ValueError, match=f"{name} must be a whole number that is not negative"):
        await tailrope.drain(**{name: wrong})
    # Nothing is drained.
    async with running_call() as (_, outbox, call):
        await end(call, outbox)


@pytest.mark.parametrize("name", ["retry_ms", "hold_ms"])
@pytest.mark.parametrize("wrong", WRONG)
async def test_a_close_takes_whole_numbers(name: str, wrong: Any) -> None:
    async with running_call() as (made, _, call):
        for close in (made.close_standalone_sse_stream, lambda **given: made.close_sse_stream(1, **given)):
            with pytest.raises(ValueError, match=f"{name} must be a whole number that is not negative"):
                close(**{name: wrong})
            close(**{name: 1 << 40})
        await call.task


def test_a_pace_has_its_own_options_and_no_other() -> None:
    for wrong, told in (("retryMs", "did you mean retry_ms?"), ("keep_alive_ms", "is an option of install()")):
        with pytest.raises(ValueError, match=re.escape(told)):
            tailrope.Pace(**{wrong: 1})  # type: ignore[misc]
    assert repr(tailrope.Pace(retry_ms=1, hold_ms=0)) == "Pace(retry_ms=1, hold_ms=0)"


def test_an_option_of_the_engine_is_none_of_a_store() -> None:
    with pytest.raises(ValueError, match=re.escape("retry_ms is an option of install()")):
        tailrope.open_store("memory:", retry_ms=1)  # type: ignore[call-arg]


async def test_install_again_replaces_the_options_of_user_stores_too() -> None:
    store = LabStore()
    tailrope.install(retry_ms=1_111)
    async with transport(store) as (first, _inbox, _outbox):
        assert first._tailrope.runtime.engine.options()["retry_ms"] == 1_111
    tailrope.install(retry_ms=2_222)
    async with transport(store) as (second, _inbox, _outbox):
        assert second._tailrope.runtime.engine.options()["retry_ms"] == 2_222


@pytest.mark.parametrize("level", [1_000, sys.maxsize])
async def test_a_logger_that_is_silenced_by_a_high_level_serves(level: int) -> None:
    logger = logging.getLogger("tailrope")
    before = logger.level
    logger.setLevel(level)
    try:
        tailrope.install()
        async with transport() as (made, _inbox, _outbox):
            here = _runtime.current_loop()
            here.arm(made._tailrope.runtime, 0)
            here._timers[made._tailrope.runtime][1].cancel()
            here._tick(made._tailrope.runtime)
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


def test_install_logs_what_is_in_force_and_status_tells_it(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    caplog.set_level(logging.INFO, "tailrope")
    # Servers of tests before this one may wait for it.
    gc.collect()
    assert tailrope.status()["transport"] is tailrope.status()["store"] is tailrope.status()["prefer_resumable"] is None
    address = f"sqlite:{tmp_path / 'events.db'}"
    tailrope.install(store=address, prefer_resumable=False)
    assert tailrope.status() == {
        "version": tailrope.__version__,
        "sdk": [f"mcp {version('mcp')}"],
        "is_disabled": False,
        "transport": "tailrope",
        "store": address,
        "prefer_resumable": False,
        "servers": [],
        "notices": [],
    }
    (record,) = caplog.records
    line = record.getMessage()
    assert record.levelno == logging.INFO
    for told in (f"mcp {version('mcp')}", address, "transport=tailrope", "prefer_resumable=False"):
        assert told in line, line
    tailrope.uninstall()
    assert tailrope.status()["transport"] is None


async def test_install_says_what_is_unusual_and_what_it_means(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "tailrope")
    manager = sdk_manager.StreamableHTTPSessionManager(Server("x"))
    async with manager.run():
        # A session of the SDK's own transport.
        manager._server_instances["before"] = sdk_manager.StreamableHTTPServerTransport("before")
        tailrope.install()
        tailrope.install(transport="stock")
        now = tailrope.status()
        assert (now["transport"], now["prefer_resumable"]) == ("stock", True)
        twice, late = now["notices"]
        assert twice.startswith("install() was called 2 times: "), now
        assert late.startswith("1 sessions were open before install(): "), now
        assert all(notice in caplog.records[-1].getMessage() for notice in now["notices"])


def test_managers_made_before_are_ours_after_install_and_the_sdks_again_after_uninstall() -> None:
    manager = sdk_manager.StreamableHTTPSessionManager(Server("x"))
    stock = manager.asgi_app
    tailrope.install()
    assert manager.asgi_app is not stock
    later = sdk_manager.StreamableHTTPSessionManager(Server("x"))
    tailrope.uninstall()
    assert manager.asgi_app is stock and type(later.asgi_app) is type(stock)


@pytest.mark.parametrize("given", ["memory:", "redis://user:hunter2@127.0.0.1/0", 7, "store"])
def test_a_server_that_is_given_no_event_store_says_so_when_it_is_made(given: Any) -> None:
    tailrope.install()
    given = tailrope.open_store("memory:") if given == "store" else given
    with pytest.raises(TypeError) as told:
        sdk_manager.StreamableHTTPSessionManager(Server("x"), event_store=given)
    assert "tailrope.mcp.EventStore(" in str(told.value) and "hunter2" not in str(told.value)


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("old", ["1.24.0", "2.1.3", ""])
def test_an_sdk_that_is_too_old_or_missing_is_named_before_it_is_imported(old: str) -> None:
    done = run(f"""
import importlib.metadata as metadata, sys
real = metadata.version
def version(name):
    if name != "mcp": return real(name)
    if {old!r}: return {old!r}
    raise metadata.PackageNotFoundError(name)
metadata.version = version
import tailrope
ways = (lambda: tailrope.install(on_unsupported="raise"), lambda: tailrope.mcp.EventStore, tailrope.install)
for way in ways:
    try: way()
    except tailrope.TailropeError as error: print(error.code, error)
print("status", *tailrope.status()["notices"])
assert not any(name.split(".")[0] == "mcp" for name in sys.modules)
""")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 3
    assert all(old in line and "mcp 1.30" in line for line in lines), lines
    assert [line.split()[0] for line in lines] == ["unsupported_sdk", "unsupported_sdk", "status"]
    assert done.stderr.count("Servers stay with the SDK's own transport") == 1, done.stderr


def test_tailrope_alone_imports_neither_the_sdk_nor_an_http_library() -> None:
    done = run("""
import sys, tailrope
heavy = {"mcp", "httpx", "httpx2", "starlette", "pydantic"}
assert not heavy & set(sys.modules), heavy & set(sys.modules)
tailrope.client.http_client_factory, tailrope.mcp.EventStore, tailrope.testing.Session, tailrope.install
""")
    assert done.returncode == 0, done.stderr


def test_the_reference_of_the_counters_is_true() -> None:
    """docs/reference/counters.md names every counter of both languages, as the engine explains them."""
    page = (ROOT / "docs" / "reference" / "counters.md").read_text()
    source = (ROOT / "core" / "src" / "engine" / "stats.rs").read_text()
    row = r"^\| `(\w+)` \| `(\w+)` \| `[^`]+` \| \w+ \| (?:(?:sum|max|min|stores) \| )?(.+) \|$"
    rows = re.findall(row, page, re.MULTILINE)
    assert [name for name, _, _ in rows] == list(tailrope.stats())
    for name, in_node, meaning in rows:
        first, *words = name.split("_")
        assert in_node == first + "".join(word.capitalize() for word in words)
        explained = re.search(rf"/// (.+)\.\n\s+{name}: ", source)
        assert explained is not None and explained[1].lower() == meaning.lower(), name


def test_the_reference_of_status_is_true() -> None:
    page = (ROOT / "docs" / "operate" / "watching.md").read_text()
    part = page[page.index("## What is in force") : page.index("## The log")]
    assert re.findall(r"^\| `(\w+)` \|", part, re.MULTILINE) == list(tailrope.status())
