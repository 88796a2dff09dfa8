"""Closing connections from a handler (SEP-1699)."""

from __future__ import annotations

from typing import Any


class Closer:
    """What a handler's context calls to close the connection of its request's stream.

    The SDK calls it without arguments. With `retry_ms` the stream's clients come back after that time, now
    and on later closes; with `hold_ms` a resumed connection is closed again after that time (0 = pure
    polling).
    """

    __slots__ = ("_transport", "request_id")

    def __init__(self, transport: Any, request_id: int | str) -> None:
        self._transport = transport
        self.request_id = request_id

    async def __call__(self, *, retry_ms: int | None = None, hold_ms: int | None = None) -> None:
        self.close(retry_ms, hold_ms)

    def close(self, retry_ms: int | None, hold_ms: int | None) -> bool:
        # What others have put around the transport's method may give nothing back.
        return self._transport.close_sse_stream(self.request_id, retry_ms, hold_ms) is not False

    def standalone(self) -> StandaloneCloser:
        return StandaloneCloser(self._transport, self.request_id)


class StandaloneCloser(Closer):
    """The same for the session's standalone stream."""

    __slots__ = ()

    def close(self, retry_ms: int | None, hold_ms: int | None) -> bool:
        return self._transport.close_standalone_sse_stream(retry_ms, hold_ms) is not False


def _callback(ctx: Any, name: str) -> Any:
    """The callback that the transport put into the message's metadata, on every SDK's context."""
    try:
        inner = getattr(ctx, "request_context", None)
    except (LookupError, ValueError):
        # The SDKs raise where a context is used outside of a request.
        return None
    return getattr(ctx if inner is None else inner, name, None)


async def _close(callback: Any, retry_ms: int | None, hold_ms: int | None) -> bool:
    if isinstance(callback, Closer):
        return callback.close(retry_ms, hold_ms)
    if callback is None:
        return False
    await callback()
    return True


async def close_sse_stream(ctx: Any, *, retry_ms: int | None = None, hold_ms: int | None = None) -> bool:
    """Closes the connection that carries this request's stream; the request runs on.

    The client comes back after `retry` and gets everything that was sent meanwhile.

    Args:
        ctx: the handler's context: of `MCPServer`, `FastMCP`, fastmcp or a lowlevel server.
        retry_ms: how long the client waits, in milliseconds, from now on for this stream.
        hold_ms: from now on a resumed connection of this stream is closed again after this time, in
            milliseconds. 0 is pure polling. After 500 resumes connections are held anyway.

    Returns:
        False where nothing can be resumed: the client negotiated a revision before 2025-11-25, or the request
        has its response already. On the SDK's own transport its callback is called, without `retry_ms` and
        `hold_ms`; False where it has none.
    """
    return await _close(_callback(ctx, "close_sse_stream"), retry_ms, hold_ms)


async def close_standalone_sse_stream(ctx: Any, *, retry_ms: int | None = None, hold_ms: int | None = None) -> bool:
    """Closes the connection of the session's standalone stream, likewise."""
    callback = _callback(ctx, "close_standalone_sse_stream")
    if callback is None and isinstance(closer := _callback(ctx, "close_sse_stream"), Closer):
        # fastmcp's context has only the other one.
        callback = closer.standalone()
    return await _close(callback, retry_ms, hold_ms)
