"""A store that goes away: health, counters and two lines of the log say so."""

from __future__ import annotations

import logging
import os
import socket
import subprocess
from pathlib import Path

import pytest
import tailrope
from asgi import until
from tailrope.testing import open_session, serve
from test_records import Lines, Server

pytestmark = [pytest.mark.ours, pytest.mark.one_line, pytest.mark.usefixtures("uninstalled")]


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

    def accepts(self) -> bool:
        with socket.socket() as there:
            return there.connect_ex(("127.0.0.1", self.port)) == 0


@pytest.mark.skipif("TAILROPE_TEST_REDIS" not in os.environ, reason="tests/services/with redis starts the servers")
@pytest.mark.usefixtures("alone")
async def test_an_outage_of_redis_is_in_health_in_the_counters_and_in_two_lines(tmp_path: Path) -> None:
    redis, lines, logger = Redis(tmp_path), Lines(), logging.getLogger("tailrope")
    logger.addHandler(lines)
    try:
        await until(redis.accepts)
        tailrope.install(store=f"redis://127.0.0.1:{redis.port}")
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
    finally:
        logger.removeHandler(lines)
        redis.kill()
