"""The transport that takes the place of the SDK's `StreamableHTTPServerTransport`."""

from __future__ import annotations

from contextlib import asynccontextmanager
from functools import cache, partial
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from mcp.server.streamable_http import StreamableHTTPServerTransport as StockTransport

from tailrope._options import is_disabled
from tailrope.mcp import _adopting, _below, _engage, _hosts, _sdk
from tailrope.mcp._below import OWN
from tailrope.mcp._hooks import Hooks
from tailrope.mcp._session_server import SessionServer

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from mcp.server.streamable_http import EventStore
    from mcp.server.transport_security import TransportSecuritySettings
    from starlette.types import Receive, Scope, Send

    from tailrope.mcp._engage import Way


class _NoMore(TypedDict):
    """What further arguments are checked for: a later SDK gives them, and nobody else."""


class StreamableHTTPServerTransport(StockTransport):
    """Serves one session on the engine. Same arguments and methods as the SDK's class.

    Without a session id (stateless mode) it is the SDK's class: there is nothing to resume. Arguments that this class
    does not know go to the SDK's.
    """

    _tailrope: SessionServer | None = None
    _hooks: Hooks | None = None
    _way = staticmethod(_engage.default)

    def __init__(
        self,
        mcp_session_id: str | None,
        is_json_response_enabled: bool = False,
        event_store: EventStore | None = None,
        security_settings: TransportSecuritySettings | None = None,
        retry_interval: int | None = None,
        idle_timeout: float | None = None,
        **more: Unpack[_NoMore],
    ) -> None:
        way = None if mcp_session_id is None or is_disabled() else self._way()
        if mcp_session_id is not None and way is not None:
            runtime = way.runtime_for(event_store)
            if runtime is None:
                event_store, retry_interval = self._behind(way, event_store, mcp_session_id, retry_interval)
            else:
                adoption = _adopting.claim(runtime)
                if adoption is not None:
                    mcp_session_id = adoption.session_id
                self._tailrope = SessionServer(
                    runtime,
                    mcp_session_id,
                    json_response=is_json_response_enabled,
                    security_settings=security_settings,
                    retry_ms=retry_interval,
                    idle_timeout=idle_timeout,
                    adoption=adoption,
                )
                # When the session is idle is for the engine to say (I11).
                idle_timeout = None
        self._hooks = event_store if isinstance(event_store, Hooks) else None
        super().__init__(
            mcp_session_id,
            is_json_response_enabled=is_json_response_enabled,
            event_store=event_store,
            security_settings=security_settings,
            retry_interval=retry_interval,
            idle_timeout=idle_timeout,
            **more,
        )

    def _behind(
        self, way: Way, event_store: EventStore | None, session_id: str, retry_ms: int | None
    ) -> tuple[EventStore | None, int | None]:
        """The event store and the retry of the SDK's own transport. A store of ours is told the session."""
        if event_store is None:
            if retry_ms is None:
                retry_ms = way.runtime.engine.options()["retry_ms"]
            return Hooks(way.runtime, session_id), retry_ms
        if isinstance(event_store, Hooks):
            event_store = event_store.scoped(session_id)
        return event_store, retry_ms

    # Each of these calls the method of the SDK's class, with what others have put around it. At the bottom, the method
    # is called whose name begins with `_tailrope_`: see _below.py.

    def _around(self, name: str) -> Any:
        return getattr(super(), name) if name in _below.stock else getattr(self, OWN + name)

    def _sdks(self, name: str) -> Any:
        """The method of the SDK, for a session that is the SDK's."""
        return partial(_below.stock[name], self) if name in _below.stock else getattr(super(), name)

    @property
    def is_terminated(self) -> bool:
        """Whether the session has been ended."""
        return super().is_terminated if "is_terminated" in _below.stock else self._tailrope_is_terminated()

    def _tailrope_is_terminated(self) -> bool:
        if self._tailrope is not None:
            return self._tailrope.is_terminated
        return bool(self._sdks("is_terminated")()) if "is_terminated" in _below.stock else super().is_terminated

    @asynccontextmanager
    async def connect(self) -> AsyncGenerator[tuple[Any, Any], None]:
        """The streams for the SDK's dispatcher, as from the SDK's class."""
        async with self._around("connect")() as streams:
            yield streams

    @asynccontextmanager
    async def _tailrope_connect(self) -> AsyncGenerator[tuple[Any, Any], None]:
        if self._tailrope is None:
            try:
                async with self._sdks("connect")() as streams:
                    yield streams
            finally:
                hooks = self._hooks
                if hooks is not None and hooks.scope == self.mcp_session_id and not _hosts.is_leaving():
                    hooks.drop()
            return
        async with self._tailrope.connect(self) as opened:
            self.idle_scope = self._tailrope.idle_scope
            yield opened

    async def terminate(self) -> None:
        """Ends the session. Requests in flight get an error, later ones are answered 404.

        In a task that is cancelled, or runs a session manager, it is the server that ends: a store that outlives the
        process keeps the session.
        """
        await self._around("terminate")()

    async def _tailrope_terminate(self) -> None:
        if self._tailrope is None:
            await self._sdks("terminate")()
        else:
            # Lifespans of fastmcp end their sessions one by one.
            await _hosts.calls_end()
            self._tailrope.terminate()

    def close_sse_stream(  # type: ignore[override]
        self, request_id: int | str, retry_ms: int | None = None, hold_ms: int | None = None
    ) -> bool | None:
        """Closes the connection of a request's stream without terminating the stream. Whether it could be."""
        if self._tailrope is not None and (retry_ms, hold_ms) != (None, None):
            # What is around the SDK's method does not know of these.
            return self._tailrope.close_connection(request_id, retry_ms, hold_ms)
        return self._around("close_sse_stream")(request_id)  # type: ignore[no-any-return]

    def _tailrope_close_sse_stream(self, request_id: int | str) -> bool | None:
        if self._tailrope is None:
            return self._sdks("close_sse_stream")(request_id)  # type: ignore[no-any-return]
        return self._tailrope.close_connection(request_id, None, None)

    def close_standalone_sse_stream(  # type: ignore[override]
        self, retry_ms: int | None = None, hold_ms: int | None = None
    ) -> bool | None:
        """Closes the connection of the standalone stream without terminating the stream. Whether it could be."""
        if self._tailrope is not None and (retry_ms, hold_ms) != (None, None):
            return self._tailrope.close_standalone(retry_ms, hold_ms)
        return self._around("close_standalone_sse_stream")()  # type: ignore[no-any-return]

    def _tailrope_close_standalone_sse_stream(self) -> bool | None:
        if self._tailrope is None:
            return self._sdks("close_standalone_sse_stream")()  # type: ignore[no-any-return]
        return self._tailrope.close_standalone(None, None)

    async def _handle_request(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one HTTP request of the session.

        The SDK's `handle_request` calls it, so what others have put around that (tracing, for instance) runs here, too.
        """
        await self._around("_handle_request")(scope, receive, send)

    async def _tailrope__handle_request(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._tailrope is None:
            await self._sdks("_handle_request")(scope, receive, send)
        else:
            _sdk.settle(scope)
            await self._tailrope.serve(scope, receive, send)


@cache
def in_place_of_stock(theirs: Any) -> Any:
    """The class that others have made of the SDK's, with ours in the place of the SDK's."""
    if theirs is StockTransport:
        return StreamableHTTPServerTransport
    members = {"__module__": theirs.__module__, "__doc__": theirs.__doc__}
    return (
        theirs
        if issubclass(theirs, StreamableHTTPServerTransport)
        else type(theirs.__name__, (theirs, StreamableHTTPServerTransport), members)
    )
