"""MCP over the raw client: one `Peer` is one session, with nothing done behind the test's back."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterable, Mapping
from typing import Any

from kit.raw import ACCEPT, WAIT_S, Event, Reply, request

NEWEST = "2025-11-25"
OLD = ("2025-03-26", "2025-06-18")
# In the answer of a process whose store has not answered its signs of life.
NO_SIGN = b"the event store gives no sign"
CAPABILITIES: dict[str, Any] = {"elicitation": {"form": {}}, "sampling": {}, "roots": {}}


class Peer:
    """A session opened by hand. `session` and `revision` are what the server gave; headers can be overridden."""

    def __init__(self, port: int, path: str = "/mcp", headers: Mapping[str, str] | None = None) -> None:
        self.port, self.path = port, path
        self.extra = dict(headers or {})
        self.session: str | None = None
        self.revision: str | None = None
        self.opening: list[Event] = []
        self._last_id = 100

    @classmethod
    async def open(
        cls, port: int, revision: str = NEWEST, path: str = "/mcp", headers: Mapping[str, str] | None = None
    ) -> Peer:
        peer = cls(port, path, headers)
        await peer.initialize(revision)
        return peer

    async def initialize(self, revision: str = NEWEST) -> dict[str, Any]:
        params = {
            "protocolVersion": revision,
            "capabilities": CAPABILITIES,
            "clientInfo": {"name": "raw", "version": "1"},
        }
        reply = await self.post({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params})
        assert reply.status == 200, (reply.status, await reply.body())
        if reply.is_sse:
            self.opening = await reply.rest()
            # Some servers close connections by age or size, and machines may stand still.
            while not any(event.is_terminal for event in self.opening):
                self.session = reply.headers.get("mcp-session-id")
                self.opening += await (await self.resume(last_id(self.opening))).rest()
            answer = self.opening[-1].message
        else:
            answer = await reply.json()
        reply.close()
        self.session = reply.headers.get("mcp-session-id")
        self.revision = answer["result"]["protocolVersion"]
        ready = await self.notify("notifications/initialized")
        assert ready.status == 202, ready.status
        return answer["result"]

    def headers(self, **more: str | None) -> dict[str, str]:
        """The headers of this session; a value of None takes a header away, `_` in names stands for `-`."""
        headers = {"Accept": ACCEPT, **self.extra}
        if self.session is not None:
            headers["Mcp-Session-Id"] = self.session
        if self.revision is not None:
            headers["Mcp-Protocol-Version"] = self.revision
        for name, value in more.items():
            key = name.replace("_", "-")
            headers = {k: v for k, v in headers.items() if k.lower() != key.lower()}
            if value is not None:
                headers[key] = value
        return headers

    async def post(
        self, message: Any, *, wait_s: float = WAIT_S, receive_buffer: int | None = None, **headers: str | None
    ) -> Reply:
        body = message if isinstance(message, bytes) else json.dumps(message).encode()
        head = self.headers(**{"Content_Type": "application/json", **headers})
        deadline = time.monotonic() + wait_s
        while True:
            reply = await request(self.port, "POST", self.path, head, body, wait_s, receive_buffer)
            # A busy machine can keep a store from answering for half of a short `owner_lost_ms` (O18).
            if reply.status != 503 or NO_SIGN not in await reply.body() or time.monotonic() > deadline:
                return reply
            reply.close()
            await asyncio.sleep(0.1)

    async def call(
        self,
        tool: str,
        args: Mapping[str, Any] | None = None,
        *,
        id: Any = None,
        token: Any = True,
        wait_s: float = WAIT_S,
        receive_buffer: int | None = None,
        **headers: str | None,
    ) -> Reply:
        """POST a tools/call. `token=True` uses the request id as progress token, None sends none."""
        if id is None:
            self._last_id += 1
            id = self._last_id
        params: dict[str, Any] = {"name": tool, "arguments": dict(args or {})}
        if token is not None:
            params["_meta"] = {"progressToken": f"p-{id}" if token is True else token}
        message = {"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params}
        return await self.post(message, wait_s=wait_s, receive_buffer=receive_buffer, **headers)

    async def ask(self, tool: str, args: Mapping[str, Any] | None = None, **more: Any) -> Any:
        """Call a tool and give back the text of its result."""
        deadline = time.monotonic() + WAIT_S
        while True:
            reply = await self.call(tool, args, **more)
            assert reply.status == 200, (reply.status, await reply.body())
            if reply.is_sse:
                answer = (await reply.until_terminal())[-1].message
            else:
                answer = await reply.json()
            reply.close()
            # As in `post`: the head of a call that came to another process may be out by then.
            if NO_SIGN.decode() not in json.dumps(answer) or time.monotonic() > deadline:
                return text(answer)

    async def get(self, *, receive_buffer: int | None = None, **headers: str | None) -> Reply:
        head = self.headers(**{"Accept": "text/event-stream", **headers})
        return await request(self.port, "GET", self.path, head, receive_buffer=receive_buffer)

    async def listen(self) -> Reply:
        """Open the standalone stream without a cursor."""
        reply = await self.get()
        assert reply.status == 200, (reply.status, await reply.body())
        return reply

    async def resume(self, cursor: str | None, *, receive_buffer: int | None = None) -> Reply:
        assert cursor, "no cursor to resume with"
        return await self.get(Last_Event_ID=cursor, receive_buffer=receive_buffer)

    async def notify(self, method: str, params: Any = None) -> Reply:
        message: dict[str, Any] = {"jsonrpc": "2.0", "method": method}
        if params is not None:
            message["params"] = params
        reply = await self.post(message)
        await reply.body()
        reply.close()
        return reply

    async def respond(self, id: Any, result: Any) -> Reply:
        reply = await self.post({"jsonrpc": "2.0", "id": id, "result": result})
        await reply.body()
        reply.close()
        return reply

    async def cancel(self, id: Any) -> Reply:
        return await self.notify("notifications/cancelled", {"requestId": id, "reason": "test"})

    async def delete(self) -> Reply:
        reply = await request(self.port, "DELETE", self.path, self.headers())
        await reply.body()
        reply.close()
        return reply


def text(answer: Any) -> str:
    """The text of a tool's result; an error result or JSON-RPC error fails the test with its words."""
    assert "result" in answer, answer
    assert not answer["result"].get("isError"), answer
    return answer["result"]["content"][0]["text"]


def results(events: Iterable[Event]) -> list[Any]:
    """The responses among the events: the text of a result, or the error object."""
    found: list[Any] = []
    for event in events:
        if event.is_terminal:
            message = event.message
            found.append(message["error"] if "error" in message else text(message))
    return found


def ids(events: Iterable[Event]) -> list[str]:
    return [event.id for event in events if event.id is not None]


def counts(events: Iterable[Event]) -> list[int]:
    """The progress values of the events, in the order of arrival."""
    found = []
    for event in events:
        message = event.message
        if isinstance(message, dict) and message.get("method") == "notifications/progress":
            found.append(int(message["params"]["progress"]))
    return found


def logs(events: Iterable[Event]) -> list[Any]:
    """The data of the log notifications among the events."""
    found = []
    for event in events:
        message = event.message
        if isinstance(message, dict) and message.get("method") == "notifications/message":
            found.append(message["params"]["data"])
    return found


def last_id(events: Iterable[Event]) -> str:
    """The cursor a correct client holds after these events."""
    ids = [event.id for event in events if event.id is not None]
    assert ids, "no event carried an id"
    return ids[-1]


ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"


def unknown_like(cursor: str) -> str:
    """A cursor of the same form that names a stream which never was: the nonce is another one."""
    if len(cursor) < 33:
        return "999999999"
    other = "".join(ALPHABET[(ALPHABET.index(char) + 17) % 64] for char in cursor[1:17])
    return cursor[:1] + other + cursor[17:]


PRIMED = "\ndata: \n"


def comparable(reply: Reply) -> dict[str, str]:
    """The headers that do not change with the time of day, the session, or the host that answers."""
    return {name: value for name, value in reply.headers.items() if name not in ("date", "mcp-session-id", "server")}


async def seen(reply: Reply, last: str | None = None) -> tuple[int, dict[str, str], str]:
    """Status, headers and body as another client could compare them: ids and the time of day masked.

    `last` is what the last event of a stream has that stays open; any other ends by itself.
    """
    if reply.is_sse:
        # Its process may stand still between two events, so no silence before the last one is an end.
        while last is not None and last.encode() not in reply.raw:
            assert await reply.event() is not None, f"no {last!r} in {bytes(reply.raw)!r}"
        await reply.settle(WAIT_S if last is None else 0.1)
    else:
        await reply.body()
    lines = bytes(reply.raw).decode().splitlines()
    body = "\n".join("id: *" if line.startswith("id:") else line for line in lines)
    return reply.status, comparable(reply), body
