"""The unmodified official Python client of the installed line, driven by a test: python.py [--line | --http2].

Orders come on stdin and what the client shows its user goes to stdout, one JSON object in a line; ../driver.py says
which there are. Nothing is configured but the address, and with `--line` or `--http2` the HTTP client.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from importlib.metadata import version
from typing import Any

import tailrope.client

LINE = int(version("mcp").split(".")[0])


def show(**line: Any) -> None:
    print(json.dumps(line), flush=True)


async def on_log(params: Any) -> None:
    show(log=params.data)


async def on_question(context: Any, params: Any) -> Any:
    if LINE == 1:
        from mcp.types import ElicitResult
    else:
        from mcp_types import ElicitResult
    show(asked=params.message)
    return ElicitResult(action="accept", content={"name": f"re: {params.message}"})


def speaks_http2(**options: Any) -> Any:
    """The HTTP client that the SDK would make, but for the revision that it may speak."""
    if LINE == 1:
        import httpx as library
    else:
        import httpx2 as library
    return library.AsyncClient(http2=True, **{"timeout": library.Timeout(30, read=300), **options})


@asynccontextmanager
async def connected(url: str, option: str | None) -> AsyncIterator[Any]:
    """A client that has negotiated a revision; what it gives can call tools."""
    if LINE == 1:
        from mcp import ClientSession
        from mcp.client.streamable_http import streamablehttp_client

        line: dict[str, Any] = {}
        if option is not None:
            factory = tailrope.client.http_client_factory() if option == "--line" else speaks_http2
            line["httpx_client_factory"] = factory
        async with (
            streamablehttp_client(url, **line) as (read, write, _),
            ClientSession(read, write, logging_callback=on_log, elicitation_callback=on_question) as session,
        ):
            answer = await session.initialize()
            show(connected=str(answer.protocolVersion))
            yield session
        return

    from mcp import Client
    from mcp.client.streamable_http import streamable_http_client

    # The mode is the default one: a server of ours sends such a client to a resumable revision. Behind rmcp's service
    # it has to be told.
    async with AsyncExitStack() as stack:
        server: Any = url
        if option is not None:
            own = tailrope.client.http_client() if option == "--line" else speaks_http2()
            http_client = await stack.enter_async_context(own)
            server = streamable_http_client(url, http_client=http_client)
        mode = {"mode": os.environ["TAILROPE_CLIENT_MODE"]} if "TAILROPE_CLIENT_MODE" in os.environ else {}
        client = Client(server, logging_callback=on_log, elicitation_callback=on_question, **mode)
        await stack.enter_async_context(client)
        show(connected=str(client.protocol_version))
        yield client


async def any_request(client: Any, method: str) -> Any:
    """A request that no server knows."""
    if LINE == 1:
        from mcp.types import EmptyResult, Request

        return await client.send_request(Request(method=method, params=None), EmptyResult)
    from mcp_types import EmptyResult, Request

    return await client.session.send_request(Request(method=method, params=None), EmptyResult)


async def ask(client: Any, order: dict[str, Any]) -> None:
    name = order["call"]

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        show(call=name, progress=int(progress))

    try:
        if "method" in order:
            await any_request(client, order["method"])
            show(call=name, result=None)
            return
        result = await client.call_tool("script", {"steps": order["steps"]}, progress_callback=on_progress)
    except Exception as fault:
        show(call=name, error=str(fault))
        return
    failed = getattr(result, "isError", False) or getattr(result, "is_error", False)
    show(call=name, **{"error" if failed else "result": result.content[0].text})


async def drive(url: str, option: str | None) -> None:
    """One client, until an order closes it."""
    tasks = set()
    async with connected(url, option) as client:
        while line := await asyncio.to_thread(sys.stdin.readline):
            order = json.loads(line)
            if "call" not in order:
                break
            tasks.add(asyncio.create_task(ask(client, order)))
        for task in tasks:
            task.cancel()
    show(closed=True)


async def main(option: str | None = None) -> None:
    while line := await asyncio.to_thread(sys.stdin.readline):
        await drive(json.loads(line)["connect"], option)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
