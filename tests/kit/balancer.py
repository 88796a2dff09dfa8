"""A load balancer as small as it can be: each request goes to the server that a test chooses, on its own connection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress


@asynccontextmanager
async def balancer(choose: Callable[[str], Awaitable[int]]) -> AsyncIterator[int]:
    """Listens on the port that it gives. `choose` tells the server's port by the request's method, and may wait."""
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        upstream: asyncio.StreamWriter | None = None
        # Either side may leave at any time, and so may the test.
        with suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            head = await reader.readuntil(b"\r\n\r\n")
            lines = [
                line for line in head[:-4].split(b"\r\n") if not line.lower().startswith((b"connection:", b"host:"))
            ]
            port = await choose(lines[0].split(b" ")[0].decode())
            answers, upstream = await asyncio.open_connection("127.0.0.1", port)
            upstream.write(b"\r\n".join([*lines, b"Host: 127.0.0.1:%d" % port, b"Connection: close", b"", b""]))
            sending = asyncio.create_task(pump(reader, upstream))
            await pump(answers, writer)
            sending.cancel()
        for end in (upstream, writer):
            if end is not None:
                end.close()
        tasks.discard(task)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield int(server.sockets[0].getsockname()[1])
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
