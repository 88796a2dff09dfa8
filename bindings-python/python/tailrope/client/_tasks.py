"""POSTs of 2026-07-28, where no stream is resumed: tasks outlive connections instead.

What is asked about a task is sent until it is answered, because no SDK asks twice. A tool's call of a client that knows
no tasks declares them, and if it becomes one, the task is followed here: the client gets one answer to its call.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from typing import TYPE_CHECKING, Any

from tailrope._native import ClientRepeats, FollowedCall
from tailrope.client._library import body_class, need_asyncio, retry_after_ms
from tailrope.client._stream import Connection, headers_of, now_ms

if TYPE_CHECKING:
    from tailrope.client._transport import ResumableTransport

logger = logging.getLogger("tailrope.client")

CANCEL_S = 5.0
"""How long a task that nobody waits for is cancelled, before its transport closes."""
# Of the decoded body, whose length and framing are other ones.
NOT_OURS = ("content-encoding", "content-length", "transfer-encoding")

Post = tuple[str, str | None, bytes]


async def post(transport: ResumableTransport, request: Any, version: str | None) -> Any:
    """The answer to a POST that is no part of a stream. What concerns no task passes."""
    body, native = b"", transport.settings.native
    with contextlib.suppress(transport.library.RequestNotRead):
        # What is made while it is sent is of no MCP client.
        body = request.content
    repeats, call = ClientRepeats.of(version, body, native), FollowedCall.of(version, body, native)
    if repeats is None and call is None:
        return await transport._inner.handle_async_request(request)
    need_asyncio()
    if repeats is not None:
        return await repeated(transport, request, repeats)
    assert call is not None
    following = Following(transport, request, call, version)
    if call.has_task:
        await following.ask(call.first())
        return following.answer({})
    response = await transport._inner.handle_async_request(following.request(call.first()))
    content_type = response.headers.get("content-type", "").lower()
    if response.status_code == 200 and content_type.startswith("text/event-stream"):
        following.connection = Connection(response)
        return following.answer(response.headers)
    if response.status_code != 200 or not content_type.startswith("application/json"):
        return response
    whole = await read(transport, response)
    return following.answer(response.headers) if call.created(whole.content) else whole


async def read(transport: ResumableTransport, response: Any) -> Any:
    """The same answer with its whole body."""
    try:
        content = await response.aread()
    finally:
        await response.aclose()
    return transport.library.Response(
        response.status_code, headers=kept(response.headers), content=content, extensions=response.extensions
    )


def kept(headers: Any) -> list[tuple[str, str]]:
    return [(name, value) for name, value in headers.multi_items() if name.lower() not in NOT_OURS]


async def repeated(transport: ResumableTransport, request: Any, repeats: ClientRepeats) -> Any:
    """Sends a request about a task until its answer is one. It does the same however often it comes."""
    while True:
        answer = fault = retry_ms = None
        try:
            answer = await read(transport, await transport._inner.handle_async_request(request))
            retry_ms = retry_after_ms(answer.headers)
        except Exception as error:
            fault = error
        status = None if answer is None else answer.status_code
        wait_ms = repeats.after(now_ms(), random.getrandbits(32), status, retry_ms)
        if wait_ms is None:
            if fault is not None:
                raise fault
            return answer
        logger.debug("a request about a task is sent again: %s", fault or status)
        await asyncio.sleep(wait_ms / 1_000)
        request.headers.update(dict(await headers_of(transport.settings)))


class Following:
    """One call whose task is followed: the source of the body that its client reads."""

    def __init__(self, transport: ResumableTransport, request: Any, call: FollowedCall, version: str | None) -> None:
        self._transport, self._request, self._call, self._version = transport, request, call, version
        self.connection: Connection | None = None
        self._ready = b""
        self._after_ms: int | None = None
        self._is_over = False

    def answer(self, headers: Any) -> Any:
        library = self._transport.library
        own = library.Headers(kept(headers) if headers else None)
        own["content-type"] = "text/event-stream"
        return library.Response(200, headers=own, stream=body_class(library)(self))

    def request(self, post: Post) -> Any:
        """The client's request with this message."""
        method, name, body = post
        began = self._request
        headers = began.headers.copy()
        headers.pop("content-length", None)
        headers.pop("transfer-encoding", None)
        headers["mcp-method"] = method
        if name is not None:
            headers.pop("mcp-name", None)
            if name.isascii() and name.isprintable():
                headers["mcp-name"] = name
        extensions = {name: value for name, value in began.extensions.items() if name != "trace"}
        return self._transport.library.Request("POST", began.url, headers=headers, content=body, extensions=extensions)

    async def ask(self, post: Post) -> None:
        """Asks about the task."""
        repeats = ClientRepeats.of(self._version, post[2], self._transport.settings.native)
        assert repeats is not None
        began_ms = now_ms()
        try:
            answer = await repeated(self._transport, self.request(post), repeats)
        except Exception as fault:
            logger.debug("a task is not followed any more: %r", fault)
            self._ready, self._after_ms = self._call.gave_up(1, now_ms() - began_ms)
        except BaseException:
            self._cancel()
            raise
        else:
            self._ready, self._after_ms = self._call.answered(answer.status_code, answer.content)

    async def read(self) -> bytes | None:
        """What the client reads next; None at the end."""
        try:
            while not self._ready and not self._is_over:
                await self._turn()
        except BaseException:
            await self.aclose()
            raise
        frames, self._ready = self._ready, b""
        return frames or None

    async def _turn(self) -> None:
        if self._call.is_over:
            self._is_over = True
        elif self.connection is not None:
            await self._read(self.connection)
        else:
            await asyncio.sleep((self._call.pause_ms if self._after_ms is None else self._after_ms) / 1_000)
            await self.ask(self._call.poll())

    async def _read(self, connection: Connection) -> None:
        chunk = await connection.read()
        if chunk is not None:
            self._ready = self._call.data(chunk)
        if chunk is None or self._call.has_task:
            self.connection = None
            await connection.close()
            self._is_over = not self._call.has_task

    async def aclose(self) -> None:
        """The client waits no more. As long as there is no task, the end of the connection says so."""
        if self.connection is not None:
            await self.connection.close()
        if not self._is_over:
            self._is_over = True
            self._cancel()

    def _cancel(self) -> None:
        cancel = self._call.cancel()
        if cancel is not None:
            self._transport.cancel(self._cancelled(cancel))

    async def _cancelled(self, cancel: Post) -> None:
        repeats = ClientRepeats.of(self._version, cancel[2], self._transport.settings.native)
        assert repeats is not None
        with contextlib.suppress(Exception):
            async with asyncio.timeout(CANCEL_S):
                await repeated(self._transport, self.request(cancel), repeats)
