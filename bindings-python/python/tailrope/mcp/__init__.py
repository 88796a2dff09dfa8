"""The parts that plug into the official Python SDK, `mcp` 1.x and 2.x, and into fastmcp."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tailrope.mcp import _seam

if TYPE_CHECKING:
    from tailrope.mcp._store import EventStore
    from tailrope.mcp._transport import StreamableHTTPServerTransport

__all__ = ["EventStore", "StreamableHTTPServerTransport"]

_PLACES = {"EventStore": "_store", "StreamableHTTPServerTransport": "_transport"}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    # Where the SDK lacks something, an ImportError would say nothing of versions.
    _seam.check()
    value = globals()[name] = getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)
    return value
