"""An event store of your own (here: SQLite) under Tailrope's transport, for mcp 2.x.

The class is written against the SDK's interface and knows nothing of Tailrope. What it must do: hand out ids that are
unique and visible ASCII, keep a stream's order, and never mix two streams. Stream names that Tailrope passes in are
unique across sessions, so no session can read another's events here.
"""

import asyncio
import os
import secrets
import sqlite3
import tempfile

import tailrope
from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.server.streamable_http import EventCallback, EventId, EventMessage, EventStore, StreamId
from mcp_types import JSONRPCMessage, jsonrpc_message_adapter

KEPT_EVENTS = 10_000


class SqliteEventStore(EventStore):
    """Keeps the newest `kept_events` events of all streams in one table."""

    def __init__(self, path: str, kept_events: int = KEPT_EVENTS) -> None:
        self._kept_events = kept_events
        self._db = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute(
            "CREATE TABLE IF NOT EXISTS events (seq INTEGER PRIMARY KEY AUTOINCREMENT,"
            " event_id TEXT UNIQUE NOT NULL, stream TEXT NOT NULL, message TEXT)"
        )
        self._db.execute("CREATE INDEX IF NOT EXISTS by_stream ON events (stream, seq)")
        # One connection, one user at a time: SQLite calls run in threads so that a slow disk blocks no event loop.
        self._lock = asyncio.Lock()

    async def store_event(self, stream_id: StreamId, message: JSONRPCMessage | None) -> EventId:
        # A priming event has no message; it is stored too, because a client may resume from it.
        text = None if message is None else message.model_dump_json(by_alias=True, exclude_unset=True)
        event_id = secrets.token_urlsafe(16)
        async with self._lock:
            await asyncio.to_thread(self._append, event_id, stream_id, text)
        return event_id

    def _append(self, event_id: str, stream_id: str, text: str | None) -> None:
        row = self._db.execute(
            "INSERT INTO events (event_id, stream, message) VALUES (?, ?, ?)", (event_id, stream_id, text)
        )
        self._db.execute("DELETE FROM events WHERE seq <= ?", ((row.lastrowid or 0) - self._kept_events,))

    async def replay_events_after(self, last_event_id: EventId, send_callback: EventCallback) -> StreamId | None:
        async with self._lock:
            stream_id, rows = await asyncio.to_thread(self._read_after, last_event_id)
        for event_id, text in rows:
            await send_callback(EventMessage(jsonrpc_message_adapter.validate_json(text), event_id))
        return stream_id

    def _read_after(self, last_event_id: str) -> tuple[str | None, list[tuple[str, str]]]:
        found = self._db.execute("SELECT stream, seq FROM events WHERE event_id = ?", (last_event_id,)).fetchone()
        if found is None:
            return None, []
        query = "SELECT event_id, message FROM events WHERE stream = ? AND seq > ? AND message NOT NULL ORDER BY seq"
        return found[0], self._db.execute(query, found).fetchall()


tailrope.install()
mcp = MCPServer("reports")


@mcp.tool()
async def build_report(pages: int, ctx: Context) -> str:
    """Build a report page by page, without keeping a connection open all the while."""
    for page in range(1, pages + 1):
        await asyncio.sleep(0.05)
        await ctx.report_progress(page, pages, f"page {page}")
        if page == pages // 2:
            await ctx.close_sse_stream()
    return f"{pages} pages"


if __name__ == "__main__":
    path = os.environ.get("EVENTS_DB") or os.path.join(tempfile.mkdtemp(), "events.db")
    # A store that is passed to the SDK wins over the one that install() would use.
    store = SqliteEventStore(path)
    mcp.run(transport="streamable-http", port=int(os.environ.get("PORT", "8000")), event_store=store)
