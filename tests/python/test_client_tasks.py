"""The client's half of tasks: a stock client of 2026-07-28 below which calls are followed, and polls are sent again.

What is made of each answer is in tests/rust/client/followed.rs; official clients with broken requests are in
tests/interop/test_tasks.py.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import tailrope
import tailrope.client
import tailrope.mcp
import uvicorn
from kit.modern import TASKS
from kit.stock import LINE

if LINE == 1:
    pytest.skip("1.x knows no 2026-07-28", allow_module_level=True)

import httpx2
from mcp.client import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.server.mcpserver import Context, MCPServer
from mcp.shared.exceptions import MCPError

pytestmark = [pytest.mark.ours, pytest.mark.one_line]

Break = Callable[[dict[str, Any]], bool]


class Wire(httpx2.AsyncBaseTransport):
    """Makes the connections, notes what was posted, and breaks what `breaks` says once the server has done it."""

    def __init__(self) -> None:
        self.inner = httpx2.AsyncHTTPTransport()
        self.posted: list[dict[str, Any]] = []
        self.breaks: Break = lambda message: False

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        message = json.loads(request.content or b"{}")
        self.posted.append(message)
        response = await self.inner.handle_async_request(request)
        if self.breaks(message):
            await response.aread()
            raise httpx2.ReadError("broken")
        return response

    def methods(self) -> list[str]:
        return [message["method"] for message in self.posted if message["method"] != "server/discover"]

    async def aclose(self) -> None:
        await self.inner.aclose()


class Tools:
    def __init__(self) -> None:
        self.server = MCPServer("tasks")
        self.go_on, self.cancelled = asyncio.Event(), asyncio.Event()
        self.runs = 0
        for tool in (self.quick, self.wait, self.fail):
            self.server.tool()(tool)

    async def quick(self) -> str:
        return "quick"

    async def wait(self, ctx: Context) -> str:
        self.runs += 1
        await ctx.report_progress(1, 2, "half")
        try:
            await self.go_on.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        return "waited"

    async def fail(self) -> str:
        await self.go_on.wait()
        raise MCPError(-32099, "failed", {"x": 1})


@asynccontextmanager
async def meeting(**options: Any) -> AsyncIterator[tuple[Tools, Wire, Client]]:
    """A stock client with our transport, and a server that makes tasks soon."""
    tools, wire = Tools(), Wire()
    engine: dict[str, Any] = {
        "task_after_ms": 50,
        "prefer_resumable": False,
        "pace": {"quick": tailrope.Pace(task_after_ms=600_000)},
    }
    app = tailrope.mcp.resumable(tools.server.streamable_http_app(), **engine)
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", ws="none"))
    running = asyncio.create_task(server.serve())
    try:
        while not server.started:
            await asyncio.sleep(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        transport: Any = tailrope.client.ResumableTransport(wire, initial_delay_ms=10, **options)
        async with (
            httpx2.AsyncClient(transport=transport) as http_client,
            Client(streamable_http_client(f"http://127.0.0.1:{port}/mcp", http_client=http_client)) as client,
        ):
            yield tools, wire, client
    finally:
        server.should_exit = True
        await running


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.01)


def text_of(result: Any) -> str:
    return str(result.content[0].text)


def is_about(*methods: str) -> Break:
    """The first of each method."""
    left = list(methods)

    def breaks(message: dict[str, Any]) -> bool:
        if message["method"] in left:
            left.remove(message["method"])
            return True
        return False

    return breaks


async def test_t_01_a_call_of_a_client_that_knows_no_tasks_becomes_one_and_has_its_result() -> None:
    async with meeting() as (tools, wire, client):
        wire.breaks = is_about("tasks/get", "tasks/get", "tasks/get")
        said: list[str | None] = []

        async def on_progress(progress: float, total: float | None, message: str | None) -> None:
            said.append(message)

        calling = asyncio.create_task(client.call_tool("wait", {}, progress_callback=on_progress))
        await until(lambda: wire.methods().count("tasks/get") > 4)
        tools.go_on.set()
        assert text_of(await calling) == "waited"
        assert (tools.runs, said[0], wire.methods().count("tools/call")) == (1, "half", 1)
        # One that ends in time is as it was.
        assert text_of(await client.call_tool("quick", {})) == "quick"


async def test_a_task_that_fails_fails_its_call() -> None:
    async with meeting() as (tools, wire, client):
        calling = asyncio.create_task(client.call_tool("fail", {}))
        await until(lambda: "tasks/get" in wire.methods())
        tools.go_on.set()
        with pytest.raises(MCPError) as raised:
            await calling
        assert (raised.value.error.code, raised.value.error.data) == (-32099, {"x": 1})


async def test_t_22_a_call_that_nobody_waits_for_cancels_its_task() -> None:
    async with meeting() as (tools, wire, client):
        wire.breaks = is_about("tasks/cancel")
        calling = asyncio.create_task(client.call_tool("wait", {}))
        await until(lambda: "tasks/get" in wire.methods())
        calling.cancel()
        await asyncio.wait_for(tools.cancelled.wait(), 20)


async def test_a_client_that_closes_cancels_the_tasks_that_it_waits_for() -> None:
    async with meeting() as (tools, wire, client):
        calling = asyncio.create_task(client.call_tool("wait", {}))
        await until(lambda: "tasks/get" in wire.methods())
        await client.__aexit__(None, None, None)
        await asyncio.wait_for(tools.cancelled.wait(), 20)
        calling.cancel()


async def test_a_task_that_cannot_be_polled_any_more_fails_its_call() -> None:
    async with meeting(max_attempts=2) as (tools, wire, client):
        wire.breaks = lambda message: message["method"] == "tasks/get"
        with pytest.raises(MCPError) as raised:
            await client.call_tool("wait", {})
        assert raised.value.error.data == {"tailrope": "gave_up"}
        assert wire.methods().count("tasks/get") == 2
        tools.go_on.set()


async def test_with_tailrope_disabled_everything_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAILROPE_DISABLE", "1")
    async with meeting() as (_, wire, client):
        assert text_of(await client.call_tool("quick", {})) == "quick"
        call = next(message for message in wire.posted if message["method"] == "tools/call")
        capabilities = call["params"]["_meta"]["io.modelcontextprotocol/clientCapabilities"]
        assert TASKS not in capabilities.get("extensions", {})
