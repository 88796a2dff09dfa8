"""One MCP session as a client has it, and one call over all its connections, as a correct client makes them."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

from tailrope.probe._http import Endpoint, Exchange, NoAnswer
from tailrope.probe._sse import Block

NEWEST = "2025-11-25"
OLDER = "2025-06-18"
RESUMABLE = ("2025-03-26", OLDER, NEWEST)
UNRESUMABLE = "2026-07-28"
# Comes back no later than this, whatever `retry` says, and no earlier where it says nothing.
LONGEST_WAIT_MS = 3_000
SHORTEST_WAIT_MS = 20
MOST_CONNECTIONS = 100


@dataclass
class Session:
    """Request ids are given, never counted here: two sessions use the same ones on purpose."""

    endpoint: Endpoint
    timeout_ms: float
    # Tells the progress of this session from that of another.
    name: str
    id: str | None = None
    revision: str | None = None
    # Every stream that was read, by its name, for what its events' ids say.
    streams: dict[str, list[Exchange]] = field(default_factory=dict)
    opened: list[Exchange] = field(default_factory=list)

    def headers(self) -> dict[str, str]:
        given = {"Mcp-Session-Id": self.id, "MCP-Protocol-Version": self.revision}
        return {name: value for name, value in given.items() if value is not None}

    async def post(self, message: dict[str, Any], within_ms: float | None = None) -> Exchange:
        accept = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}
        if self.revision == UNRESUMABLE:
            accept["Mcp-Method"] = message["method"]
        body = json.dumps(message).encode()
        return self._kept(
            await self.endpoint.send("POST", {**accept, **self.headers()}, body, within_ms or self.timeout_ms),
            None if message.get("id") is None else f"request {message['id']}",
        )

    async def request(self, id: int, method: str, params: dict[str, Any] | None = None) -> Exchange:
        message: dict[str, Any] = {"jsonrpc": "2.0", "id": id, "method": method}
        if params is not None:
            message["params"] = params
        return await self.post(message)

    async def get(self, cursor: str | None = None, stream: str | None = None) -> Exchange:
        """`stream` is the name of the stream that the cursor is of, where that is known."""
        headers = {"Accept": "text/event-stream", **self.headers()}
        if cursor is not None:
            headers["Last-Event-ID"] = cursor
        return self._kept(await self.endpoint.send("GET", headers, None, self.timeout_ms), stream)

    def _kept(self, exchange: Exchange, stream: str | None) -> Exchange:
        self.opened.append(exchange)
        if stream is not None:
            self.streams.setdefault(stream, []).append(exchange)
        return exchange

    async def delete(self) -> Exchange:
        return self._kept(await self.endpoint.send("DELETE", self.headers(), None, self.timeout_ms), None)

    async def open(self, revision: str) -> Exchange:
        """Initialize, as far as the answer allows it: without a result there is no revision afterwards."""
        params = {
            "protocolVersion": revision,
            "capabilities": {},
            "clientInfo": {"name": "tailrope-probe", "version": "1"},
        }
        exchange = await self.request(0, "initialize", params)
        await exchange.until(lambda: exchange.is_over or exchange.response is not None, self.timeout_ms)
        result = (exchange.json or {}).get("result")
        if exchange.status == 200 and isinstance(result, dict) and isinstance(result.get("protocolVersion"), str):
            self.id = exchange.headers.get("mcp-session-id")
            self.revision = result["protocolVersion"]
        return exchange

    async def notify(self, method: str) -> Exchange:
        exchange = await self.post({"jsonrpc": "2.0", "method": method})
        await exchange.until(lambda: exchange.is_over, self.timeout_ms)
        return exchange

    def cut(self) -> None:
        for exchange in self.opened:
            exchange.cut()

    def given_ids(self) -> set[str]:
        return {
            block.id for stream in self.streams.values() for exchange in stream for block in exchange.blocks if block.id
        }


class Run:
    """One call. Its connections are in `connections`, the first of them is the POST's."""

    def __init__(self, session: Session, id: int, post: Exchange) -> None:
        self.session, self.id = session, id
        self.connections = [post]
        self.gave_nothing = False

    @property
    def last(self) -> Exchange:
        return self.connections[-1]

    @property
    def events(self) -> list[Block]:
        return [event for exchange in self.connections for event in exchange.events]

    @property
    def first_id(self) -> str | None:
        return next((event.id for event in self.events if event.id), None)

    @property
    def last_id(self) -> str | None:
        return next((event.id for event in reversed(self.events) if event.id), None)

    @property
    def response(self) -> Block | None:
        return next((exchange.response for exchange in self.connections if exchange.response is not None), None)

    @property
    def messages(self) -> list[Block]:
        """What follows the first event with an id: all that a resume from there has to give."""
        events = self.events
        first = next((index for index, event in enumerate(events) if event.id), len(events))
        return [event for event in events[first + 1 :] if event.data]

    async def has_id(self) -> bool:
        """Wait for an id to come back with."""
        exchange = self.last
        await exchange.until(lambda: exchange.is_over or self.last_id is not None, self.session.timeout_ms)
        return self.last_id is not None

    async def resume(self) -> Exchange:
        exchange = await self.session.get(self.last_id, f"request {self.id}")
        self.connections.append(exchange)
        return exchange

    async def _read(self, exchange: Exchange, within_ms: float) -> None:
        await exchange.until(lambda: exchange.is_over or self.response is not None, within_ms)

    async def finish(self, within_ms: float) -> str | None:
        """Read to the response and come back as often as that takes; what went wrong, if something did."""
        loop = asyncio.get_running_loop()
        end = loop.time() + within_ms / 1_000
        while True:
            exchange = self.last
            if len(self.connections) > 1:
                if exchange.status == 200 and not exchange.is_stream:
                    return f"a resume is answered 200 {exchange.content_type}"
                if not exchange.is_stream:
                    return f"a resume is answered {exchange.status}"
            left_ms = (end - loop.time()) * 1_000
            await self._read(exchange, left_ms)
            if self.response is not None:
                return None
            if not exchange.is_over:
                return "the response does not come"
            if self.last_id is None:
                return "the connection ended before the response, and there is no id to come back with"
            if not any(event.id or event.data for event in exchange.events):
                return "a resume is answered 200 and nothing"
            if len(self.connections) >= MOST_CONNECTIONS:
                return f"no response after {MOST_CONNECTIONS} connections"
            told = next((event.retry_ms for event in reversed(self.events) if event.retry_ms is not None), 0)
            await asyncio.sleep(min(max(told, SHORTEST_WAIT_MS), LONGEST_WAIT_MS) / 1_000)
            try:
                await self.resume()
            except NoAnswer as fault:
                return f"a resume has {fault}" if fault.kind == "silent" else f"a resume fails: {fault}"
