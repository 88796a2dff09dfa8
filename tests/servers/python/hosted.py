"""A server for hosts that import their app: `servers.python.hosted:app`, or `:mcp` for `fastmcp run`.

`STORE` in the environment names its event store, `OWNER_LOST_MS` how long a process that fell silent counts as alive.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import fastmcp
import tailrope

tailrope.install(store=os.environ["STORE"], owner_lost_ms=int(os.environ["OWNER_LOST_MS"]))

mcp = fastmcp.FastMCP("hosted")


@mcp.tool
async def wait(ctx: fastmcp.Context) -> str:
    """Report three times, and never answer."""
    for number in range(1, 4):
        await ctx.report_progress(number)
    await asyncio.Event().wait()
    return "never"


app = mcp.http_app()


async def without_lifespan(
    scope: MutableMapping[str, Any],
    receive: Callable[[], Awaitable[Any]],
    send: Callable[[Any], Awaitable[None]],
) -> None:
    """The app for a host that has no lifespan: its own begins with the first request and has no end."""
    global _lifespan
    if _lifespan is None:
        _lifespan = app.router.lifespan_context(app)
        await _lifespan.__aenter__()
    await app(scope, receive, send)


_lifespan: Any = None
