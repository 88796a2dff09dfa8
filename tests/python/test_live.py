"""The live page's ASGI app: the page, its snapshots, and that nothing of a payload or credential is in them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
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
    from mcp.server.fastmcp import Context
    from mcp.server.fastmcp import FastMCP as Server
else:
    from mcp.server.mcpserver import Context  # type: ignore[assignment]
    from mcp.server.mcpserver import MCPServer as Server  # type: ignore[assignment]

pytestmark = [pytest.mark.ours, pytest.mark.one_line, pytest.mark.usefixtures("uninstalled", "alone")]

SECRET = "what only the payload says"
TOKEN = "a-token-that-is-no-name"
HEADERS = {"authorization": f"Bearer {TOKEN}", "x-user": "alice", "x-log-user": "Alice of Acme"}


@asynccontextmanager
async def serving() -> AsyncIterator[tuple[str, asyncio.Event]]:
    server: Any = Server("live", log_level="WARNING")
    goes_on = asyncio.Event()

    @server.tool()
    async def waits(text: str, ctx: Context) -> str:
        await ctx.report_progress(1, 2, text)
        await goes_on.wait()
        return text

    tailrope.install(
        principal=lambda request: request.headers.get("x-user"),
        log_user=lambda request: request.headers.get("x-log-user"),
    )
    app = server.streamable_http_app()
    app.router.routes += [Route("/live", tailrope.live), Mount("/mounted", tailrope.live)]
    async with serve(app) as served:
        yield f"http://127.0.0.1:{served.port}/", goes_on


async def snapshot(client: httpx.AsyncClient, url: str) -> Any:
    answer = await client.get(url, params={"snapshot": "1"})
    assert (answer.status_code, answer.headers["cache-control"]) == (200, "no-store")
    for hidden in (SECRET, TOKEN, "arguments"):
        assert hidden not in answer.text
    [engine] = answer.json()["engines"]
    return engine


async def test_the_page_is_one_file_that_may_load_nothing() -> None:
    async with serving() as (url, _), httpx.AsyncClient() as client:
        for path in ("live", "mounted/"):
            page = await client.get(url + path)
            assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
            assert page.headers["content-security-policy"].startswith("default-src 'none'; ")
            assert int(page.headers["content-length"]) == len(page.content)
        head = await client.head(url + "live")
        assert (head.status_code, head.content, head.headers["content-length"]) == (200, b"", str(len(page.content)))
        assert (await client.post(url + "live")).status_code == 405


async def test_a_snapshot_shows_a_call_its_connections_and_its_end() -> None:
    async with serving() as (url, goes_on), httpx.AsyncClient() as client:
        session = await open_session(f"{url}mcp", headers=HEADERS)
        await snapshot(client, f"{url}live")
        call = await session.call("waits", {"text": SECRET})
        await call.cut(1)
        await until(lambda: tailrope.stats()["connections_lost"] == 1)
        [row] = (await snapshot(client, f"{url}mounted/"))["calls"]
        shown = {name: row[name] for name in ("method", "tool", "user", "state", "events", "connections")}
        assert shown == {
            "method": "tools/call",
            "tool": "waits",
            "user": "Alice of Acme",
            "state": "awaited",
            "events": 1,
            "connections": 1,
        }
        assert [why for _, _, why, _ in row["spans"]] == ["lost"]
        goes_on.set()
        await call.collect(read_again=False)
        engine = await snapshot(client, f"{url}live")
        assert engine["calls"] == [] and engine["health"] == tailrope.health()
        [row] = [row for row in engine["ended"] if row["tool"] == "waits"]
        assert (row["outcome"], [(why, again) for _, _, why, again in row["spans"]]) == (
            "result",
            [("lost", 0), ("complete", 1)],
        )
        assert {name: engine["stats"][name] for name in ("gaps", "resumes_accepted")} == {
            "gaps": 0,
            "resumes_accepted": 1,
        }
