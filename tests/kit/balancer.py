"""A load balancer as small as it can be: each request goes to the server that is chosen, on a connection of its own.

It passes bytes on as they come, and the end of a connection as it was: half closed, closed or reset.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

# What it holds of a connection, beside the head of a request: what a slow reader does not take stays in the server.
HELD_BYTES = 1 << 16
HEAD_BYTES = 1 << 20
# Either side may leave at any time, and so may the test.
LEFT = (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError)


@asynccontextmanager
async def balancer(choose: Callable[[str], Awaitable[int]]) -> AsyncIterator[int]:
    """Listens on the port that it gives. `choose` tells the server's port by the request's method, and may wait. It is
    asked again where nobody listens."""
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        held(writer, socket.SO_SNDBUF)
        ends = [writer]
        try:
            with suppress(asyncio.CancelledError, *LEFT):
                head = await reader.readuntil(b"\r\n\r\n")
                method = head.split(b" ")[0].decode("latin-1")
                port, answers, upstream = await connected(choose, method)
                ends.append(upstream)
                lines = lines_of(head)
                # Its own address is what servers that check it do not know.
                own, theirs = (b"127.0.0.1:%d" % each for each in (writer.get_extra_info("sockname")[1], port))
                lines = [line.replace(own, theirs) if line.lower().startswith(b"host:") else line for line in lines]
                upstream.write(closing(lines))
                sending = asyncio.create_task(pump(reader, upstream))
                try:
                    while (head := await answers.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 1"):
                        writer.write(head)
                    # Servers name it kept alive and close it all the same, as they were asked to.
                    writer.write(closing(lines_of(head)))
                    await pump(answers, writer)
                finally:
                    sending.cancel()
        finally:
            for end in ends:
                end.close()
            tasks.discard(task)

    server = await asyncio.start_server(serve, "127.0.0.1", 0, limit=HEAD_BYTES)
    try:
        yield int(server.sockets[0].getsockname()[1])
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def lines_of(head: bytes) -> list[bytes]:
    """Those that are not about the connection."""
    return [line for line in head[:-4].split(b"\r\n") if not line.lower().startswith(b"connection:")]


def closing(lines: list[bytes]) -> bytes:
    return b"\r\n".join([*lines, b"Connection: close", b"", b""])


async def connected(
    choose: Callable[[str], Awaitable[int]], method: str
) -> tuple[int, asyncio.StreamReader, asyncio.StreamWriter]:
    while True:
        port = await choose(method)
        with suppress(ConnectionRefusedError):
            answers, upstream = await asyncio.open_connection("127.0.0.1", port, limit=HELD_BYTES)
            held(upstream, socket.SO_RCVBUF)
            return port, answers, upstream
        await asyncio.sleep(0.02)


def held(writer: asyncio.StreamWriter, buffer: int) -> None:
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, buffer, HELD_BYTES)
    writer.transport.set_write_buffer_limits(HELD_BYTES)


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Pass on all that comes, and how it ends."""
    try:
        while data := await reader.read(HELD_BYTES):
            writer.write(data)
            await writer.drain()
        writer.write_eof()
    except OSError:
        reset(writer)


def reset(writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        linger = struct.pack("ii", 1, 0)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    writer.transport.abort()


class Balancer:
    """One that runs in a thread of its own, for servers that many tests use, each in its event loop."""

    def __init__(self, choose: Callable[[], int]) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

        async def chosen(_: str) -> int:
            return choose()

        self._running = balancer(chosen)
        self.port = asyncio.run_coroutine_threadsafe(self._running.__aenter__(), self._loop).result()

    def stop(self) -> None:
        if self._loop.is_closed():
            return
        asyncio.run_coroutine_threadsafe(self._running.__aexit__(None, None, None), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
