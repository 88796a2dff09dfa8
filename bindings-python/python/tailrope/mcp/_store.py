"""Our event store where the SDK takes one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

from mcp.server.streamable_http import EventStore as SdkEventStore

from tailrope._options import MEMORY, Options, check_store
from tailrope._runtime import Runtime

if TYPE_CHECKING:
    from mcp.server.streamable_http import EventCallback, EventId, StreamId
    from mcp.types import JSONRPCMessage


class EventStore(SdkEventStore):
    """A bounded event store. Passed to a server as `event_store=`, it makes that server resumable.

    Making one puts Tailrope's transport in place for the servers that get it, without `install()`. The
    options are those of `install()`; each store has an engine, and so bounds, of its own.

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

    async def store_event(self, stream_id: StreamId, message: JSONRPCMessage | None) -> EventId:
        """Not used by Tailrope's transport, and nothing that a stock transport could rely on.

        Raises:
            RuntimeError: always: the SDK's own transport serves this session.
        """
        raise RuntimeError(_STOCK)

    async def replay_events_after(self, last_event_id: EventId, send_callback: EventCallback) -> StreamId | None:
        """As `store_event`."""
        raise RuntimeError(_STOCK)


_STOCK = (
    "tailrope.mcp.EventStore serves Tailrope's transport, but the SDK's own transport is in use: "
    "remove TAILROPE_DISABLE, or pass another event store"
)


def unwrap(event_store: SdkEventStore | None) -> SdkEventStore | None:
    """The store inside fastmcp's per-session wrapper. Our sessions are apart without it."""
    inner = getattr(event_store, "_event_store", None)
    if type(event_store).__name__ == "SessionScopedEventStore" and isinstance(inner, SdkEventStore):
        return inner
    return event_store
