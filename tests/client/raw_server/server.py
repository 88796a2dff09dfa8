"""The MCP half: one session, its streams, and a record of every request."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any

from .script import Stream
from .sockets import Connection, GoneError, Listener, Request

REVISION = "2025-11-25"
SESSION = "raw-session"
JSON = {"content-type": "application/json"}
STANDALONE = "standalone"
# A stream of a scenario that stands for every name that has none.
ANY = "*"
TOOL = {"name": "run", "inputSchema": {"type": "object", "properties": {"stream": {"type": "string"}}}}
# Kept by the record of a request; the rest is the HTTP library's.
HEADERS = ("accept", "mcp-session-id", "mcp-protocol-version", "user-agent")


@dataclass
class Entry:
    """One request as it arrived. `told_ms`, `ended_ms` and `ended_how` are those of its stream's last connection."""

    at_ms: float
    method: str
    sockets: int
    most_sockets: int
    headers: dict[str, str]
    cursor: str | None = None
    rpc: str | None = None
    rpc_id: Any = None
    stream: str | None = None
    number: int = 0
    status: int | None = None
    told_ms: int | None = None
    ended_ms: float | None = None
    ended_how: str | None = None
    params: Any = field(default=None, repr=False)


class RawServer:
    """Plays one scenario to one client. `note` is False where a test asks so often that a record would be a leak."""

    def __init__(self, scenario: dict[str, Any], note: bool = True) -> None:
        self._scripts: dict[str, Any] = scenario["streams"]
        self._listener = Listener(self._handle)
        self._streams: dict[str, Stream] = {}
        self._answers = asyncio.Condition()
        self._answered: set[str] = set()
        self._met: Counter[str] = Counter()
        self._meeting = asyncio.Condition()
        self._is_lost = False
        self._notes = note
        self.entries: list[Entry] = []

    async def __aenter__(self) -> RawServer:
        await self._listener.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._listener.close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._listener.port}/mcp"

    def record(self) -> list[dict[str, Any]]:
        return [asdict(entry) for entry in self.entries]

    def state(self) -> dict[str, Any]:
        resumes = {name: max(0, stream.connections - 1) for name, stream in self._streams.items()}
        return {"sockets": self._listener.sockets, "most_sockets": self._listener.most_sockets, "resumes": resumes}

    async def _handle(self, connection: Connection, request: Request) -> bool:
        now, listener = self._listener.now_ms(), self._listener
        headers = {name: request.headers[name] for name in HEADERS if name in request.headers}
        cursor = request.headers.get("last-event-id")
        entry = Entry(now, request.method, listener.sockets, listener.most_sockets, headers, cursor)
        if self._notes:
            self.entries.append(entry)
        if request.method == "POST":
            return await self._post(connection, entry, request.json())
        if self._is_lost:
            self._note_stream(entry)
            return refused(connection, entry, 404, "session not found")
        if request.method == "GET":
            return await self._get(connection, entry, cursor)
        entry.status = 200 if request.method == "DELETE" else 405
        connection.answer(entry.status, {}, b"")
        return True

    async def _post(self, connection: Connection, entry: Entry, message: dict[str, Any]) -> bool:
        method, request_id = message.get("method"), message.get("id")
        entry.rpc, entry.rpc_id, entry.params = method, request_id, message.get("params")
        if method != "initialize" and entry.headers.get("mcp-session-id") != SESSION:
            return refused(connection, entry, 400, "no session id")
        if self._is_lost:
            return refused(connection, entry, 404, "session not found")
        if method is None or request_id is None:
            if method is None:
                async with self._answers:
                    self._answered.add(str(request_id))
                    self._answers.notify_all()
            entry.status = 202
            connection.answer(202, {}, b"")
            return True
        if method == "tools/call":
            return await self._call(connection, entry, message)
        entry.status = 200
        answer = {"jsonrpc": "2.0", "id": request_id, **self._plain(method, message)}
        extra = {"mcp-session-id": SESSION} if method == "initialize" else {}
        connection.answer(200, {**JSON, **extra}, json.dumps(answer).encode())
        return True

    def _plain(self, method: str, message: dict[str, Any]) -> dict[str, Any]:
        if method == "initialize":
            about = {"serverInfo": {"name": "raw", "version": "1"}, "capabilities": {"tools": {}, "logging": {}}}
            return {"result": {"protocolVersion": REVISION, **about}}
        if method == "tools/list":
            return {"result": {"tools": [TOOL]}}
        if method in ("ping", "logging/setLevel"):
            return {"result": {}}
        return {"error": {"code": -32_601, "message": f"no method {method}"}}

    async def _call(self, connection: Connection, entry: Entry, message: dict[str, Any]) -> bool:
        name = message["params"]["arguments"]["stream"]
        script = self._scripts.get(name, self._scripts.get(ANY))
        assert script is not None, f"no stream {name}"
        token = message["params"].get("_meta", {}).get("progressToken")
        stream = self._streams[name] = Stream(name, script, message["id"], token)
        return await self._play(connection, entry, stream, 0)

    async def _get(self, connection: Connection, entry: Entry, cursor: str | None) -> bool:
        name = STANDALONE if cursor is None else cursor.rpartition(".")[0]
        if cursor is None and name not in self._streams:
            if STANDALONE not in self._scripts:
                return refused(connection, entry, 405, "no standalone stream")
            self._streams[name] = Stream(name, self._scripts[STANDALONE])
        stream = self._streams.get(name)
        position = None if stream is None else stream.sent if cursor is None else stream.position_of(cursor)
        if stream is None or position is None:
            return refused(connection, entry, 400, "unknown event id")
        return await self._play(connection, entry, stream, position)

    def _note_stream(self, entry: Entry) -> None:
        """Whose cursor it is, though nothing comes of it."""
        if (stream := self._streams.get((entry.cursor or "").rpartition(".")[0])) is not None:
            entry.stream, entry.number = stream.name, stream.connections
            stream.connections += 1

    async def _play(self, connection: Connection, entry: Entry, stream: Stream, position: int) -> bool:
        entry.stream, entry.number = stream.name, stream.connections
        entry.told_ms, entry.ended_ms, entry.ended_how = stream.told(), stream.ended_ms, stream.ended_how
        stream.connections += 1
        steps = stream.steps(entry.number)
        if steps and steps[0] == "vanish":
            stream.ended_ms, stream.ended_how = self._listener.now_ms(), "vanish"
            connection.reset()
            return False
        status = steps[0].split(" ") if steps else [""]
        if status[0] == "status" or stream.is_over(position):
            code = int(status[1]) if status[0] == "status" else 204
            extra = dict(pair.split("=", 1) for pair in status[2:])
            stream.floor_ms = int(extra.get("retry-after", "0")) * 1_000
            stream.ended_ms, stream.ended_how = self._listener.now_ms(), f"status {code}"
            return refused(connection, entry, code, "scripted", extra)
        entry.status = 200
        connection.begin_stream()
        play = Play(self, connection, stream, position)
        try:
            how = await play.run(steps)
        except GoneError:
            stream.ended_ms, stream.ended_how = connection.left_ms, "gone"
            raise
        stream.ended_ms, stream.ended_how = self._listener.now_ms(), how
        # Only then, so that no answer to these bytes is earlier.
        {"close": connection.end_stream, "cut": connection.cut, "reset": connection.reset}[how]()
        return how == "close"

    async def answered(self, name: str) -> None:
        async with self._answers:
            await self._answers.wait_for(lambda: f"ask-{name}" in self._answered)

    async def meet(self, steps: str, count: int) -> None:
        async with self._meeting:
            self._met[steps] += 1
            self._meeting.notify_all()
            await self._meeting.wait_for(lambda: self._met[steps] >= count)

    def refuse(self, ms: float) -> None:
        self._listener.refuse(ms)

    def lose(self) -> None:
        self._is_lost = True


class Play:
    """One connection of one stream."""

    def __init__(self, server: RawServer, connection: Connection, stream: Stream, position: int) -> None:
        self._server, self._connection, self._stream = server, connection, stream
        self._position = position

    async def run(self, steps: list[str]) -> str:
        for step in steps:
            word, _, rest = step.partition(" ")
            if word in ("close", "cut", "reset"):
                if word == "reset":
                    # A reset overtakes what was not read yet.
                    await self._connection.pause(50)
                return word
            await getattr(self, f"_do_{word}")(rest)
        return "close"

    async def _block(self, lines: list[str]) -> None:
        for line in lines:
            if line.startswith("retry: "):
                self._stream.told_ms = int(line.removeprefix("retry: "))
        await self._write("".join(line + self._stream.newline for line in [*lines, ""]))

    async def _write(self, text: str) -> None:
        await self._connection.stream(text.encode())

    async def _do_prime(self, rest: str) -> None:
        await self._block(self._stream.priming(self._position, rest == "changed"))

    async def _do_retry(self, rest: str) -> None:
        await self._block([f"retry: {rest}"])

    async def _do_send(self, rest: str) -> None:
        left = len(self._stream.log) - self._position
        for _ in range(left if rest == "rest" else min(left, int(rest or 1))):
            self._position += 1
            self._stream.sent = max(self._stream.sent, self._position)
            await self._block(self._stream.event(self._position))

    async def _do_half(self, rest: str) -> None:
        *first, data = self._stream.event(self._position + 1)
        lines = {"id": first, "data": [*first, data[: len(data) // 2]], "block": [*first, data]}[rest]
        # What is half has no end of line.
        text = self._stream.newline.join(lines)
        await self._write(text if rest == "data" else text + self._stream.newline)

    async def _do_raw(self, rest: str) -> None:
        await self._write(json.loads(f'"{rest}"'))

    async def _do_comment(self, rest: str) -> None:
        await self._block([": keep-alive"])

    async def _do_comments(self, rest: str) -> None:
        ms, every = map(int, rest.split())
        for _ in range(ms // every):
            await self._do_comment("")
            await self._connection.pause(every)

    async def _do_split(self, rest: str) -> None:
        self._connection.is_split = True

    async def _do_wait(self, rest: str) -> None:
        await self._connection.pause(int(rest))

    async def _do_answered(self, rest: str) -> None:
        asked = [entry for entry in self._stream.log[: self._position] if entry.startswith("ask ")]
        await self._server.answered(asked[-1].removeprefix("ask "))

    async def _do_hold(self, rest: str) -> None:
        await self._connection.gone.wait()
        raise GoneError

    async def _do_meet(self, rest: str) -> None:
        await self._server.meet(f"{self._stream.connections} {rest}", int(rest))

    async def _do_down(self, rest: str) -> None:
        self._server.refuse(int(rest))

    async def _do_lose(self, rest: str) -> None:
        self._server.lose()


def refused(connection: Connection, entry: Entry, status: int, why: str, extra: dict[str, str] | None = None) -> bool:
    entry.status = status
    body = json.dumps({"jsonrpc": "2.0", "id": None, "error": {"code": -32_000, "message": why}}).encode()
    if status == 204:
        connection.write(b"HTTP/1.1 204 No Content\r\n\r\n")
    else:
        connection.answer(status, {**JSON, **(extra or {})}, body)
    return True
