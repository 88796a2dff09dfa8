"""The ways into Tailrope that are in force, and which engine serves a session by them."""

from __future__ import annotations

import logging
import weakref
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Literal

from tailrope._native import Store
from tailrope._options import MEMORY, check_prefer_resumable, is_disabled
from tailrope._runtime import Runtime, Tenure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mcp.server.streamable_http import EventStore as SdkEventStore

logger = logging.getLogger("tailrope")

serving: ContextVar[Tenure | None] = ContextVar("tailrope_serving", default=None)
"""The session manager whose request this is, where it runs."""


class OwnStore:
    """What our event stores have beside the SDK's interface. Known here without anything of the SDK."""

    runtime: Runtime


class Way:
    """What makes servers resumable, with its options: `install()`, `resumable()` or a session manager of ours.

    Raises:
        ValueError: an unknown or wrong option.
        TailropeError: the store cannot be opened (code `store_not_opened`).
    """

    def __init__(
        self,
        options: dict[str, Any],
        *,
        store: str | Store = MEMORY,
        prefer_resumable: bool = True,
        transport: Literal["tailrope", "stock"] = "tailrope",
    ) -> None:
        check_prefer_resumable(prefer_resumable)
        self.runtime = Runtime(options, store=store)
        self.prefer_resumable = prefer_resumable
        self.transport: Literal["tailrope", "stock"] = transport
        """Whose transport serves: the SDK's has our store behind it, where the server has none."""
        self._options = options
        self._user_stores: list[tuple[Callable[[], Any], Runtime]] = []

    @property
    def address(self) -> str:
        """Of the store, without user, password and options."""
        return "" if self.runtime.store is None else self.runtime.store.address

    def runtime_for(self, event_store: SdkEventStore | None) -> Runtime | None:
        """The engine for a session of a server with this event store; None where the SDK's transport has to serve.

        A store that the server was given wins over the way's own. A server that a drain was for stays with the engine
        that drains.
        """
        runtime = self._first_for(event_store)
        tenure = serving.get()
        return runtime if runtime is None or (tenure is not None and tenure.is_drained) else runtime.current

    def _first_for(self, event_store: SdkEventStore | None) -> Runtime | None:
        if is_disabled() or self.transport == "stock":
            return None
        inner = unwrap(event_store)
        if inner is None:
            return self.runtime
        if type(inner) in _stock_for:
            return None
        return inner.runtime if isinstance(inner, OwnStore) else self._runtime_of(inner)

    def _runtime_of(self, store: SdkEventStore) -> Runtime:
        """The engine whose events a user's own store holds. One for each store, whatever it defines as equal."""
        for known, runtime in self._user_stores:
            if known() is store:
                return runtime
        self._user_stores[:] = [entry for entry in self._user_stores if entry[0]() is not None]
        reference = _reference(store)
        runtime = Runtime(self._options, host_store=reference)
        self._user_stores.append((reference, runtime))
        return runtime


def _reference(store: Any) -> Callable[[], Any]:
    """The store, which goes with its servers, as does its engine. A class with `__slots__` may forbid that."""
    try:
        return weakref.ref(store)
    except TypeError:
        return lambda: store


@contextmanager
def engine_bounds(manager: Any, runtime: Runtime | None) -> Iterator[None]:
    """While a session manager admits a session: the engine, which knows whose session is idle, bounds the number of
    sessions, where the manager's own bound is no tighter. The manager then has room for as many again: sessions whose
    first request is still read, and those that gave way and have still to go."""
    bound = getattr(manager, "max_sessions", None)
    if runtime is None or bound is None or bound < runtime.max_sessions:
        yield
        return
    manager.max_sessions = 2 * bound
    try:
        yield
    finally:
        manager.max_sessions = bound


installed: Way | None = None
"""The way of every server of the process that has none of its own: that of `install()`."""
explicit: weakref.WeakSet[Way] = weakref.WeakSet()
"""The ways of single servers that are in use."""
_default: Way | None = None


def default() -> Way:
    """The way of transports that users make themselves."""
    global _default
    if installed is not None:
        return installed
    if _default is None:
        _default = Way({})
    return _default


_stock_for: dict[type, str] = {}
"""Classes of event stores whose servers stay with the SDK's transport, and why."""


def check_manager(manager: Any) -> None:
    """Checks what a session manager has as its event store. One that is a wrapper which we do not know, another one for
    each session, leaves its server with the SDK's transport.

    Raises:
        TypeError: it is none, and the first session would fail.
    """
    given = getattr(manager, "event_store", None)
    check_event_store(given)
    kind = type(given)
    if unwrap(given) is unwrap(getattr(manager, "event_store", None)) or kind in _stock_for:
        return
    _stock_for[kind] = (
        f"{kind.__module__}.{kind.__qualname__} is another event store for each session, around one that Tailrope "
        "cannot find: servers with it stay with the SDK's own transport"
    )
    logger.error("%s.", _stock_for[kind])


def notices() -> list[str]:
    """Why servers stay with the SDK's transport although a way is in force."""
    return list(_stock_for.values())


def check_event_store(given: Any) -> None:
    """Checks what a server is given as its event store.

    Raises:
        TypeError: it is none, and the first session would fail.
    """
    if given is None or (hasattr(given, "store_event") and hasattr(given, "replay_events_after")):
        return
    if isinstance(given, str):
        # An address may have a password in it.
        shown = "'...'" if "@" in given else repr(given)
        msg = f"event_store={shown} is an address. A server takes an event store: tailrope.mcp.EventStore({shown})"
    elif isinstance(given, Store):
        msg = f"event_store={given!r} is an open store. A server takes an event store: tailrope.mcp.EventStore(store)"
    else:
        msg = (
            f"event_store={type(given).__name__}(...) has no store_event() and replay_events_after(). A server takes "
            "an instance of a subclass of the SDK's EventStore, or tailrope.mcp.EventStore(...)"
        )
    raise TypeError(msg)


def unwrap(event_store: SdkEventStore | None) -> SdkEventStore | None:
    """The store inside fastmcp's per-session wrapper. Our sessions are apart without it."""
    kind = type(event_store)
    if kind.__name__ != "SessionScopedEventStore" or kind.__module__.partition(".")[0] != "fastmcp":
        return event_store
    inner: SdkEventStore | None = getattr(event_store, "_event_store", event_store)
    return inner
