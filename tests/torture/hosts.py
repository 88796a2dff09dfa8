"""Server processes of every kind, and the stores that they share."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import tempfile
import uuid
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

ROOT = Path(__file__).parents[2]
SERVERS = ("python-v1", "python-v2", "node-v1", "node-v2")
# The Rust SDK's own server, as it comes: it keeps the last messages of a stream in memory, and needs no event store.
RMCP = "stock-rmcp"
# The SDKs' own transports; Python's and Node's have the event stores of the tests, which keep everything in memory.
STOCK = (*(f"stock-{server}" for server in SERVERS), RMCP)
STORES = ("memory", "sqlite", "redis", "postgres")
START_S = 40.0
RETRY_MS = 20
ROOM = {"max_events_per_stream": 1_000_000, "max_bytes_per_stream": 256 << 20, "max_bytes_per_session": 512 << 20}


def camel(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join(word.capitalize() for word in rest)


def address(store: str, folder: Path) -> str:
    """The address of a store with nothing in it. Raises KeyError when no server of the kind runs."""
    if store == "memory":
        return "memory:"
    if store == "sqlite":
        return f"sqlite:{folder / 'events.db'}"
    server = os.environ[f"TAILROPE_TEST_{store.upper()}"]
    return f"{server}{'&' if '?' in server else '?'}namespace=t{uuid.uuid4().hex[:12]}"


def port_of(place: str) -> int:
    """Where the server of a store listens."""
    port = urlsplit(place).port
    assert port is not None, place
    return port


def through(place: str, port: int) -> str:
    """The same store by another port."""
    parts = urlsplit(place)
    assert parts.hostname is not None
    return place.replace(f"{parts.hostname}:{parts.port}", f"127.0.0.1:{port}", 1)


def rmcp_program() -> Path:
    return Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "rmcp-server/debug/tailrope-torture-rmcp-server"


def build_rmcp() -> None:
    """Build the program of `stock-rmcp`, which nothing else needs."""
    target = rmcp_program().parents[1]
    words = ["cargo", "build", "--quiet", "--locked", "--target-dir", str(target), "--manifest-path"]
    subprocess.run([*words, str(ROOT / "tests" / "torture" / "rmcp-server" / "Cargo.toml")], check=True)


def command(server: str, place: str, *, auth: bool, engine: dict[str, Any]) -> tuple[list[str], Path, dict[str, str]]:
    """The command that starts a server, its working directory and its environment."""
    if server == RMCP:
        return [str(rmcp_program())], ROOT, {}
    *stock, package, line = server.split("-")
    options: dict[str, Any] = {}
    if package == "node":
        if not stock:
            options = {"address": place, "engine": {camel(name): value for name, value in engine.items()}}
        words = ["node", "--expose-gc", str(ROOT / "tests" / "node" / "kit" / "run.mjs"), line]
        return [*words, json.dumps(options)], ROOT, {"TAILROPE_TEST_TRANSPORT": "stock" if stock else "tailrope"}
    options = {"retry_ms": RETRY_MS, "auth": auth}
    if not stock:
        options["install"] = {"store": place, **engine}
    python = ROOT / ".venv" / f"mcp{line[-1]}" / "bin" / "python"
    words = [str(python), "-m", "servers.app", "--flavor", f"mcp{line[-1]}"]
    words += ["--transport", "stock" if stock else "tailrope", "--options", json.dumps(options)]
    return words, ROOT / "tests" / "python", {}


def user(server: str, name: str) -> dict[str, str]:
    """The headers of a user; two names are two tenants."""
    if "node" in server:
        return {"x-user": f"{name}/{name}"}
    return {"Authorization": f"Bearer {name}-token"}


class Host:
    """One server process. Its standard error is kept."""

    def __init__(self, server: str, process: asyncio.subprocess.Process, log: Any) -> None:
        self.server, self.process, self._log = server, process, log
        self.port = 0

    @classmethod
    async def start(cls, server: str, place: str = "memory:", *, auth: bool = False, **engine: Any) -> Host:
        words, cwd, more = command(server, place, auth=auth, engine={**ROOM, **engine})
        # Open as long as the process runs, so no `with` can hold it.
        log = tempfile.TemporaryFile("w+")  # noqa: SIM115
        process = await asyncio.create_subprocess_exec(
            *words,
            cwd=cwd,
            env={**os.environ, **more},
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=log,
        )
        host = cls(server, process, log)
        try:
            assert process.stdout is not None
            async with asyncio.timeout(START_S):
                line = (await process.stdout.readline()).decode()
            if not line.startswith("READY"):
                raise RuntimeError(f"{server} did not start: {line!r}\n{host.log()}")
        except BaseException:
            await host.stop()
            raise
        host.port = int(line.split()[1])
        return host

    @property
    def process_name(self) -> str:
        return str(self.process.pid)

    @property
    def is_dead(self) -> bool:
        return self.process.returncode is not None

    def log(self) -> str:
        self._log.seek(0)
        return str(self._log.read())

    def kill(self) -> None:
        if self.process.returncode is None:
            self.process.send_signal(signal.SIGKILL)

    async def died(self, wait_s: float) -> bool:
        """Wait until the process is gone."""
        try:
            async with asyncio.timeout(wait_s):
                await self.process.wait()
        except TimeoutError:
            return False
        return True

    async def stop(self) -> None:
        """End it. Raises AssertionError when something panicked in it."""
        self.kill()
        await self.process.wait()
        log = self.log()
        assert "panicked at" not in log, log
