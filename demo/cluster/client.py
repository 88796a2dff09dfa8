"""The cluster's client: the SDK's, unmodified.

It reads what to do from its input and reports what its application sees, one line of JSON each.
"""

import asyncio
import json
import sys
import time
from typing import Any

from mcp import Client, MCPError
from mcp.types import ElicitResult


def report(what: str, **fields: object) -> None:
    print(json.dumps({"at": time.monotonic(), "what": what, **fields}), flush=True)


async def answer(context: object, params: Any) -> ElicitResult:
    report("asked", text=params.message)
    return ElicitResult(action="accept", content={"folder": "photos"})


async def main() -> None:
    lines = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    url = (await lines.readline()).decode().strip()
    async with Client(url, elicitation_callback=answer) as client:
        report("open", revision=str(client.protocol_version))
        while line := await lines.readline():
            order = json.loads(line)
            call = order["arguments"]["call"]

            async def on_progress(progress: float, total: float | None, message: str | None, call: str = call) -> None:
                report("progress", call=call, number=int(progress))

            report("call", call=call, tool=order["tool"])
            try:
                result = await client.call_tool(order["tool"], order["arguments"], progress_callback=on_progress)
                says = result.content[0].text  # type: ignore[union-attr]
                report("failure" if result.is_error else "result", call=call, text=says)
            except (MCPError, OSError) as error:
                report("failure", call=call, text=str(error) or type(error).__name__)


if __name__ == "__main__":
    asyncio.run(main())
