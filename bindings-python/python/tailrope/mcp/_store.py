"""Our event store where the SDK takes one."""

from __future__ import annotations

from typing import Any, Literal, Unpack

from mcp.server.streamable_http import EventStore as SdkEventStore

from tailrope._native import Store
from tailrope._options import MEMORY, Options, check_prefer_resumable, check_transport
from tailrope._runtime import Runtime
from tailrope.mcp._hooks import Hooks


class EventStore(Hooks):
    """A bounded event store. Passed to a server as `event_store=`, it makes that server resumable.

    Making one puts Tailrope's transport in place for the servers that get it, without `install()`. The
    options are those of `install()`; each store has an engine, and so options, of its own. Where the SDK's own
    transport serves (`transport="stock"`, TAILROPE_DISABLE), it keeps that transport's events, within what that
    transport can do.

    Args:
        store: an address, see `tailrope.open_store`, or a store that is open.
        transport: `tailrope`, or `stock` to leave the SDK's transport in place.
        prefer_resumable: as `install()` has it, for the servers that get this store. On the SDK's own transport it has
            no effect.
        options: see `tailrope.install`.

    Raises:
        ValueError: an unknown or wrong option.
        TailropeError: the store cannot be opened (code `store_not_opened`).
    """

    def __init__(
        self,
        store: str | Store = MEMORY,
        *,
        transport: Literal["tailrope", "stock"] = "tailrope",
        prefer_resumable: bool = True,
        **options: Unpack[Options],
    ) -> None:
        from tailrope.mcp import _engage, _install, _status

        check_transport(transport)
        check_prefer_resumable(prefer_resumable)
        self.prefer_resumable = prefer_resumable
        super().__init__(Runtime(dict(options), store=store), "", stock=transport == "stock")
        if not self.stock:
            _install.patch_seam()
            _engage.stores.add(self)
            _status.log_store(self)

    def scoped(self, session_id: str) -> Hooks:
        """The part of the store that belongs to one session, for a transport of the SDK's that you make yourself:
        event ids of one session mean nothing in another one.

        `drop()` of what is returned forgets its events. Tailrope's transport tells sessions apart by itself.
        """
        if not session_id:
            msg = "a session id is a str that is not empty"
            raise ValueError(msg)
        return Hooks(self.runtime, session_id, stock=self.stock)


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
    inner = getattr(event_store, "_event_store", None)
    if type(event_store).__name__ == "SessionScopedEventStore" and isinstance(inner, SdkEventStore):
        return inner
    return event_store
