"""Runs the operations of an event store that a user wrote against the SDK's interface.

The engine says what to store and in which order; here it is only done, each call bounded in time.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from tailrope.mcp import _sdk
from tailrope.mcp._outcomes import Outcomes

if TYPE_CHECKING:
    from mcp.server.streamable_http import EventMessage

    from tailrope._native import Session
    from tailrope._runtime import Loop, Runtime

logger = logging.getLogger("tailrope")


class UserStore(Outcomes):
    """A user's store at work for one session."""

    def __init__(self, runtime: Runtime, session: Session, here: Loop) -> None:
        assert runtime.host_store is not None
        self._store: Any = runtime.host_store()
        self._timeout_s = runtime.store_timeout_s
        self._max_replay_bytes = runtime.engine.options()["max_bytes_per_stream"]
        super().__init__(runtime, session, here)

    def _perform(self) -> None:
        for number, stream, payload, last_event_id in self._session.take_operations():
            if stream is not None:
                self._start(self._store_event(number, stream, payload))
            elif last_event_id is not None:
                self._start(self._replay(number, last_event_id))

    async def _store_event(self, number: int, stream: str, payload: bytes | None) -> None:
        try:
            message = None if payload is None else _sdk.parse(payload)
            async with asyncio.timeout(self._timeout_s):
                event_id = await self._store.store_event(stream, message)
            if not isinstance(event_id, str):
                msg = f"store_event() returned {type(event_id).__name__}, not str"
                raise TypeError(msg)
            # Raises for text that cannot be on the wire.
            self._session.stored(number, event_id)
        except (Exception, asyncio.CancelledError) as error:
            if _is_cancelled(error):
                raise
            # Whatever a user's store raises harms this event and no other (I9). A store may also be cancelled
            # from within; an event without an outcome would hold up its stream for ever.
            logger.exception("event store failed to store an event")
            self._session.not_stored(number, _describe(error))

    async def _replay(self, number: int, last_event_id: str) -> None:
        events: list[tuple[str | None, bytes | None]] = []
        size = 0

        async def collect(event: EventMessage) -> None:
            nonlocal size
            message: Any = event.message
            payload = None if message is None else _sdk.dump(message)
            size += len(payload or b"")
            if size > self._max_replay_bytes:
                raise _ReplayTooLarge
            events.append((event.event_id, payload))

        try:
            async with asyncio.timeout(self._timeout_s):
                stream = await self._store.replay_events_after(last_event_id, collect)
            # Raises for ids that are none.
            self._session.replayed(number, stream if isinstance(stream, str) else None, events)
        except _ReplayTooLarge:
            logger.warning("event store replays more than max_bytes_per_stream = %d", self._max_replay_bytes)
            self._session.replayed(number, None, [])
        except (Exception, asyncio.CancelledError) as error:
            if _is_cancelled(error):
                raise
            logger.exception("event store failed to replay")
            self._session.not_replayed(number, _describe(error))


class _ReplayTooLarge(Exception):
    """The replay of a user's store does not fit into the bounds of a stream."""


def _is_cancelled(error: BaseException) -> bool:
    """Whether it is the task that was cancelled, and not something in the store."""
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0


def _describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
