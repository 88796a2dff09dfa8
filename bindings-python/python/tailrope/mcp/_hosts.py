"""What the end of a host means for its sessions: connections are told to end before the host waits for them (F-44), and
sessions stay in the store, for the process that serves them next.

Each hook is in the place of a name that the host looks up when it needs it, so it works also where a worker of the host
imports the app. Where a host has no such name, its connections are cut: their sessions can be resumed all the same.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import sys
import time
import weakref
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from contextvars import ContextVar
from functools import wraps
from typing import TYPE_CHECKING, Any, Protocol

import anyio

from tailrope import _runtime
from tailrope._runtime import Tenure, arm_drain, drain_ends_at, drain_now, flush_stores

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

logger = logging.getLogger("tailrope")


class Served(Protocol):
    """A session, or a call that may become a task."""

    @property
    def has_ended(self) -> bool: ...

    @property
    def is_handing_over(self) -> bool:
        """Whether a drain waits for it."""

    def drain(self) -> None: ...


class Call(Served, Protocol):
    async def close(self) -> None:
        """Its session manager ends."""


class Host:
    """One server of the process. Its end concerns the sessions that were opened in calls of it, and no others."""

    def __init__(self, uvicorn: weakref.ref[Any] | None = None) -> None:
        self._served: weakref.WeakSet[Served] = weakref.WeakSet()
        self._is_draining = False
        self.ends_at = 0.0
        """Until when calls are waited for, however many wait for them."""
        self._uvicorn = uvicorn

    def add(self, served: Served) -> None:
        with _runtime._lock:
            self._served.add(served)
            is_draining = self._is_draining
        if is_draining:
            served.drain()

    def drain(self) -> None:
        with _runtime._lock:
            self._is_draining = self is not _unknown
        self.ends_at = drain_ends_at()
        served = [it for it in self._all() if not it.has_ended]
        if served:
            logger.info("draining, as the server stops; open sessions and tasks: %d", len(served))
        for it in served:
            it.drain()
        arm_drain()

    @property
    def is_drained(self) -> bool:
        """Whether no call is waited for: none runs whose end another process can show, the signal came again, or the
        time is over."""
        server = self._uvicorn() if self._uvicorn is not None else None
        is_over = getattr(server, "force_exit", False) or time.monotonic() >= self.ends_at
        return is_over or not any(it.is_handing_over for it in self._all())

    def _all(self) -> list[Served]:
        with _runtime._lock:
            return list(self._served)


_unknown = Host()
"""Of sessions that were opened where no server is known: every server's end is theirs."""
_current: ContextVar[Host] = ContextVar("tailrope_host", default=_unknown)
"""The server whose ASGI call this is: what a server starts with is what its connections inherit."""
_OF_UVICORN = "_tailrope_host"
"""The member of a server of uvicorn that has its host. Such servers may be subclasses that have no hash."""
FRONT_ENDS = "_tailrope_front_ends"
"""That with what ends the front before it, while it still answers what comes through that."""
_lifespans: weakref.WeakSet[asyncio.Task[Any]] = weakref.WeakSet()
"""The tasks that run session managers. Once there are sessions, all that is left for them to do is to end."""


_TENURE = "_tailrope_tenure"
"""The member of a session manager that runs."""
_CALLS = "_tailrope_calls"
"""That with its calls."""


def tenure_of(manager: Any) -> Tenure | None:
    tenure: Tenure | None = vars(manager).get(_TENURE)
    return tenure


def is_leaving() -> bool:
    """Whether the running task ends sessions only because what serves them ends: it is cancelled, or a lifespan.

    The SDK cancels the task of an idle session, too, but takes that back before it ends the session.
    """
    task = asyncio.current_task()
    return task is not None and (task.cancelling() > 0 or task in _lifespans)


def opened(served: Served) -> None:
    """It is served here from now on."""
    _current.get().add(served)


def calls_of(manager: Any) -> set[Call]:
    """The calls that a session manager serves, and that may be tasks."""
    calls: set[Call] = vars(manager).setdefault(_CALLS, set())
    return calls


async def calls_end() -> None:
    """Lets calls end whose clients go on elsewhere, where a lifespan ends sessions because its host drains."""
    if asyncio.current_task() in _lifespans:
        hosts = {_current.get(), _unknown}
        while not all(host.is_drained for host in hosts):
            await asyncio.sleep(_runtime.DRAIN_POLL_S)


@asynccontextmanager
async def running(manager: Any, stock: AbstractAsyncContextManager[None]) -> AsyncGenerator[None, None]:
    """Runs a session manager as the SDK does. Sessions that are open at its end stay in the store.

    Raises:
        TailropeError: the running loop is not asyncio's (code `not_asyncio`).
    """
    _runtime.running_loop()
    # A host may have been imported since.
    patch()
    vars(manager)[_TENURE] = Tenure()
    if (lifespan := asyncio.current_task()) is not None:
        _lifespans.add(lifespan)
    async with stock:
        try:
            yield
            await calls_end()
        finally:
            if calls := calls_of(manager):
                with anyio.CancelScope(shield=True):
                    await asyncio.gather(*(call.close() for call in list(calls)))
    for runtime in _runtime.runtimes():
        runtime.tell_drained()


def _sdk_run(stock: Any) -> Any:
    @wraps(stock)
    def run(self: Any) -> Any:
        return running(self, stock(self))

    return run


def _uvicorn_startup(stock: Any) -> Any:
    @wraps(stock)
    async def startup(self: Any, *args: Any, **kwargs: Any) -> None:
        _current.set(vars(self).setdefault(_OF_UVICORN, Host(weakref.ref(self))))
        await stock(self, *args, **kwargs)

    return startup


def _uvicorn_shutdown(stock: Any) -> Any:
    @wraps(stock)
    async def shutdown(self: Any, *args: Any, **kwargs: Any) -> None:
        host = vars(self).get(_OF_UVICORN, _unknown)
        for ending in {host, _unknown}:
            ending.drain()
        if (front_ends := vars(self).get(FRONT_ENDS)) is not None:
            await front_ends()
        await stock(self, *args, **kwargs)
        if _current.get() is host:
            _current.set(_unknown)
        # What comes next may be the signal once more, and then nothing runs at exit.
        await asyncio.to_thread(flush_stores)

    return shutdown


def _drain_all() -> None:
    """Every session is this host's, and those to come are, too."""
    drain_now()
    _unknown.ends_at = drain_ends_at()


def _gunicorn_shutdown(stock: Any) -> Any:
    @wraps(stock)
    async def shutdown(self: Any) -> None:
        _drain_all()
        await stock(self)

    return shutdown


def _hypercorn_raise_shutdown(stock: Any) -> Any:
    @wraps(stock)
    async def raise_shutdown(shutdown_event: Any) -> None:
        try:
            await stock(shutdown_event)
        finally:
            _drain_all()

    return raise_shutdown


def _granian_set_loop_signals(stock: Any) -> Any:
    class Draining:
        """The loop, which drains before it calls the handler of a signal."""

        def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
            self._loop = loop

        def add_signal_handler(self, number: int, handler: Callable[..., object], *args: Any) -> None:
            def drain_first() -> None:
                _drain_all()
                handler(*args)

            self._loop.add_signal_handler(number, drain_first)

    @wraps(stock)
    def set_loop_signals(loop: asyncio.AbstractEventLoop) -> Any:
        return stock(Draining(loop))

    return set_loop_signals


Hook = tuple[str, str, "Callable[[Any], Any]"]

_HOSTS: tuple[Hook, ...] = (
    ("uvicorn.server", "Server.startup", _uvicorn_startup),
    ("uvicorn.server", "Server.shutdown", _uvicorn_shutdown),
    ("gunicorn.workers.gasgi", "ASGIWorker._shutdown", _gunicorn_shutdown),
    ("hypercorn.asyncio.run", "raise_shutdown", _hypercorn_raise_shutdown),
    ("granian._signals", "set_loop_signals", _granian_set_loop_signals),
)
_MANAGER: tuple[Hook, ...] = (("mcp.server.streamable_http_manager", "StreamableHTTPSessionManager.run", _sdk_run),)
_hooked: dict[str, tuple[Any, str, Any, Any]] = {}
"""What is in place: where, its name, what was there before, and ours."""


def patch() -> None:
    """Puts the hooks into the hosts that are there."""
    with suppress(ImportError):
        # The SDK imports it when it serves.
        importlib.import_module("uvicorn.server")
    put(_HOSTS)


def unpatch() -> None:
    """Takes the hooks away, except those that somebody else has put one on top of."""
    take(_HOSTS)


def patch_manager() -> None:
    """Has the SDK's session managers say when they run: those that do not know of us."""
    put(_MANAGER)


def unpatch_manager() -> None:
    take(_MANAGER)


def put(hooks: tuple[Hook, ...]) -> None:
    for module_name, path, make in hooks:
        place: Any = sys.modules.get(module_name)
        *owners, name = path.split(".")
        for owner in owners:
            place = getattr(place, owner, None)
        stock = getattr(place, name, None)
        if stock is not None and f"{module_name}.{path}" not in _hooked:
            ours = make(stock)
            setattr(place, name, ours)
            _hooked[f"{module_name}.{path}"] = (place, name, stock, ours)


def has(hook: Hook) -> bool:
    """Whether the hook is in place."""
    return f"{hook[0]}.{hook[1]}" in _hooked


def take(hooks: tuple[Hook, ...]) -> None:
    for module_name, path, _make in hooks:
        place, name, stock, ours = _hooked.get(f"{module_name}.{path}", (None, "", None, None))
        if ours is not None and getattr(place, name) is ours:
            setattr(place, name, stock)
            del _hooked[f"{module_name}.{path}"]
