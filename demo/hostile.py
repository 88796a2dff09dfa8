"""A hostile MCP server over raw sockets, which has nothing of Tailrope or of an SDK in it.

It serves one call of one session (revision 2025-11-25), keeps every event, and ends the connections of the call as it
likes. It is within its rights: each event has an id, and a client that comes back with the last one gets what follows.
"""

import asyncio
import contextlib
import json
import random
import socket
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

FILES = 60
RESULT = f"{FILES} files indexed"
REVISION = "2025-11-25"
SESSION = "hostile"
# Between two events, and before the connection ends, so that a client has read what it was sent.
PACE_S = 0.025
JSON_HEAD = {"content-type": "application/json"}
STREAM_HEAD = {"content-type": "text/event-stream", "cache-control": "no-cache", "transfer-encoding": "chunked"}
PHRASES = {200: "OK", 202: "Accepted", 400: "Bad Request", 405: "Method Not Allowed", 503: "Service Unavailable"}


@dataclass(frozen=True)
class Act:
    """What one connection of the call gets.

    close   `events` and the end of the body; `reset`: `events`, a `share` of the next one and a reset
    empty   a stream without an event; `refuse`: 503, perhaps with Retry-After; `vanish`: a reset and no answer
    finish  all that is left and the result
    """

    kind: str
    events: int = 0
    retry_ms: int = 0
    share: float = 0.0
    retry_after_s: int | None = None


def improvise(seed: int) -> list[Act]:
    """Decide beforehand what is done to the call, so that a seed tells the same story each time."""
    dice = random.Random(seed)
    acts: list[Act] = []
    left = FILES
    # The server names its longest pause once, for that takes whole seconds.
    pauses = [1]
    while left > 12:
        events = dice.randint(4, 10)
        left -= events
        kind, retry_ms = dice.choice(("close", "reset")), dice.randrange(80, 200, 10)
        acts.append(Act(kind, events, retry_ms, share=dice.random()))
        for _ in range(dice.choice((0, 0, 1, 2))):
            bad = dice.choice(("empty", "refuse", "vanish"))
            pause = pauses.pop() if bad == "refuse" and pauses else None
            acts.append(Act(bad, retry_after_s=pause))
    return [*acts, Act("finish", left)]


class Hostile:
    """The server, on a free port of the loopback interface. `report` is called with each fact as it happens."""

    def __init__(self, acts: list[Act], report: Callable[..., None]) -> None:
        self._acts = list(acts)
        self._report = report
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._request_id: object = None
        self._token: object = None
        self._retry_ms = 0
        # What the client was asked to wait, and since when it can.
        self._asked_s = 0.0
        self._ended_at = 0.0
        self.url = ""

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/mcp"
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._server is not None:
            self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None  # a stream callback always runs in a task
        self._tasks.add(task)
        try:
            while await self._answer(*await read_request(reader), writer):
                pass
        except (OSError, EOFError, asyncio.CancelledError):
            pass  # the client has left, or the demo is over
        finally:
            writer.close()
            self._tasks.discard(task)

    async def _answer(self, method: str, headers: dict[str, str], body: bytes, writer: asyncio.StreamWriter) -> bool:
        """Answer one request; False when the connection is not to be used again."""
        cursor = headers.get("last-event-id")
        if method == "POST":
            message = json.loads(body)
            if message.get("method") == "tools/call":
                self._report("call", revision=headers.get("mcp-protocol-version", ""))
                self._request_id, self._token = message["id"], message["params"]["_meta"]["progressToken"]
                return await self._perform(writer, 0)
            return await self._say(writer, *plain(message))
        if method == "GET" and cursor is not None:
            away_s = time.monotonic() - self._ended_at
            self._report("resume", cursor=cursor, away_s=away_s, asked_s=self._asked_s)
            place = cursor.removeprefix("file-")
            if place.isdigit() and int(place) <= FILES:
                return await self._perform(writer, int(place))
            return await self._say(writer, 400)
        # There is no standalone stream.
        return await self._say(writer, 200 if method == "DELETE" else 405)

    async def _say(
        self, writer: asyncio.StreamWriter, status: int, headers: dict[str, str] | None = None, body: bytes = b""
    ) -> bool:
        writer.write(head(status, {**(headers or {}), "content-length": str(len(body))}) + body)
        await writer.drain()
        return True

    async def _perform(self, writer: asyncio.StreamWriter, place: int) -> bool:
        act = self._acts.pop(0) if self._acts else Act("finish")
        self._retry_ms = act.retry_ms or self._retry_ms
        self._asked_s = act.retry_after_s or self._retry_ms / 1_000
        try:
            if act.kind == "refuse":
                self._report("refuse", retry_after_s=act.retry_after_s)
                pause = {} if act.retry_after_s is None else {"retry-after": str(act.retry_after_s)}
                return await self._say(writer, 503, pause)
            if act.kind == "vanish":
                self._report("vanish")
                reset(writer)
                return False
            writer.write(head(200, STREAM_HEAD))
            if act.kind == "empty":
                writer.write(chunk(": nothing yet\n\n") + chunk(""))
                self._report("empty")
                return True
            await self._stream(writer, act, place)
            return act.kind != "reset"
        finally:
            self._ended_at = time.monotonic()

    async def _stream(self, writer: asyncio.StreamWriter, act: Act, place: int) -> None:
        writer.write(chunk(f"id: file-{place}\nretry: {self._retry_ms}\ndata: \n\n"))
        last = FILES if act.kind == "finish" else min(FILES, place + act.events)
        for number in range(place + 1, last + 1):
            writer.write(chunk(self._event(number)))
            await writer.drain()
            self._report("send", number=number)
            await asyncio.sleep(PACE_S)
        if act.kind == "finish":
            result = {"content": [{"type": "text", "text": RESULT}]}
            message = {"jsonrpc": "2.0", "id": self._request_id, "result": result}
            self._report("finish", result=RESULT)
            writer.write(chunk(f"id: result\ndata: {json.dumps(message)}\n\n") + chunk(""))
        elif act.kind == "close":
            self._report("close", retry_ms=self._retry_ms)
            writer.write(chunk(""))
        else:
            event = self._event(last + 1)
            writer.write(chunk(event[: 1 + int(act.share * (len(event) - 2))]))
            await asyncio.sleep(PACE_S)
            self._report("reset", number=last + 1, retry_ms=self._retry_ms)
            reset(writer)

    def _event(self, number: int) -> str:
        params = {"progressToken": self._token, "progress": number, "total": FILES}
        message = {"jsonrpc": "2.0", "method": "notifications/progress", "params": params}
        return f"id: file-{number}\ndata: {json.dumps(message)}\n\n"


def plain(message: dict[str, Any]) -> tuple[int, dict[str, str], bytes]:
    """The answer to everything but the call."""
    method, request_id = message.get("method"), message.get("id")
    if request_id is None:
        return 202, {}, b""
    answer: dict[str, Any] = {"jsonrpc": "2.0", "id": request_id}
    headers = JSON_HEAD
    if method == "initialize":
        about = {"serverInfo": {"name": "hostile", "version": "1.0.0"}, "capabilities": {"tools": {}}}
        answer["result"] = {"protocolVersion": REVISION, **about}
        headers = {**JSON_HEAD, "mcp-session-id": SESSION}
    elif method == "tools/list":
        tool = {"name": "index_files", "inputSchema": {"type": "object"}}
        answer["result"] = {"tools": [tool]}
    else:
        answer["error"] = {"code": -32_601, "message": f"no method {method}"}
    return 200, headers, json.dumps(answer).encode()


async def read_request(reader: asyncio.StreamReader) -> tuple[str, dict[str, str], bytes]:
    first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    pairs = (line.partition(":") for line in lines)
    headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
    return first.split(" ")[0], headers, await reader.readexactly(int(headers.get("content-length", "0")))


def head(status: int, headers: dict[str, str]) -> bytes:
    lines = (f"HTTP/1.1 {status} {PHRASES[status]}", *(f"{name}: {value}" for name, value in headers.items()))
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def chunk(text: str) -> bytes:
    """A chunk of a body; the empty one ends it."""
    data = text.encode()
    return b"%x\r\n%b\r\n" % (len(data), data)


def reset(writer: asyncio.StreamWriter) -> None:
    """End the connection with RST instead of FIN."""
    linger = struct.pack("ii", 1, 0)
    with contextlib.suppress(OSError):
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    writer.transport.abort()
