"""The bench server: five small tools behind one SDK flavour, on the stock transport or on Tailrope.

Started by `benches/serve`. Everything but the transport is the same on both sides: tools, uvicorn settings,
retry. Progress goes out by the most direct documented call of each SDK, so that little of what is timed is
neither the transport's nor the server's.
"""

import argparse
import asyncio
import gc
import signal
from collections.abc import Awaitable, Callable
from typing import Any, Literal

import uvicorn
from starlette.types import ASGIApp

RETRY_MS = 10
Report = Callable[[float, float, str | None], Awaitable[None]]
# Room for every run of the bench, far above what it needs (10,000 events per stream, 20,000 streams):
# an event trimmed in the middle of a measurement would make the run fail, not slow.
LIMITS = {
    "max_events_per_stream": 50_000,
    "max_bytes_per_stream": 64 << 20,
    "max_bytes_per_session": 1 << 30,
    "max_bytes": 4 << 30,
    "max_sessions": 50_000,
}


class Counter:
    """How many `emit` calls this process has run to their end."""

    completed = 0


def add_tools(tool: Callable[..., Any], context: type[Any]) -> None:
    """Register the tools of the bench with an SDK's `tool` decorator, and its context class."""

    @tool
    async def echo(text: str) -> str:
        return text

    @tool
    async def emit(n: int, bytes: int, ctx: context) -> str:  # type: ignore[valid-type]
        message = "x" * bytes
        report: Report = ctx.report_progress
        for i in range(1, n + 1):
            await report(i, n, message)
        Counter.completed += 1
        return str(n)

    @tool
    async def completed() -> str:
        return str(Counter.completed)

    @tool
    async def poll(before: int, after: int, ctx: context) -> str:  # type: ignore[valid-type]
        report: Report = ctx.report_progress
        total = before + after
        for i in range(1, before + 1):
            await report(i, total, None)
        await ctx.close_sse_stream()
        for i in range(before + 1, total + 1):
            await report(i, total, None)
        return "done"

    @tool
    async def wait(seconds: float, ctx: context) -> str:  # type: ignore[valid-type]
        """For connections that are open while nothing happens."""
        report: Report = ctx.report_progress
        await report(1, 1, None)
        await asyncio.sleep(seconds)
        return "done"


def stock_options(transport: str) -> dict[str, Any]:
    """The arguments that make the stock transport resumable; none for Tailrope, which is installed process-wide."""
    if transport != "stock":
        return {}
    from plain_store import PlainStore

    return {"event_store": PlainStore(), "retry_interval": RETRY_MS}


def mcp2_server(transport: str) -> Any:
    from mcp.server.mcpserver import Context, MCPServer

    server = MCPServer("bench", log_level="WARNING")
    add_tools(server.tool(structured_output=False), Context)
    return server


def mcp1_server(transport: str) -> Any:
    from mcp.server.fastmcp import Context, FastMCP

    server = FastMCP("bench", log_level="WARNING", **stock_options(transport))
    add_tools(server.tool(structured_output=False), Context)
    return server


def fastmcp_server(transport: str) -> Any:
    from fastmcp import Context, FastMCP

    server = FastMCP("bench")
    add_tools(server.tool(output_schema=None), Context)
    return server


FLAVORS = {"mcp2": mcp2_server, "mcp1": mcp1_server, "fastmcp": fastmcp_server}


def build_app(flavor: str, transport: str) -> ASGIApp:
    server = FLAVORS[flavor](transport)
    match flavor:
        case "mcp1":  # takes the store when it is made
            return server.streamable_http_app()
        case "fastmcp":
            return server.http_app(path="/mcp", **stock_options(transport))
        case _:
            return server.streamable_http_app(**stock_options(transport))


class ReadyServer(uvicorn.Server):
    async def startup(self, *args: Any, **kwargs: Any) -> None:
        await super().startup(*args, **kwargs)
        if self.started:
            print("READY", flush=True)


def serve(app: ASGIApp, port: int, lifespan: Literal["on", "off"] = "on") -> None:
    config = uvicorn.Config(
        app,
        host="127.0.0.1",
        port=port,
        loop="asyncio",
        http="httptools",
        lifespan=lifespan,
        log_level="warning",
        access_log=False,
        # Stock keeps resumed GETs open for ever; without a bound SIGTERM would wait for their clients.
        timeout_graceful_shutdown=1,
    )
    ReadyServer(config).run()


def serve_front(app: ASGIApp, port: int) -> None:
    """Serve the app as `tailrope.serve` does."""
    from tailrope._serving import server as serving

    settings = {"loop": "asyncio", "http": "httptools", "log_level": "warning", "timeout_graceful_shutdown": 1}
    server: Any = serving.prepared(app, "127.0.0.1", port, None, settings, None, {})
    startup = server.startup

    async def announced(sockets: Any = None) -> None:
        await startup(sockets)
        print("READY", flush=True)

    server.startup = announced
    serving.run(server)


def main() -> None:
    parser = argparse.ArgumentParser(prog="benches/serve python")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--transport", choices=["stock", "tailrope"], default="tailrope")
    parser.add_argument("--flavor", choices=sorted(FLAVORS), default="mcp2")
    parser.add_argument("--store", default="memory:", help="where Tailrope keeps events")
    parser.add_argument("--front", action="store_true", help="behind Tailrope's own listener")
    args = parser.parse_args()
    if args.transport == "tailrope":
        import tailrope

        tailrope.install(store=args.store, retry_ms=RETRY_MS, **LIMITS)
    app = build_app(args.flavor, args.transport)
    # So that memory is read without what is garbage by chance.
    signal.signal(signal.SIGUSR2, lambda *_: gc.collect())
    if args.front:
        serve_front(app, args.port)
    else:
        serve(app, args.port)


if __name__ == "__main__":
    main()
