"""A worker of `uvicorn --workers`, whose app this is: `servers.python.worker:app`.

`TAILROPE_TEST_SERVER` has the arguments of the server as JSON, those of `servers.python.app`. Nobody chooses the worker
that gets a request, so each answers what tests ask below `/ctl/` at a port of
its own, too, and prints `WORKER PORT PID`.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from .app import build, parsed
from .control import App, answer


async def tell(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """One request of a test."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    lines = head.lower().split("\r\n")
    length = next((int(line.split(":")[1]) for line in lines if line.startswith("content-length:")), 0)
    target = urlsplit(head.split()[1])
    found = await answer(target.path, dict(parse_qsl(target.query)), await reader.readexactly(length))
    payload = json.dumps(found, default=str).encode()
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % len(payload) + payload)
    await writer.drain()
    writer.close()


def announced(inner: App) -> App:
    """Listen for tests from the start of the worker on."""

    async def wrapped(scope: Any, receive: Any, send: Any) -> None:
        async def started(message: Any) -> None:
            await send(message)
            if message["type"] == "lifespan.startup.complete":
                server = await asyncio.start_server(tell, "127.0.0.1", 0)
                print(f"WORKER {server.sockets[0].getsockname()[1]} {os.getpid()}", flush=True)

        await inner(scope, receive, started if scope["type"] == "lifespan" else send)

    return wrapped


logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
_args = parsed(json.loads(os.environ["TAILROPE_TEST_SERVER"]))
app = announced(build(_args.flavor, _args.transport, _args.options))
