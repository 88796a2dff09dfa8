"""A server for mcp 2.x whose streams survive its restart, also kill -9. Run it with `python durable_sqlite.py`.

Stop it during a call and start it again: the client that comes back gets every event that was stored, and an error as
the end of the call, because nobody works on it any more. Other processes on the same store serve such clients as well.
"""

import asyncio
import os

import tailrope
from mcp.server import MCPServer
from mcp.server.mcpserver import Context

# Fails here, and says why, where the store cannot be used. `durability="power"` would wait for the disk.
store = tailrope.open_store(os.environ.get("STORE", "sqlite:reports.db"), max_bytes=64 << 20)
tailrope.install(store=store)

mcp = MCPServer("reports")


@mcp.tool()
async def build_report(pages: int, ctx: Context) -> str:
    """Build a report page by page."""
    for page in range(1, pages + 1):
        await asyncio.sleep(0.05)
        # The tool may be a few events ahead of the file, at most 128. Clients get a page only when the file has it.
        await ctx.report_progress(page, pages, f"page {page}")
    return f"{pages} pages"


if __name__ == "__main__":
    mcp.run(transport="streamable-http", port=int(os.environ.get("PORT", "8000")))
