"""A store that goes away, or takes nothing more: health, counters and two lines of the log say so."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import tailrope
from asgi import until
from tailrope.testing import open_session, serve
from test_records import Lines, Server

if version("mcp").startswith("1."):
    from mcp.server.fastmcp import Context
else:
    from mcp.server.mcpserver import Context  # type: ignore[assignment]

pytestmark = [pytest.mark.ours, pytest.mark.one_line, pytest.mark.usefixtures("uninstalled")]


@pytest.fixture
def lines() -> Iterator[Lines]:
    logger, lines = logging.getLogger("tailrope"), Lines()
    logger.addHandler(lines)
    yield lines
    logger.removeHandler(lines)


class Redis:
    """A server of the test's own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port: int = free.getsockname()[1]
        self.begin()

    def begin(self) -> None:
        program = os.environ.get("TAILROPE_TEST_REDIS_SERVER", "redis-server")
        options = ["--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--dir", str(self.folder)]
        self.process = subprocess.Popen([program, *options, "--appendonly", "yes"], stdout=subprocess.DEVNULL)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def may_hold(self, memory: str) -> None:
        with socket.create_connection(("127.0.0.1", self.port)) as there:
            there.sendall(f"CONFIG SET maxmemory {memory}\r\n".encode())
            assert there.recv(64) == b"+OK\r\n"

    def accepts(self) -> bool:
        with socket.socket() as there:
            return there.connect_ex(("127.0.0.1", self.port)) == 0


@asynccontextmanager
async def installed(folder: Path) -> AsyncIterator[Redis]:
    """Servers of this process store their events in it."""
    redis = Redis(folder)
    try:
        await until(redis.accepts)
        tailrope.install(store=f"redis://127.0.0.1:{redis.port}")
        yield redis
    finally:
        redis.kill()


@pytest.mark.skipif("TAILROPE_TEST_REDIS" not in os.environ, reason="tests/services/with redis starts the servers")
@pytest.mark.usefixtures("alone")
async def test_an_outage_of_redis_is_in_health_in_the_counters_and_in_two_lines(tmp_path: Path, lines: Lines) -> None:
    async with installed(tmp_path) as redis:
        server = Server("outages", log_level="WARNING")
        async with serve(server.streamable_http_app()) as served:
            await open_session(f"http://127.0.0.1:{served.port}/mcp")
            assert (tailrope.health()["status"], tailrope.stats()["store_up"]) == ("ok", 1)
            redis.kill()
            await until(lambda: tailrope.health()["status"] == "degraded")
            now = tailrope.stats()
            assert (now["store_up"], now["store_away_ms"] > 0) == (0, True)
            await until(lambda: tailrope.health()["store"]["refusing"])
            assert tailrope.health()["status"] == "unavailable"
            redis.begin()
            await until(lambda: tailrope.health()["status"] == "ok")
            await until(lambda: any("is back after" in record.getMessage() for record in lines.records))
            told = [record.getMessage()[:23] for record in lines.records]
            assert [text for text in told if text.startswith("the event store is")] == [
                "the event store is not ",
                "the event store is away",
                "the event store is back",
            ], "of hints, of the store, and that it is back"


@pytest.mark.skipif("TAILROPE_TEST_REDIS" not in os.environ, reason="tests/services/with redis starts the servers")
@pytest.mark.usefixtures("alone")
async def test_a_store_without_room_is_in_health_and_in_two_lines(tmp_path: Path, lines: Lines) -> None:
    async with installed(tmp_path) as redis:
        server: Any = Server("full", log_level="WARNING")

        @server.tool()
        async def goes_on(ctx: Context) -> str:
            said, knows = 0, False
            while not knows or tailrope.health()["status"] != "ok":
                knows = knows or tailrope.health()["store"]["refused_ms"] > 0
                said += 1
                # A handler runs ahead of the store: what it sends next is told that this was refused.
                with contextlib.suppress(tailrope.TailropeError):
                    await ctx.report_progress(said)
                await asyncio.sleep(0.01)
            return "done"

        async with serve(server.streamable_http_app()) as served:
            session = await open_session(f"http://127.0.0.1:{served.port}/mcp")
            call = await session.call("goes_on", {})
            await call.read()
            redis.may_hold("1mb")
            await until(lambda: tailrope.health()["status"] == "degraded")
            store = tailrope.health()["store"]
            assert (store["status"], store["away_ms"], store["refusing"]) == ("degraded", 0, False), "it is there"
            redis.may_hold("0")
            await call.collect(read_again=False)
            assert tailrope.health()["status"] == "ok"
        told = [record.getMessage()[:25] for record in lines.records]
        assert [text for text in told if text.startswith(("the event store refuses", "the event store stores"))] == [
            "the event store refuses w",
            "the event store stores ag",
        ]
