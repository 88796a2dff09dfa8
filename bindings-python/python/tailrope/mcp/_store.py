"""Our event store where the SDK takes one."""

from __future__ import annotations

import secrets
from collections import deque
from itertools import islice
from typing import TYPE_CHECKING, Unpack

from mcp.server.streamable_http import EventMessage
from mcp.server.streamable_http import EventStore as SdkEventStore

from tailrope._native import Engine
from tailrope._options import MEMORY, Options, check_store
from tailrope._runtime import Runtime
from tailrope.mcp import _sdk

if TYPE_CHECKING:
    from mcp.server.streamable_http import EventCallback, EventId, StreamId
    from mcp.types import JSONRPCMessage

EVENT_OVERHEAD = 256
"""What an event costs besides its message, in bytes."""


class EventStore(SdkEventStore):
    """A bounded event store. Passed to a server as `event_store=`, it makes that server resumable.

    Making one puts Tailrope's transport in place for the servers that get it, without `install()`. The
    options are those of `install()`; each store has an engine, and so bounds, of its own. Where the SDK's own
    transport serves (TAILROPE_DISABLE), it keeps that transport's events, within what that transport can do.

    Args:
        store: the address of the store: `memory:`.
        options: see `tailrope.install`.

    Raises:
        ValueError: an unknown address or option.
    """

    def __init__(self, store: str = MEMORY, **options: Unpack[Options]) -> None:
        from tailrope.mcp import _engage, _install

        check_store(store)
        self.runtime = Runtime(dict(options))
        _engage.stores.add(self)
        _install.patch_seam()

        self._stock = _StockLog(Engine(**self.runtime.options).options())

    async def store_event(self, stream_id: StreamId, message: JSONRPCMessage | None) -> EventId:
        """Stores an event for the SDK's own transport, as under TAILROPE_DISABLE. Ours has no use for it."""
        return self._stock.append(stream_id, message)

    async def replay_events_after(self, last_event_id: EventId, send_callback: EventCallback) -> StreamId | None:
        """Replays for the SDK's own transport. None when the event was dropped, or never was."""
        stream_id, events = self._stock.after(last_event_id)
        for event_id, message in events:
            await send_callback(EventMessage(message, event_id))
        return stream_id


class _StockLog:
    """What the SDK's own transport stored: bounded by events for each stream and by bytes in all."""

    def __init__(self, options: dict[str, int]) -> None:
        self._max_events = options["max_events_per_stream"]
        self._max_bytes = options["max_bytes"]
        self._bytes = 0
        # Oldest first.
        self._events: dict[EventId, tuple[StreamId, JSONRPCMessage | None, int]] = {}
        self._streams: dict[StreamId, deque[EventId]] = {}

    def append(self, stream_id: StreamId, message: JSONRPCMessage | None) -> EventId:
        # The SDK's transport looks ids up for any session: they must not be guessed.
        event_id = secrets.token_urlsafe(16)
        size = EVENT_OVERHEAD + (0 if message is None else len(_sdk.dump(message)))
        self._events[event_id] = (stream_id, message, size)
        self._bytes += size
        ids = self._streams.setdefault(stream_id, deque())
        ids.append(event_id)
        if len(ids) > self._max_events:
            self._drop(ids[0])
        while self._bytes > self._max_bytes and len(self._events) > 1:
            self._drop(next(iter(self._events)))
        return event_id

    def _drop(self, event_id: EventId) -> None:
        """Drops an event, the oldest of its stream."""
        stream_id, _, size = self._events.pop(event_id)
        self._bytes -= size
        ids = self._streams[stream_id]
        ids.popleft()
        if not ids:
            del self._streams[stream_id]

    def after(self, event_id: EventId) -> tuple[StreamId | None, list[tuple[EventId, JSONRPCMessage]]]:
        """The stream of an event, and its messages after it."""
        if event_id not in self._events:
            return None, []
        stream_id = self._events[event_id][0]
        ids = self._streams[stream_id]
        later = ((id, self._events[id][1]) for id in islice(ids, ids.index(event_id) + 1, None))
        return stream_id, [(id, message) for id, message in later if message is not None]


def unwrap(event_store: SdkEventStore | None) -> SdkEventStore | None:
    """The store inside fastmcp's per-session wrapper. Our sessions are apart without it."""
    inner = getattr(event_store, "_event_store", None)
    if type(event_store).__name__ == "SessionScopedEventStore" and isinstance(inner, SdkEventStore):
        return inner
    return event_store
