"""Resumable MCP Streamable HTTP servers.

    import tailrope

    tailrope.install()

before the server is started makes every Streamable HTTP server of the process resumable: clients are
primed, connections can be closed and resumed, and nothing that was sent is lost in between.
"""

from tailrope._native import Store, TailropeError, __version__
from tailrope._runtime import drain, open_store, stats
from tailrope.mcp._close import close_sse_stream, close_standalone_sse_stream
from tailrope.mcp._install import install, uninstall

__all__ = [
    "Store",
    "TailropeError",
    "__version__",
    "close_sse_stream",
    "close_standalone_sse_stream",
    "drain",
    "install",
    "open_store",
    "stats",
    "uninstall",
]
