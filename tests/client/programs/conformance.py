"""A client of the conformance suite: conformance.py [--stock] URL, with the scenario's name in the environment."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any

from connect import connected

# What the suite's servers offer and expect to be called; `initialize` expects no call.
CALLS: dict[str, tuple[str, dict[str, Any]]] = {
    "tools_call": ("add_numbers", {"a": 2, "b": 3}),
    "sse-retry": ("test_reconnection", {}),
}
# The suite warns where a pause of 500 ms takes over 700, and that much a busy machine may need for itself.
LINE = {"jitter": 0}


async def nothing(*_: Any) -> None:
    pass


async def main(is_stock: bool, url: str) -> None:
    async with connected(url, None if is_stock else LINE, nothing, nothing, is_legacy=True) as client:
        await client.list_tools()
        if (call := CALLS.get(os.environ["MCP_CONFORMANCE_SCENARIO"])) is not None:
            name, arguments = call
            await client.call_tool(name, arguments)


if __name__ == "__main__":
    asyncio.run(main("--stock" in sys.argv, sys.argv[-1]))
