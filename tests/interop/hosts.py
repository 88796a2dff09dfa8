"""Server processes: one of each package and SDK line, started when a test first asks for it, shared by all tests."""

from __future__ import annotations

import asyncio
import json
import tempfile
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
SERVERS = ("python-v1", "python-v2", "node-v1", "node-v2")
# The SDKs' own transports, with an event store in memory.
STOCK_SERVERS = ("python-v2-stock", "node-v2-stock")
RETRY_MS = 50
START_S = 30.0
# How long the streams of a forgetful server stay readable.
SHORT_MS = 50


def python(line: str) -> str:
    return str(ROOT / ".venv" / f"mcp{line[-1]}" / "bin" / "python")


def command(server: str, is_forgetful: bool) -> tuple[list[str], Path]:
    """The command that starts a server, and its working directory."""
    package, line, *stock = server.split("-")
    if stock and package == "node":
        return ["node", str(HERE / "node_host.mjs"), line, "stock"], ROOT
    if stock:
        options = json.dumps({"retry_ms": RETRY_MS})
        words = [python(line), "-m", "servers.app", "--flavor", f"mcp{line[-1]}", "--transport", "stock"]
        return [*words, "--options", options], ROOT / "tests" / "python"
    if package == "node":
        store = [json.dumps({"retentionMs": SHORT_MS})] if is_forgetful else []
        return ["node", str(HERE / "node_host.mjs"), line, *store], ROOT
    # Clients of 2026-07-28 are steered to the newest resumable revision.
    install = {"prefer_resumable": True, **({"retention_ms": SHORT_MS} if is_forgetful else {})}
    options = json.dumps({"retry_ms": RETRY_MS, "install": install})
    words = [python(line), "-m", "servers.app", "--flavor", f"mcp{line[-1]}", "--options", options]
    return words, ROOT / "tests" / "python"


class Host:
    """One server process."""

    def __init__(self, process: asyncio.subprocess.Process, log: Any) -> None:
        self._process = process
        self._log = log
        self.port = 0
        # For tests that read the counters of the whole process.
        self.alone = asyncio.Lock()

    @classmethod
    async def start(cls, server: str, is_forgetful: bool) -> Host:
        words, cwd = command(server, is_forgetful)
        # Open as long as the process runs, so no `with` can hold it.
        log = tempfile.TemporaryFile("w+")  # noqa: SIM115
        process = await asyncio.create_subprocess_exec(*words, cwd=cwd, stdout=asyncio.subprocess.PIPE, stderr=log)
        host = cls(process, log)
        try:
            assert process.stdout is not None
            async with asyncio.timeout(START_S):
                line = (await process.stdout.readline()).decode()
            assert line.startswith("READY"), f"{server} did not start: {line!r}\n{host.log()}"
        except BaseException:
            # Nobody else knows of it.
            await host.stop()
            raise
        host.port = int(line.split()[1])
        return host

    def log(self) -> str:
        self._log.seek(0)
        return str(self._log.read())

    async def _ask(self, method: str, path: str, headers: dict[str, str] | None = None) -> bytes:
        url = f"http://127.0.0.1:{self.port}{path}"
        request = urllib.request.Request(url, method=method, headers=headers or {})

        def ask() -> bytes:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return bytes(answer.read())

        return await asyncio.to_thread(ask)

    async def _control(self, path: str, **query: str) -> Any:
        return json.loads(await self._ask("POST", f"/ctl/{path}?{urlencode(query)}"))

    async def end(self, session: str | None) -> None:
        """End a session behind its client's back."""
        assert session is not None
        await self._ask("DELETE", "/mcp", {"mcp-session-id": session})

    async def open(self, gate: str) -> None:
        await self._control("open", gate=gate)

    async def forgot(self) -> None:
        """Wait until no stream of a request is left: what remains are sessions' standalone streams."""
        deadline = asyncio.get_running_loop().time() + 20
        while (stats := await self._control("stats"))["streams"] > stats["sessions"]:
            assert asyncio.get_running_loop().time() < deadline, f"never forgotten: {stats}"
            await asyncio.sleep(0.02)

    async def stop(self) -> None:
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()
        log = self.log()
        self._log.close()
        assert "panicked at" not in log, log


class Hosts:
    """All servers of this run."""

    def __init__(self) -> None:
        self._starting: dict[tuple[str, bool], asyncio.Task[Host]] = {}

    async def get(self, server: str, is_forgetful: bool = False) -> Host:
        key = (server, is_forgetful)
        if key not in self._starting:
            self._starting[key] = asyncio.create_task(Host.start(*key))
        # Several tests wait for one start; one that gives up must not take it from the others.
        return await asyncio.shield(self._starting[key])

    async def stop(self) -> None:
        for task in self._starting.values():
            if task.done() and task.exception() is None:
                await task.result().stop()
