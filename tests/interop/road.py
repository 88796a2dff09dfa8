"""The way from a client to several servers: a load balancer without affinity that ends its clients' connections.

Each request goes to the server that is chosen, on a connection of its own; the client's connection is kept open behind
the answer. One that is older than `life_s` is closed behind the next answer after which clients pause, as proxies close
what is idle. With `breaks_every`, each request about a task of that number is sent to the server, and its client gets a
reset in place of the answer.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Self

from kit.balancer import HEAD_BYTES, HELD_BYTES, LEFT, closing, connected, lines_of, reset

# Behind an answer with this a client waits before it polls again.
WORKING = re.compile(rb'"status": ?"working"')
LENGTH = re.compile(rb"^content-length: *(\d+)", re.IGNORECASE | re.MULTILINE)

Upstream = tuple[int, asyncio.StreamReader, asyncio.StreamWriter]


class Road:
    def __init__(self, choose: Callable[[], int], life_s: float, breaks_every: int = 0) -> None:
        self._choose, self._life_s, self._breaks_every = choose, life_s, breaks_every
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = 0
        # The messages that came, on how many connections, and how many of these were broken.
        self.messages: list[dict[str, Any]] = []
        self.connections = self.broken = 0
        # By the port of a server: its requests that are not answered yet.
        self.waiting: Counter[int] = Counter()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0, limit=HEAD_BYTES)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _breaks(self) -> bool:
        is_about_task = self.methods()[-1].startswith("tasks/")
        count = sum(method.startswith("tasks/") for method in self.methods())
        return is_about_task and self._breaks_every > 0 and count % self._breaks_every == 0

    def methods(self) -> list[str]:
        return [str(message.get("method")) for message in self.messages]

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        clock = asyncio.get_running_loop().time
        over = clock() + self._life_s
        head = head_of(reader)
        try:
            with suppress(asyncio.CancelledError, *LEFT):
                pauses = False
                while not pauses or clock() < over:
                    found = await head
                    length = LENGTH.search(found)
                    body = await reader.readexactly(int(length[1])) if length else b""
                    # The next one, or the end of the client.
                    head = head_of(reader)
                    pauses = WORKING.search(await self._exchange(found, body, head, writer)) is not None
        finally:
            head.cancel()
            await asyncio.gather(head, return_exceptions=True)
            writer.close()
            self._tasks.discard(task)

    async def _exchange(
        self, head: bytes, body: bytes, following: asyncio.Task[bytes], writer: asyncio.StreamWriter
    ) -> bytes:
        """One request, and the end of its answer."""
        self.messages.append(json.loads(body or b"{}"))

        picked: list[int] = []

        async def chosen(_: str) -> int:
            # Again where nobody listened at the one before.
            self._over(picked)
            picked.append(self._choose())
            self.waiting[picked[0]] += 1
            return picked[0]

        try:
            return await self._answer(head, body, following, writer, await connected(chosen, ""))
        finally:
            self._over(picked)

    def _over(self, picked: list[int]) -> None:
        while picked:
            self.waiting[picked.pop()] -= 1

    async def _answer(
        self, head: bytes, body: bytes, following: asyncio.Task[bytes], writer: asyncio.StreamWriter, server: Upstream
    ) -> bytes:
        port, answers, upstream = server
        own = b"host: 127.0.0.1:%d" % port
        lines = [own if line.lower().startswith(b"host:") else line for line in lines_of(head)]
        upstream.write(closing(lines) + body)
        if self._breaks():
            # The server is to have done what it was asked.
            await answers.read(1)
            upstream.close()
            self.broken += 1
            reset(writer)
            raise ConnectionResetError
        answering = asyncio.create_task(answered(answers, writer))
        try:
            await asyncio.wait([answering, following], return_when=asyncio.FIRST_COMPLETED)
            if not answering.done():
                # The server is to see that its client has left.
                await following
            return await answering
        finally:
            answering.cancel()
            await asyncio.gather(answering, return_exceptions=True)
            upstream.close()


def head_of(reader: asyncio.StreamReader) -> asyncio.Task[bytes]:
    return asyncio.create_task(reader.readuntil(b"\r\n\r\n"))


async def answered(answers: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    """Pass on an answer; its framing tells the client where it ends."""
    tail = b""
    head = await answers.readuntil(b"\r\n\r\n")
    writer.write(b"\r\n".join([*lines_of(head), b"", b""]))
    while data := await answers.read(HELD_BYTES):
        writer.write(data)
        await writer.drain()
        tail = (tail + data)[-HELD_BYTES:]
    return tail
