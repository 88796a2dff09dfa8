"""A resumable MCP server inside a FastAPI application, for mcp 2.x."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator

import tailrope
import uvicorn
from fastapi import FastAPI
from mcp.server import MCPServer
from mcp.server.mcpserver import Context

mcp = MCPServer("reports")


@mcp.tool()
async def build_report(pages: int, ctx: Context) -> str:
    """Build a report page by page, without keeping a connection open all the while."""
    for page in range(1, pages + 1):
        await asyncio.sleep(0.05)
        await ctx.report_progress(page, pages, f"page {page}")
        if page == pages // 2:
            await ctx.close_sse_stream()
    return f"{pages} pages"


mcp_app = mcp.streamable_http_app()


@contextlib.asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    # A mounted application's own lifespan does not run: the session manager has to be started here.
    async with mcp.session_manager.run():
        yield


app = FastAPI(lifespan=lifespan)


@app.get("/health")
async def health() -> dict[str, int]:
    return {"sessions": tailrope.stats()["sessions"]}


# Last, because a mount at the root takes every path that no route above has taken. MCP is at /mcp.
app.mount("/", mcp_app)
# The MCP servers in this app, and no others of the process.
tailrope.mcp.resumable(app)

if __name__ == "__main__":
    uvicorn.run(app, host="127.0.0.1", port=int(os.environ.get("PORT", "8000")))
