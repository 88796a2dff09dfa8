"""The client programs as processes: one for each client, with the line and without it, shared by all tests."""

from __future__ import annotations

import asyncio
import itertools
import json
import tempfile
from pathlib import Path
from typing import Any

from kit.servers import ROOT, SERVERS

HERE = Path(__file__).resolve().parent
PYTHON = ("mcp1", "mcp2")
TYPESCRIPT = ("ts1", "ts2")
CLIENTS = (*PYTHON, *TYPESCRIPT)
# An answer of many thousand notifications is one line.
MOST_LINE = 1 << 24


def command(client: str, program: str = "client") -> list[str]:
    """The program of this name, for this client."""
    folder = HERE / "programs"
    if client in PYTHON:
        return [SERVERS[client].python, str(folder / f"{program}.py")]
    return ["node", "--expose-gc", str(folder / f"{program}.mjs"), f"v{client[-1]}"]


class Driver:
    """One process, which runs many plans side by side."""

    def __init__(self, client: str, line: dict[str, Any] | None) -> None:
        self._client, self._line = client, line
        self._names = itertools.count(1)
        self._reports: dict[str, asyncio.Future[dict[str, Any]]] = {}
        self._stderr = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self._starting: asyncio.Task[asyncio.subprocess.Process] | None = None

    async def _start(self) -> asyncio.subprocess.Process:
        options = [] if self._line is None else ["--line", json.dumps(self._line)]
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            *command(self._client), *options, cwd=ROOT, stdin=pipe, stdout=pipe, stderr=self._stderr, limit=MOST_LINE
        )
        self._reading = asyncio.create_task(self._read(process))
        return process

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        async for text in process.stdout:
            report = json.loads(text)
            future = self._reports.pop(report.pop("name"))
            if not future.done():
                future.set_result(report)
        # It should not end before it is told to.
        for future in self._reports.values():
            if not future.done():
                future.set_result({"fault": f"the {self._client} process ended: {self.stderr()}"})

    def stderr(self) -> str:
        self._stderr.seek(0)
        return str(self._stderr.read())[-4_000:]

    async def run(self, url: str, plan: dict[str, Any]) -> dict[str, Any]:
        if self._starting is None:
            self._starting = asyncio.create_task(self._start())
        process = await asyncio.shield(self._starting)
        assert process.stdin is not None
        name = str(next(self._names))
        self._reports[name] = asyncio.get_running_loop().create_future()
        report = self._reports[name]
        process.stdin.write(json.dumps({"name": name, "url": url, "plan": plan}).encode() + b"\n")
        await process.stdin.drain()
        return await report

    async def stop(self) -> None:
        if self._starting is not None:
            process = await self._starting
            if process.returncode is None:
                process.kill()
            await process.wait()
            await self._reading
        self._stderr.close()


class Drivers:
    """All of this run."""

    def __init__(self) -> None:
        self._drivers: dict[tuple[str, str], Driver] = {}

    def get(self, client: str, line: dict[str, Any] | None) -> Driver:
        """`line` holds our options; None is the stock client."""
        key = (client, json.dumps(line))
        if key not in self._drivers:
            self._drivers[key] = Driver(client, line)
        return self._drivers[key]

    async def stop(self) -> None:
        await asyncio.gather(*(driver.stop() for driver in self._drivers.values()))
