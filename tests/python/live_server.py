"""A server whose live page a real browser looks at: tests/python/test_live_page.py."""

import asyncio
import os
from importlib.metadata import version
from typing import Any

import tailrope
import uvicorn
from starlette.routing import Route

if version("mcp").startswith("1."):
    from mcp.server.fastmcp import Context
    from mcp.server.fastmcp import FastMCP as Server
else:
    from mcp.server.mcpserver import Context  # type: ignore[assignment]
    from mcp.server.mcpserver import MCPServer as Server  # type: ignore[assignment]

server: Any = Server("live", log_level="WARNING")


@server.tool()
async def works(text: str, ctx: Context) -> str:
    """Says something, has its connection closed, and goes on."""
    await ctx.report_progress(1, 3, text)
    await tailrope.close_sse_stream(ctx)
    await ctx.report_progress(2, 3, text)
    await asyncio.sleep(3_600)
    return text


@server.tool()
async def fails(text: str) -> str:
    """Raises."""
    raise ValueError(text)


tailrope.install(store=os.environ["STORE"], log_user=lambda request: request.headers.get("x-log-user"))
app = server.streamable_http_app()
app.router.routes.append(Route("/live", tailrope.live))

if __name__ == "__main__":
    uvicorn.run(app, host="127.0.0.1", port=int(os.environ["PORT"]), log_level="warning")
