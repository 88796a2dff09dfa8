"""The official clients, each behind a driver process that says what the client shows its user.

Orders, one JSON object in a line:

    {"connect": URL}                    connect a new client to this server; comes first
    {"call": NAME, "steps": [...]}      call the tool `script`
    {"call": NAME, "method": METHOD}    send any other request, without params
    {"call": NAME, "tool": TOOL, "arguments": {...}}
                                        call another tool (drivers/tasks.*)
    {}                                  close the client; another one may be connected then

What it prints, in the same form:

    {"connected": REVISION}             once for each client, first
    {"call": NAME, "progress": NUMBER}  a progress notification of this call
    {"call": NAME, "result": TEXT}      the call's result
    {"call": NAME, "error": TEXT}       or its failure
    {"said": TEXT}                      what a task says of itself (drivers/tasks.*)
    {"log": DATA}                       a log notification
    {"asked": TEXT}                     a question of the server's (elicitation); the answer is {"name": "re: TEXT"}.
                                        The Rust client declares no such capability
    {"closed": true}                    once for each client, last
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import subprocess
import tempfile
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from kit.ahead import Started
from kit.fleet import FLEETS
from kit.peer import Peer
from kit.servers import ROOT, SERVERS, Server, gate
from kit.tap import Tap, until

HERE = Path(__file__).parent
PYTHON = ("mcp1", "mcp2")
TYPESCRIPT = ("ts1", "ts2")
RUST = ("rmcp3",)
RUST_TASKS = "rmcp3+tasks"
CLIENTS = (*PYTHON, *TYPESCRIPT, *RUST)
# Those that follow tasks: what their drivers are told to be.
TASKS = {
    "ext-tasks": ("node", "tasks.mjs"),
    "plain": (SERVERS["mcp2"].python, "tasks.py", "plain"),
    "claim": (SERVERS["mcp2"].python, "tasks.py", "claim"),
    "fastmcp-tasks": (str(ROOT / ".venv" / "fastmcp-tasks" / "bin" / "python"), "tasks.py", "fastmcp"),
    "inspector": (
        "node",
        "inspector.mjs",
        str(ROOT / ".venv" / "inspector" / "node_modules" / ".bin" / "mcp-inspector"),
    ),
}
# Those that are not installed with everything else.
APART = ("fastmcp-tasks", "inspector")
# The same clients with Tailrope's half.
WITH_LINE = "+line"
# The Python clients with an HTTP client that may speak HTTP/2; the others cannot be asked to.
WITH_HTTP2 = "+http2"
LINED = tuple(client + WITH_LINE for client in CLIENTS)
REVISION = "2025-11-25"
# Clients come back after so long where nothing else is said.
RETRY_MS = 50
# How long the streams of a forgetful server stay readable.
SHORT_MS = 50
_rust = ""


def tiers(name: str, values: Iterable[str], quick: Iterable[str]) -> pytest.MarkDecorator:
    """A parameter with these values, of which only the quick ones are there in every run."""
    marks = {value: [] if value in quick else [pytest.mark.full] for value in values}
    for value, fleet in FLEETS.items():
        if value in marks and (reason := fleet.lacks()) is not None:
            marks[value].append(pytest.mark.skip(reason=reason))
    return pytest.mark.parametrize(name, [pytest.param(value, marks=marks[value]) for value in values])


def pairs(clients: Iterable[str], servers: Iterable[str], quick: dict[str, str]) -> pytest.MarkDecorator:
    """Parameters `client` and `server`: all clients with all servers, of which only the quick ones are in every run."""
    every = [
        pytest.param(client, server, marks=() if quick.get(client) == server else pytest.mark.full)
        for client, server in itertools.product(clients, servers)
    ]
    return pytest.mark.parametrize(("client", "server"), every)


def gates(count: int) -> list[str]:
    """Names of gates that no other test uses."""
    return [gate() for _ in range(count)]


def build_rust() -> None:
    global _rust
    _rust = subprocess.run([HERE / "build"], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


def install_apart() -> None:
    subprocess.run([HERE / "setup"], stdout=subprocess.DEVNULL, check=True)


def command(client: str) -> list[str]:
    for ending in (WITH_LINE, WITH_HTTP2, "+tasks"):
        if client.endswith(ending):
            return [*command(client.removesuffix(ending)), f"--{ending[1:]}"]
    if client in TASKS:
        program, driver, *words = TASKS[client]
        return [program, str(HERE / "drivers" / driver), *words]
    if client in PYTHON:
        return [SERVERS[client].python, str(HERE / "drivers" / "python.py")]
    if client in TYPESCRIPT:
        return ["node", str(HERE / "drivers" / "typescript.mjs"), f"v{client[-1]}"]
    return [_rust]


class Driver:
    """One driver process and everything that it has said of its present client."""

    def __init__(self, process: asyncio.subprocess.Process, stderr: Any) -> None:
        self._process = process
        self._stderr = stderr
        self._reading = asyncio.create_task(self._read())
        self.lines: list[dict[str, Any]] = []

    @classmethod
    async def start(cls, client: str, **env: str) -> Driver:
        pipe = asyncio.subprocess.PIPE
        # Open as long as the process runs, so no `with` can hold it.
        stderr = tempfile.TemporaryFile("w+")  # noqa: SIM115
        process = await asyncio.create_subprocess_exec(
            *command(client), cwd=ROOT, stdin=pipe, stdout=pipe, stderr=stderr, env=os.environ | env
        )
        return cls(process, stderr)

    async def _read(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            self.lines.append(json.loads(line))

    def _of(self, key: str, call: str | None = None) -> list[Any]:
        return [line[key] for line in self.lines if key in line and line.get("call") == call]

    @property
    def revision(self) -> list[str]:
        return self._of("connected")

    @property
    def logs(self) -> list[str]:
        return self._of("log")

    @property
    def asked(self) -> list[str]:
        return self._of("asked")

    @property
    def said(self) -> list[str]:
        return self._of("said")

    @property
    def is_closed(self) -> bool:
        return any("closed" in line for line in self.lines)

    def progress(self, call: str = "call") -> list[int]:
        return self._of("progress", call)

    def results(self, call: str = "call") -> list[str]:
        return self._of("result", call)

    def errors(self, call: str = "call") -> list[str]:
        return self._of("error", call)

    def is_over(self, call: str = "call") -> bool:
        return bool(self.results(call) or self.errors(call))

    def stderr(self) -> str:
        self._stderr.seek(0)
        return str(self._stderr.read())[-4_000:]

    async def order(self, **order: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order).encode() + b"\n")
        await self._process.stdin.drain()

    async def connect(self, url: str) -> None:
        self.lines.clear()
        await self.order(connect=url)

    async def call(self, *steps: str, name: str = "call") -> None:
        """Start a call; its results are looked up under its name."""
        await self.order(call=name, steps=steps)

    async def kill(self) -> None:
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()
        await self._reading
        self._stderr.close()


class Drivers:
    """The driver processes: one whose client has closed drives another client of the kind, for another test."""

    def __init__(self) -> None:
        self._idle: dict[str, list[Driver]] = defaultdict(list)

    @asynccontextmanager
    async def get(self, client: str, **env: str) -> AsyncIterator[Driver]:
        idle = self._idle[f"{client} {env}"]
        driver = idle.pop() if idle else await Driver.start(client, **env)
        try:
            yield driver
        finally:
            if driver.is_closed:
                idle.append(driver)
            else:
                await driver.kill()

    async def stop(self) -> None:
        for idle in self._idle.values():
            for driver in idle:
                await driver.kill()


class Hosts(Started):
    """All servers and all clients."""

    def __init__(self) -> None:
        super().__init__()
        self.drivers = Drivers()

    async def stop(self) -> None:
        await self.drivers.stop()
        await super().stop()

    async def remembering(self, server: str) -> Server:
        return await self.get(server, retry_ms=RETRY_MS)

    async def forgetful(self, server: str) -> Server:
        return await self.get(server, retry_ms=RETRY_MS, engine={"retention_ms": SHORT_MS})


async def end_session(server: Server, session: str | None) -> None:
    """End a session behind its client's back."""
    peer = Peer(server.port)
    peer.session = session
    await peer.delete()


async def forgotten(server: Server) -> None:
    """Wait until no stream of a request is left: what remains are sessions' standalone streams."""
    await server.until_stats(lambda stats: stats["streams"] <= stats["sessions"])


class Meeting:
    """A client, the server, and the tap between them."""

    def __init__(self, driver: Driver, tap: Tap, host: Server) -> None:
        self.driver, self.tap, self.host = driver, tap, host

    def story(self) -> str:
        said = "\n".join(map(str, self.driver.lines))
        asked = "\n".join(map(str, self.tap.exchanges))
        return f"client said:\n{said}\nclient asked:\n{asked}\nclient's stderr:\n{self.driver.stderr()}"

    async def until(self, condition: Any, wait_s: float = 60) -> None:
        await until(condition, self.story, wait_s)

    async def resumed(self, count: int) -> None:
        """Wait until the client has come back so often."""
        await self.until(lambda: self.tap.resumes() >= count)

    async def over(self, name: str = "call") -> None:
        """Wait until a call has its result or its error."""
        await self.until(lambda: self.driver.is_over(name))

    async def listening(self) -> None:
        """Wait until the client has its standalone stream open."""
        await self.until(lambda: self.tap.listens() == 1)

    async def poll(self, count: int = 4) -> int:
        """Let a call be polled so often, and give that number: what else the client polls for by itself, it polls for
        meanwhile."""
        names = gates(count)
        before = self.tap.resumes()
        await self.driver.call(*(step for name in names for step in ("close", f"gate {name}")), name="polled meanwhile")
        for number, name in enumerate(names, 1):
            await self.resumed(before + number)
            await self.host.open(name)
        await self.over("polled meanwhile")
        return count

    async def close(self) -> None:
        """The client ends as its user would end it."""
        await self.driver.order()
        await self.until(lambda: self.driver.is_closed)


@asynccontextmanager
async def drive(
    drivers: Drivers, client: str, url: str, tap: Tap, host: Server, start_s: float = 60, **env: str
) -> AsyncIterator[Meeting]:
    """Connect a client to a server whose tap is somewhere on the way."""
    async with drivers.get(client, **env) as driver:
        await driver.connect(url)
        meeting = Meeting(driver, tap, host)
        await meeting.until(lambda: bool(driver.revision), start_s)
        assert driver.revision == [REVISION]
        yield meeting


@asynccontextmanager
async def meet(hosts: Hosts, client: str, host: Server) -> AsyncIterator[Meeting]:
    """Connect a client to a server, through a tap."""
    # Behind rmcp's service the Python client 2.x would speak 2026-07-28, which cannot resume.
    mode = {"TAILROPE_CLIENT_MODE": "legacy"} if host.kind.name == "rmcp" and client.startswith("mcp2") else {}
    async with (
        Tap(host.port) as tap,
        drive(hosts.drivers, client, f"http://127.0.0.1:{tap.port}/mcp", tap, host, **mode) as meeting,
    ):
        yield meeting
