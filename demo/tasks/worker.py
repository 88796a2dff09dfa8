"""A Python worker: an ordinary mcp 2.x server with one slow tool. The lines that matter are in `main`."""

import argparse
import json
import time

import anyio
import tailrope
import uvicorn
from mcp.server import MCPServer
from mcp.server.mcpserver import Context

FILES = 300
RUN_S = 3.0
CLOSE_AT_S = (0.8, 2.0)

mcp = MCPServer("demo", log_level="ERROR")


def report(what: str, **fields: object) -> None:
    """One line per fact for the timeline, stamped with the machine's monotonic clock."""
    print(json.dumps({"at": time.monotonic(), "what": what, **fields}), flush=True)


@mcp.tool(structured_output=False)
async def index_files(ctx: Context, call: str = "stream") -> str:
    """Index some files, reporting each one, and drop the connection now and then."""
    report("start", call=call)
    began = anyio.current_time()
    closes = list(CLOSE_AT_S)
    for number in range(1, FILES + 1):
        # On a busy machine the next file may already be due.
        await anyio.sleep(max(0.0, began + RUN_S * number / FILES - anyio.current_time()))
        await ctx.report_progress(number, FILES, f"file {number}")
        if closes and anyio.current_time() - began >= closes[0]:
            closes.pop(0)
            # Where the call is a task there is no connection, and this does nothing.
            await ctx.close_sse_stream()
    report("finish", call=call)
    return f"{FILES} files indexed"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--store", required=True)
    parser.add_argument("--owner-lost-ms", type=int, required=True)
    args = parser.parse_args()
    # The one line. Its options are what the two have in common, and for the show: short pauses.
    tailrope.install(store=args.store, retry_ms=900, task_after_ms=300, owner_lost_ms=args.owner_lost_ms)
    uvicorn.run(mcp.streamable_http_app(), host="127.0.0.1", port=args.port, log_level="error")


if __name__ == "__main__":
    main()
