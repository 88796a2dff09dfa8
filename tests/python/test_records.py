"""The record of each call in Python's log, with its fields; counters, also for Prometheus; health, and the answer for
load balancers."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Any

import httpx
import pytest
import tailrope
from asgi import until
from starlette.routing import Mount, Route
from tailrope.testing import open_session, serve

if version("mcp").startswith("1."):
    from mcp.server.fastmcp import FastMCP as Server
else:
    from mcp.server.mcpserver import MCPServer as Server  # type: ignore[assignment]

pytestmark = [pytest.mark.ours, pytest.mark.usefixtures("uninstalled", "alone")]

SECRET = "what only the payload says"
TOKEN = "a-token-that-is-no-name"


class Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.records: list[Any] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    def calls(self) -> list[Any]:
        return [record for record in self.records if getattr(record, "outcome", None) is not None]


@pytest.fixture
def lines() -> Iterator[Lines]:
    logger, handler = logging.getLogger("tailrope"), Lines()
    before = logger.level
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    yield handler
    logger.removeHandler(handler)
    logger.setLevel(before)


@asynccontextmanager
async def serving() -> AsyncIterator[str]:
    server: Any = Server("records", log_level="WARNING")

    @server.tool()
    async def works(text: str) -> str:
        return text

    @server.tool()
    async def fails(text: str) -> str:
        raise ValueError(text)

    @server.tool()
    async def waits(text: str) -> str:
        await asyncio.sleep(3_600)
        return text

    tailrope.install(
        log_calls=True,
        principal=lambda request: request.headers.get("x-user"),
        log_user=lambda request: request.headers.get("x-log-user"),
        max_requests_per_session=1,
    )
    app = server.streamable_http_app()
    app.router.routes += [Route("/readyz", tailrope.readyz), Mount("/mounted", tailrope.readyz)]
    app.router.routes.append(Route("/metrics", tailrope.metrics_endpoint))
    async with serve(app) as served:
        yield f"http://127.0.0.1:{served.port}/mcp"


HEADERS = {"authorization": f"Bearer {TOKEN}", "x-user": "alice"}


def named(stats: dict[str, int]) -> dict[str, int]:
    return {name: stats[name] for name in ("calls_begun", "calls_result", "calls_tool_error", "calls_cancelled")}


async def test_each_call_has_a_record_with_its_user_its_tool_and_how_it_ended(lines: Lines) -> None:
    async with serving() as url:
        before = tailrope.stats()
        session = await open_session(url, headers=HEADERS)
        await (await session.call("works", {"text": SECRET})).collect(read_again=False)
        await (await session.call("fails", {"text": SECRET})).collect(read_again=False)
        call = await session.call("waits", {"text": SECRET})
        await until(lambda: tailrope.stats()["calls_running"] == 1)
        refused = await session._post(
            {
                "jsonrpc": "2.0",
                "id": 77,
                "method": "tools/call",
                "params": {"name": "works", "arguments": {"text": SECRET}},
            }
        )
        assert refused.status == 429
        refused.close()
        params = {"requestId": call.request_id, "reason": SECRET}
        await session.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params})
        await until(lambda: len(lines.calls()) == 5)
        found = {record.outcome: record for record in lines.calls() if getattr(record, "tool", None)}
        assert list(found) == ["result", "tool_error", "refused", "cancelled"]
        for outcome, tool in (
            ("result", "works"),
            ("tool_error", "fails"),
            ("refused", "works"),
            ("cancelled", "waits"),
        ):
            record = found[outcome]
            assert (record.method, record.tool, record.user) == ("tools/call", tool, "alice")
            assert record.sdk == f"mcp {version('mcp')[0]}.x" and record.cause and record.session
            assert record.levelno == (logging.WARNING if outcome == "refused" else logging.INFO)
            text = record.getMessage()
            assert text.startswith("call ended ") and f" tool={tool} " in text and " user=alice " in text
        ran = found["cancelled"]
        assert (ran.connections, ran.resumes, ran.gaps) == (1, 0, 0) and ran.duration_ms >= 0
        for record in lines.records:
            told = f"{record.getMessage()} {vars(record)}"
            assert SECRET not in told and TOKEN not in told
        now = tailrope.stats()
        since = {name: value - named(before)[name] for name, value in named(now).items()}
        assert since == {"calls_begun": 4, "calls_result": 2, "calls_tool_error": 1, "calls_cancelled": 1}
        assert now["refused_too_many_requests"] == before["refused_too_many_requests"] + 1


async def test_a_call_that_ends_with_its_session_says_so_and_a_user_is_never_named_by_a_credential(
    lines: Lines,
) -> None:
    async with serving() as url:
        for name, user in (("Alice of Acme", "Alice of Acme"), (TOKEN, None)):
            lines.records.clear()
            session = await open_session(url, headers={**HEADERS, "x-log-user": name})
            await session.call("waits", {"text": SECRET})
            await until(lambda: tailrope.stats()["calls_running"] == 1)
            await session.delete()
            await until(lambda: any(record.outcome == "session_ended" for record in lines.calls()))
            [record] = [record for record in lines.calls() if record.outcome == "session_ended"]
            assert getattr(record, "user", None) == user
            assert TOKEN not in record.getMessage()


async def test_a_record_is_written_where_the_program_has_attributes_of_its_own(lines: Lines) -> None:
    async with serving() as url:
        factory = logging.getLogRecordFactory()

        def with_user(*args: Any, **kwargs: Any) -> logging.LogRecord:
            record = factory(*args, **kwargs)
            record.user = "of the program"
            return record

        logging.setLogRecordFactory(with_user)
        try:
            session = await open_session(url, headers=HEADERS)
            await (await session.call("works", {"text": "x"})).collect(read_again=False)
            wanted = " tool=works "
            await until(lambda: any(wanted in record.getMessage() for record in lines.records))
        finally:
            logging.setLogRecordFactory(factory)


async def test_health_and_metrics_are_answers_for_those_who_watch() -> None:
    async with serving() as url:
        session = await open_session(url, headers=HEADERS)
        ok = {
            "status": "ok",
            "store": {"status": "ok", "away_ms": 0, "refused_ms": 0, "refusing": False},
            "drain": {"status": "ok", "draining": False},
            "waiting": {"status": "ok", "bytes": 0},
        }
        assert tailrope.health() == ok
        async with httpx.AsyncClient() as client:
            for path in ("readyz", "mounted/"):
                answer = await client.get(url.replace("mcp", path))
                assert (answer.status_code, answer.json(), answer.headers["cache-control"]) == (200, ok, "no-store")
            answer = await client.get(url.replace("mcp", "metrics"))
            told = {"content-type": "text/plain; version=0.0.4; charset=utf-8", "cache-control": "no-store"}
            assert answer.status_code == 200 and told.items() <= dict(answer.headers).items()
            assert f'tailrope_sessions{{process="{os.getpid()}"}} 1\n' in answer.text
            assert "tailrope_calls_begun_total{" in tailrope.metrics()
            await session.call("waits", {"text": "x"})
            await tailrope.drain(within_ms=0)
            answer = await client.get(url.replace("mcp", "readyz"))
            draining = {"status": "unavailable", "draining": True}
            assert (answer.status_code, answer.json()["drain"], answer.json()["status"]) == (
                503,
                draining,
                "unavailable",
            )


@pytest.mark.parametrize("wrong", [{"log_calls": 1}, {"log_user": "x"}])
def test_wrong_options_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        tailrope.install(**wrong)
