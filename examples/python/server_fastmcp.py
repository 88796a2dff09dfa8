"""A resumable server for fastmcp 3.x and 4.x. Run it with `python server_fastmcp.py`."""

import asyncio
import os

import tailrope
from fastmcp import Context, FastMCP

# The one line. It must run before the server starts; fastmcp's own `run()` takes no event store and needs none.
tailrope.install()

mcp = FastMCP("reports")


@mcp.tool
async def build_report(pages: int, ctx: Context) -> str:
    """Build a report page by page, without keeping a connection open all the while."""
    for page in range(1, pages + 1):
        await asyncio.sleep(0.05)
        await ctx.report_progress(page, pages, f"page {page}")
        if page == pages // 2:
            # fastmcp's ctx.close_sse_stream() takes no arguments; this reaches the same callback with a pause of
            # half a second for this stream, in place of the server's retry_ms.
            await tailrope.close_sse_stream(ctx, retry_ms=500)
    return f"{pages} pages"


if __name__ == "__main__":
    mcp.run(transport="http", host="127.0.0.1", port=int(os.environ.get("PORT", "8000")))
