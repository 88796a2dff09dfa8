"""The seam: our transport's class in the place of the SDK's."""

from __future__ import annotations

import inspect
import logging
import warnings
from typing import TYPE_CHECKING, Any, Literal, Unpack

import mcp.server.streamable_http as sdk_transport
import mcp.server.streamable_http_manager

from tailrope._native import Store, TailropeError
from tailrope._options import MEMORY, Options, check_prefer_resumable, check_transport, is_disabled
from tailrope._runtime import Runtime
from tailrope.mcp import _elsewhere, _engage, _hosts, _sdk, _status
from tailrope.mcp._answer import write_whole
from tailrope.mcp._store import EventStore, check_event_store
from tailrope.mcp._transport import StreamableHTTPServerTransport
from tailrope.mcp._versions import SUPPORTED, unsupported

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

logger = logging.getLogger("tailrope")

sdk_manager: Any = mcp.server.streamable_http_manager
"""Where the seam is. Untyped: a name that the module imports is what gets replaced."""

_PARAMETERS = (
    "mcp_session_id",
    "is_json_response_enabled",
    "event_store",
    "security_settings",
    "retry_interval",
    "idle_timeout",
)
_METHODS = ("connect", "handle_request", "terminate", "close_sse_stream", "close_standalone_sse_stream")

_stock_class: Any = None


class _SeamTransport(StreamableHTTPServerTransport):
    """What the SDK's session manager makes: ours where it is engaged, the SDK's otherwise."""

    _explicit = False


def install(
    *,
    store: str | Store = MEMORY,
    transport: Literal["tailrope", "stock"] = "tailrope",
    prefer_resumable: bool = True,
    on_unsupported: Literal["raise", "stock"] = "raise",
    **options: Unpack[Options],
) -> None:
    """Makes every Streamable HTTP server of the process resumable.

    For `MCPServer` and lowlevel `Server` of mcp 2.x, `FastMCP` of mcp 1.x, fastmcp 3.x and 4.x. To be
    called before the servers open sessions; called again, it replaces the options for new sessions.
    Stateless servers stay with the SDK. Does nothing while TAILROPE_DISABLE=1 is in the environment. What is in
    force afterwards is logged in one line, and told by `tailrope.status()`.

    Args:
        store: the event store: an address, see `tailrope.open_store`, or a store that is open. With one that
            outlives the process, connections of sessions that live in other processes, or lived before a restart,
            are resumed here.
        transport: `tailrope`, or `stock` to leave the SDK's transports in place, with the store behind those that
            were given none: within what these can do.
        prefer_resumable: answer requests of revision 2026-07-28, where nothing can be resumed, with the
            older revisions as supported, so that clients of both eras fall back to 2025-11-25. With False such
            requests are left to the SDK and counted, and the first one is logged as a warning.
        on_unsupported: what to do when the installed SDK is not one that Tailrope knows: `raise`, or
            leave everything `stock` with a warning.
        options: bounds and times, see `tailrope._options.Options`; durations are in milliseconds. Those of the
            store are given to `open_store()` where that opened it.

    Raises:
        ValueError: an unknown or wrong option.
        TailropeError: the SDK is not supported (code `unsupported_sdk`), or the store cannot be opened (code
            `store_not_opened`).
    """
    check_transport(transport)
    check_prefer_resumable(prefer_resumable)
    if on_unsupported not in ("raise", "stock"):
        msg = f"on_unsupported must be 'raise' or 'stock', not {on_unsupported!r}"
        raise ValueError(msg)
    if is_disabled():
        logger.warning("TAILROPE_DISABLE is set: servers stay with the SDK's own transport")
        return
    # Raises before anything has changed.
    if transport == "stock":
        stock = EventStore(store, transport="stock", **options)
    else:
        runtime = Runtime(dict(options), store=store)
    try:
        patch_seam()
    except TailropeError as error:
        if on_unsupported == "raise":
            raise
        warnings.warn(f"{error} Servers stay with the SDK's own transport.", RuntimeWarning, stacklevel=2)
        return
    _status.note_install()
    if transport == "stock":
        _engage.set_stock(stock, prefer_resumable=prefer_resumable)
    else:
        _engage.set_installed(runtime, dict(options), prefer_resumable=prefer_resumable)
    _status.log()


def uninstall() -> None:
    """Takes `install()` back: sessions that are opened from now on are served by the SDK's transport.

    Servers that were given a `tailrope.mcp.EventStore` keep it.
    """
    global _stock_class
    _engage.set_installed(None, {}, prefer_resumable=True)
    _status.note_uninstall()
    if _stock_class is not None and not _engage.stores:
        sdk_manager.StreamableHTTPServerTransport = _stock_class
        del sdk_manager.StreamableHTTPSessionManager.asgi_app
        _stock_class = None
        _hosts.unpatch()


def patch_seam() -> None:
    """Puts our class where the SDK's session manager looks for its transport.

    Raises:
        TailropeError: the SDK's seam is not the one that our class fits into (code `unsupported_sdk`).
    """
    global _stock_class
    if _stock_class is not None or is_disabled():
        return
    if (difference := _seam_difference()) is not None:
        raise unsupported(
            f"mcp {_sdk.VERSION} is not supported by this Tailrope (supported: {SUPPORTED}): {difference}."
        )
    _stock_class = sdk_manager.StreamableHTTPServerTransport
    sdk_manager.StreamableHTTPServerTransport = _SeamTransport
    sdk_manager.StreamableHTTPSessionManager.asgi_app = _Fronted()
    _hosts.patch()


def _seam_difference() -> str | None:
    """How the SDK's seam differs from what our class was written for; None when it does not."""
    stock: Any = getattr(sdk_transport, "StreamableHTTPServerTransport", None)
    known = getattr(sdk_manager, "StreamableHTTPServerTransport", None)
    if not inspect.isclass(stock) or known is not stock:
        return "its session manager does not take its transport by the known name"
    parameters = tuple(inspect.signature(sdk_transport.StreamableHTTPServerTransport).parameters)
    if parameters != _PARAMETERS:
        return f"its transport takes ({', '.join(parameters)}), not ({', '.join(_PARAMETERS)})"
    missing = [name for name in _METHODS if not callable(getattr(stock, name, None))]
    if missing:
        return f"its transport has no {', '.join(missing)}"
    return None


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
        check_event_store(manager.event_store)
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
        await write_whole(send, refusal.status, [(b"content-type", b"application/json")], refusal.body)
        return True


MAX_STEERED_BYTES = 4 << 20
"""A body that is answered without being served is read up to here, for the id of its request."""
