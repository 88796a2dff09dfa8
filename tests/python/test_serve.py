"""`tailrope.serve`: its front answers what needs nothing of the app, and the app gets all else. (I3, I7, F-44)"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import tailrope
from asgi import until
from kit.ending import ENDS_S
from kit.peer import Peer, ids, last_id, results
from kit.raw import WAIT_S, Truncated, request
from kit.servers import ROOT, START_S, TESTS
from servers.python.control import CONTROL
from servers.python.flavors import FastOps, Ops, Verifier, auth_settings, installed
from servers.python.tools import register
from starlette.applications import Starlette
from starlette.routing import Mount, Route
from tailrope._serving import apps
from tailrope._serving import command as words
from tailrope._serving import server as serving
from tailrope.mcp._arrivals import Arrivals
from uvicorn.protocols.http.h11_impl import H11Protocol

pytestmark = [pytest.mark.ours, pytest.mark.usefixtures("uninstalled")]

MAIN, *_ = installed()


def made(flavor: str = MAIN, **more: Any) -> Any:
    """A server as its user writes it."""
    server: Any
    context: Any
    if flavor.startswith("fastmcp"):
        import fastmcp

        server, context, ops = fastmcp.FastMCP("lab", **more), fastmcp.Context, FastOps(True)
    elif flavor == "mcp1":
        from mcp.server import fastmcp as mcp_v1

        server, context, ops = mcp_v1.FastMCP("lab", **more), mcp_v1.Context, Ops(True)
    else:
        from mcp.server import mcpserver

        server, context, ops = mcpserver.MCPServer("lab", **more), mcpserver.Context, Ops(True)
    register(server.tool, context, ops)
    return server


class Serving:
    """A server of this process that serves."""

    def __init__(self, server: Any) -> None:
        self.server = server
        self.port = int(server.urls[0].rpartition(":")[2].partition("/")[0])


@asynccontextmanager
async def serving_(
    served: Any, *, path: str | None = None, uvicorn: Any = None, **options: Any
) -> AsyncIterator[Serving]:
    store = options.pop("store", None)
    server = serving.prepared(served, "127.0.0.1", 0, path, uvicorn, store, options)
    running = asyncio.create_task(server.serve())
    try:
        async with asyncio.timeout(START_S):
            while not server.is_serving:
                assert not running.done(), running.result()
                await asyncio.sleep(0.01)
        yield Serving(server)
    finally:
        server.should_exit = True
        await running


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the front has given to Python."""
    found: list[Any] = []
    stock = Arrivals._take

    def take(self: Arrivals) -> Any:
        came = stock(self)
        found.extend(it for it in came if not it.is_idle)
        return came

    monkeypatch.setattr(Arrivals, "_take", take)
    return found


@pytest.mark.parametrize("flavor", installed())
async def test_an_unmodified_server_is_resumable(flavor: str, taken: list[Any]) -> None:
    async with serving_(made(flavor), retry_ms=20) as served:
        peer = await Peer.open(served.port)
        taken.clear()
        call = await peer.call("script", {"steps": ["emit 1", "close", "emit 2", "return x"]})
        events = await call.rest()
        resumed = await (await peer.resume(last_id(events))).until_terminal()
        assert results(resumed) == ["x"] and len(ids(events + resumed)) >= 4
        assert len(taken) == 1, taken
        await peer.delete()
        gone = await peer.call("echo", {"text": "x"})
        assert gone.status == 404


@pytest.mark.parametrize("flavor", installed())
async def test_handlers_see_their_request_as_behind_the_app(flavor: str, taken: list[Any]) -> None:
    """The front takes the second of two equal calls; the first one goes to the app, as it is not a plain one."""
    async with serving_(made(flavor)) as served:
        peer = await Peer.open(served.port)
        taken.clear()
        told = []
        for more in ({"Content_Encoding": "identity"}, {}):
            told.append(json.loads(await peer.ask("sender", X_Mine="1", X_Forwarded_For="10.1.2.3", **more)))
            assert await peer.ask("header", {"name": "x-mine"}, X_Mine="two", **more) == "two"
        assert len(taken) == 2, taken
        for it in told:
            it.pop("body")
        assert told[0] == told[1]


async def test_polls_run_no_python(taken: list[Any]) -> None:
    async with serving_(made(), retry_ms=20) as served:
        peer = await Peer.open(served.port)
        call = await peer.call("script", {"steps": ["emit 1", "close hold=0", "gate polls", "return x"]})
        cursor = last_id(await call.rest())
        CONTROL.marks.clear()
        ran: set[str] = set()
        ours = (
            f"{os.sep}tailrope{os.sep}",
            f"{os.sep}starlette{os.sep}",
            f"{os.sep}mcp{os.sep}",
            f"{os.sep}uvicorn{os.sep}",
        )

        def called(frame: Any, event: str, _: Any) -> None:
            name = frame.f_code.co_filename
            # Both have timers.
            is_timer = name.endswith(("_runtime.py", "server.py"))
            if event == "call" and not is_timer and any(it in name for it in ours):
                ran.add(f"{name}:{frame.f_code.co_name}")

        taken.clear()
        sys.setprofile(called)
        try:
            for _ in range(10):
                polled = await (await peer.resume(cursor)).rest()
                cursor = last_id(polled)
        finally:
            sys.setprofile(None)
        assert not ran and not taken
        CONTROL.opened.add("polls")
        CONTROL.change()
        assert results(await (await peer.resume(cursor)).until_terminal()) == ["x"]


class Gatekeeper:
    """Middleware that lets a request pass by its own rules."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        key = dict(scope.get("headers", ())).get(b"x-key")
        if scope["type"] == "http" and key != b"right":
            await send({"type": "http.response.start", "status": 401, "headers": []})
            await send({"type": "http.response.body", "body": b""})
            return
        await self.app(scope, receive, send)


def plain(app: Any) -> Any:
    """Middleware of which nothing is left on the stack of a request."""

    def gatekeeper(scope: Any, receive: Any, send: Any) -> Any:
        return Gatekeeper(app)(scope, receive, send)

    async def entry(scope: Any, receive: Any, send: Any) -> None:
        await gatekeeper(scope, receive, send)

    return entry


def added(app: Any) -> Any:
    app.add_middleware(Gatekeeper)
    return app


def mounted(app: Any, wrap: Any = Gatekeeper) -> Any:
    return Starlette(routes=[Mount("/", wrap(app))], lifespan=app.router.lifespan_context)


def of_route(app: Any) -> Any:
    for route in app.router.routes:
        if isinstance(route, Route):
            route.app = Gatekeeper(route.app)
    return app


def of_router(app: Any) -> Any:
    app.router.middleware_stack = Gatekeeper(app.router.middleware_stack)
    return app


def of_instance(app: Any) -> Any:
    handle = app.router.routes[0].handle

    async def guarded(scope: Any, receive: Any, send: Any) -> None:
        await Gatekeeper(handle)(scope, receive, send)

    app.router.routes[0].handle = guarded
    return app


def derived(app: Any) -> Any:
    class Guarded(type(app)):  # type: ignore[misc]
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            await Gatekeeper(super().__call__)(scope, receive, send)

    app.__class__ = Guarded
    return app


@pytest.mark.parametrize("guard", [Gatekeeper, plain, added, mounted, of_route, of_router, of_instance, derived])
async def test_no_middleware_is_passed_by(guard: Any, taken: list[Any], caplog: pytest.LogCaptureFixture) -> None:
    """Not even for a session that a request with the right key has opened."""
    caplog.set_level("INFO", "tailrope")
    app = guard(apps.app_of(made(), None, "127.0.0.1"))
    async with serving_(app) as served:
        peer = await Peer.open(served.port, headers={"X-Key": "right"})
        assert await peer.ask("echo", {"text": "x"}) == "x"
        for refused in (
            await peer.call("echo", {"text": "x"}, X_Key="wrong"),
            await peer.get(X_Key="wrong"),
            await peer.call("echo", {"text": "x"}, X_Key=None),
        ):
            assert refused.status == 401
        assert not taken
        told = [it.getMessage() for it in caplog.records if "before its sessions" in it.getMessage()]
        assert len(told) == 1


async def test_a_plain_mount_is_no_obstacle(taken: list[Any]) -> None:
    app = apps.app_of(made(), None, "127.0.0.1")
    outer = Starlette(routes=[Mount("/a", app)], lifespan=app.router.lifespan_context)
    async with serving_(outer) as served:
        assert served.server.urls == [f"http://127.0.0.1:{served.port}/a/mcp"]
        peer = await Peer.open(served.port, path="/a/mcp")
        taken.clear()
        assert json.loads(await peer.ask("sender"))["path"] == "/a/mcp" and len(taken) == 1


@pytest.mark.parametrize("method", ["handle_request", "_handle_request"])
async def test_what_others_put_around_the_sdk_runs(
    method: str, monkeypatch: pytest.MonkeyPatch, taken: list[Any]
) -> None:
    from mcp.server.streamable_http import StreamableHTTPServerTransport as Stock

    stock, seen = getattr(Stock, method), []

    async def around(self: Any, scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope["method"])
        await stock(self, scope, receive, send)

    monkeypatch.setattr(Stock, method, around)
    async with serving_(made()) as served:
        peer = await Peer.open(served.port)
        assert await peer.ask("echo", {"text": "x"}) == "x"
        assert seen.count("POST") == 3 and not taken


async def test_a_server_with_authentication_is_served_by_its_app(taken: list[Any]) -> None:
    if MAIN.startswith("mcp"):
        server = made(auth=auth_settings(), token_verifier=Verifier())
    async with serving_(server) as served:
        peer = await Peer.open(served.port, headers={"Authorization": "Bearer alice-token"})
        assert await peer.ask("echo", {"text": "x"}) == "x"
        for token, status in (("bob-token", 404), ("no token", 401)):
            assert (await peer.call("echo", {"text": "x"}, Authorization=f"Bearer {token}")).status == status
        assert not taken


async def test_a_function_that_names_users_is_asked_every_time(taken: list[Any]) -> None:
    async with serving_(made(), principal=lambda request: request.headers.get("x-user")) as served:
        peer = await Peer.open(served.port, headers={"X-User": "alice"})
        assert await peer.ask("echo", {"text": "x"}) == "x"
        assert (await peer.call("echo", {"text": "x"}, X_User="bob")).status == 404
        assert not taken


@pytest.mark.parametrize("name", ["limit_concurrency", "headers", "http"])
async def test_an_unknown_setting_of_uvicorn_leaves_everything_to_the_app(name: str, taken: list[Any]) -> None:
    class Protocol(H11Protocol):
        pass

    value: Any = {"limit_concurrency": 100, "headers": [("x-app", "1")], "http": Protocol}[name]
    async with serving_(made(), uvicorn={name: value}) as served:
        peer = await Peer.open(served.port)
        assert await peer.ask("echo", {"text": "x"}) == "x"
        assert not taken


async def test_hosts_and_origins_that_the_server_refuses_are_refused_in_its_words(taken: list[Any]) -> None:
    async with serving_(made("mcp1" if MAIN == "mcp1" else "mcp2")) as served:
        peer = await Peer.open(served.port)
        taken.clear()
        assert (await peer.call("echo", {"text": "x"}, Host="evil.example")).status == 421
        assert (await peer.get(Origin="http://evil.example")).status == 403
        assert not taken
        assert await peer.ask("echo", {"text": "x"}, Origin=f"http://localhost:{served.port}") == "x"
        assert len(taken) == 1


async def test_what_the_sdk_does_not_take_is_refused_in_its_words(taken: list[Any]) -> None:
    async with serving_(made()) as served:
        peer = await Peer.open(served.port)
        told = []
        for more in ({"Content_Encoding": "identity"}, {}):
            reply = await peer.post({"jsonrpc": "2.0", "id": 1, "method": 7}, **more)
            told.append((reply.status, await reply.body()))
        assert told[0] == told[1] and told[0][0] == 400
        assert await peer.ask("echo", {"text": "x"}) == "x"


async def test_what_needs_no_answer_is_answered_as_behind_the_app(taken: list[Any]) -> None:
    async with serving_(made()) as served:
        peer = await Peer.open(served.port)
        taken.clear()
        told = []
        for more in ({"Content_Encoding": "identity"}, {}):
            reply = await peer.post({"jsonrpc": "2.0", "id": 77, "result": {}}, **more)
            headers = {name: value for name, value in reply.headers.items() if name not in ("date", "server")}
            told.append((reply.status, headers, await reply.body()))
        assert told[0] == told[1] and told[0][0] == 202 and len(taken) == 1


async def test_nobody_else_can_say_who_the_client_is(taken: list[Any]) -> None:
    """The place of the app is this user's alone, and the header of the front is not a client's to send."""
    seen = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            seen.append(
                (scope["client"][0], scope["scheme"], [it for it in scope["headers"] if it[0].startswith(b"x-tail")])
            )
            await send({"type": "http.response.start", "status": 204, "headers": []})
            await send({"type": "http.response.body", "body": b""})

    async with serving_(app, uvicorn={"lifespan": "off"}) as served:
        reply = await request(served.port, "GET", "/", {"X-Tailrope-Peer": "10.0.0.1:1 https"})
        assert reply.status == 204 and seen == [("127.0.0.1", "http", [])]
        reply = await request(served.port, "GET", "/", {"X-Forwarded-For": "10.0.0.9", "X-Forwarded-Proto": "https"})
        assert seen[1:] == [("10.0.0.9", "https", [])]
        place = Path(served.server.config.uds)
        assert stat.S_IMODE(place.parent.stat().st_mode) == 0o700
    assert not place.parent.exists()


async def test_a_port_that_is_taken_is_said_before_anything_starts() -> None:
    began = []

    @asynccontextmanager
    async def lifespan(_: Any) -> AsyncIterator[None]:
        began.append(1)
        yield

    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(OSError, match=f"cannot listen at http://127.0.0.1:{port}: the port is taken"):
            await tailrope.serve_async(Starlette(lifespan=lifespan), port=port)
    assert not began and tailrope.status()["servers"] is not None


async def test_a_cancelled_end_waits_for_no_answer() -> None:
    """Its close of the front shortens the one that runs."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"first", "more_body": True})
        await asyncio.Event().wait()

    settings = {"lifespan": "off", "timeout_graceful_shutdown": 3_600}
    server = serving.prepared(app, "127.0.0.1", 0, None, settings, None, {})
    running = asyncio.create_task(server.serve())
    await until(lambda: server.is_serving)
    reply = await request(int(server.urls[0].rpartition(":")[2]), "GET", "/", {})
    assert await reply._more(WAIT_S) == b"first"
    server.should_exit = True
    await until(lambda: any(it.name == "tailrope-front-end" for it in threading.enumerate()))
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    with pytest.raises(Truncated):
        await reply.body()
    await until(lambda: all(it.name != "tailrope-front-end" for it in threading.enumerate()))


@pytest.mark.parametrize(
    ("served", "more", "raised"),
    [
        (7, {}, "takes a server"),
        (Starlette(), {"path": "/x"}, "an ASGI app has its own paths"),
        ("no.such:app", {}, "no"),
        ("kit.raw", {}, "module:server"),
        ("kit.raw:nothing", {}, "has no nothing"),
        (Starlette(), {"uvicorn": {"workers": 2}}, "does not take workers"),
        (Starlette(), {"uvicorn": {"ssl_keyfile": "x"}}, "does not take ssl_keyfile"),
        (Starlette(), {"retri_ms": 2}, "retry_ms"),
    ],
)
async def test_what_is_wrong_is_said_at_once(served: Any, more: dict[str, Any], raised: str) -> None:
    with pytest.raises((TypeError, ValueError, ImportError), match=raised):
        await tailrope.serve_async(served, port=0, **more)


async def test_options_are_given_in_one_place() -> None:
    tailrope.install()
    with pytest.raises(ValueError, match="installed already"):
        await tailrope.serve_async(made(), port=0, retry_ms=20)


async def test_the_kill_switch_leaves_the_sdk_and_uvicorn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAILROPE_DISABLE", "1")
    # Engines of other tests may not be collected yet.
    before = tailrope.stats()["sessions_opened"]
    async with serving_(made()) as served:
        peer = await Peer.open(served.port)
        assert await peer.ask("echo", {"text": "x"}) == "x"
        assert tailrope.stats()["sessions_opened"] <= before


async def test_an_endpoint_has_the_path_that_it_is_given() -> None:
    async with serving_(made(), path="/other") as served:
        assert served.server.urls == [f"http://127.0.0.1:{served.port}/other"]
        peer = await Peer.open(served.port, path="/other")
        assert await peer.ask("echo", {"text": "x"}) == "x"


# The command, in processes of its own.

PROGRAM = """
import asyncio, os, sys
import tailrope
from servers.python.control import CONTROL
sys.path.insert(0, {tests!r})
from python.test_serve import made
CONTROL.opened.add("open")
server = made()
"""


# As `python -m tailrope`, with another bound.
START = """
import os
from tailrope import __main__
from tailrope._serving import workers
workers.MAX_RESTARTS = int(os.environ.get("MAX_RESTARTS", workers.MAX_RESTARTS))
__main__.main()
"""


class Command:
    """`tailrope serve` of a module with one server."""

    def __init__(self, folder: Path, *words: str) -> None:
        (folder / "lab_program.py").write_text(PROGRAM.format(tests=str(TESTS)))
        self._log = folder / "log"
        self._out = self._log.open("w")
        self.process = subprocess.Popen(
            [sys.executable, "-c", START, "serve", "lab_program:server", *words],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": f"{TESTS}{os.pathsep}{TESTS / 'python'}"},
            stdin=subprocess.DEVNULL,
            stdout=self._out,
            stderr=self._out,
            start_new_session=True,
        )

    def log(self) -> str:
        return self._log.read_text()

    async def line(self, text: str, times: int = 1) -> str:
        async with asyncio.timeout(START_S):
            while self.log().count(text) < times:
                assert self.process.poll() is None, self.log()
                await asyncio.sleep(0.02)
        return next(line for line in self.log().splitlines() if text in line)

    async def port(self) -> int:
        line = await self.line("serving MCP on")
        return int(line.partition("127.0.0.1:")[2].partition("/")[0])

    async def ends(self) -> int:
        async with asyncio.timeout(ENDS_S):
            while self.process.poll() is None:
                await asyncio.sleep(0.02)
        return int(self.process.returncode)


@pytest.fixture
def commands(tmp_path: Path) -> Iterator[Any]:
    started: list[Command] = []

    def start(*words: str) -> Command:
        started.append(Command(tmp_path, *words))
        return started[-1]

    yield start
    for command in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(command.process.pid, signal.SIGKILL)
        command.process.wait(10)


async def test_an_orderly_end_loses_nothing(commands: Any, tmp_path: Path) -> None:
    """Clients are told to come back, the process ends by itself, and the next one has what they need."""
    words = ("--port", "0", "--store", f"sqlite:{tmp_path / 'events.db'}", "--retry-ms", "20")
    command = commands(*words)
    port = await command.port()
    peer = await Peer.open(port)
    standing = await peer.listen()
    call = await peer.call("script", {"steps": ["emit 3", "gate never"]}, id=7)
    events = await call.some(3)
    os.kill(command.process.pid, signal.SIGTERM)
    for reply in (call, standing):
        # Truncated where the connection was cut.
        events += await reply.rest(ENDS_S) if reply is call else []
        if reply is standing:
            await standing.rest(ENDS_S)
    assert await command.ends() == -signal.SIGTERM, command.log()
    again = commands(*words[2:], "--port", str(port))
    await again.port()
    resumed = await (await peer.resume(last_id(events))).until_terminal()
    assert results(resumed)[0]["code"] < 0


async def test_every_call_is_logged_where_the_flag_says_so(commands: Any) -> None:
    command = commands("--port", "0", "--log-calls")
    peer = await Peer.open(await command.port())
    assert await peer.ask("echo", {"text": "x"}) == "x"
    await command.line("outcome=result")


def test_the_help_offers_what_can_be_given_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        words.main(["--help"])
    told = capsys.readouterr().out
    pages = re.findall(r"docs/[\w/]+\.md", told)
    assert pages and all((ROOT / page).is_file() for page in pages), pages
    assert "--log-calls, --no-log-calls" in told
    for function in ("--log-user", "--principal", "--on-adopted"):
        assert function not in told
        with pytest.raises(SystemExit, match="2"):
            words.main(["shop.main:mcp", function, "alice"])
        assert f"unrecognized arguments: {function} alice" in capsys.readouterr().err


async def test_workers_need_a_store_that_they_share(commands: Any) -> None:
    command = commands("--port", "0", "--workers", "2")
    assert await command.ends() == 1
    assert command.log().count("--workers needs an event store that outlives a process") == 1


async def test_workers_share_their_sessions_and_are_started_again(commands: Any, tmp_path: Path) -> None:
    # It is also how long a worker may take to adopt a session.
    store = ("--store", f"sqlite:{tmp_path / 'events.db'}", "--owner-lost-ms", "5000", "--retry-ms", "20")
    command = commands("--port", "0", "--workers", "2", *store)
    port = await command.port()
    await command.line("Application startup complete", 2)
    peers = [await Peer.open(port) for _ in range(4)]
    for peer in peers:
        assert await peer.ask("echo", {"text": "x"}) == "x"
    workers = Path(f"/proc/{command.process.pid}/task/{command.process.pid}/children").read_text().split()
    assert len(workers) == 2
    os.kill(int(workers[0]), signal.SIGKILL)
    await command.line("has ended with status -9")
    for peer in peers:
        assert await peer.ask("echo", {"text": "y"}) == "y"
    os.kill(command.process.pid, signal.SIGTERM)
    assert await command.ends() == 0, command.log()
    assert command.log().count("serving MCP on") == 1


@pytest.mark.full
async def test_workers_that_keep_ending_are_not_started_for_ever(
    commands: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MAX_RESTARTS", "0")
    command = commands("--port", "0", "--workers", "2", "--store", f"sqlite:{tmp_path / 'events.db'}")
    await command.line("Application startup complete", 2)
    children = Path(f"/proc/{command.process.pid}/task/{command.process.pid}/children").read_text().split()
    os.kill(int(children[0]), signal.SIGKILL)
    assert await command.ends() == 1
    assert "no more are started" in command.log()
    assert not Path(f"/proc/{children[1]}").exists()
