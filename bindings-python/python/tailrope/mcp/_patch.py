"""What `install()` changes in the SDK: our transport's class in the place of its own, and ours in front of its session
managers."""

from __future__ import annotations

from typing import Any

import mcp.server.streamable_http_manager
from mcp.server.streamable_http import StreamableHTTPServerTransport as StockTransport

from tailrope.mcp import _engage, _hosts
from tailrope.mcp._front import Fronted
from tailrope.mcp._transport import StreamableHTTPServerTransport

sdk_manager: Any = mcp.server.streamable_http_manager
"""Where the seam is. Untyped: a name that the module imports is what gets replaced."""

_before: Any = None
"""The class that the session manager had, where ours is in its place."""
_ours: Any = None


def patch() -> None:
    """Puts our class where the SDK's session manager looks for its transport. The SDK is one that it fits into."""
    global _before, _ours
    if _ours is not None:
        return
    _before = sdk_manager.StreamableHTTPServerTransport
    # Somebody else's class between ours and the SDK's, of a tracing library for instance, stays there.
    between = () if _before is StockTransport else (_before,)
    members = {
        "__module__": __name__,
        "__doc__": StreamableHTTPServerTransport.__doc__,
        "_way": staticmethod(lambda: _engage.installed),
    }
    _ours = type("SeamTransport", (StreamableHTTPServerTransport, *between), members)
    sdk_manager.StreamableHTTPServerTransport = _ours
    sdk_manager.StreamableHTTPSessionManager.asgi_app = Fronted(lambda _manager: _engage.installed)
    _hosts.patch()
    _hosts.patch_manager()


def unpatch() -> None:
    """Takes ours away. Where somebody else's class is on top of ours, ours stays under it and serves nothing."""
    global _before, _ours
    if _ours is None or sdk_manager.StreamableHTTPServerTransport is not _ours:
        return
    sdk_manager.StreamableHTTPServerTransport = _before
    del sdk_manager.StreamableHTTPSessionManager.asgi_app
    _before = _ours = None
    _hosts.unpatch_manager()
    if not _engage.explicit:
        _hosts.unpatch()
