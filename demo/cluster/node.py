"""A Python node: an ordinary mcp 2.x server with the two tools of node.mjs. The lines that matter are in `main`."""

import argparse
import json
import time

import anyio
import tailrope
import uvicorn
from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from pydantic import BaseModel
from starlette.routing import Route

CLOSE_EVERY_S = 2.5

mcp = MCPServer("cluster", log_level="ERROR")


class Choice(BaseModel):
    folder: str


def report(what: str, **fields: object) -> None:
    """One line per fact for the timeline, stamped with the machine's monotonic clock."""
    print(json.dumps({"at": time.monotonic(), "what": what, **fields}), flush=True)


@mcp.tool(structured_output=False)
async def index_files(ctx: Context, call: str, files: int, run_s: float) -> str:
    """Index some files, reporting each one, and drop the connection now and then."""
    report("start", call=call, run_s=run_s)
    began = closed = anyio.current_time()
    for number in range(1, files + 1):
        # On a busy machine the next file may already be due.
        await anyio.sleep(max(0.0, began + run_s * number / files - anyio.current_time()))
        await ctx.report_progress(number, files, f"file {number}")
        report("emit", call=call, number=number)
        if anyio.current_time() - closed >= CLOSE_EVERY_S:
            closed = anyio.current_time()
            report("close", call=call)
            await ctx.close_sse_stream()
    report("finish", call=call)
    return f"{files} files indexed"


@mcp.tool(structured_output=False)
async def ask_folder(ctx: Context, call: str) -> str:
    """Ask the user which folder to index."""
    report("start", call=call, run_s=0)
    report("ask", call=call)
    answer = await ctx.elicit("Which folder?", schema=Choice)
    report("finish", call=call)
    return f"the user chose {answer.data.folder}"  # type: ignore[union-attr]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--store", required=True)
    parser.add_argument("--owner-lost-ms", type=int, required=True)
    parser.add_argument("--drain-within-ms", type=int, required=True)
    args = parser.parse_args()
    # The one line. Its options are what the three have in common, and for the show: short pauses.
    tailrope.install(
        store=args.store,
        retry_ms=1_000,
        owner_lost_ms=args.owner_lost_ms,
        drain_within_ms=args.drain_within_ms,
        on_adopted=lambda session: report("adopt"),
    )
    app = mcp.streamable_http_app()
    # Only this computer can ask for the page; elsewhere it belongs behind your own authentication.
    app.router.routes.append(Route("/live", tailrope.live))
    uvicorn.run(app, host="127.0.0.1", port=args.port, log_level="error")


if __name__ == "__main__":
    main()
