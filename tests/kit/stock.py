"""The unmodified official clients behind one small face, for what a client can provoke by itself."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Any

LINE = int(version("mcp").split(".")[0])
# Client modes worth testing: 1.x has one; 2.x also falls back by itself where the server asks for it.
MODES = ["only"] if LINE == 1 else ["legacy", "auto"]
RESUMABLE = MODES[0]


class CallFailed(Exception):
    """The client's call ended with a JSON-RPC error."""


class Stock:
    """One connected official client."""

    def __init__(self, call: Callable[..., Any], revision: str) -> None:
        self._call = call
        self.revision = revision
        self.progress: list[int] = []
        self.logs: list[Any] = []

    async def ask(self, tool: str, args: Mapping[str, Any] | None = None) -> str:
        """Call a tool; progress of all calls collects in `progress`."""

        async def on_progress(progress: float, total: float | None, message: str | None) -> None:
            self.progress.append(int(progress))

        try:
            result = await self._call(tool, dict(args or {}), progress_callback=on_progress)
        except Exception as fault:
            raise CallFailed(str(fault)) from fault
        failed = getattr(result, "isError", None) or getattr(result, "is_error", None)
        words = result.content[0].text
        if failed:
            raise CallFailed(words)
        return str(words)

    async def script(self, *steps: str) -> str:
        return await self.ask("script", {"steps": list(steps)})


@asynccontextmanager
async def stock_client(port: int, mode: str = RESUMABLE, path: str = "/mcp") -> AsyncIterator[Stock]:
    """Connect the official client of the installed SDK line."""
    url = f"http://127.0.0.1:{port}{path}"
    face: Stock

    if LINE == 1:
        from mcp import ClientSession
        from mcp.client.streamable_http import streamablehttp_client
        from mcp.types import ElicitResult

        async def elicit(context: Any, params: Any) -> Any:
            return ElicitResult(action="accept", content={"name": f"re: {params.message}"})

        async def log(params: Any) -> None:
            face.logs.append(params.data)

        async with (
            streamablehttp_client(url) as (read, write, _),
            ClientSession(read, write, elicitation_callback=elicit, logging_callback=log) as session,
        ):
            answer = await session.initialize()
            face = Stock(session.call_tool, str(answer.protocolVersion))
            yield face
        return

    from mcp import Client
    from mcp_types import ElicitResult as Elicited

    async def elicit_v2(context: Any, params: Any) -> Any:
        return Elicited(action="accept", content={"name": f"re: {params.message}"})

    async def log_v2(params: Any) -> None:
        face.logs.append(params.data)

    async with Client(url, mode=mode, elicitation_callback=elicit_v2, logging_callback=log_v2) as client:
        face = Stock(client.call_tool, str(client.protocol_version))
        yield face
