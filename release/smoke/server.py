"""A server of fastmcp, as its user writes it."""

import asyncio
import os

import tailrope
from fastmcp import Context, FastMCP

tailrope.install(task_after_ms=0)

mcp = FastMCP("try")


@mcp.tool
async def work(ctx: Context) -> str:
    await ctx.report_progress(1, 4)
    await ctx.report_progress(2, 4)
    await tailrope.close_sse_stream(ctx, retry_ms=100)
    await asyncio.sleep(0.3)
    await ctx.report_progress(3, 4)
    await ctx.report_progress(4, 4)
    return "done"


if __name__ == "__main__":
    mcp.run(transport="http", host="127.0.0.1", port=int(os.environ["PORT"]))
