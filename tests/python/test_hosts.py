"""What an orderly end leaves under every host that people start their servers with. (F-44)

The end of a process is not the end of its sessions: connections end with an id and a `retry`, the process ends by
itself with its host's exit code, and the next one gives clients all that was stored, and an end.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import uvicorn
import uvloop
from kit.elsewhere import NEVER_LOST, OWNER_LOST_MS
from kit.ending import ENDS_S
from kit.peer import Peer, counts, ids, logs, results
from kit.raw import Reply, Truncated, request
from kit.servers import START_S, TESTS, gate, written
from program import python
from servers.python.app import build
from servers.python.control import CONTROL
from servers.python.flavors import installed
from tailrope.testing._server import _free_port

pytestmark = pytest.mark.ours

APP = "servers.python.hosted:app"
FILE = str(TESTS / "servers" / "python" / "hosted.py")


@dataclass(frozen=True)
class Host:
    """How a host is started, and what it exits with at SIGTERM when nothing of ours is in it."""

    command: tuple[str, ...]
    code: int = 0
    # Whether there is a moment for us before it cuts its connections.
    drains: bool = True


HOSTS = {
    "uvicorn": Host(("uvicorn", "--port", "{port}", APP), -signal.SIGTERM),
    # A worker of a busy machine does not answer within the default of five seconds.
    "uvicorn-workers": Host(
        ("uvicorn", "--workers", "2", "--timeout-worker-healthcheck", "60", "--port", "{port}", APP)
    ),
    "uvicorn-reload": Host(("uvicorn", "--reload", "--reload-dir", "{folder}", "--port", "{port}", APP)),
    "fastmcp-run": Host(
        ("fastmcp.cli", "run", f"{FILE}:mcp", "--transport", "http", "--port", "{port}"), -signal.SIGTERM
    ),
    "gunicorn": Host(("gunicorn", "--worker-class", "asgi", "--bind", "127.0.0.1:{port}", APP)),
    "gunicorn-uvicorn": Host(
        ("gunicorn", "--worker-class", "uvicorn_worker.UvicornWorker", "--bind", "127.0.0.1:{port}", APP)
    ),
    "hypercorn": Host(("hypercorn", "--bind", "127.0.0.1:{port}", APP)),
    "granian": Host(("granian", "--interface", "asgi", "--port", "{port}", APP)),
    "daphne": Host(("daphne", "--port", "{port}", "servers.python.hosted:without_lifespan"), drains=False),
}


class Running:
    """A host that serves."""

    def __init__(self, host: Host, folder: Path) -> None:
        # After an orderly end nobody has to be found to be gone.
        lost_ms = NEVER_LOST["owner_lost_ms"] if host.drains else OWNER_LOST_MS
        env = {"STORE": f"sqlite:{folder / 'events.db'}", "OWNER_LOST_MS": str(lost_ms)}
        self.port = _free_port()
        arguments = [part.format(port=self.port, folder=folder) for part in host.command]
        # Open as long as the process runs, so no `with` can hold it.
        self.stderr = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self.process = subprocess.Popen(
            [sys.executable, "-m", *arguments],
            cwd=TESTS,
            env={**os.environ, **env},
            stdin=subprocess.DEVNULL,
            stdout=self.stderr,
            stderr=self.stderr,
            start_new_session=True,
        )

    async def ready(self) -> None:
        deadline = time.monotonic() + START_S
        while True:
            with suppress(OSError, asyncio.IncompleteReadError, TimeoutError):
                reply = await request(self.port, "GET")
                await reply.body()
                return
            assert self.process.poll() is None and time.monotonic() < deadline, self.log()
            await asyncio.sleep(0.05)

    def log(self) -> str:
        return written(self.stderr)


@contextmanager
def running(host: Host, folder: Path) -> Iterator[Running]:
    server = Running(host, folder)
    try:
        yield server
    finally:
        with suppress(ProcessLookupError):
            os.killpg(server.process.pid, signal.SIGKILL)
        server.process.wait(10)


async def waiting(port: int) -> tuple[Peer, Reply]:
    """A session and its call, both in one process of those that share the port."""
    deadline = time.monotonic() + START_S
    while True:
        with suppress(AssertionError):
            peer = await Peer.open(port)
            call = await peer.call("wait", id=7)
            if call.status == 200:
                return peer, call
        assert time.monotonic() < deadline


async def closed(reply: Reply) -> bytes:
    """What came until the server closed the connection, which it did not cut."""
    try:
        # Comments come as long as it is open.
        async with asyncio.timeout(ENDS_S):
            await reply.rest(ENDS_S)
    except Truncated as cut:
        raise AssertionError("a connection was cut, not closed") from cut
    return bytes(reply.raw)


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            name, marks=pytest.mark.one_line if name in ("uvicorn-workers", "uvicorn-reload") else pytest.mark.full
        )
        for name in HOSTS
    ],
)
async def test_f44_orderly_end_leaves_sessions_to_the_next_process(name: str, tmp_path: Path) -> None:
    host = HOSTS[name]
    with running(host, tmp_path) as server:
        await server.ready()
        peer, call = await waiting(server.port)
        events = await call.some(3)
        listening = await peer.listen()
        server.process.send_signal(signal.SIGTERM)
        for reply in (call, listening) if host.drains else ():
            raw = await closed(reply)
            assert raw.rfind(b"\nretry: ") > raw.find(b"id: ") >= 0, raw
        code = await asyncio.to_thread(server.process.wait, ENDS_S)
        assert code == host.code, server.log()
        assert "Traceback" not in server.log(), server.log()
    with running(host, tmp_path) as server:
        await server.ready()
        peer.port = server.port
        rest = await (await peer.resume(ids(events)[0])).until_terminal()
        assert counts(rest) == [2, 3]
        assert rest[-1].message["id"] == 7 and "error" in rest[-1].message, rest[-1]


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_f44_end_of_one_server_leaves_the_others_of_its_process(loop: Any, uninstalled: None) -> None:
    flavor = installed()[0]

    async def ready(server: uvicorn.Server) -> int:
        while not server.started:
            await asyncio.sleep(0.01)
        return int(server.servers[0].sockets[0].getsockname()[1])

    async def main() -> None:
        apps = [build(flavor, "tailrope", {}) for _ in range(2)]
        configs = [uvicorn.Config(app, port=0, log_level="warning", ws="none") for app in apps]
        leaving, staying = (uvicorn.Server(config) for config in configs)
        tasks = [asyncio.create_task(server.serve()) for server in (leaving, staying)]
        name = gate()
        replies = []
        for server in (leaving, staying):
            peer = await Peer.open(await ready(server))
            replies += [
                await peer.listen(),
                await peer.call("script", {"steps": ["emit 1", f"gate {name}", "return x"]}),
            ]
            await replies[-1].some(1)
        leaving.should_exit = True
        for reply in replies[:2]:
            assert b"\nretry: " in await closed(reply)
        async with asyncio.timeout(ENDS_S):
            await tasks[0]
        # Those of the other server go on, and so does what comes now.
        CONTROL.opened.add(name)
        CONTROL.change()
        assert results(await replies[3].until_terminal()) == ["x"]
        await peer.ask("script", {"steps": ["standalone heard", "return x"]})
        assert logs(await replies[2].some(1)) == ["heard"]
        later = await Peer.open(peer.port)
        assert await later.ask("echo", {"text": "y"}) == "y"
        staying.should_exit = True
        async with asyncio.timeout(ENDS_S):
            await tasks[1]

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(main())


@pytest.mark.parametrize(
    ("end", "way"),
    [
        ("lifespan", "install"),
        ("delete", "install"),
        ("idle", "install"),
        ("lifespan", "resumable"),
        ("idle", "resumable"),
    ],
)
def test_end_of_a_lifespan_is_not_the_end_of_its_sessions(end: str, way: str, tmp_path: Path) -> None:
    """Whatever host drives it. A session that ended before leaves nothing."""
    done = python(
        """
import re
from tailrope._runtime import flush_stores
_, end, way, place = sys.argv
options = {"address": place, "engine": {"owner_lost_ms": 600_000}, "way": way}
async def main(flavor):
    app = build(flavor, "tailrope", options | ({"idle_s": 0.1} if end == "idle" else {}))
    async with Life(app):
        keys = await opened(app)
        if end == "idle":
            while tailrope.stats()["sessions"]: await asyncio.sleep(0.01)
        else:
            await call(app, "POST", {"jsonrpc": "2.0", "method": "notifications/initialized"}, keys)
            body = await tool(app, keys, "script", steps=["emit 2", "close", "gate never"])
            first = re.findall(rb"id: (.*)", body)[0]
        if end == "delete":
            assert (await call(app, "DELETE", None, keys))[0]["status"] == 200
    if end != "lifespan":
        # The next app opens the store anew, and could read it before the end of the session is written.
        flush_stores()
    app = build(flavor, "tailrope", options)
    async with Life(app):
        if end != "lifespan":
            sent = await call(app, "GET", None, keys)
            assert sent[0]["status"] == 404, sent
            return
        sent = await call(app, "GET", None, [*keys, (b"last-event-id", first)])
        lines = re.findall(rb"data: (.+)", b"".join(part.get("body", b"") for part in sent[1:]))
        messages = [json.loads(line) for line in lines]
        assert [message["params"]["progress"] for message in messages[:2]] == [1, 2], messages
        assert messages[2]["id"] == 1 and "error" in messages[2], messages
for flavor in [*installed(), "lowlevel"]: asyncio.run(main(flavor))
""",
        50,
        end,
        way,
        f"sqlite:{tmp_path / 'events.db'}",
    )
    assert done.returncode == 0, done.stderr


def test_delete_in_the_task_of_the_lifespan_ends_the_session(tmp_path: Path) -> None:
    """Tests that have no server ask there. It is the end of the session, and not that of the lifespan."""
    done = python(
        """
from servers.python.flavors import BUILDERS, Ops
tailrope.install(store=sys.argv[1])
async def main(flavor):
    app = BUILDERS[flavor]({}, None, None, Ops(True))
    async with app.router.lifespan_context(app):
        keys = await opened(app)
        assert (await call(app, "DELETE", None, keys))[0]["status"] == 200
        sent = await call(app, "POST", {"jsonrpc": "2.0", "id": 1, "method": "ping"}, keys)
        assert sent[0]["status"] == 404, sent
for flavor in installed(): asyncio.run(main(flavor))
""",
        50,
        f"sqlite:{tmp_path / 'events.db'}",
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("what", ["sessions", "managers"])
def test_f44_a_drain_waits_for_calls_once(what: str, tmp_path: Path) -> None:
    """However many sessions its lifespan ends one by one, or managers of one app do so one after the other."""
    done = python(
        """
import uvicorn
from contextlib import AsyncExitStack, asynccontextmanager
from kit.peer import Peer
from kit.servers import gate
from mcp.server.lowlevel import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from servers.python.flavors import BUILDERS, Ops

MANY = 40
what, place = sys.argv[1:]
tailrope.install(store=place, drain_within_ms=1_000)
app = BUILDERS[installed()[-1]]({}, None, None, Ops(tailrope=True))
inner = app.router.lifespan_context

@asynccontextmanager
async def managers(_app):
    async with AsyncExitStack() as stack:
        state = await stack.enter_async_context(inner(app))
        for _ in range(MANY):
            await stack.enter_async_context(StreamableHTTPSessionManager(Server("x")).run())
        yield state

if what == "managers":
    app.router.lifespan_context = managers

async def main():
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning", ws="none"))
    task = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    port = int(server.servers[0].sockets[0].getsockname()[1])
    for _ in range(MANY if what == "sessions" else 1):
        call = await (await Peer.open(port)).call("script", {"steps": ["emit 1", f"gate {gate()}"]})
        await call.some(1)
    server.should_exit = True
    # Forty times the second that calls have would be more.
    async with asyncio.timeout(MANY / 2):
        await task

asyncio.run(main())
""",
        100,
        what,
        f"sqlite:{tmp_path / 'events.db'}",
    )
    assert done.returncode == 0, done.stderr


def test_hooks_come_off_and_leave_those_of_others_in_place() -> None:
    done = python(
        """
import uvicorn
stock = uvicorn.Server.startup, uvicorn.Server.shutdown
tailrope.install()
ours = uvicorn.Server.shutdown
assert uvicorn.Server.startup is not stock[0] and ours is not stock[1]
async def theirs(self, sockets=None): await ours(self, sockets)
uvicorn.Server.shutdown = theirs
tailrope.uninstall()
assert (uvicorn.Server.startup, uvicorn.Server.shutdown) == (stock[0], theirs)
uvicorn.Server.shutdown = ours
tailrope.uninstall()
tailrope.install()
tailrope.uninstall()
assert (uvicorn.Server.startup, uvicorn.Server.shutdown) == stock
"""
    )
    assert done.returncode == 0, done.stderr
