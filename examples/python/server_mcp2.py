"""A resumable server for mcp 2.x. Run it with `python server_mcp2.py`; it serves http://127.0.0.1:8000/mcp."""

import asyncio
import os

import tailrope
from mcp.server import MCPServer
from mcp.server.mcpserver import Context

# The one line. It must run before the server starts; everything below is an ordinary server.
tailrope.install()

mcp = MCPServer("reports")


@mcp.tool()
async def build_report(pages: int, ctx: Context) -> str:
    """Build a report page by page, without keeping a connection open all the while."""
    for page in range(1, pages + 1):
        await asyncio.sleep(0.05)
        await ctx.report_progress(page, pages, f"page {page}")
        if page == pages // 2:
            # The client comes back by itself and is sent what it missed.
            await ctx.close_sse_stream()
    return f"{pages} pages"


if __name__ == "__main__":
    mcp.run(transport="streamable-http", port=int(os.environ.get("PORT", "8000")))
