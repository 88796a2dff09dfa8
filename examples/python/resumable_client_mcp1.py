"""A client for mcp 1.x whose calls survive their connections. Run it with `python resumable_client_mcp1.py URL`.

The server may be any that is resumable; examples/python/server_mcp1.py is one.
"""

import asyncio
import sys

import tailrope.client
from mcp import ClientSession
from mcp.client.streamable_http import streamable_http_client


def on_resume(resume: tailrope.client.Resume) -> None:
    print(f"back after {resume.delay_ms} ms, try {resume.attempt}")


async def on_progress(progress: float, total: float | None, message: str | None) -> None:
    print(message)


async def main(url: str) -> None:
    # The one line: an HTTP client with the SDK's own settings. All options have defaults. With `streamablehttp_client`
    # it is `httpx_client_factory=tailrope.client.http_client_factory()`.
    async with (
        tailrope.client.http_client(on_resume=on_resume, give_up_after_ms=300_000) as http_client,
        streamable_http_client(url, http_client=http_client) as (read, write, _),
        ClientSession(read, write) as session,
    ):
        await session.initialize()
        result = await session.call_tool("build_report", {"pages": 20}, progress_callback=on_progress)
        print(result.content[0].text)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000/mcp"))
