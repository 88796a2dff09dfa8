"""A server as a user has it, for the tests of the test kit: python -m servers.mine, or `servers.mine:server`.

`STORE` is its event store, `stock` for none: the SDK's transport then.
"""

import asyncio
import os
from importlib.metadata import version
from typing import Any

import tailrope

if version("mcp").startswith("1."):
    from mcp.server.fastmcp import Context, FastMCP

    server: Any = FastMCP("mine", log_level="WARNING")
else:
    from mcp.server.mcpserver import Context, MCPServer

    server = MCPServer("mine", log_level="WARNING")

STORE = os.environ.get("STORE", "memory:")
if STORE != "stock":
    tailrope.install(store=STORE, retry_ms=20, owner_lost_ms=6000)


@server.tool()
async def count(to: int, ctx: Context, close_at: int = 0, pause_ms: int = 5) -> str:  # type: ignore[type-arg]
    for number in range(1, to + 1):
        await ctx.report_progress(number, to)
        if number == close_at:
            await ctx.close_sse_stream()
        await asyncio.sleep(pause_ms / 1000)
    return f"counted to {to}"


def make() -> Any:
    """An application, made anew."""
    return server.streamable_http_app()


if __name__ == "__main__":
    import uvicorn

    uvicorn.run(make(), port=int(os.environ["PORT"]), log_level="warning")
