"""Our event store where the SDK takes one."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Unpack

from tailrope._options import MEMORY, Options
from tailrope._runtime import Runtime
from tailrope.mcp import _status
from tailrope.mcp._hooks import Hooks

if TYPE_CHECKING:
    from mcp.server.streamable_http import EventId, StreamId
    from mcp.types import JSONRPCMessage

    from tailrope._native import Store

logger = logging.getLogger("tailrope")


class EventStore(Hooks):
    """A bounded event store for one server, or for several, that are given it as `event_store=`.

    Where `install()`, `resumable()` or our session manager makes a server resumable, this is the store and these are
    the options of that server; each store has an engine of its own. Where the SDK's own transport serves, it keeps
    that transport's events, within what that transport can do.

    Args:
        store: an address, see `tailrope.open_store`, or a store that is open.
        options: see `tailrope.install`.

    Raises:
        ValueError: an unknown or wrong option.
        TailropeError: the store cannot be opened (code `store_not_opened`).
    """

    def __init__(self, store: str | Store = MEMORY, **options: Unpack[Options]) -> None:
        super().__init__(Runtime(dict(options), store=store), "")
        self._is_silent = False

    async def store_event(self, stream_id: StreamId, message: JSONRPCMessage | None) -> EventId:
        """Stores an event of the SDK's own transport, and says once that it is that one which serves."""
        if not self._is_silent:
            self._is_silent = True
            if not _status.is_stock_told():
                logger.warning(
                    "The SDK's own transport serves a server that has a tailrope.mcp.EventStore: its calls are not "
                    "resumed as Tailrope does it. Call tailrope.install(), or tailrope.mcp.resumable(app) for one "
                    'server; where the SDK\'s transport is meant to serve, tailrope.install(transport="stock")'
                )
        return await super().store_event(stream_id, message)

    def scoped(self, session_id: str) -> Hooks:
        """The part of the store that belongs to one session, for a transport of the SDK's that you make yourself:
        event ids of one session mean nothing in another one.

        `drop()` of what is returned forgets its events. Tailrope's transport tells sessions apart by itself.
        """
        if not session_id:
            msg = "a session id is a str that is not empty"
            raise ValueError(msg)
        return Hooks(self.runtime, session_id)
