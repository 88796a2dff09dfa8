"""Engines and event loops: which engine serves, who ticks it, what happens at exit and after a fork."""

from __future__ import annotations

import asyncio
import atexit
import copy
import logging
import multiprocessing
import os
import threading
import time
import weakref
from contextlib import suppress
from contextvars import Context
from multiprocessing.util import Finalize
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Unpack

from tailrope import _telemetry
from tailrope._errors import TailropeError
from tailrope._native import Engine, Signal, Store, Waiters, before_fork, forked, milliseconds, set_log_level
from tailrope._native import open_store as _open_store
from tailrope._options import (
    MEMORY,
    STORE_OPTIONS,
    Options,
    check_log_calls,
    check_names,
    check_store,
    checked_hook,
    checked_list,
    checked_name,
    checked_paces,
    checked_principal,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.requests import Request

    from tailrope._native import HookLog, _HealthParts
    from tailrope._options import AdoptedSession, StoreOptions

logger = logging.getLogger("tailrope")

_lock = threading.Lock()
_engines: weakref.WeakSet[Runtime] = weakref.WeakSet()
_loops: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Loop] = weakref.WeakKeyDictionary()
_current = threading.local()
_tenures: weakref.WeakSet[Tenure] = weakref.WeakSet()
_left_in = 0
"""The child of `multiprocessing` that leaves at its end."""


class Loop:
    """What Tailrope keeps for one event loop: who waits there, and the timers of the engines served there."""

    __slots__ = ("__weakref__", "_is_signalled", "_timers", "_waiting", "loop", "waiters")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._timers: dict[Runtime, tuple[float, asyncio.Handle]] = {}
        self._is_signalled = False
        self._waiting: tuple[Signal, threading.Thread] | None = None
        # The native side must not keep a closed loop alive through its wake-up.
        me = weakref.ref(self)

        def notify() -> bool:
            there = me()
            if there is None or there.loop.is_closed():
                return False
            there.loop.call_soon_threadsafe(there.waiters.resolve)
            return True

        self.waiters = Waiters(notify)

    def open_signal(self) -> None:
        """Lets the threads of event stores wake what waits here, from now on."""
        if self._is_signalled:
            return
        self._is_signalled = True
        signal = self.waiters.open_signal(True)
        if signal.descriptor is not None:
            with suppress(NotImplementedError):
                # Only the loop holds the signal: it is closed with the loop. It has no context of a user.
                Context().run(self.loop.add_reader, signal.descriptor, signal.resolve)
                return
        # A loop that watches no descriptors, as on Windows.
        signal.close()
        signal = self.waiters.open_signal(False)
        thread = threading.Thread(target=_wait, args=(self.loop, signal), name="tailrope-signal", daemon=True)
        self._waiting = (signal, thread)
        thread.start()

    def close_signal(self) -> None:
        """Ends the thread that waits for this loop, if there is one."""
        if self._waiting is not None:
            signal, thread = self._waiting
            signal.close()
            thread.join(1)

    def arm(self, runtime: Runtime, wait_ms: int) -> None:
        """Makes sure that the engine is ticked within `wait_ms`."""
        due = self.loop.time() + wait_ms / 1_000
        armed = self._timers.get(runtime)
        if armed is not None:
            # The handle cannot be asked: uvloop's, of a time that has come, has no `when`.
            if armed[0] <= due:
                return
            armed[1].cancel()
        self._timers[runtime] = (due, self.loop.call_at(due, self._tick, runtime, context=Context()))

    def _tick(self, runtime: Runtime) -> None:
        del self._timers[runtime]
        set_log_level(logger.getEffectiveLevel())
        try:
            for session_name in runtime.engine.tick():
                server = runtime.servers.get(session_name)
                if server is not None:
                    server.become_idle()
        except RuntimeError:
            # The next tick has to come all the same.
            logger.exception("a tick of the engine failed")
        # Retention goes on while there are sessions; without any, nothing keeps the engine.
        if not runtime.engine.is_idle():
            self.arm(runtime, max(runtime.engine.due_in_ms(), 1))


def _wait(loop: asyncio.AbstractEventLoop, signal: Signal) -> None:
    while signal.wait():
        try:
            loop.call_soon_threadsafe(signal.resolve)
        except RuntimeError:
            # The loop is closed.
            signal.close()


def open_store(address: str, **options: Unpack[StoreOptions]) -> Store:
    """Opens an event store, for `install(store=...)` and `tailrope.mcp.EventStore(store=...)`.

    Waits for the disk or the network, so that a store that cannot be used is known at the start. What a store was
    given is written by the time the process exits; nothing has to be closed. A child of a fork opens its own.

    Args:
        address: `memory:`, in this process; `sqlite:PATH`, in a file that the processes of one machine share.
        options: its bounds and what it promises, see `tailrope.StoreOptions`.

    Raises:
        TailropeError: there is no such kind of store, or this one cannot be used (code `store_not_opened`). The
            text names the address without user, password and options.
        ValueError: an unknown or wrong option.
    """
    check_store(address)
    check_names(options, STORE_OPTIONS)
    return _open_store(address, **options)


class Server(Protocol):
    """Serves one session."""

    def become_idle(self) -> None:
        """The engine says that the session is idle, or has ended by itself. Called on any thread."""


class Tenure:
    """A server that runs. A drain that begins meanwhile is for every session that it will ever open."""

    def __init__(self) -> None:
        self.is_drained = False
        with _lock:
            _tenures.add(self)


class Runtime:
    """An engine with its options, made when it is first needed and again after a fork.

    Its store is opened at once, so that an address that cannot be used fails where it is given.
    """

    def __init__(
        self, options: dict[str, Any], host_store: Callable[[], Any] | None = None, store: str | Store = MEMORY
    ) -> None:
        check_names(options, Options.__optional_keys__)
        check_store(store)
        options = dict(options)
        self.principal: Callable[[Request], str | None] | None = checked_principal(options.pop("principal", None))
        self.log_user: Callable[[Request], str | None] | None = checked_principal(
            options.pop("log_user", None), "log_user"
        )
        check_log_calls(options.get("log_calls", False))
        self.server_name = checked_name(options.pop("server_name", None))
        self.relayed_headers = checked_list("relayed_headers", "headers", options.pop("relayed_headers", ()))
        self.relayed_state = checked_list(
            "relayed_state", "members of scope['state']", options.pop("relayed_state", ())
        )
        self.on_adopted: Callable[[AdoptedSession], Any] | None = checked_hook(options.pop("on_adopted", None))
        of_store = {name: value for name, value in options.items() if name in STORE_OPTIONS}
        # Gives the event store that a user wrote, which then holds the events; None where ours does.
        self.host_store = host_store
        if host_store is not None:
            for of_ours in ("durability", "encryption_keys"):
                of_store.pop(of_ours, None)
        elif isinstance(store, Store) and of_store:
            msg = f"{', '.join(of_store)}: options of the store, which is open already: give them to open_store()"
            raise ValueError(msg)
        self.options = {name: value for name, value in options.items() if name not in STORE_OPTIONS}
        if "identity_headers" in self.options:
            names = checked_list("identity_headers", "headers", self.options["identity_headers"])
            self.options["identity_headers"] = [name.lower() for name in names]
        if "pace" in self.options:
            self.options["pace"] = checked_paces(self.options["pace"])
        # Wrong options are reported where they are given, not when the first session opens.
        engine = Engine(**self.options)
        checked = engine.options()
        self.store_timeout_s = checked["store_timeout_ms"] / 1_000
        patience_ms = engine.patience_ms()
        self.patience_s = None if patience_ms is None else patience_ms / 1_000
        self.max_sessions = checked["max_sessions"]
        self.drain_within_ms = checked["drain_within_ms"]
        self.store: Store | None = None
        if host_store is not None:
            self.options |= of_store
        else:
            self.store = store if isinstance(store, Store) else _open_store(store, **of_store)
        # Who serves sessions, by the sessions' names; on any loop.
        self.servers: weakref.WeakValueDictionary[str, Server] = weakref.WeakValueDictionary()
        # Of its store, so it stays; known with the first engine.
        self.answers_elsewhere: bool | None = None
        self._begin()
        with _lock:
            _engines.add(self)

    def _begin(self) -> None:
        self._opening = threading.Lock()
        self._engine: Engine | None = None
        self._hook_log: HookLog | None = None
        self._drain: _Drain | None = None
        self._next: Runtime | None = None
        self.is_fronted = False
        """Whether a front serves sessions of it, on threads of its own."""

    @property
    def current(self) -> Runtime:
        """The engine of what is made from now on. A drain is for what was there: its engine drains for ever."""
        while self._next is None:
            if self._drain is None or self.drained(self._drain.within_ms) is None:
                return self
            renewed = copy.copy(self)
            renewed.servers = weakref.WeakValueDictionary()
            renewed._begin()
            with _lock:
                if self._next is None:
                    self._next = renewed
                    _engines.add(renewed)
        # Those in between are let go.
        self._next = self._next.current
        return self._next

    def drain(self, drain: _Drain) -> None:
        """Begins a drain, also of an engine that is still to be made."""
        self._drain = drain
        if self._engine is not None:
            self._engine.drain(drain.retry_ms, drain.spread_ms)

    def drained(self, within_ms: int | None) -> bool | None:
        """Whether a drain left nothing, once it is over."""
        return True if self._engine is None else self._engine.drained(within_ms)

    @property
    def engine(self) -> Engine:
        """The engine of this process."""
        if self._engine is None:
            if self.store is not None:
                # It may wait for a network, and nobody else is to wait for the lock of the process meanwhile.
                with self._opening:
                    self.store.open_here()
            with _lock:
                if self._engine is None:
                    set_log_level(logger.getEffectiveLevel())
                    engine = Engine(self.host_store is not None, self.store, **self.options)
                    self._engine = engine
                    _leave_with_multiprocessing()
                drain = self._drain
            if drain is not None:
                self.drain(drain)
        return self._engine

    async def ready(self) -> None:
        """Opens the store off the event loop, where that is to be done again: in the child of a fork."""
        if self._engine is None and self.store is not None and not self.store.is_open_here:
            await asyncio.to_thread(lambda: self.engine)

    @property
    def hook_log(self) -> HookLog:
        """The log of the SDK's own transports that this engine's store serves."""
        if self._hook_log is None:
            self._hook_log = self.engine.hook_log()
        return self._hook_log

    def here(self) -> Loop:
        """What belongs to the running loop, ready for this engine.

        Raises:
            TailropeError: the running loop is not asyncio's (code `not_asyncio`).
        """
        here = current_loop()
        _telemetry.look()
        if self.answers_elsewhere is None:
            self.answers_elsewhere = self.engine.answers_elsewhere()
        if self.answers_elsewhere or self.is_fronted:
            here.open_signal()
        return here

    def tell_drained(self) -> None:
        if self._engine is not None:
            self._engine.tell_drained()

    @property
    def counts(self) -> Engine | None:
        """The engine whose numbers count, if there is one."""
        return self._engine

    def health(self) -> _HealthParts | None:
        """None where there is no engine, or another one has taken its place after a drain."""
        return self._engine.health() if self._engine is not None and self._next is None else None

    def watched(self) -> Engine | None:
        return self._engine

    def leave(self) -> None:
        if self._engine is not None:
            self._engine.leave()

    def flush(self) -> None:
        if self._engine is not None:
            self._engine.flush()

    def after_fork(self) -> None:
        # Another thread may have held it.
        self._opening = threading.Lock()
        # The child gets an engine of its own; what still uses the old one gets an error.
        if self._engine is not None:
            self._engine.mark_forked()
            self._engine = self._hook_log = None
        # It was the parent that went away.
        self._drain = None
        self.servers.clear()


SERVES_ON_ASYNCIO = (
    "Tailrope serves on asyncio event loops (asyncio, uvloop), and none runs here: run the server on asyncio, "
    "or leave it to the SDK with TAILROPE_DISABLE=1 in the environment"
)


def running_loop(text: str = SERVES_ON_ASYNCIO) -> asyncio.AbstractEventLoop:
    """The running loop. `text` says what needs one of asyncio's.

    Raises:
        TailropeError: it is not asyncio's (code `not_asyncio`).
    """
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        raise TailropeError(text, "not_asyncio") from None


def current_loop() -> Loop:
    """What belongs to the running loop.

    Raises:
        TailropeError: the running loop is not asyncio's (code `not_asyncio`).
    """
    loop = running_loop()
    # The last loop of the thread is nearly always the right one.
    cached: tuple[asyncio.AbstractEventLoop, Loop] | None = getattr(_current, "pair", None)
    if cached is not None and cached[0] is loop:
        return cached[1]
    with _lock:
        here = _loops.get(loop)
        if here is None:
            # What is kept for a loop refers to it, so it does not go by itself.
            for closed in [known for known in _loops if known.is_closed()]:
                _loops.pop(closed).close_signal()
            here = _loops[loop] = Loop(loop)
    _current.pair = (loop, here)
    return here


def runtimes() -> list[Runtime]:
    """Every engine of the process."""
    with _lock:
        return list(_engines)


class _Drain(NamedTuple):
    retry_ms: int | None
    spread_ms: int | None
    within_ms: int | None


def drain_now(retry_ms: int | None = None, spread_ms: int | None = None, within_ms: int | None = None) -> list[Runtime]:
    """Begins the drain of every engine, without waiting for it, and gives them. Any thread may call it."""
    with _lock:
        for tenure in _tenures:
            tenure.is_drained = True
    draining = runtimes()
    for runtime in draining:
        runtime.drain(_Drain(retry_ms, spread_ms, within_ms))
    arm_drain()
    return draining


def arm_drain() -> None:
    """Lets the engines be ticked when a drain is over: then calls that cannot be handed over get an error."""
    with suppress(TailropeError):
        # A thread without a loop. The loops of the sessions tick later then.
        here = current_loop()
        for runtime in runtimes():
            if runtime._engine is not None:
                here.arm(runtime, runtime._engine.due_in_ms())


async def drain(*, retry_ms: int | None = None, spread_ms: int | None = None, within_ms: int | None = None) -> bool:
    """Closes every connection because the process is going away, and lets calls run on that other processes can show.

    Each connection ends with an id and a `retry`, so that its client comes back; what connects meanwhile gets its
    priming event and ends as well, and no session is opened (503). Session managers that run, and transports that are
    there, are drained for ever; those that begin once this is over are not. With a store that several processes share,
    clients go on at another process: they are sent there what their calls still send here, and a session goes there as
    soon as no call of it runs here.
    Calls of clients that cannot be told to come back (those of a revision before 2025-11-25, and those that are
    answered in JSON) run on; those that still run when `drain_within_ms` is over get a JSON-RPC error.

    Args:
        retry_ms: when clients come back at the earliest, in milliseconds: what the restart takes. Default the option
            `drain_retry_ms`.
        spread_ms: each client is told up to this much more, in milliseconds, so that not all come back at once. Default
            the option `drain_spread_ms`.
        within_ms: how long to wait for connections to end, and for calls, in milliseconds from the first drain on.
            Default the option `drain_within_ms`. Calls that run on behind it end when the process does, with an error.

    Returns:
        Whether nothing is left: no connection, and no call that another process could show the end of.
    """
    # It waits on no other kind of loop.
    running_loop()
    retry_ms = milliseconds("retry_ms", retry_ms)
    spread_ms = milliseconds("spread_ms", spread_ms)
    within_ms = milliseconds("within_ms", within_ms)
    draining = drain_now(retry_ms, spread_ms, within_ms)
    while None in (left := [runtime.drained(within_ms) for runtime in draining]):
        await asyncio.sleep(DRAIN_POLL_S)
    return all(left)


DRAIN_POLL_S = 0.01


def drain_ends_at() -> float:
    """Until when a drain that begins now waits, by the monotonic clock."""
    within_ms = max((runtime.drain_within_ms for runtime in runtimes()), default=0)
    return time.monotonic() + within_ms / 1_000


def flush_stores() -> None:
    """Waits until the stores that outlive the process have written what they were given."""
    for runtime in runtimes():
        runtime.flush()


def _after_fork() -> None:
    forked()
    global _lock
    # Another thread may have held the lock when this process was forked off.
    _lock = threading.Lock()
    _current.__dict__.clear()
    _loops.clear()
    for runtime in list(_engines):
        runtime.after_fork()


def _leave_with_multiprocessing() -> None:
    """A child of `multiprocessing`, as the workers of hosts are, does not run what `atexit` has at its end."""
    global _left_in
    if multiprocessing.parent_process() is not None and _left_in != os.getpid():
        _left_in = os.getpid()
        Finalize(None, _at_exit, exitpriority=0)


def _at_exit() -> None:
    for here in list(_loops.values()):
        here.close_signal()
    for runtime in runtimes():
        runtime.leave()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=before_fork, after_in_parent=forked, after_in_child=_after_fork)
atexit.register(_at_exit)
