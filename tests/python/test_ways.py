"""The ways beside install(): resumable() and our session manager change their own servers, and nothing of the SDK."""

from __future__ import annotations

import gc
import logging
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import mcp.server.streamable_http_manager as sdk_manager
import pytest
import tailrope
import tailrope.mcp
import uvicorn
from asgi import OPEN, Asgi
from conftest import KINDS
from fastapi import FastAPI
from kit.elsewhere import NEVER_LOST
from kit.ending import ended
from kit.peer import counts, ids, last_id, results
from kit.servers import LOWLEVEL, TESTS, Farm, Kind, Server, gate
from kit.stock import LINE
from mcp.server.lowlevel import Server as SdkServer
from mcp.server.streamable_http import EventStore
from servers.python.flavors import BUILDERS, Ops, installed
from starlette.applications import Starlette
from starlette.routing import Mount, Route
from tailrope import _runtime
from tailrope.mcp import _engage
from wire import test_lifecycle

pytestmark = [pytest.mark.ours, pytest.mark.usefixtures("uninstalled")]

Stock = sdk_manager.StreamableHTTPSessionManager


@pytest.fixture(autouse=True)
def sdk_as_it_was() -> Iterator[None]:
    """Whatever a test does, the names of the SDK are the SDK's afterwards."""
    before = dict(vars(Stock))
    transport = sdk_manager.StreamableHTTPServerTransport
    yield
    tailrope.uninstall()
    # What is in force for a server ends with the server.
    gc.collect()
    assert sdk_manager.StreamableHTTPServerTransport is transport
    assert transport.__module__ == "mcp.server.streamable_http"
    assert dict(vars(Stock)) == before


class Via:
    """The farm, whose servers are made resumable in another way."""

    def __init__(self, farm: Farm, **options: Any) -> None:
        self._farm, self._options = farm, options
        self.kind = farm.kind

    def get(self, **options: Any) -> Server:
        return self._farm.get(**self._options, **options)


async def test_the_sdks_idle_timeout_is_asked_of_the_engine(farm: Farm) -> None:
    via: Any = Via(farm, way="resumable")
    await test_lifecycle.test_f51_session_with_a_running_tool_is_not_idle(via)


@pytest.mark.parametrize("around", ["base", "cors", "django", "fastapi", "gzip", "starlette"])
async def test_servers_are_found_in_what_is_around_them(farm: Farm, around: str) -> None:
    server = farm.get(around=around, way="resumable")
    peer = await server.peer(path="/in/mcp" if around in ("fastapi", "starlette") else "/mcp")
    events = await (await peer.call("script", {"steps": ["emit 1", "close", "emit 1", "return x"]})).rest()
    rest = await (await peer.resume(last_id(events))).rest()
    assert counts(events + rest) == [1, 2] and results(rest) == ["x"]


ENDING = [(kind, "resumable") for kind in KINDS] + [(LOWLEVEL[f"lowlevel-mcp{LINE}"], "manager")]


@pytest.mark.parametrize(("kind", "way"), ENDING, ids=[f"{kind.name}-{way}" for kind, way in ENDING])
async def test_f44_orderly_end_leaves_sessions_to_the_next_process(kind: Kind, way: str, tmp_path: Path) -> None:
    options = {"way": way, "address": f"sqlite:{tmp_path / 'events.db'}", "engine": NEVER_LOST}
    async with Server.running(kind, options) as server:
        peer = await server.peer()
        call = await peer.call("script", {"steps": ["emit 2", f"gate {gate()}"]}, id=7)
        events = await call.some(2)
        await ended(server, [await peer.listen(), call], signal.SIGTERM)
    async with Server.running(kind, options) as server:
        peer.port = server.port
        rest = await (await peer.resume(ids(events)[0])).until_terminal()
        assert counts(rest) == [2]
        assert rest[-1].message is not None and rest[-1].message["id"] == 7 and "error" in rest[-1].message


def app_of(flavor: str, store: Any = None) -> Any:
    return BUILDERS[flavor]({}, store, None, Ops(tailrope=True))


async def a_session(manager: Any) -> Any:
    """The transport of a session that a manager has just opened."""
    return manager._admit_session(None)


@asynccontextmanager
async def started(app: Any) -> Any:
    """The session managers of an app that runs."""
    async with app.router.lifespan_context(app):
        endpoint = next(route.endpoint for route in app.routes if isinstance(route, Route))
        yield endpoint.session_manager


@pytest.mark.parametrize("flavor", installed())
async def test_resumable_returns_the_app_and_leaves_other_servers_stock(flavor: str) -> None:
    app, other = app_of(flavor), app_of(flavor)
    assert tailrope.mcp.resumable(app, retry_ms=44) is app
    async with started(app) as ours, started(other) as stock:
        made = await a_session(ours)
        assert made._tailrope.runtime.engine.options()["retry_ms"] == 44
        assert made.mcp_session_id in ours._server_instances
        assert isinstance(ours, Stock) and type(ours).__name__ == type(stock).__name__
        assert type(await a_session(stock)) is sdk_manager.StreamableHTTPServerTransport
        assert type(stock.asgi_app).__module__.startswith("mcp.")


@pytest.mark.parametrize("flavor", installed())
async def test_under_install_a_server_has_the_options_of_its_own_way(flavor: str) -> None:
    app, other = app_of(flavor), app_of(flavor)
    tailrope.install(retry_ms=11)
    tailrope.mcp.resumable(app, retry_ms=22)
    async with started(app) as ours, started(other) as installed_one:
        for manager, retry_ms in ((ours, 22), (installed_one, 11)):
            assert (await a_session(manager))._tailrope.runtime.engine.options()["retry_ms"] == retry_ms
        tailrope.uninstall()
        assert (await a_session(ours))._tailrope.runtime.engine.options()["retry_ms"] == 22
        assert type(await a_session(installed_one)) is sdk_manager.StreamableHTTPServerTransport


async def test_hooks_of_hosts_outlast_uninstall_where_a_way_needs_them() -> None:
    app = tailrope.mcp.resumable(app_of(installed()[0]))
    tailrope.install()
    tailrope.uninstall()
    assert app is not None and hasattr(uvicorn.Server.shutdown, "__wrapped__")


@pytest.mark.parametrize("flavor", installed())
async def test_an_event_store_of_a_server_has_its_store_and_options(flavor: str, tmp_path: Path) -> None:
    store = tailrope.mcp.EventStore(f"sqlite:{tmp_path / 'events.db'}", retry_ms=33)
    app = tailrope.mcp.resumable(app_of(flavor, store), retry_ms=44)
    async with started(app) as manager:
        assert (await a_session(manager))._tailrope.runtime is store.runtime


async def test_servers_of_one_app_share_a_store_and_others_have_their_own(tmp_path: Path) -> None:
    first, second, third = (app_of(installed()[0]) for _ in range(3))
    host = FastAPI()
    host.mount("/first", first)
    host.mount("/second", second)
    assert tailrope.mcp.resumable(host, store=f"sqlite:{tmp_path / 'a.db'}") is host
    tailrope.mcp.resumable(third, store=f"sqlite:{tmp_path / 'b.db'}")
    async with started(first) as one, started(second) as two, started(third) as three:
        addresses = [(await a_session(manager))._tailrope.runtime.store.address for manager in (one, two, three)]
    assert [address[-4:] for address in addresses] == ["a.db", "a.db", "b.db"]


def endpoints(manager: Any) -> dict[str, Any]:
    class Endpoint:
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            await manager.handle_request(scope, receive, send)

    async def closure(scope: Any, receive: Any, send: Any) -> None:
        await manager.handle_request(scope, receive, send)

    return {"method": manager.handle_request, "object": Endpoint(), "function": closure, "itself": manager}


@pytest.mark.parametrize("kind", ["method", "object", "function", "itself"])
async def test_managers_are_found_where_users_name_them(kind: str) -> None:
    manager = Stock(SdkServer("x"))
    endpoint = endpoints(manager)[kind]
    tailrope.mcp.resumable(endpoint if kind == "itself" else Starlette(routes=[Mount("/mcp", app=endpoint)]))
    assert (await a_session(manager))._tailrope is not None


def test_an_app_without_a_server_is_refused() -> None:
    class WithSessions:
        """What is called a session manager is not always one of MCP."""

        def __init__(self, app: Any) -> None:
            self.app, self.session_manager = app, object()

    for app in (FastAPI(), WithSessions(Starlette()), None, lambda: None):
        with pytest.raises(ValueError, match="there is no session manager") as told:
            tailrope.mcp.resumable(app)
        assert "http_app()" in str(told.value) and "tailrope.mcp.StreamableHTTPSessionManager" in str(told.value)


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"retryMs": 1}, "did you mean retry_ms?"),
        ({"store": None}, "not None"),
        ({"prefer_resumable": 1}, "True or False"),
        ({"on_unsupported": "x"}, "'raise' or 'stock'"),
        ({"transport": "stock"}, "an option of install()"),
    ],
)
def test_a_wrong_option_changes_nothing(wrong: dict[str, Any], told: str) -> None:
    manager = Stock(SdkServer("x"))
    with pytest.raises((ValueError, TypeError), match=re.escape(told)):
        tailrope.mcp.resumable(manager, **wrong)
    assert type(manager) is Stock


async def test_the_session_manager_takes_the_arguments_of_both() -> None:
    made = tailrope.mcp.StreamableHTTPSessionManager(SdkServer("x"), json_response=True, retry_ms=55, max_sessions=7)
    assert (made.json_response, made.max_sessions) == (True, 7)
    engine = (await a_session(made))._tailrope.runtime.engine.options()
    assert (engine["retry_ms"], engine["max_sessions"]) == (55, 7)
    unlimited = tailrope.mcp.StreamableHTTPSessionManager(SdkServer("x"), max_sessions=None)
    assert (await a_session(unlimited))._tailrope.runtime.engine.options()["max_sessions"] > 1_000_000
    with pytest.raises(TypeError, match="nonsense"):
        tailrope.mcp.StreamableHTTPSessionManager(SdkServer("x"), nonsense=1)
    with pytest.raises(TypeError, match="is an address"):
        tailrope.mcp.StreamableHTTPSessionManager(SdkServer("x"), event_store="memory:")


def test_a_manager_leaves_the_number_of_sessions_to_the_engine_unless_its_own_bound_is_tighter() -> None:
    def admitted(manager: Any) -> int:
        return sum(manager._admit_session(None) is not None for _ in range(6))

    made = tailrope.mcp.StreamableHTTPSessionManager(SdkServer("x"), max_sessions=2)
    assert (admitted(made), made.max_sessions) == (4, 2)
    tighter = tailrope.mcp.resumable(Stock(SdkServer("x"), max_sessions=2), max_sessions=3)
    assert (admitted(tighter), tighter.max_sessions) == (2, 2)


async def test_the_kill_switch_leaves_single_servers_stock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAILROPE_DISABLE", "1")
    manager = Stock(SdkServer("x"))
    assert tailrope.mcp.resumable(manager) is manager
    for it in (manager, tailrope.mcp.StreamableHTTPSessionManager(SdkServer("x"))):
        assert type(await a_session(it)) is sdk_manager.StreamableHTTPServerTransport


def test_status_and_the_log_tell_what_is_in_force_for_single_servers(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    caplog.set_level(logging.INFO, "tailrope")
    address = f"sqlite:{tmp_path / 'events.db'}"
    manager = Stock(SdkServer("x"))
    tailrope.mcp.resumable(manager, store=address, prefer_resumable=False)
    other = tailrope.mcp.StreamableHTTPSessionManager(SdkServer("x"))
    now = tailrope.status()
    assert now["transport"] is None
    assert sorted(now["servers"], key=lambda server: server["store"]) == [
        {"store": "memory:", "prefer_resumable": True},
        {"store": address, "prefer_resumable": False},
    ]
    first, _second = [record.getMessage() for record in caplog.records]
    assert address in first and "prefer_resumable=False" in first
    del manager, other


async def ask(manager: Any) -> None:
    """A client of revision 2025-11-25 opens a session."""
    async with manager.run():
        opening = Asgi(manager, "POST", OPEN, session=None)
        await opening.task
        assert opening.status == 200, opening.body


@pytest.mark.parametrize("way", ["nothing", "install", "stock", "resumable"])
async def test_an_event_store_is_one_warning_where_nothing_is_in_force(
    way: str, caplog: pytest.LogCaptureFixture
) -> None:
    store = tailrope.mcp.EventStore()
    if way in ("install", "stock"):
        tailrope.install(transport="stock" if way == "stock" else "tailrope")
    for _again in range(2):
        manager = Stock(SdkServer("x"), event_store=store)
        if way == "resumable":
            tailrope.mcp.resumable(manager)
        await ask(manager)
    told = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(told) == (way == "nothing"), told
    assert all("tailrope.install()" in text and "tailrope.mcp.resumable(app)" in text for text in told)


class PrivateStore(EventStore):
    """A wrapper around a store that sessions share, another one for each session."""

    async def store_event(self, stream_id: str, message: Any) -> str:
        return "1"

    async def replay_events_after(self, last_event_id: str, send_callback: Any) -> None:
        return None


class PrivateManager(Stock):  # type: ignore[valid-type, misc]
    @property
    def event_store(self) -> PrivateStore:
        return PrivateStore()

    @event_store.setter
    def event_store(self, _store: Any) -> None:
        pass


@pytest.mark.parametrize("way", ["install", "resumable"])
async def test_a_wrapper_of_stores_that_is_not_known_keeps_the_sdks_transport(
    way: str, caplog: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_engage, "_stock_for", {})
    if way == "install":
        tailrope.install()
    managers = [PrivateManager(SdkServer("x")) for _ in range(2)]
    if way == "resumable":
        for manager in managers:
            tailrope.mcp.resumable(manager)
    for manager in managers:
        made = await a_session(manager)
        assert getattr(made, "_tailrope", None) is None and isinstance(made._event_store, PrivateStore)
    told = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert len(told) == 1 and "PrivateStore is another event store for each session" in told[0]
    if way == "install":
        assert "PrivateStore" in tailrope.status()["notices"][0]


class Slotted:
    """An endpoint with a session manager, whose class nobody can change."""

    __slots__ = ("session_manager",)

    @property
    def __dict__(self) -> dict[str, Any]:
        return {"session_manager": self.session_manager}


def test_an_endpoint_that_cannot_change_its_class_stays_with_the_sdk(caplog: Any) -> None:
    app, manager = Slotted(), Stock(SdkServer("x"))
    app.session_manager = manager
    assert tailrope.mcp.resumable(app) is app
    assert type(app) is Slotted and type(manager) is Stock
    told = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert len(told) == 1 and "Slotted" in told[0] and "cannot be made one of ours" in told[0]
    with pytest.raises(tailrope.TailropeError, match="Slotted") as raised:
        tailrope.mcp.resumable(app, on_unsupported="raise")
    assert raised.value.code == "unsupported_sdk"


def test_uninstalling_leaves_what_others_have_put_in_the_place_of_ours() -> None:
    tailrope.install()
    theirs = Stock.asgi_app = object()
    try:
        tailrope.uninstall()
        assert vars(Stock)["asgi_app"] is theirs
    finally:
        del Stock.asgi_app


def test_engines_end_with_their_servers() -> None:
    manager: Any = tailrope.mcp.StreamableHTTPSessionManager(SdkServer("x"), retry_ms=4_321)
    assert any(runtime.options.get("retry_ms") == 4_321 for runtime in _runtime.runtimes())
    del manager
    gc.collect()
    assert not any(runtime.options.get("retry_ms") == 4_321 for runtime in _runtime.runtimes())
    assert not _engage.explicit


@pytest.mark.parametrize("drift", ["another way to admit", "a method of another name"])
def test_an_sdk_that_does_not_fit_keeps_its_own_transport(drift: str) -> None:
    code = """
import servers.python.drift, tailrope, tailrope.mcp
from mcp.server.lowlevel import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
manager = StreamableHTTPSessionManager(Server("x"))
assert tailrope.mcp.resumable(manager) is manager and type(manager) is StreamableHTTPSessionManager
print(tailrope.status()["notices"])
ways = (lambda: tailrope.mcp.resumable(manager, on_unsupported="raise"),
        lambda: tailrope.mcp.StreamableHTTPSessionManager)
for way in ways:
    try: way()
    except tailrope.TailropeError as error: print(error.code, error)
tailrope.mcp.EventStore()
"""
    env = {**os.environ, "TAILROPE_TEST_DRIFT": drift}
    done = subprocess.run([sys.executable, "-c", code], cwd=TESTS, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    notice, *raised = done.stdout.splitlines()
    wanted = "_admit_session" if drift == "another way to admit" else "_handle_request"
    assert wanted in notice and len(raised) == 2
    assert all(line.startswith("unsupported_sdk ") and wanted in line for line in raised), raised
    assert done.stderr.count("Servers stay with the SDK's own transport") == 1, done.stderr


@pytest.mark.parametrize("is_installed", [True, False])
def test_a_server_on_another_kind_of_loop_is_told_what_to_do(is_installed: bool) -> None:
    if is_installed:
        tailrope.install()
    manager = (Stock if is_installed else tailrope.mcp.StreamableHTTPSessionManager)(SdkServer("x"))
    # As a loop that is not asyncio's runs a task.
    begun = manager.run().__aenter__()
    with pytest.raises(tailrope.TailropeError, match="TAILROPE_DISABLE=1") as told:
        begun.send(None)
    assert told.value.code == "not_asyncio"
    with pytest.raises(tailrope.TailropeError, match="asyncio event loops"):
        tailrope.drain().send(None)
