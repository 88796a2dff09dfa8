"""The servers under test: one list for all suites, and one way to start them.

A server is a process of a real SDK with the tools of `tests/servers`. It prints `READY PORT`, and answers what tests
ask of it below `/ctl/`, beside its MCP endpoint. `TAILROPE_TEST_TRANSPORT=stock` starts them on the SDKs' own
transports.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import json
import os
import resource
import select
import subprocess
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Self
from urllib.parse import urlencode

from servers.python.spawner import Spawned, Spawner

from kit.peer import NEWEST, Peer
from kit.raw import request

if TYPE_CHECKING:
    from tailrope.testing import Session

TESTS = Path(__file__).resolve().parents[1]
ROOT = TESTS.parent
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
TRANSPORT = os.environ.get("TAILROPE_TEST_TRANSPORT", "tailrope")
# Set where the Rust servers are to have every store.
RUST_STORES = "TAILROPE_TEST_RUST_STORES"
# A cold start on a busy machine; a stock server that hangs is to be found out soon.
START_S = 20.0 if TRANSPORT == "stock" else 60.0


@dataclass(frozen=True)
class Kind:
    """One server of the list: a library of an SDK line."""

    name: str
    language: str
    # The virtual environment of a Python server, the SDK line of a Node server.
    line: str

    @property
    def python(self) -> str:
        return str(ROOT / ".venv" / self.line / "bin" / "python")

    @property
    def has_front(self) -> bool:
        """Whether Tailrope's own listener is before it."""
        return self.name.endswith("-front")

    @property
    def major(self) -> int:
        """The version of its SDK."""
        return int(self.line[-1])

    @property
    def changing(self) -> tuple[str, ...]:
        """The lists of which it says that they may change."""
        if self.name.startswith("fastmcp"):
            return "tools", "prompts", "resources"
        return () if self.language == "python" else ("tools",)

    @property
    def flavor(self) -> str:
        """What the server's program calls it."""
        return self.name.split("-")[0] if self.language == "python" else self.name

    def command(self, transport: str, options: dict[str, Any]) -> list[str]:
        flavor = self.flavor
        if self.language == "rust" and transport == "stock":
            # No front takes the SDK's own service.
            flavor = flavor.removesuffix("-front")
        arguments = ["--flavor", flavor, "--transport", transport, "--options", json.dumps(options)]
        if self.language == "node":
            return ["node", "--expose-gc", str(TESTS / "servers" / "node" / "app.mjs"), *arguments]
        if self.language == "rust":
            return [str(TARGET / "debug" / "tailrope-test-server"), *arguments]
        if self.has_front:
            arguments.append("--front")
        return [self.python, "-m", "servers.python.app", *arguments]

    def start(self, options: dict[str, Any] | None = None, transport: str = TRANSPORT, **env: str) -> Server:
        return Server(self, options, transport, **env)


# A server of another language joins with a line here.
SERVERS = {
    kind.name: kind
    for kind in (
        Kind("mcp1", "python", "mcp1"),
        Kind("fastmcp3", "python", "mcp1"),
        Kind("mcp2", "python", "mcp2"),
        Kind("fastmcp4", "python", "mcp2"),
        Kind("node-v1", "node", "v1"),
        Kind("node-v2", "node", "v2"),
        Kind("web-v1", "node", "v1"),
        Kind("web-v2", "node", "v2"),
    )
}
# The same, with Tailrope's own listener before the app.
FRONTS = {
    **{f"{line}-front": Kind(f"{line}-front", "python", line) for line in ("mcp1", "mcp2")},
    **{f"node-{line}-front": Kind(f"node-{line}-front", "node", line) for line in ("v1", "v2")},
}
# The tools on rmcp: behind our service, also with a front, and behind its own with our session manager.
RUST = {name: Kind(name, "rust", "rmcp3") for name in ("tower", "tower-front", "rmcp")}
# On its own transport alone: as it comes, without an event store.
RUST_STOCK = {"rmcp-cache": Kind("rmcp-cache", "rust", "rmcp3")}
# Hyper with nothing behind it, which answers what benchmarks ask for.
ALONE = Kind("hyper", "rust", "rmcp3")
# One handler for sessions and for revision 2026-07-28.
HANDLERS = {"handler-v2": Kind("handler-v2", "node", "v2")}
# The tools on the SDK's lowlevel server: behind the SDK's session manager, and with transports made by hand.
LOWLEVEL = {
    f"{name}-{line}": Kind(name, "python", line) for name in ("lowlevel", "byhand") for line in ("mcp1", "mcp2")
}


def rust_build() -> list[str]:
    """What builds the program of the Rust servers: with what `make test-rust` has built, or with every store."""
    every = (
        ["--features", "tailrope-test-server/postgres,tailrope-test-server/redis"] if RUST_STORES in os.environ else []
    )
    packages = ("client", "server", "shuttle", "test-server")
    return ["cargo", "build", "--quiet", "--bins", "--tests", *(f"-ptailrope-{name}" for name in packages), *every]


@functools.cache
def built_rust() -> None:
    """Wait until it is built."""
    subprocess.run(rust_build(), cwd=ROOT, check=True)


@functools.cache
def _spawner(kind: Kind, knows: str) -> Spawner:
    return Spawner(kind.python, kind.flavor, knows)


_spawning = threading.Lock()


def spawner(kind: Kind, knows: str = "tailrope") -> Spawner:
    with _spawning:
        return _spawner(kind, knows)


_gates = itertools.count(1)
_shut: set[str] = set()


def gate() -> str:
    """A name that no other test uses: servers are shared, gates are not."""
    name = f"g{next(_gates)}"
    _shut.add(name)
    return name


def left_shut() -> list[str]:
    """The gates that nobody has opened since this was last asked."""
    names = list(_shut)
    _shut.clear()
    return names


class Server:
    """One server process. Its standard error is kept, to be shown when a test fails to start or stop it."""

    process: Spawned | subprocess.Popen[str]

    @functools.cached_property
    def alone(self) -> asyncio.Lock:
        """For tests that read the counters of a server which several tests use at the same time."""
        return asyncio.Lock()

    def __init__(
        self, kind: Kind, options: dict[str, Any] | None = None, transport: str = TRANSPORT, port: int = 0, **env: str
    ) -> None:
        self.kind, self.options, self.transport = kind, options or {}, transport
        # Open as long as the process runs, so no `with` can hold it.
        self.stderr = tempfile.TemporaryFile("w+")  # noqa: SIM115
        if kind.language == "rust":
            built_rust()
        command = kind.command(transport, self.options)
        # Without one the system chooses.
        command += ["--port", str(port)] if port else []
        env = {**os.environ, **env}
        if kind.language == "python":
            # A stock server is one that never heard of us, so it does not come from a process that imported us.
            # Nor does one whose SDK is changed while it is imported.
            is_whole = transport != "stock" and "TAILROPE_TEST_DRIFT" not in env
            self.process = spawner(kind, "tailrope" if is_whole else "nothing").start(command[3:], env, self.stderr)
        else:
            self.process = subprocess.Popen(
                command,
                cwd=TESTS,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=self.stderr,
                text=True,
                env=env,
            )
        self.port = self._ready()

    @classmethod
    async def start(
        cls, kind: Kind, options: dict[str, Any] | None = None, transport: str = TRANSPORT, port: int = 0, **env: str
    ) -> Self:
        """As the constructor does, without holding up an event loop."""
        starting = asyncio.ensure_future(asyncio.to_thread(cls, kind, options, transport, port, **env))
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            # Nobody else knows of it.
            starting.add_done_callback(lambda done: None if done.exception() else done.result().kill())
            raise

    @classmethod
    @asynccontextmanager
    async def running(
        cls, kind: Kind, options: dict[str, Any] | None = None, transport: str = TRANSPORT, **env: str
    ) -> AsyncIterator[Self]:
        """A server as long as the block runs."""
        server = await cls.start(kind, options, transport, **env)
        try:
            yield server
        finally:
            await asyncio.to_thread(server.stop)

    def _ready(self) -> int:
        assert self.process.stdout is not None
        readable, _, _ = select.select([self.process.stdout], [], [], START_S)
        line = self.process.stdout.readline() if readable else ""
        if not line.startswith("READY"):
            self.kill()
            raise AssertionError(f"{self.kind.name} did not start: {line!r}\n{self.log()}")
        return int(line.split()[1])

    def log(self) -> str:
        return written(self.stderr)

    async def logged(self, text: str) -> str:
        """Wait for a line with the text, since an answer may overtake it, and return all that was logged."""

        async def log() -> str:
            return self.log()

        return str(await until(log, lambda log: text in log))

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(10)
        if self.process.stdout is not None:
            self.process.stdout.close()

    def stop(self) -> None:
        """End it. Raises AssertionError when something panicked in it."""
        self.kill()
        log = self.log()
        assert "panicked at" not in log, log

    def exit_code(self, wait_s: float) -> int:
        """Wait for the process to end by itself."""
        return self.process.wait(wait_s)

    async def died(self, wait_s: float) -> bool:
        """Wait for it without holding up an event loop, and say whether it has ended."""
        try:
            await asyncio.to_thread(self.process.wait, wait_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def rss(self) -> int:
        """Bytes in memory, as the system counts them."""
        return int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * resource.getpagesize()

    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    async def peer(self, revision: str = NEWEST, **more: Any) -> Peer:
        return await Peer.open(self.port, revision, **more)

    async def session(self, **more: Any) -> Session:
        """A session of the test kit for users."""
        from tailrope.testing import open_session

        return await open_session(f"http://127.0.0.1:{self.port}/mcp", **more)

    async def ctl(self, path: str, body: Any = None, **query: Any) -> Any:
        return await ask(self.port, path, body, **query)

    async def open(self, *gates: str) -> None:
        _shut.difference_update(gates)
        await self.ctl("open", gate=",".join(gates))

    async def mark(self, name: str, count: int = 1) -> None:
        """Wait until the server's tools have set this mark."""
        # Thousands of events take their time, and more in a store that waits for a disk or a network. A stock server
        # that never gets there is to be found out soon.
        for _ in range(1 if self.transport == "stock" else 6):
            answer = await self.ctl("mark", name=name, count=count)
            if not answer:
                return
        raise AssertionError(answer)

    async def passed(self, name: str) -> bool:
        """Whether this mark is set. It may take some seconds to say no."""
        return not await self.ctl("mark", name=name)

    async def at(self, name: str, count: int = 1) -> None:
        """Wait until a tool or store waits at this gate."""
        await self.mark(f"at {name}", count)

    async def state(self) -> Any:
        """Marks, requests so far by method (and by `METHOD SESSION`), memory, descriptors, the state of a lab store."""
        return await self.ctl("state")

    async def held(self) -> Any:
        """What the process holds once it has thrown away the tests' own books and collected its garbage."""
        return await self.ctl("held")

    async def stats(self) -> Any:
        return await self.ctl("stats")

    async def plan(self, **faults: Any) -> None:
        """How the lab store behaves from now on."""
        await self.ctl("store", body=faults)

    async def lost(self) -> None:
        """Wait until nothing is left of any stream, or make the stock transport's store forget them."""
        if self.transport == "stock":
            await self.plan(forget=True)
        else:
            # The client's standalone stream stays.
            await self.until_stats(lambda stats: stats["streams"] <= 1)

    async def until_stats(self, condition: Callable[[Any], bool], wait_s: float = 30.0) -> Any:
        """Wait until the engine's counters satisfy `condition`; for what the wire does not show."""
        return await until(self.stats, condition, wait_s)


async def ask(port: int, path: str, body: Any = None, **query: Any) -> Any:
    """What a process answers below `/ctl/`."""
    target = f"/ctl/{path}?{urlencode(query)}"
    payload = json.dumps(body).encode() if body is not None else b""
    reply = await request(port, "POST", target, {}, payload, wait_s=60)
    answer = await reply.json()
    reply.close()
    return answer


async def until(ask: Callable[[], Awaitable[Any]], condition: Callable[[Any], bool], wait_s: float = 30.0) -> Any:
    """Ask until the answer satisfies `condition`, and give that answer."""
    deadline = time.monotonic() + wait_s
    while True:
        found = await ask()
        if condition(found):
            return found
        assert time.monotonic() < deadline, f"never reached: {found}"
        await asyncio.sleep(0.02)


def written(file: IO[str]) -> str:
    """What processes have written to the file. They share its position, which therefore stays as it is: moved, it would
    make them write over what is there."""
    return os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0).decode(errors="replace")


class Farm:
    """The running servers of one kind, by their options: tests that ask for the same share one."""

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self.servers: dict[str, Server] = {}
        kept: list[dict[str, Any]] = [{}, {"store": "lab"}]
        self._keep = {self._key(options) for options in kept}

    @staticmethod
    def _key(options: dict[str, Any]) -> str:
        return json.dumps(options, sort_keys=True)

    def get(self, **options: Any) -> Server:
        key = self._key(options)
        server = self.servers.get(key)
        if server is None or server.process.poll() is not None:
            # `stock=True` asks for the SDK's own transport beside ours, to compare the two.
            transport = "stock" if options.get("stock") else TRANSPORT
            server = self.servers[key] = self.kind.start(options, transport)
        return server

    def fresh(self, **options: Any) -> Server:
        """A server of the test's own, which the test must end."""
        return self.kind.start(options)

    async def open_all(self) -> None:
        """Open what a failed test left shut: its tools must not run on beside the next test."""
        if names := left_shut():
            for server in self.servers.values():
                if server.process.poll() is None:
                    await server.open(*names)

    def stop(self, everything: bool) -> None:
        for key, server in list(self.servers.items()):
            if everything or key not in self._keep:
                del self.servers[key]
                server.stop()
