"""Which engine serves a transport: the process's, a store's own, or none (the SDK's transport serves)."""

from __future__ import annotations

import os
import weakref
from typing import TYPE_CHECKING, Any

from tailrope._runtime import Runtime
from tailrope.mcp._store import EventStore, unwrap

if TYPE_CHECKING:
    from mcp.server.streamable_http import EventStore as SdkEventStore

stores: weakref.WeakSet[EventStore] = weakref.WeakSet()
"""Our own stores that were made: each engages the servers it is passed to."""

_installed: dict[str, Any] | None = None
_default: Runtime | None = None
_user_stores: list[tuple[weakref.ref[Any], Runtime]] = []


def is_disabled() -> bool:
    """The kill switch: with TAILROPE_DISABLE=1 in the environment everything is stock."""
    return os.environ.get("TAILROPE_DISABLE", "") not in ("", "0")


def set_installed(options: dict[str, Any] | None) -> None:
    """Engages every server of the process with these options; None engages none."""
    global _installed, _default
    # Raises before anything has changed.
    runtime = None if options is None else Runtime(options)
    _installed, _default = options, runtime
    _user_stores.clear()


def default_runtime() -> Runtime:
    """The engine of the process."""
    global _default
    if _default is None:
        _default = Runtime({} if _installed is None else _installed)
    return _default


def runtime_for(event_store: SdkEventStore | None, *, explicit: bool) -> Runtime | None:
    """The engine for a transport with this event store; None when the SDK's transport has to serve.

    A store that was passed to the SDK wins over the default one. `explicit` is for transports that the
    user made, which are engaged without `install()`.
    """
    if is_disabled():
        return None
    inner = unwrap(event_store)
    if isinstance(inner, EventStore):
        return inner.runtime
    if _installed is None and not explicit:
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
