"""A transport that is driven by hand: ASGI requests without a socket, and the SDK's two streams."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import tailrope
import tailrope.mcp
from tailrope.mcp import _sdk

OPEN = {
    "jsonrpc": "2.0",
    "id": 0,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "x", "version": "1"},
    },
}
Part = dict[str, Any]


def request(id: int) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": {"name": "x", "arguments": {}}}


class Asgi:
    """One ASGI request to a transport or a session manager. The peer is there until `left`."""

    def __init__(
        self,
        served_by: Any,
        method: str,
        body: Any = None,
        *headers: tuple[bytes, bytes],
        session: str | None = "s1",
        version: str = "1.1",
        raises: Exception | None = None,
        **scope: Any,
    ) -> None:
        self.received: list[str] = []
        self._raises = raises
        self.sent: list[Part] = []
        self.left = asyncio.Event()
        self.got = asyncio.Event()
        self._unread = b"" if body is None else json.dumps(body).encode()
        self._read = False
        self.scope: Part = {
            "type": "http",
            "http_version": version,
            "method": method,
            "path": "/mcp",
            "query_string": b"",
            "headers": [
                (b"accept", b"application/json, text/event-stream"),
                (b"content-type", b"application/json"),
                (b"mcp-protocol-version", b"2025-11-25"),
                (b"host", b"localhost"),
                *([(b"mcp-session-id", session.encode())] if session is not None else []),
                *headers,
            ],
            **scope,
        }
        self.task = asyncio.ensure_future(served_by.handle_request(self.scope, self._receive, self._send))

    async def _receive(self) -> Part:
        if not self._read:
            self._read = True
            self.received.append("http.request")
            return {"type": "http.request", "body": self._unread, "more_body": False}
        self.received.append("http.disconnect")
        if self._raises is not None:
            raise self._raises
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, part: Part) -> None:
        self.sent.append(part)
        self.got.set()

    @property
    def status(self) -> int:
        status: int = self.sent[0]["status"]
        return status

    @property
    def body(self) -> bytes:
        return b"".join(part.get("body", b"") for part in self.sent[1:])


async def until(condition: Callable[[], Any], wait_s: float = 15.0) -> None:
    async with asyncio.timeout(wait_s):
        while not condition():
            await asyncio.sleep(0.005)


@contextlib.asynccontextmanager
async def transport(store: Any = None, **options: Any) -> AsyncIterator[tuple[Any, Any, Any]]:
    """A transport with its two streams, whose client is of 2025-11-25."""
    made = tailrope.mcp.StreamableHTTPServerTransport("s1", event_store=store, **options)
    async with made.connect() as (inbox, outbox):
        opening = Asgi(made, "POST", OPEN)
        await inbox.receive()
        result = {"protocolVersion": "2025-11-25", "capabilities": {}, "serverInfo": {"name": "x", "version": "1"}}
        await outbox.send(outgoing({"jsonrpc": "2.0", "id": 0, "result": result}))
        await opening.task
        yield made, inbox, outbox


@contextlib.asynccontextmanager
async def running_call(store: Any = None) -> AsyncIterator[tuple[Any, Any, Asgi]]:
    """A call that the SDK has taken: its transport, the stream for what the SDK sends, and its request."""
    async with transport(store) as (made, inbox, outbox):
        call = Asgi(made, "POST", request(1))
        await inbox.receive()
        yield made, outbox, call


async def end(call: Asgi, outbox: Any) -> None:
    """Sends the response of the call, which its client gets."""
    await outbox.send(outgoing({"jsonrpc": "2.0", "id": 1, "result": {}}))
    await call.task
    assert b'"result"' in call.body


def outgoing(message: dict[str, Any], related: int | str | None = None) -> Any:
    from mcp.shared.message import ServerMessageMetadata, SessionMessage

    metadata = None if related is None else ServerMessageMetadata(related_request_id=related)
    return SessionMessage(_sdk.parse(json.dumps(message).encode()), metadata=metadata)


def note(number: int) -> dict[str, Any]:
    params = {"progressToken": "p", "progress": number}
    return {"jsonrpc": "2.0", "method": "notifications/progress", "params": params}
