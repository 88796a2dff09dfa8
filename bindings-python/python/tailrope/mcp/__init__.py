"""The parts that plug into the official Python SDK, `mcp` 1.x and 2.x, and into fastmcp."""

from tailrope.mcp._versions import check_sdk

# Before anything of the SDK is imported: one that is too old lacks names, and an ImportError says nothing of versions.
check_sdk()

from tailrope.mcp._store import EventStore  # noqa: E402
from tailrope.mcp._transport import StreamableHTTPServerTransport  # noqa: E402

__all__ = ["EventStore", "StreamableHTTPServerTransport"]
