"""Our event stores behind the hooks of the SDK's own transport, where that serves.

They keep its events. What that transport does with them they cannot mend: see docs/stores/own.md.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from mcp.server.streamable_http import EventMessage
from mcp.server.streamable_http import EventStore as SdkEventStore

from tailrope._errors import TailropeError
from tailrope.mcp import _sdk
from tailrope.mcp._engage import OwnStore

if TYPE_CHECKING:
    from mcp.server.streamable_http import EventCallback, EventId, StreamId
    from mcp.types import JSONRPCMessage

    from tailrope._native import Pending
    from tailrope._runtime import Runtime


class Hooks(SdkEventStore, OwnStore):
    """One scope of a store, as the SDK's interface asks for it."""

    def __init__(self, runtime: Runtime, scope: str) -> None:
        self.runtime = runtime
        self.scope = scope

    def scoped(self, session_id: str) -> Hooks:
        """This part itself: it belongs to one session already."""
        return self

    async def store_event(self, stream_id: StreamId, message: JSONRPCMessage | None) -> EventId:
        """Stores an event of the SDK's own transport.

        Raises:
            TailropeError: the store did not take it.
        """
        await self.runtime.ready()
        kind, payload = _sdk.NOTIFICATION, b""
        if message is not None:
            kind, _, payload = _sdk.outgoing(message)
        waiters = self.runtime.here().waiters
        pending = self.runtime.hook_log.store(waiters, self.scope, str(stream_id), kind, payload)
        return str(await self._told(pending))

    async def replay_events_after(self, last_event_id: EventId, send_callback: EventCallback) -> StreamId | None:
        """Replays for the SDK's own transport. None when the id means nothing here, or what came after it is not
        all there any more.

        Raises:
            TailropeError: the store could not be read.
        """
        await self.runtime.ready()
        waiters = self.runtime.here().waiters
        replay = await self._told(self.runtime.hook_log.replay(waiters, self.scope, str(last_event_id)))
        if replay is None:
            return None
        stream_id, events = replay
        for event_id, payload in events:
            await send_callback(EventMessage(_sdk.parse(payload), event_id))
        return str(stream_id)

    def drop(self) -> None:
        """Forgets what was stored in this scope: its session has ended."""
        self.runtime.hook_log.drop_scope(self.scope)

    async def _told(self, pending: Pending) -> Any:
        is_told, value = pending.take()
        if is_told:
            return value
        here = self.runtime.here()
        try:
            async with asyncio.timeout(self.runtime.store_timeout_s):
                while not is_told:
                    future: asyncio.Future[None] = here.loop.create_future()
                    if here.waiters.park(pending.key, future):
                        await future
                    is_told, value = pending.take()
        except TimeoutError:
            raise TailropeError("the event store did not answer in time", "store_timed_out") from None
        return value
