"""The parts that plug into the official Python SDK, `mcp` 1.x and 2.x, and into fastmcp."""

from tailrope.mcp._store import EventStore
from tailrope.mcp._transport import StreamableHTTPServerTransport

__all__ = ["EventStore", "StreamableHTTPServerTransport"]
