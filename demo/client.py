"""The demo's Python client: the SDK's, unmodified, with a progress callback, and with Tailrope's line or without it.

It reads the URL from its first line of input and reports what its application sees, one line of JSON per fact.
"""

import argparse
import asyncio
import json
import sys
import time
from contextlib import AsyncExitStack, suppress

from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client

# The call fails when nothing has come for so long.
SILENCE_S = 10.0


def report(what: str, **fields: object) -> None:
    print(json.dumps({"at": time.monotonic(), "what": what, **fields}), flush=True)


async def call(url: str, mode: str, silence_s: float, has_line: bool) -> None:
    async with AsyncExitStack() as stack:
        http_client = None
        if has_line:
            import tailrope.client

            http_client = await stack.enter_async_context(tailrope.client.http_client())  # the one line
        transport = streamable_http_client(url, http_client=http_client)
        client = await stack.enter_async_context(Client(transport, mode=mode))
        try:
            async with asyncio.timeout(silence_s) as patience:

                async def on_progress(progress: float, total: float | None, message: str | None) -> None:
                    report("progress", number=int(progress))
                    # It cannot be once the call has been given up.
                    with suppress(RuntimeError):
                        patience.reschedule(asyncio.get_running_loop().time() + silence_s)

                answer = await client.call_tool("index_files", {}, progress_callback=on_progress)
            report("result", text=answer.content[0].text)  # type: ignore[union-attr]
        except (MCPError, OSError, TimeoutError) as error:
            report("failure", text=str(error) or type(error).__name__)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--transport", choices=("tailrope", "stock"), default="tailrope")
    parser.add_argument("--line", action="store_true", help="with Tailrope's line for clients")
    parser.add_argument("--silence-s", type=float, default=SILENCE_S)
    args = parser.parse_args()
    # With its defaults this client prefers 2026-07-28, where nothing can be resumed; the server steers it
    # to 2025-11-25. The stock transport cannot, so there the client is told to.
    mode = "auto" if args.transport == "tailrope" else "legacy"
    asyncio.run(call(sys.stdin.readline().strip(), mode, args.silence_s, args.line))


if __name__ == "__main__":
    main()
