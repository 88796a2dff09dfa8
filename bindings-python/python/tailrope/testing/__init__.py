"""A test kit for your own server: call a tool, cut its connection, come back, and see that nothing was lost.

    from tailrope.testing import serve

    async with serve("my_server.py") as server:
        session = await server.session()
        call = await session.call("build_report", {"pages": 6})
        await call.cut(after=2)
        await call.resume()
        await call.collect()
        call.assert_exactly_once([1, 2, 3, 4, 5, 6, "6 pages"])

It speaks HTTP and knows nothing of Tailrope, so it tests any server of MCP's Streamable HTTP. docs/testing/kit.md has
the rules. It must not be imported by what a server runs.
"""

from tailrope._errors import TailropeError
from tailrope.testing._errors import NotExactlyOnce
from tailrope.testing._record import Connection, Event
from tailrope.testing._server import Server, Serving, Target, serve
from tailrope.testing._session import Call, Session, open_session

__all__ = [
    "Call",
    "Connection",
    "Event",
    "NotExactlyOnce",
    "Server",
    "Serving",
    "Session",
    "TailropeError",
    "Target",
    "open_session",
    "serve",
]
