"""The seam: our transport's class in the place of the SDK's, and ours in front of its session managers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mcp.server.streamable_http_manager
from mcp.server.streamable_http import StreamableHTTPServerTransport as StockTransport

from tailrope._options import is_disabled
from tailrope.mcp import _elsewhere, _engage, _hosts, _sdk, _seam
from tailrope.mcp._answer import write_refusal
from tailrope.mcp._transport import StreamableHTTPServerTransport

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

sdk_manager: Any = mcp.server.streamable_http_manager
"""Where the seam is. Untyped: a name that the module imports is what gets replaced."""

_before: Any = None
"""The class that the session manager had, where ours is in its place."""
_ours: Any = None


def patch() -> None:
    """Puts our class where the SDK's session manager looks for its transport.

    Raises:
        TailropeError: the SDK is not one that our class fits into (code `unsupported_sdk`).
    """
    global _before, _ours
    if _ours is not None or is_disabled():
        return
    _seam.check()
    _before = sdk_manager.StreamableHTTPServerTransport
    # Somebody else's class between ours and the SDK's, of a tracing library for instance, stays there.
    between = () if _before is StockTransport else (_before,)
    members = {"__module__": __name__, "__doc__": StreamableHTTPServerTransport.__doc__, "_explicit": False}
    _ours = type("SeamTransport", (StreamableHTTPServerTransport, *between), members)
    sdk_manager.StreamableHTTPServerTransport = _ours
    sdk_manager.StreamableHTTPSessionManager.asgi_app = _Fronted()
    _hosts.patch()


def unpatch() -> None:
    """Takes ours away. Where somebody else's class is on top of ours, ours stays under it and serves nothing."""
    global _before, _ours
    if _ours is None or sdk_manager.StreamableHTTPServerTransport is not _ours:
        return
    sdk_manager.StreamableHTTPServerTransport = _before
    del sdk_manager.StreamableHTTPSessionManager.asgi_app
    _before = _ours = None
    _hosts.unpatch()


class _Fronted:
    """A session manager's `asgi_app`, through which all its requests go, with ours in front of it. It stands in the
    class, so that managers that were made before have it too, and lose it again with `uninstall()`."""

    def __get__(self, manager: Any, owner: Any = None) -> Any:
        if manager is None:
            return self
        try:
            return _Front(manager, manager.__dict__["asgi_app"])
        except KeyError:
            raise AttributeError("asgi_app") from None

    def __set__(self, manager: Any, app: ASGIApp) -> None:
        # The manager is just being made: what is wrong with its store is better told now than to its first client.
        _engage.check_event_store(manager.event_store)
        manager.__dict__["asgi_app"] = app


class _Front:
    """In front of a session manager: steers clients of both eras to a revision that can resume, and serves readers
    of sessions that the manager does not have and the event store knows."""

    def __init__(self, manager: Any, app: ASGIApp) -> None:
        self._manager = manager
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        session_id = _elsewhere.wanted_session(self._manager, scope)
        if session_id is not None and await _elsewhere.serve(self._manager, session_id, scope, receive, send):
            return
        if not await self._steered(scope, receive, send):
            await self._app(scope, receive, send)

    async def _steered(self, scope: Scope, receive: Receive, send: Send) -> bool:
        """Whether this was a request of a revision without resumption, and is answered."""
        if scope["type"] != "http" or scope["method"] != "POST" or self._manager.stateless:
            return False
        requested = _sdk.modern_revision(scope)
        serving = None if requested is None else _engage.serving(self._manager.event_store)
        if requested is None or serving is None:
            return False
        runtime, prefer_resumable = serving
        if not prefer_resumable:
            runtime.engine.left_to_sdk(requested)
            return False
        body = b""
        while len(body) <= MAX_STEERED_BYTES:
            message = await receive()
            if message["type"] != "http.request":
                return True
            body += message.get("body", b"")
            if not message.get("more_body", False):
                break
        refusal = runtime.engine.steer(body, requested)
        await write_refusal(send, refusal)
        return True


MAX_STEERED_BYTES = 4 << 20
"""A body that is answered without being served is read up to here, for the id of its request."""
