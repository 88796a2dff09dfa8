"""Engines and event loops: which engine serves, who ticks it, what happens at exit and after a fork."""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import threading
import weakref
from typing import Any

from tailrope._native import Engine, TailropeError, Waiters, set_log_level

logger = logging.getLogger("tailrope")

_lock = threading.Lock()
_engines: weakref.WeakSet[Runtime] = weakref.WeakSet()
_loops: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Loop] = weakref.WeakKeyDictionary()
_current = threading.local()

DEFAULT_DRAIN_MS = 5_000
"""The `retry` of a drain that names none: what a restart usually takes."""


class Loop:
    """What Tailrope keeps for one event loop: who waits there, and the timers of the engines served there."""

    __slots__ = ("__weakref__", "_timers", "loop", "waiters")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._timers: dict[Runtime, tuple[float, asyncio.Handle]] = {}
        # The native side must not keep a closed loop alive through its wake-up.
        me = weakref.ref(self)

        def notify() -> bool:
            there = me()
            if there is None or there.loop.is_closed():
                return False
            there.loop.call_soon_threadsafe(there.waiters.resolve)
            return True

        self.waiters = Waiters(notify)

    def arm(self, runtime: Runtime, wait_ms: int) -> None:
        """Makes sure that the engine is ticked within `wait_ms`."""
        due = self.loop.time() + min(wait_ms, 60_000) / 1_000
        armed = self._timers.get(runtime)
        if armed is not None:
            # The handle cannot be asked: uvloop's, of a time that has come, has no `when`.
            if armed[0] <= due:
                return
            armed[1].cancel()
        self._timers[runtime] = (due, self.loop.call_at(due, self._tick, runtime))

    def _tick(self, runtime: Runtime) -> None:
        del self._timers[runtime]
        set_log_level(logger.getEffectiveLevel())
        runtime.engine.tick()
        # Retention goes on while there are sessions; without any, nothing keeps the engine.
        if not runtime.engine.is_idle():
            self.arm(runtime, max(runtime.engine.due_in_ms(), 1))


class Runtime:
    """An engine with its options, made when it is first needed and again after a fork."""

    def __init__(self, options: dict[str, Any], host_store: Any = None) -> None:
        self.options = options
        # The event store that a user wrote, which then holds the events; None where ours does.
        self.host_store = host_store
        # Wrong options are reported where they are given, not when the first session opens.
        self.store_timeout_s = Engine(**options).options()["store_timeout_ms"] / 1_000
        self._engine: Engine | None = None
        self._pid = os.getpid()
        with _lock:
            _engines.add(self)

    @property
    def engine(self) -> Engine:
        """The engine of this process."""
        if self._engine is None:
            with _lock:
                if self._engine is None:
                    set_log_level(logger.getEffectiveLevel())
                    self._engine = Engine(self.host_store is not None, **self.options)
        return self._engine

    def stats(self) -> dict[str, int]:
        return self._engine.stats() if self._engine is not None else {}

    def drain(self, retry_ms: int | None) -> None:
        if self._engine is not None:
            self._engine.drain(retry_ms if retry_ms is not None else max(DEFAULT_DRAIN_MS, self._retry_ms()))

    def _retry_ms(self) -> int:
        return int(self.engine.options()["retry_ms"])

    def close(self) -> None:
        if self._engine is not None:
            self._engine.close()

    def after_fork(self) -> None:
        # The child gets an engine of its own; whoever still holds the old one is told so.
        if self._engine is not None:
            self._engine.mark_forked()
            self._engine = None


def current_loop() -> Loop:
    """What belongs to the running loop.

    Raises:
        TailropeError: the running loop is not asyncio's (code `not_asyncio`).
    """
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        error = TailropeError("Tailrope serves on asyncio event loops (asyncio, uvloop); no other is supported")
        error.code = "not_asyncio"
        raise error from None
    # The last loop of the thread is nearly always the right one.
    cached: tuple[asyncio.AbstractEventLoop, Loop] | None = getattr(_current, "pair", None)
    if cached is not None and cached[0] is loop:
        return cached[1]
    with _lock:
        here = _loops.get(loop)
        if here is None:
            # What is kept for a loop refers to it, so it does not go by itself.
            for closed in [known for known in _loops if known.is_closed()]:
                del _loops[closed]
            here = _loops[loop] = Loop(loop)
    _current.pair = (loop, here)
    return here


def runtimes() -> list[Runtime]:
    """Every engine of the process."""
    with _lock:
        return list(_engines)


def stats() -> dict[str, int]:
    """What Tailrope did and holds in this process, by name.

    Counts of the present: `sessions`, `connections`, `streams`, `events`, `bytes`. Counts since the start:
    everything else, among them resumes by outcome (`resumes_*`), `gaps`, `takeovers`, closes by reason
    (`closes_*`) and `connections_lost`. Several engines are added up.
    """
    total: dict[str, int] = dict(Engine().stats())
    for runtime in runtimes():
        for name, value in runtime.stats().items():
            total[name] += value
    return total


def drain_now(retry_ms: int | None = None) -> None:
    """Begins the drain of every engine, without waiting for it. Any thread may call it."""
    for runtime in runtimes():
        runtime.drain(retry_ms)


async def drain(*, retry_ms: int | None = None, budget_ms: int = 1_000) -> bool:
    """Closes every connection because the process is going away.

    Each connection ends with an id and a `retry`, so that its client comes back after the restart; what
    connects meanwhile gets its priming event and ends as well. Calls of clients that negotiated a revision
    before 2025-11-25, which cannot be closed early, get a JSON-RPC error. There is no way back: a process that
    serves on calls `tailrope.install()` again, for new sessions.

    Args:
        retry_ms: when clients come back, in milliseconds: what the restart takes. Default 5,000, or the
            configured `retry_ms` if that is more.
        budget_ms: how long to wait for the connections to end, in milliseconds.

    Returns:
        Whether all connections ended within the budget.
    """
    drain_now(retry_ms)
    loop = asyncio.get_running_loop()
    end = loop.time() + budget_ms / 1_000
    while any(runtime.stats().get("connections", 0) for runtime in runtimes()):
        if loop.time() >= end:
            return False
        await asyncio.sleep(0.01)
    return True


def _after_fork() -> None:
    global _lock
    # Another thread may have held the lock when this process was forked off.
    _lock = threading.Lock()
    _current.__dict__.clear()
    _loops.clear()
    for runtime in list(_engines):
        runtime.after_fork()


def _at_exit() -> None:
    for runtime in runtimes():
        runtime.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
atexit.register(_at_exit)
