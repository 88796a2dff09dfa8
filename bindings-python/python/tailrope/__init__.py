"""Resumable MCP Streamable HTTP servers.

    import tailrope

    tailrope.install()

before the server is started makes every Streamable HTTP server of the process resumable: clients are
primed, connections can be closed and resumed, and nothing that was sent is lost in between.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tailrope._errors import ErrorCode, TailropeError
from tailrope._native import Store, __version__
from tailrope._options import AdoptedSession, Options, Pace, PaceOptions, Principal, StoreOptions
from tailrope._runtime import drain, open_store
from tailrope._watching import Health, health, live, metrics, metrics_endpoint, readyz, stats

if TYPE_CHECKING:
    # Not in `__all__`: `from tailrope import *` would put our `mcp` in the place of the SDK's.
    from tailrope import client as client
    from tailrope import mcp as mcp
    from tailrope import testing as testing
    from tailrope._serving.server import serve, serve_async
    from tailrope.mcp._close import close_sse_stream, close_standalone_sse_stream
    from tailrope.mcp._install import install, uninstall
    from tailrope.mcp._status import ServersStatus, Status, status

__all__ = [
    "AdoptedSession",
    "ErrorCode",
    "Health",
    "Options",
    "Pace",
    "PaceOptions",
    "Principal",
    "ServersStatus",
    "Status",
    "Store",
    "StoreOptions",
    "TailropeError",
    "__version__",
    "close_sse_stream",
    "close_standalone_sse_stream",
    "drain",
    "health",
    "install",
    "live",
    "metrics",
    "metrics_endpoint",
    "open_store",
    "readyz",
    "serve",
    "serve_async",
    "stats",
    "status",
    "uninstall",
]

_MODULES = ("client", "mcp", "testing")
# What needs the SDK is imported when it is asked for: a client, or a test, needs no server of it.
_OF_SDK = {
    "close_sse_stream": "mcp._close",
    "close_standalone_sse_stream": "mcp._close",
    "install": "mcp._install",
    "serve": "_serving.server",
    "serve_async": "_serving.server",
    "uninstall": "mcp._install",
    "ServersStatus": "mcp._status",
    "Status": "mcp._status",
    "status": "mcp._status",
}


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name in _MODULES:
            return import_module(f"{__name__}.{name}")
        if name in _OF_SDK:
            value = globals()[name] = getattr(import_module(f"{__name__}.{_OF_SDK[name]}"), name)
            return value
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
