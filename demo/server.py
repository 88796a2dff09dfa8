"""The demo's server: an ordinary mcp 2.x server with one slow tool. The lines that matter are in `main`."""

import argparse
import json
import time

import anyio
import uvicorn
from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.server.streamable_http import EventCallback, EventMessage, EventStore

FILES = 1_000
RUN_S = 10.0
CLOSE_AT_S = (1.0, 3.0, 5.0, 7.0, 9.0)
RETRY_MS = 1_400

mcp = MCPServer("demo", log_level="WARNING")


def report(what: str, **fields: object) -> None:
    """One line per fact for the timeline, stamped with the machine's monotonic clock, which both processes share."""
    print(json.dumps({"at": time.monotonic(), "what": what, **fields}), flush=True)


@mcp.tool()
async def index_files(ctx: Context) -> str:
    """Index a thousand files, reporting each one, and drop the connection every two seconds."""
    report("start", total=FILES, run_s=RUN_S)
    began = anyio.current_time()
    closes = list(CLOSE_AT_S)
    for number in range(1, FILES + 1):
        # On a busy machine the next file may already be due.
        await anyio.sleep(max(0.0, began + RUN_S * number / FILES - anyio.current_time()))
        await ctx.report_progress(number, FILES, f"file {number}")
        report("emit", number=number)
        if closes and anyio.current_time() - began >= closes[0]:
            closes.pop(0)
            report("close")
            await ctx.close_sse_stream()
    report("finish", result=f"{FILES} files indexed")
    return f"{FILES} files indexed"


class ListStore(EventStore):
    """For `--transport stock` only: the in-memory store that the stock transport needs to resume anything at all."""

    def __init__(self) -> None:
        self._events: list[tuple[str, object]] = []

    async def store_event(self, stream_id, message):  # type: ignore[no-untyped-def]
        self._events.append((stream_id, message))
        return str(len(self._events))

    async def replay_events_after(self, last_event_id: str, send_callback: EventCallback) -> str | None:
        stream, _ = self._events[int(last_event_id) - 1]
        for number, (owner, message) in enumerate(self._events[int(last_event_id) :], int(last_event_id) + 1):
            if owner == stream and message is not None:
                await send_callback(EventMessage(message, str(number)))  # type: ignore[arg-type]
        return stream


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--transport", choices=("tailrope", "stock"), default="tailrope")
    args = parser.parse_args()

    if args.transport == "tailrope":
        import tailrope

        # The one line. Its option is for the show: a short pause.
        tailrope.install(retry_ms=RETRY_MS)
        app = mcp.streamable_http_app()
    else:
        app = mcp.streamable_http_app(event_store=ListStore(), retry_interval=RETRY_MS)

    uvicorn.run(app, host="127.0.0.1", port=args.port, log_level="warning")


if __name__ == "__main__":
    main()
