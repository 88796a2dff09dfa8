"""Which servers are tortured, and the stores that they share."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from kit.servers import FRONTS, HANDLERS, RUST, RUST_STOCK, RUST_STORES, SERVERS, Server, built_rust

# One of each SDK line: they differ in what holds their sockets and their tools.
PACKAGES = ("mcp1", "mcp2", "node-v1", "node-v2")
OURS = (*PACKAGES, "tower", "rmcp")
# The SDKs' own transports. They have the event stores of the tests, which keep everything in memory, but for the Rust
# SDK's as it comes: it keeps the last messages of a stream by itself.
STOCK = tuple(f"stock-{server}" for server in (*PACKAGES, "rmcp", *RUST_STOCK))
KINDS = {**SERVERS, **FRONTS, **RUST, **RUST_STOCK, **HANDLERS}
STORES = ("memory", "sqlite", "redis", "postgres")
# Two processes of Python and one of Node that serve the same sessions.
MIXED = "mixed"
FLEETS = {**{server: (server,) * 3 for server in OURS}, MIXED: ("mcp2", "node-v2", "mcp2")}
ROOM = {"max_events_per_stream": 1_000_000, "max_bytes_per_stream": 256 << 20, "max_bytes_per_session": 512 << 20}


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


def build_rust(servers: Iterable[str]) -> None:
    """Build the Rust servers, if one of these is one, with every store."""
    if any(KINDS[server.removeprefix("stock-")].language == "rust" for server in servers if server != MIXED):
        os.environ[RUST_STORES] = "every"
        built_rust()


def user(name: str) -> dict[str, str]:
    """The headers of a user; two names are two tenants."""
    return {"Authorization": f"Bearer {name}-token"}


class Host(Server):
    """One server process. `hosted` starts it."""

    @property
    def process_name(self) -> str:
        return str(self.process.pid)

    def stands_still(self) -> bool:
        """Whether no thread of it runs any more."""
        paths = Path(f"/proc/{self.process.pid}/task").glob("*/stat")
        return {path.read_text().rsplit(") ", 1)[1][0] for path in paths} == {"T"}

    async def stand_still(self) -> None:
        """Stop it; no thread of it runs when this is over."""
        os.kill(self.process.pid, signal.SIGSTOP)
        while not self.stands_still():
            await asyncio.sleep(0.001)


async def hosted(server: str, place: str = "memory:", *, auth: bool = False, port: int = 0, **engine: Any) -> Host:
    """Start a server of ours, or a stock one. One of ours listens where it is told."""
    kind = KINDS[server.removeprefix("stock-")]
    if server in STOCK:
        return await Host.start(kind, {"auth": auth}, "stock")
    options = {"auth": auth, "address": place, "engine": {**ROOM, **engine}}
    return await Host.start(kind, options, "tailrope", port)
