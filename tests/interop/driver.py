"""The official clients, each behind a driver process that says what the client shows its user.

A driver is started with the server's URL and connects at once. Orders, one JSON object in a line:

    {"call": NAME, "steps": [...]}      call the tool `script`
    {"call": NAME, "method": METHOD}    send any other request, without params
    {}                                  close the client and end

What it prints, in the same form:

    {"connected": REVISION}             once, first
    {"call": NAME, "progress": NUMBER}  a progress notification of this call
    {"call": NAME, "result": TEXT}      the call's result
    {"call": NAME, "error": TEXT}       or its failure
    {"log": DATA}                       a log notification
    {"closed": true}                    once, last
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import subprocess
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from hosts import HERE, ROOT, Host, Hosts, python
from tap import Tap, until

PYTHON = ("python-v1", "python-v2")
TYPESCRIPT = ("typescript-v1", "typescript-v2")
RUST = ("rust-v3",)
CLIENTS = (*PYTHON, *TYPESCRIPT, *RUST)
# The same clients with Tailrope's half.
WITH_LINE = "+line"
# The Python clients with an HTTP client that may speak HTTP/2; the others cannot be asked to.
WITH_HTTP2 = "+http2"
LINED = tuple(client + WITH_LINE for client in CLIENTS)
REVISION = "2025-11-25"
# Servers and their gates are shared by all tests.
_gates = itertools.count(1)
_rust = ""


def gates(count: int) -> list[str]:
    """Names of gates that no other test uses."""
    return [f"g{next(_gates)}" for _ in range(count)]


def build_rust() -> None:
    global _rust
    _rust = subprocess.run([HERE / "build"], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


def command(client: str, url: str) -> list[str]:
    for ending in (WITH_LINE, WITH_HTTP2):
        if client.endswith(ending):
            return [*command(client.removesuffix(ending), url), f"--{ending[1:]}"]
    if client in PYTHON:
        return [python(client), str(HERE / "drivers" / "python.py"), url]
    if client in TYPESCRIPT:
        return ["node", str(HERE / "drivers" / "typescript.mjs"), client.split("-")[1], url]
    return [_rust, url]


class Driver:
    """One driver process and everything that it has said."""

    def __init__(self, process: asyncio.subprocess.Process, stderr: Any) -> None:
        self._process = process
        self._stderr = stderr
        self._reading = asyncio.create_task(self._read())
        self.lines: list[dict[str, Any]] = []

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

    async def call(self, *steps: str, name: str = "call") -> None:
        """Start a call; its results are looked up under its name."""
        await self.order(call=name, steps=steps)

    async def kill(self) -> None:
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()
        await self._reading
        self._stderr.close()


class Meeting:
    """A client, the server, and the tap between them."""

    def __init__(self, driver: Driver, tap: Tap, host: Host) -> None:
        self.driver, self.tap, self.host = driver, tap, host

    def story(self) -> str:
        said = "\n".join(map(str, self.driver.lines))
        asked = "\n".join(map(str, self.tap.exchanges))
        return f"client said:\n{said}\nclient asked:\n{asked}\nclient's stderr:\n{self.driver.stderr()}"

    async def until(self, condition: Any, wait_s: float = 20) -> None:
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

    async def close(self) -> None:
        """The client ends as its user would end it."""
        await self.driver.order()
        await self.until(lambda: bool(self.driver.lines) and "closed" in self.driver.lines[-1])


@asynccontextmanager
async def drive(client: str, url: str, tap: Tap, host: Any, start_s: float = 30, **env: str) -> AsyncIterator[Meeting]:
    """Connect a client to a server whose tap is somewhere on the way."""
    pipe = asyncio.subprocess.PIPE
    with tempfile.TemporaryFile("w+") as stderr:
        process = await asyncio.create_subprocess_exec(
            *command(client, url), cwd=ROOT, stdin=pipe, stdout=pipe, stderr=stderr, env=os.environ | env
        )
        driver = Driver(process, stderr)
        meeting = Meeting(driver, tap, host)
        try:
            await meeting.until(lambda: bool(driver.revision), start_s)
            assert driver.revision == [REVISION]
            yield meeting
        finally:
            await driver.kill()


@asynccontextmanager
async def meet(hosts: Hosts, client: str, server: str, is_forgetful: bool = False) -> AsyncIterator[Meeting]:
    """Connect a client to a server, through a tap."""
    host = await hosts.get(server, is_forgetful)
    async with Tap(host.port) as tap, drive(client, f"http://127.0.0.1:{tap.port}/mcp", tap, host) as meeting:
        yield meeting
