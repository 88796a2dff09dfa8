"""Many streams at once through our HTTP transport alone, in one process: herd.py URL COUNT OPTIONS

Prints {"answered": how many bodies ended with their result, "delays": the planned waits, "faults": [...]}.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from connect import httpx

HEADERS = {"accept": "application/json, text/event-stream", "mcp-session-id": "raw-session"}


async def main(url: str, count: int, options: dict[str, Any]) -> None:
    from tailrope.client import ResumableTransport

    delays: list[float] = []
    faults: list[str] = []
    answered = 0

    def on_resume(resume: Any) -> None:
        # A connection that this machine refuses in the crowd is tried again; that is another wait.
        if resume.attempt == 1:
            delays.append(resume.delay_ms)

    inner = httpx.AsyncHTTPTransport(limits=httpx.Limits(max_connections=None, max_keepalive_connections=0))
    transport = ResumableTransport(inner, on_resume=on_resume, **options)

    async def one(number: int) -> None:
        nonlocal answered
        params = {"name": "run", "arguments": {"stream": f"s{number}"}}
        message = {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}
        try:
            async with client.stream("POST", url, json=message, headers=HEADERS) as answer:
                body = "".join([text async for text in answer.aiter_text()])
            answered += body.count('"result"')
        except httpx.HTTPError as fault:
            faults.append(repr(fault))

    async with httpx.AsyncClient(transport=transport, timeout=None) as client:
        await asyncio.gather(*map(one, range(count)))
    print(json.dumps({"answered": answered, "delays": delays, "faults": faults[:5]}))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3])))
