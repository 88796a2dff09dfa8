"""Which engine serves a transport: the process's, a store's own, or none (the SDK's transport serves)."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, Literal

from tailrope._native import Store
from tailrope._options import is_disabled
from tailrope._runtime import Runtime

if TYPE_CHECKING:
    from mcp.server.streamable_http import EventStore as SdkEventStore


class OwnStore:
    """What our event stores have beside the SDK's interface. Known here without anything of the SDK."""

    runtime: Runtime
    stock: bool
    """Whether the SDK's transport is to serve also where ours could."""
    prefer_resumable = True

    def scoped(self, session_id: str) -> Any:
        """The part of the store that belongs to one session."""
        raise NotImplementedError


stores: weakref.WeakSet[OwnStore] = weakref.WeakSet()
"""Our own stores that were made: each engages the servers it is passed to."""

_installed: dict[str, Any] | None = None
_default: Runtime | None = None
_stock: OwnStore | None = None
"""What serves the SDK's own transports, where `install(transport="stock")` left them in place."""
_prefer_resumable = True
"""Whether `install()` has clients of 2026-07-28 fall back."""
_user_stores: list[tuple[weakref.ref[Any], Runtime]] = []


def set_installed(runtime: Runtime | None, options: dict[str, Any], *, prefer_resumable: bool) -> None:
    """Engages every server of the process with this engine; None engages none. Users' own stores get `options`."""
    global _installed, _default, _stock, _prefer_resumable
    _installed, _default, _stock = None if runtime is None else options, runtime, None
    _prefer_resumable = prefer_resumable
    _user_stores.clear()


def set_stock(store: OwnStore, *, prefer_resumable: bool) -> None:
    """Leaves the SDK's transports in place, with this store behind those that were given none."""
    global _installed, _default, _stock, _prefer_resumable
    _installed, _default, _stock = None, None, store
    _prefer_resumable = prefer_resumable
    _user_stores.clear()


def hooks_for(
    event_store: SdkEventStore | None, session_id: str, retry_ms: int | None
) -> tuple[SdkEventStore | None, int | None]:
    """The event store and the retry of a transport of the SDK's own. A store of ours is told the session."""
    if is_disabled():
        return event_store, retry_ms
    if event_store is None and _stock is not None:
        if retry_ms is None:
            retry_ms = _stock.runtime.engine.options()["retry_ms"]
        return _stock.scoped(session_id), retry_ms
    if isinstance(event_store, OwnStore):
        event_store = event_store.scoped(session_id)
    return event_store, retry_ms


def installed() -> tuple[Literal["tailrope", "stock"], Runtime, bool] | None:
    """What `install()` has put in force: whose transport serves, its engine, and whether clients of 2026-07-28 are
    steered."""
    if _stock is not None:
        return "stock", _stock.runtime, _prefer_resumable
    return None if _installed is None else ("tailrope", default_runtime(), _prefer_resumable)


def serving(event_store: SdkEventStore | None) -> tuple[Runtime, bool] | None:
    """The engine of a session manager with this event store, and whether its clients of 2026-07-28 are steered to a
    revision that can resume. None where nothing of ours is in force."""
    if is_disabled():
        return None
    inner = unwrap(event_store)
    if isinstance(inner, OwnStore):
        return None if inner.stock else (inner.runtime, inner.prefer_resumable)
    if _stock is not None:
        return _stock.runtime, _prefer_resumable
    runtime = runtime_for(event_store, explicit=False)
    return None if runtime is None else (runtime, _prefer_resumable)


def default_runtime() -> Runtime:
    """The engine of the process."""
    global _default
    if _default is None:
        _default = Runtime({})
    return _default


def runtime_for(event_store: SdkEventStore | None, *, explicit: bool) -> Runtime | None:
    """The engine for a transport with this event store; None when the SDK's transport has to serve.

    A store that was passed to the SDK wins over the default one. `explicit` is for transports that the
    user made, which are engaged without `install()`.
    """
    if is_disabled():
        return None
    inner = unwrap(event_store)
    if isinstance(inner, OwnStore):
        return None if inner.stock else inner.runtime
    if _stock is not None or (_installed is None and not explicit):
        return None
    return default_runtime() if inner is None else _runtime_of(inner)


def _runtime_of(store: SdkEventStore) -> Runtime:
    """The engine whose events a user's own store holds. One for each store, whatever it defines as equal."""
    for known, runtime in _user_stores:
        if known() is store:
            return runtime
    _user_stores[:] = [entry for entry in _user_stores if entry[0]() is not None]
    runtime = Runtime({} if _installed is None else _installed, host_store=weakref.proxy(store))
    _user_stores.append((weakref.ref(store), runtime))
    return runtime


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
    if type(event_store).__name__ != "SessionScopedEventStore":
        return event_store
    inner: SdkEventStore | None = getattr(event_store, "_event_store", event_store)
    return inner
