"""The demo's Python client: the SDK's, unmodified, with a progress callback.

It reads the URL from its first line of input and reports what its application sees, one line of JSON per fact.
"""

import argparse
import asyncio
import json
import sys
import time

from mcp import Client, MCPError

CALL_TIMEOUT_S = 60


def report(what: str, **fields: object) -> None:
    print(json.dumps({"at": time.monotonic(), "what": what, **fields}), flush=True)


async def on_progress(progress: float, total: float | None, message: str | None) -> None:
    report("progress", number=int(progress))


async def call(url: str, mode: str) -> None:
    async with Client(url, mode=mode) as client:
        try:
            async with asyncio.timeout(CALL_TIMEOUT_S):
                answer = await client.call_tool("index_files", {}, progress_callback=on_progress)
            report("result", text=answer.content[0].text)  # type: ignore[union-attr]
        except (MCPError, OSError, TimeoutError) as error:
            report("failure", text=str(error) or type(error).__name__)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--transport", choices=("tailrope", "stock"), default="tailrope")
    args = parser.parse_args()
    # With its defaults this client prefers 2026-07-28, where nothing can be resumed; the server's prefer_resumable=True
    # steers it. The stock transport cannot, so there the client is told to.
    asyncio.run(call(sys.stdin.readline().strip(), "auto" if args.transport == "tailrope" else "legacy"))


if __name__ == "__main__":
    main()
