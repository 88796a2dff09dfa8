"""Draining under hypercorn, for mcp 2.x.

Under uvicorn Tailrope drains by itself when the process is told to stop. Hypercorn has no hook for that, but it takes
a coroutine that ends when the server should: drain there, and it finds no open stream to wait for.
"""

import asyncio
import os
import signal

import tailrope
from hypercorn.asyncio import serve
from hypercorn.config import Config
from mcp.server import MCPServer
from mcp.server.mcpserver import Context

tailrope.install()

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


async def main() -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)

    async def shutdown_trigger() -> None:
        await stop.wait()
        # Every connection is closed with a retry that covers the restart; clients come back to the new process.
        await tailrope.drain(retry_ms=5_000, budget_ms=1_000)

    config = Config()
    config.bind = [f"127.0.0.1:{os.environ.get('PORT', '8000')}"]
    config.graceful_timeout = 1.0
    await serve(mcp.streamable_http_app(), config, shutdown_trigger=shutdown_trigger)


if __name__ == "__main__":
    asyncio.run(main())
