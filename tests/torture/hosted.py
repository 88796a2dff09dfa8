"""Server processes of both packages behind one face: those of tests/python/servers and of tests/node/kit."""

from __future__ import annotations

import asyncio
import json
import os
import re
import resource
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from torture.hosts import ROOT, camel

for folder in ("interop", "python"):
    sys.path.append(str(ROOT / "tests" / folder))

from raw import Truncated, Wire  # noqa: E402

# What one answer may hold: the names of all steps of a marathon are in it.
ANSWER_BYTES = 16 << 20
START_S = 60.0
# The kit imports the test runner of Node, which introduces itself sooner or later.
NOISE = "TAP version"
# What both packages take under names that differ in their spelling only.
ENGINE = ("retention_ms", "max_detached_ms", "max_connection_ms", "max_bytes_per_stream", "owner_lost_ms")


@dataclass(frozen=True)
class Settings:
    """What a server is started with; None is its default. Durations are in milliseconds."""

    retry_ms: int = 20
    keep_alive_ms: int | None = None
    idle_ms: int | None = None
    retention_ms: int | None = None
    max_detached_ms: int | None = None
    max_connection_ms: int | None = None
    max_bytes_per_stream: int | None = None
    owner_lost_ms: int | None = None
    store: str | None = None


def some(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def engine(of: Settings) -> dict[str, Any]:
    return some(**{name: getattr(of, name) for name in ENGINE})


def python_command(line: str, of: Settings) -> tuple[list[str], Path]:
    install = some(
        # Clients of 2026-07-28 are steered to a resumable revision; in Node the servers of the kit know no other.
        prefer_resumable=True,
        keep_alive_ms=of.keep_alive_ms,
        store=of.store,
        **engine(of),
    )
    idle_s = None if of.idle_ms is None else of.idle_ms / 1000
    options = json.dumps(some(retry_ms=of.retry_ms, install=install, idle_s=idle_s))
    program = str(ROOT / ".venv" / f"mcp{line[-1]}" / "bin" / "python")
    words = [program, "-m", "servers.app", "--flavor", f"mcp{line[-1]}", "--options", options]
    return words, ROOT / "tests" / "python"


def node_command(line: str, of: Settings) -> tuple[list[str], Path]:
    limits = {camel(name): value for name, value in engine(of).items()}
    # A store of the server's own, as a Python process has one of its own.
    options = some(
        retryInterval=of.retry_ms,
        keepAliveMs=of.keep_alive_ms,
        address=of.store,
        engine=some(sessionIdleMs=of.idle_ms, **limits),
    )
    script = str(ROOT / "tests" / "node" / "kit" / "run.mjs")
    return ["node", "--expose-gc", script, line, json.dumps(options)], ROOT


class Hosted:
    """One server process."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, log: Any) -> None:
        self.name = name
        self.port = 0
        self._process = process
        self._log = log
        self._alone = asyncio.Lock()
        self._wire: Wire | None = None

    async def _line(self) -> str:
        assert self._process.stdout is not None
        async with asyncio.timeout(START_S):
            line = (await self._process.stdout.readline()).decode()
        assert line, f"{self.name} has ended:\n{self.log()}"
        return line

    async def ready(self) -> None:
        line = await self._line()
        assert line.startswith("READY"), f"{self.name} did not start: {line!r}\n{self.log()}"
        self.port = int(line.split()[1])

    @property
    def pid(self) -> int:
        return self._process.pid

    def log(self) -> str:
        self._log.seek(0)
        return str(self._log.read())

    async def _http(self, path: str) -> Any:
        # A connection that nobody uses is closed by the server; what is asked may be asked twice.
        for is_last in (False, True):
            try:
                if self._wire is None:
                    self._wire = await Wire.open(self.port)
                await self._wire.send("POST", f"/ctl/{path}", {"Host": f"127.0.0.1:{self.port}"}, b"")
                reply = await self._wire.answer(START_S)
                return json.loads(await reply.body(START_S))
            except (ConnectionError, asyncio.IncompleteReadError, Truncated):
                self._wire = None
                if is_last:
                    raise

    async def _ask(self, http: str, order: str) -> Any:
        async with self._alone:
            if self.name.startswith("python"):
                return await self._http(http)
            assert self._process.stdin is not None
            self._process.stdin.write(order.encode() + b"\n")
            while (text := await self._line()).startswith(NOISE):
                pass
            return json.loads(text)

    async def open(self, gate: str) -> None:
        await self._ask(f"open?gate={gate}", f"open {gate}")

    async def stats(self) -> dict[str, int]:
        """The engine's counters, under the names that Python has for them."""
        answer = await self._ask("stats", "state")
        counters = answer.get("stats", answer)
        return {re.sub("[A-Z]", lambda found: "_" + found[0].lower(), name): each for name, each in counters.items()}

    async def finished(self, last_step: str) -> bool:
        """Whether a script with this last step has run to its end. In Python it may take some seconds to say no."""
        mark = f"finished {last_step}"
        answer = await self._ask(f"mark?name={quote(mark)}", "state")
        return mark in answer["passed"] if "passed" in answer else answer == {}

    async def held(self) -> dict[str, Any]:
        """What is left once it has thrown away the tests' own books and collected its garbage."""
        return dict(await self._ask("held", "held"))

    def rss(self) -> int:
        """Bytes in memory."""
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * resource.getpagesize()

    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    async def stop(self) -> None:
        if self._wire is not None:
            self._wire.close()
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()
        log = self.log()
        self._log.close()
        assert "panicked at" not in log, log


@asynccontextmanager
async def hosted(name: str, settings: Settings) -> AsyncIterator[Hosted]:
    """A server, for example `python-v2`, as long as the block runs."""
    package, line = name.split("-")
    words, folder = python_command(line, settings) if package == "python" else node_command(line, settings)
    pipe = asyncio.subprocess.PIPE
    # Read when something has failed, so it has to outlive this process's reading.
    log = tempfile.TemporaryFile("w+")  # noqa: SIM115
    process = await asyncio.create_subprocess_exec(
        *words, cwd=folder, stdin=pipe, stdout=pipe, stderr=log, limit=ANSWER_BYTES
    )
    server = Hosted(name, process, log)
    try:
        await server.ready()
        yield server
    finally:
        await server.stop()
