"""What becomes of messages whose event store answers later."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from tailrope._errors import TailropeError

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from tailrope._native import Session
    from tailrope._runtime import Loop, Runtime

logger = logging.getLogger("tailrope")


class Outcomes:
    """The late outcomes of one session's messages."""

    def __init__(self, runtime: Runtime, session: Session, here: Loop) -> None:
        self._runtime = runtime
        self._session = session
        self._here = here
        self._outcomes: dict[int, asyncio.Future[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closed = False
        self._unheard: str | None = None
        self._start(self._run()).add_done_callback(self._stopped)

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._here.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _stopped(self, task: asyncio.Task[None]) -> None:
        """Nobody hears the store's answers any more: senders that wait for one are told, now and later."""
        if self._is_closed:
            return
        fault = None if task.cancelled() else task.exception()
        if fault is not None:
            logger.error("the answers of the event store are not heard any more in one session", exc_info=fault)
        self._unheard = "the task that hears the event store was cancelled" if fault is None else repr(fault)
        for future in self._outcomes.values():
            if not future.done():
                future.set_exception(self._unknown())

    def _unknown(self) -> TailropeError:
        text = f"it is not known whether the event store has the event: {self._unheard}"
        return TailropeError(text, "store_failed")

    async def _run(self) -> None:
        key, waiters = self._session.key, self._here.waiters
        try:
            while True:
                self._perform()
                self._settle()
                # What the store does not answer in time is given up at a tick.
                self._here.arm(self._runtime, self._runtime.engine.due_in_ms())
                future: asyncio.Future[None] = self._here.loop.create_future()
                if waiters.park(key, future):
                    await future
        finally:
            waiters.forget(key)

    def _perform(self) -> None:
        """Starts what the session asks its host to do."""

    async def outcome(self, number: int, *, raises: bool) -> None:
        """Waits until the store has answered for one message.

        Raises:
            TailropeError: it was not stored, or nobody knows, and `raises` is set.
        """
        if self._unheard is not None:
            if raises:
                raise self._unknown()
            return
        future = self._outcomes[number] = self._here.loop.create_future()
        try:
            self._settle()
            await future
        except RuntimeError:
            if raises:
                raise
        finally:
            self._outcomes.pop(number, None)

    def _settle(self) -> None:
        for number, error in self._session.take_outcomes():
            future = self._outcomes.get(number)
            if future is None or future.done():
                continue
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)

    def close(self) -> None:
        """The session has ended: nothing is stored for it any more."""
        self._is_closed = True
        try:
            self._settle()
        except RuntimeError:
            logger.exception("the outcomes of a session's messages are not known")
        for task in list(self._tasks):
            task.cancel()
        for future in self._outcomes.values():
            if not future.done():
                future.set_result(None)
