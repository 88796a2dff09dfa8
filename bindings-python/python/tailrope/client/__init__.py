"""The client's half: streams that come back by themselves, below any MCP client.

    import tailrope.client
    from mcp.client.streamable_http import streamable_http_client

    async with (
        tailrope.client.http_client() as http_client,
        streamable_http_client(url, http_client=http_client) as streams,
    ):
        ...

The SDK sees one answer to each request, which does not end when connections end. Cursors, waits and new connections are
this module's business. docs/clients.md has the rules.
"""

from tailrope._errors import ErrorCode, TailropeError
from tailrope.client._factory import http_client, http_client_factory
from tailrope.client._messages import Messages, stream
from tailrope.client._options import ClientOptions, Gap, Resume, StreamOptions
from tailrope.client._transport import ResumableTransport, Streams

__all__ = [
    "ClientOptions",
    "ErrorCode",
    "Gap",
    "Messages",
    "ResumableTransport",
    "Resume",
    "StreamOptions",
    "Streams",
    "TailropeError",
    "http_client",
    "http_client_factory",
    "stream",
]
