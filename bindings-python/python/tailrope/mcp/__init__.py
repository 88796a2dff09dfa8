"""The parts that plug into the official Python SDK, `mcp` 1.x and 2.x, and into fastmcp."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tailrope.mcp import _seam

if TYPE_CHECKING:
    from tailrope.mcp._manager import StreamableHTTPSessionManager
    from tailrope.mcp._resumable import resumable
    from tailrope.mcp._store import EventStore
    from tailrope.mcp._transport import StreamableHTTPServerTransport

__all__ = ["EventStore", "StreamableHTTPServerTransport", "StreamableHTTPSessionManager", "resumable"]

_PLACES = {
    "EventStore": "_store",
    "StreamableHTTPServerTransport": "_transport",
    "StreamableHTTPSessionManager": "_manager",
    "resumable": "_resumable",
}


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name not in _PLACES:
            msg = f"module {__name__!r} has no attribute {name!r}"
            raise AttributeError(msg)
        place = _PLACES[name]
        # Where the SDK lacks something, an ImportError would say nothing of versions.
        if place in ("_manager", "_transport"):
            _seam.check(explicit=place == "_manager")
        elif place == "_store" and (unfit := _seam.unfit_version()) is not None:
            raise _seam.unsupported(unfit)
        try:
            module = import_module(f"{__name__}.{place}")
        except ImportError as error:
            raise _seam.unsupported(str(error)) from None
        value = globals()[name] = getattr(module, name)
        return value
