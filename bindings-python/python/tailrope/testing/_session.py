"""A session and its calls, nothing done behind the test's back: connections begin and end when the test says so."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from tailrope._errors import TailropeError
from tailrope.testing import _record
from tailrope.testing._record import Connection, Event
from tailrope.testing._wire import Answer, Block, Broken, Decoder, send

NEWEST = "2025-11-25"
WAIT_MS = 20_000
LONGEST_PAUSE_MS = 60_000
"""`collect()` waits no longer than this before it comes back, whatever the server asks for."""


class Call:
    """A tool's call, over as many connections as the test makes of it. See docs/testing/kit.md."""

    def __init__(self, session: Session, tool: str, request_id: int) -> None:
        self.session, self.tool, self.request_id = session, tool, request_id
        self.connections: list[Connection] = []
        """What each connection carried, in the order in which they began."""
        self._at: dict[str, Event] = {}
        self._first_id: str | None = None
        self._answer: Answer | None = None
        self._decoder = Decoder()
        self._blocks: list[Block] = []
        self._retry_ms: int | None = None

    @property
    def ids(self) -> list[str]:
        """The event ids so far, in the order in which they came, each once."""
        return list(self._at)

    @property
    def messages(self) -> list[Any]:
        """The JSON-RPC messages, as a client has them that followed the connections so far."""
        return [event.message for event in self._events()]

    @property
    def received(self) -> list[Any]:
        """The same in the short form: a progress notification's number, a log message's data, a result's text, an
        error's `{"code": ..., "message": ...}`, a method, or a result that is no text as it is."""
        return [event.value for event in self._events()]

    @property
    def is_answered(self) -> bool:
        """Whether the response has come."""
        return any(event.is_response for event in self._events())

    def _events(self) -> list[Event]:
        reading = [each for each in self.connections if not each.reads_again]
        return _record.chain(reading[-1].head)

    async def _begin(self, answer: Answer, method: Literal["POST", "GET"], after: str | None, again: bool) -> None:
        head = self._at[after] if after is not None else None
        number = len(self.connections) + 1
        connection = Connection(number, method, after, answer.status, again, head)
        self.connections.append(connection)
        if answer.status == 200 and answer.is_stream:
            self._answer, self._decoder, self._blocks = answer, Decoder(), []
            return
        body = await answer.body(self.session.wait_ms)
        connection.end = "closed"
        if method == "POST" and answer.status == 200:
            connection.add(None, json.loads(body), None)
            return
        words = body[:200].decode("utf-8", "replace")
        text = f"connection {number}, {method}: {answer.status} {words}".rstrip()
        raise TailropeError(text, "refused", answer.status)

    async def read(self, count: int = 1) -> list[Any]:
        """Read `count` more messages from the connection and give them in the short form.

        Raises TailropeError `ended_early` when it ends before, and `timed_out`.
        """
        values: list[Any] = []
        while len(values) < count:
            event = await self._next()
            if event is None:
                end = self.connections[-1].end
                raise TailropeError(
                    f"the connection ended ({end}) after {len(values)} of {count} messages", "ended_early"
                )
            if event.message is not None:
                values.append(event.value)
        return values

    async def cut(self, after: int = 0) -> None:
        """Read `after` more messages and cut the connection, as a dying network path would: with a reset."""
        await self.read(after)
        self._drop()

    async def until_closed(self) -> list[Any]:
        """Read until the connection is over, and give its messages in the short form. `connections[-1].end` says
        whether the server `closed` it in the proper way, or it was `broken`."""
        values: list[Any] = []
        while (event := await self._next()) is not None:
            if event.message is not None:
                values.append(event.value)
        return values

    async def resume(self, after: str | None = None, *, at: str | None = None) -> None:
        """Come back for what follows the event with the id `after`, by default the last one that came. A connection
        that is open is cut first. `at` is the URL of another server on the same store.

        Raises TailropeError `no_cursor` when there is no id, `refused` for an answer that is no stream.
        """
        self._drop()
        cursor = after
        if cursor is None:
            head: Event | None = next(each for each in reversed(self.connections) if not each.reads_again).head
            while head is not None and head.id is None:
                head = head.before
            cursor = head.id if head is not None else None
        if cursor is None:
            raise TailropeError("no event has had an id", "no_cursor")
        if cursor not in self._at:
            raise TailropeError(f"no event of this call had the id {cursor}", "no_cursor")
        await self._get(cursor, at, False)

    async def collect(self, *, read_again: bool = True) -> list[Any]:
        """Read to the response, coming back as often as the server closes or the connection breaks, after the pause
        that it asks for; then read the stream again from its first id, as a client would that kept nothing. Gives all
        messages in the short form.

        `read_again=False` leaves the second reading out; `assert_exactly_once()` then needs to be told what was sent.
        """
        silent = 0
        while not self.is_answered:
            if self._answer is None:
                pause_ms = min(self._retry_ms or 0, LONGEST_PAUSE_MS)
                await asyncio.sleep(pause_ms / 1000)
                await self.resume()
            came = await self._until_response()
            silent = 0 if came else silent + 1
            if silent > 100:
                raise TailropeError("the server closed a hundred connections in a row without a message", "ended_early")
        if self._answer is not None:
            await self._settle()
        if read_again and self._first_id is not None:
            await self.read_again()
        return self.received

    async def _until_response(self) -> int:
        count = 0
        while (event := await self._next()) is not None:
            count += event.message is not None
            if event.is_response:
                break
        return count

    async def _settle(self) -> None:
        """Read what comes after the response. A stream that never ends may be a fault, but not of this kind."""
        try:
            while await self._next(min(500, self.session.wait_ms)) is not None:
                pass
        except TailropeError:
            self._drop()

    async def read_again(self) -> list[Any]:
        """Read the stream from its first id to its response, on a connection of its own, as far as the server still has
        it. What it says besides what came before shows in `assert_exactly_once()`."""
        if self._first_id is None:
            raise TailropeError("no event has had an id", "no_cursor")
        self._drop()
        await self._get(self._first_id, None, True)
        await self._until_response()
        if self._answer is not None:
            await self._settle()
        return [event.value for event in _record.chain(self.connections[-1].head)]

    def assert_exactly_once(self, expected: Sequence[Any] | None = None) -> None:
        """Every message came once, in order, on every way through the connections, and then one response.

        `expected` is what the tool sent, in the short form. Without it that is what the server has when the stream is
        read again, which cannot show what it never kept; so name it where you know it. Raises NotExactlyOnce.
        """
        if expected is None and not any(each.reads_again for each in self.connections):
            text = "name what was sent, or read the stream again: it is not known what should come"
            raise TailropeError(text, "no_cursor")
        _record.check(f"call {self.request_id} ({self.tool})", self.connections, self.request_id, self._token, expected)

    def report(self) -> str:
        """A line for each connection: how it began, what it carried, how it ended."""
        return "\n".join(_record.report(self.connections))

    @property
    def _token(self) -> str:
        return f"kit-{self.request_id}"

    async def _get(self, cursor: str, at: str | None, again: bool) -> None:
        headers = self.session._headers({"Accept": "text/event-stream", "Last-Event-ID": cursor})
        answer = await send(at or self.session.url, "GET", headers, None, self.session.wait_ms)
        await self._begin(answer, "GET", cursor, again)

    async def _next(self, wait_ms: float | None = None) -> Event | None:
        """The next event of the connection; None when it is over."""
        connection = self.connections[-1]
        while not self._blocks:
            if self._answer is None:
                return None
            try:
                piece = await self._answer.piece(self.session.wait_ms if wait_ms is None else wait_ms)
            except TailropeError as fault:
                shown = "\n".join(_record.report(self.connections))
                raise TailropeError(f"{fault} on connection {connection.number}\n{shown}", fault.code) from None
            except Broken:
                self._over("broken")
                return None
            if not piece:
                self._over("closed")
                return None
            self._blocks = self._decoder.feed(piece)
        block = self._blocks.pop(0)
        if block.comment is not None:
            if block.comment.startswith("gap "):
                connection.gaps.append(block.comment)
            return await self._next(wait_ms)
        if block.retry_ms is not None:
            self._retry_ms = block.retry_ms
        event = connection.add(block.id, json.loads(block.data) if block.data else None, block.retry_ms)
        if block.id:
            self._at[block.id] = event
            self._first_id = self._first_id or block.id
        return event

    def _drop(self) -> None:
        if self._answer is not None:
            self._answer.reset()
            self._over("cut")

    def _over(self, end: _record.How) -> None:
        if self._answer is not None:
            self._answer.close()
        self._answer = None
        self.connections[-1].end = end


class Session:
    """A session of a server, opened with `initialize`. `id` is None for a server that has no sessions."""

    def __init__(self, url: str, headers: Mapping[str, str], wait_ms: float) -> None:
        self.url, self.wait_ms = url, wait_ms
        self.id: str | None = None
        self.revision = NEWEST
        self._given = dict(headers)
        self._numbers = itertools.count(1)
        self._calls: list[Call] = []

    def _headers(self, more: Mapping[str, str]) -> dict[str, str]:
        own = {"Mcp-Session-Id": self.id} if self.id is not None else {}
        return {**self._given, **own, "Mcp-Protocol-Version": self.revision, **more}

    async def _post(self, message: Any) -> Answer:
        headers = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}
        body = json.dumps(message).encode()
        return await send(self.url, "POST", self._headers(headers), body, self.wait_ms)

    async def call(self, tool: str, arguments: Mapping[str, Any] | None = None) -> Call:
        """Call a tool, with a progress token. Returns with the head of the answer; nothing of it has been read.

        Raises TailropeError `refused` when the answer is neither a stream nor JSON.
        """
        number = next(self._numbers)
        call = Call(self, tool, number)
        params = {"name": tool, "arguments": dict(arguments or {}), "_meta": {"progressToken": call._token}}
        answer = await self._post({"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params})
        self._calls.append(call)
        await call._begin(answer, "POST", None, False)
        return call

    async def send(self, message: Mapping[str, Any]) -> int:
        """Post any other message, such as the answer to a question of the server; gives the HTTP status."""
        answer = await self._post(dict(message))
        if answer.is_stream:
            answer.reset()
        else:
            await answer.body(self.wait_ms)
        return answer.status

    def close(self) -> None:
        """Cut what is open. The session itself goes on at the server."""
        for call in self._calls:
            call._drop()

    async def delete(self) -> int:
        """End the session at the server; gives the HTTP status."""
        self.close()
        answer = await send(self.url, "DELETE", self._headers({}), None, self.wait_ms)
        await answer.body(self.wait_ms)
        return answer.status


async def open_session(
    url: str,
    *,
    revision: str = NEWEST,
    capabilities: Mapping[str, Any] | None = None,
    headers: Mapping[str, str] | None = None,
    wait_ms: float = WAIT_MS,
) -> Session:
    """Open a session at a server that runs already: `url` is that of its MCP endpoint.

    `headers` go with every request. Nothing is waited for longer than `wait_ms`. Raises TailropeError.
    """
    session = Session(url, headers or {}, wait_ms)
    session.revision = revision
    params = {
        "protocolVersion": revision,
        "capabilities": dict(capabilities or {}),
        "clientInfo": {"name": "tailrope.testing", "version": "1"},
    }
    answer = await session._post({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params})
    if answer.status != 200:
        words = (await answer.body(wait_ms))[:200].decode("utf-8", "replace")
        raise TailropeError(f"initialize: {answer.status} {words}".rstrip(), "refused", answer.status)
    result = (await _response(answer, wait_ms)).get("result")
    if result is None:
        answer.close()
        raise TailropeError("initialize was answered with an error", "refused", answer.status)
    session.id = answer.headers.get("mcp-session-id")
    session.revision = result["protocolVersion"]
    status = await session.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
    if status not in (200, 202, 204):
        raise TailropeError(f"notifications/initialized: {status}", "refused", status)
    return session


async def _response(answer: Answer, wait_ms: float) -> Any:
    """The response that an answer brings, as JSON or as a stream."""
    if not answer.is_stream:
        return json.loads(await answer.body(wait_ms))
    decoder = Decoder()
    try:
        while piece := await answer.piece(wait_ms):
            for block in decoder.feed(piece):
                message = json.loads(block.data) if block.data else {}
                if message and "method" not in message:
                    return message
    except Broken as fault:
        raise TailropeError(f"the answer was cut: {fault}", "no_connection") from fault
    finally:
        answer.close()
    raise TailropeError("the stream ended without a response", "ended_early")
