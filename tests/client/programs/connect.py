"""The official Python client of the installed line, unmodified, with our line or without it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

LINE = int(version("mcp").split(".")[0])

if LINE == 1:
    import httpx
    from mcp import ClientSession, types
    from mcp.client.streamable_http import streamable_http_client
else:
    import httpx2 as httpx
    import mcp_types as types
    from mcp import Client
    from mcp.client.streamable_http import streamable_http_client

# What the SDKs give the client that they make themselves.
TIMEOUT = httpx.Timeout(30, read=300)


@dataclass
class Connected:
    revision: str
    call_tool: Callable[..., Any]
    list_tools: Callable[..., Any]
    # Gives up a call whose task was cancelled, where the SDK does not tell the server by itself.
    abandon: Callable[[], Any]


def resumable_client(options: dict[str, Any]) -> httpx.AsyncClient:
    """The one line."""
    from tailrope.client import ResumableTransport

    return httpx.AsyncClient(transport=ResumableTransport(**options), timeout=TIMEOUT)


@asynccontextmanager
async def connected(
    url: str, line: dict[str, Any] | None, on_log: Any, on_ask: Any, is_legacy: bool = False
) -> AsyncIterator[Connected]:
    """A client that has negotiated a revision. `line` holds our options; None is the stock client.

    `is_legacy` keeps line 2.x from a revision that has no resumption, where the server has it.
    """
    async with AsyncExitStack() as stack:
        http_client = None
        if line is not None:
            http_client = await stack.enter_async_context(resumable_client(line))
        transport = streamable_http_client(url, http_client=http_client)
        if LINE == 1:
            read, write, _ = await stack.enter_async_context(transport)
            session = ClientSession(read, write, logging_callback=on_log, sampling_callback=on_ask)
            await stack.enter_async_context(session)
            answer = await session.initialize()

            async def abandon() -> None:
                # Nothing public tells the id of a request; this was the last one.
                params = types.CancelledNotificationParams(requestId=session._request_id - 1)
                await session.send_notification(types.ClientNotification(types.CancelledNotification(params=params)))

            yield Connected(str(answer.protocolVersion), session.call_tool, session.list_tools, abandon)
            return

        async def nothing() -> None:
            pass

        mode = "legacy" if is_legacy else "auto"
        client = Client(transport, mode=mode, logging_callback=on_log, sampling_callback=on_ask)
        await stack.enter_async_context(client)
        yield Connected(str(client.protocol_version), client.call_tool, client.list_tools, nothing)


def sampled(text: str) -> Any:
    """The client's answer to a question of the server's."""
    content = types.TextContent(type="text", text=text)
    return types.CreateMessageResult(role="assistant", content=content, model="none")
