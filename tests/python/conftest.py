"""Server processes for the tests, one per flavour and configuration, shared as long as that is useful.

`TAILROPE_TEST_TRANSPORT=stock` runs the same tests against the SDK's own transport; failures are then data for
the table in docs/stock-faults.md, not errors of ours. `TAILROPE_TEST_STORE` is the address of the event store where
a test names none, such as `redis://127.0.0.1:6379?namespace={}`: each server gets a name of its own in place of `{}`.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import itertools
import json
import os
import select
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from peer import NEWEST, Peer
from raw import hang_up, request
from servers.flavors import installed
from servers.spawner import LIBRARY, Spawned, Spawner
from tailrope.testing import Session, open_session

HERE = Path(__file__).parent
TRANSPORT = os.environ.get("TAILROPE_TEST_TRANSPORT", "tailrope")
STORE = os.environ.get("TAILROPE_TEST_STORE", "memory:")
FLAVORS = [flavor for flavor in installed() if flavor in os.environ.get("TAILROPE_TEST_FLAVORS", flavor).split(",")]
START_S = 20.0

_gates = itertools.count(1)
_shut: set[str] = set()
spawner = functools.cache(Spawner)


def gate() -> str:
    """A name that no other test uses: servers are shared, gates are not."""
    name = f"g{next(_gates)}"
    _shut.add(name)
    return name


class Server:
    """One server process. Its standard error is kept, to be shown when a test fails to start or stop it."""

    def __init__(self, flavor: str, options: dict[str, Any], transport: str = TRANSPORT, **env: str) -> None:
        self.flavor, self.options, self.transport = flavor, options, transport
        # Open as long as the process runs, so no `with` can hold it.
        self.stderr = tempfile.TemporaryFile("w+")  # noqa: SIM115
        arguments = ["--flavor", flavor, "--transport", transport, "--options", json.dumps(options)]
        env = {**os.environ, **env}
        self.process: Spawned | subprocess.Popen[str]
        if flavor in LIBRARY and transport != "stock":
            self.process = spawner(flavor).start(arguments, env, self.stderr)
        else:
            # A stock server is one that never heard of us.
            command = [sys.executable, "-m", "servers.app", *arguments]
            self.process = subprocess.Popen(
                command, cwd=HERE, stdout=subprocess.PIPE, stderr=self.stderr, text=True, env=env
            )
        self.port = self._ready()

    def _ready(self) -> int:
        assert self.process.stdout is not None
        readable, _, _ = select.select([self.process.stdout], [], [], START_S)
        line = self.process.stdout.readline() if readable else ""
        if not line.startswith("READY"):
            self.kill()
            raise AssertionError(f"server did not start: {line!r}\n{self.log()}")
        return int(line.split()[1])

    def log(self) -> str:
        self.stderr.seek(0)
        return self.stderr.read()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(10)
        if self.process.stdout is not None:
            self.process.stdout.close()

    def exit_code(self, wait_s: float) -> int:
        """Wait for the process to end by itself."""
        return self.process.wait(wait_s)

    async def peer(self, revision: str = NEWEST, **more: Any) -> Peer:
        return await Peer.open(self.port, revision, **more)

    async def session(self, **more: Any) -> Session:
        """A session of the test kit for users."""
        return await open_session(f"http://127.0.0.1:{self.port}/mcp", **more)

    async def ctl(self, path: str, body: Any = None, **query: Any) -> Any:
        target = f"/ctl/{path}?{urlencode(query)}"
        payload = json.dumps(body).encode() if body is not None else None
        reply = await request(self.port, "POST", target, {}, payload, wait_s=20)
        answer = await reply.json()
        reply.close()
        return answer

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

    async def at(self, name: str, count: int = 1) -> None:
        """Wait until a tool or store waits at this gate."""
        await self.mark(f"at {name}", count)

    async def state(self) -> Any:
        return await self.ctl("state")

    async def stats(self) -> Any:
        return await self.ctl("stats")

    async def plan(self, **faults: Any) -> None:
        await self.ctl("store", body=faults)

    async def lost(self) -> None:
        """Wait until nothing is left of any stream, or make the stock transport's store forget them."""
        if self.transport == "stock":
            await self.plan(forget=True)
        else:
            # The client's standalone stream stays.
            await self.until_stats(lambda stats: stats["streams"] <= 1)

    async def until_stats(self, condition: Any, wait_s: float = 15.0) -> Any:
        """Poll the engine's counters until they satisfy `condition`; for what the wire does not show."""
        deadline = time.monotonic() + wait_s
        while True:
            stats = await self.stats()
            if condition(stats):
                return stats
            assert time.monotonic() < deadline, f"never reached: {stats}"
            await asyncio.sleep(0.02)


class Farm:
    """The running servers of one flavour, by configuration."""

    def __init__(self, flavor: str) -> None:
        self.flavor = flavor
        self.servers: dict[str, Server] = {}
        kept: list[dict[str, Any]] = [{}, {"store": "lab"}, {"install": {"prefer_resumable": True}}]
        self.keep = {self.key(options) for options in kept}

    @staticmethod
    def key(options: dict[str, Any]) -> str:
        return json.dumps(options, sort_keys=True)

    def get(self, **options: Any) -> Server:
        key = self.key(options)
        server = self.servers.get(key)
        if server is None or server.process.poll() is not None:
            # `stock=True` asks for the SDK's own transport beside ours, to compare the two.
            transport = "stock" if options.get("stock") else TRANSPORT
            server = self.servers[key] = Server(self.flavor, options, transport)
        return server

    def fresh(self, **options: Any) -> Server:
        """A server of the test's own, which the test must end."""
        return Server(self.flavor, options)

    def stop(self, everything: bool) -> None:
        for key, server in list(self.servers.items()):
            if everything or key not in self.keep:
                del self.servers[key]
                server.kill()
                log = server.log()
                assert "panicked at" not in log, log


@pytest.fixture(scope="session", params=FLAVORS)
def flavor(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="session")
def whole_farm(flavor: str) -> Iterator[Farm]:
    farm = Farm(flavor)
    yield farm
    farm.stop(everything=True)


@pytest.fixture(scope="module")
def farm(whole_farm: Farm) -> Iterator[Farm]:
    yield whole_farm
    whole_farm.stop(everything=False)


@pytest.fixture(autouse=True)
def no_tool_left_waiting(request: pytest.FixtureRequest) -> Iterator[None]:
    """A failed test leaves gates shut; its tools must not run on beside the next test."""
    yield
    if _shut and "farm" in request.fixturenames:
        names, farm = list(_shut), request.getfixturevalue("farm")
        _shut.clear()
        for server in farm.servers.values():
            if server.process.poll() is None:
                asyncio.run(server.open(*names))


@pytest.fixture
def server(farm: Farm) -> Server:
    return farm.get()


@pytest.fixture
def lab(farm: Farm) -> Iterator[Server]:
    """A server whose event store is a user's own, back to good behaviour after each test."""
    server = farm.get(store="lab")
    yield server
    if server.process.poll() is None:
        asyncio.run(server.plan())


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run `async def` tests, each in an event loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = pyfuncitem._fixtureinfo.argnames

    async def run() -> None:
        try:
            await pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names})
        finally:
            hang_up()

    asyncio.run(run())
    return True


def pytest_configure(config: pytest.Config) -> None:
    if TRANSPORT == "stock":
        # The 2.x client recurses at each reconnect; a traceback that deep breaks pytest's own printing of sources.
        config.option.tbstyle = "native"
    config.addinivalue_line("markers", "ours: about Tailrope itself, meaningless on the stock transport")


def named(kind: str) -> Any:
    """A kind of store that a variable of the environment names, or its reason to be left out."""
    variable = f"TAILROPE_TEST_{kind.upper()}"
    left_out = pytest.mark.skipif(not os.environ.get(variable), reason=f"{variable} names no server")
    return pytest.param(kind, id=kind, marks=left_out)


@pytest.fixture(scope="module", params=["sqlite", named("redis"), named("postgres")])
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The address of a store with nothing in it."""
    if request.param == "sqlite":
        return f"sqlite:{tmp_path_factory.mktemp('store') / 'events.db'}"
    address = os.environ[f"TAILROPE_TEST_{request.param.upper()}"]
    return f"{address}{'&' if '?' in address else '?'}namespace=t{uuid.uuid4().hex[:12]}"


OTHER = pytest.mark.skip(reason="another SDK on a store behind the network: TAILROPE_EVERY_STORE=1 runs it")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        # The seam and SQLite are tested under every SDK, the ways to other stores under one.
        params = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
        is_other = params.get("place") in ("redis", "postgres") and params.get("flavor", FLAVORS[0]) != "mcp2"
        if is_other and not os.environ.get("TAILROPE_EVERY_STORE"):
            item.add_marker(OTHER)
    if TRANSPORT == "stock":
        for item in items:
            if item.get_closest_marker("ours"):
                item.add_marker(pytest.mark.skip(reason="about Tailrope itself"))
