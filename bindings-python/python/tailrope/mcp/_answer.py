"""Writes one connection to an ASGI server."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.types import Message, Receive, Send

    from tailrope._native import Connection, Refusal
    from tailrope._runtime import Loop, Runtime

logger = logging.getLogger("tailrope")

PAGE_BYTES = 256 << 10
"""What is handed to the server at once. A stalled reader holds no more than this and the server's buffers."""

GONE_S = 1.0
"""Within this time a host that could not send says whether its peer is gone."""

Headers = list[tuple[bytes, bytes]]

_JSON = (b"content-type", b"application/json")
EVENT_STREAM = "text/event-stream"
_OF_STREAM: Headers = [
    (b"cache-control", b"no-cache, no-transform"),
    (b"content-type", EVENT_STREAM.encode()),
    # Proxies that buffer would hold events back (W-030).
    (b"x-accel-buffering", b"no"),
]


def _head_of(status: int, content_type: str | None, session_id: bytes | None, retry_after_s: int | None) -> Headers:
    named = [] if session_id is None else [(b"mcp-session-id", session_id)]
    if content_type == EVENT_STREAM:
        return [*_OF_STREAM, *named]
    # As the SDK has it, also where there is nothing in the body.
    typed = [] if status == 204 else [_JSON]
    return [*typed, *named, *_retry_after(retry_after_s)]


def _retry_after(retry_after_s: int | None) -> Headers:
    return [] if retry_after_s is None else [(b"retry-after", b"%d" % retry_after_s)]


async def write_whole(send: Send, status: int, headers: Headers, body: bytes) -> None:
    """An answer that is known as a whole."""
    # Without content there is no length of it.
    if status != 204:
        headers = [*headers, (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})


async def write_refusal(send: Send, refusal: Refusal, session_id: bytes | None = None) -> None:
    """The answer to a request that is not admitted."""
    headers = [_JSON]
    if session_id is not None and refusal.names_session:
        headers.append((b"mcp-session-id", session_id))
    if refusal.allow is not None:
        headers.append((b"allow", refusal.allow.encode()))
    await write_whole(send, refusal.status, headers + _retry_after(refusal.retry_after_s), refusal.body)


async def write_json(send: Send, status: int, body: bytes) -> None:
    """An answer of JSON."""
    await write_whole(send, status, [_JSON], body)


async def begin_stream(send: Send) -> None:
    """An answer of events, which are still to come."""
    await send({"type": "http.response.start", "status": 200, "headers": _OF_STREAM})


async def end_stream(send: Send) -> None:
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def write_empty(send: Send, status: int, session_id: bytes) -> None:
    """The answer to messages and to a DELETE that were taken."""
    await write_whole(send, status, _head_of(status, None, session_id, None), b"")


async def write_connection(
    connection: Connection, runtime: Runtime, here: Loop, receive: Receive, send: Send, session_id: bytes
) -> None:
    """Writes what the engine has for the connection until it ends or the peer is gone.

    Everything that is ready goes out in one send. The loop holds no event: what it does not poll stays in
    the log. The engine cannot close a connection whose reader is behind; one that takes nothing for as long as a
    connection may last is left (I11).
    """
    if runtime.patience_s is not None:
        send = _impatient(send, runtime.patience_s)
    key = connection.key
    waiters = here.waiters
    started = False
    watcher: asyncio.Task[bool] | None = None
    try:
        while True:
            status, content_type, is_named, data, end, wait_ms, retry_after_s = connection.poll(PAGE_BYTES)
            named = session_id if is_named else None
            is_over = end is not None
            if not started and (is_over or data is not None):
                headers = _head_of(status, content_type, named, retry_after_s)
                # Middleware may change an event stream, so its length is not known even where it is complete.
                if is_over and content_type != EVENT_STREAM:
                    await write_whole(send, status, headers, data or b"")
                    return
                await send({"type": "http.response.start", "status": status, "headers": headers})
                started = True
            if is_over or data is not None:
                await send({"type": "http.response.body", "body": data or b"", "more_body": not is_over})
                if is_over:
                    return
                continue
            if started and watcher is None:
                # Only connections that live long enough to wait need to notice that their peer left.
                watcher = here.loop.create_task(until_disconnected(receive))
                watcher.add_done_callback(lambda _task: waiters.wake(key))
            future: asyncio.Future[None] = here.loop.create_future()
            if not waiters.park(key, future):
                continue
            here.arm(runtime, wait_ms)
            await future
            if watcher is not None and watcher.done() and watcher.result():
                return
    except _Stalled:
        return
    except OSError as error:
        # How ASGI says that the peer is gone (F-22). Middleware raises such errors of its own.
        if isinstance(error, ConnectionError):
            return
        watcher = watcher or here.loop.create_task(until_disconnected(receive))
        await asyncio.wait([watcher], timeout=GONE_S)
        if not watcher.done() or not watcher.result():
            raise
        logger.debug("the peer is gone: %r", error)
    finally:
        connection.lost()
        waiters.forget(key)
        # A coroutine may outlive its loop.
        if watcher is not None and not watcher.done() and not here.loop.is_closed():
            watcher.cancel()


class _Stalled(Exception):
    """The peer took nothing for as long as a connection may last."""


def _impatient(send: Send, wait_s: float) -> Send:
    """A `send` that raises `_Stalled` when the peer takes nothing for so long."""

    async def send_in_time(message: Message) -> None:
        limit = asyncio.timeout(wait_s)
        try:
            async with limit:
                await send(message)
        except TimeoutError:
            if limit.expired():
                raise _Stalled from None
            raise

    return send_in_time


def content_type_of(start: Message) -> str:
    """The content type that the start of an answer names; empty where it names none."""
    named = (value for name, value in start.get("headers", ()) if bytes(name).lower() == b"content-type")
    return bytes(next(named, b"")).decode("latin-1")


async def until_disconnected(receive: Receive) -> bool:
    """Waits until the peer is gone. False where nobody can tell any more: the answer is written all the same."""
    try:
        while (await receive())["type"] != "http.disconnect":
            pass
    except ConnectionError:
        return True
    except Exception:
        logger.exception("what is in front of the endpoint raises while it waits for the client to leave")
        return False
    return True
