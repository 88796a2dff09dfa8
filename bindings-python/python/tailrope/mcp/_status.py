"""What is in force in this process, as data and as a line of the log."""

from __future__ import annotations

import gc
import logging
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from tailrope._native import __version__
from tailrope._options import is_disabled
from tailrope.mcp import _engage, _seam

if TYPE_CHECKING:
    from tailrope._runtime import Runtime
    from tailrope.mcp._engage import OwnStore

logger = logging.getLogger("tailrope")

_installs = 0
_stock_sessions = 0
"""Sessions that were open at the SDK's transport when `install()` came."""
_unsupported: str | None = None
"""Why `install()` left everything with the SDK's transport."""


class EventStoreStatus(TypedDict):
    """One `tailrope.mcp.EventStore`."""

    store: str
    """Its address, without user, password and options."""
    transport: Literal["tailrope", "stock"]
    prefer_resumable: bool


class Status(TypedDict):
    """What is in force in this process."""

    version: str
    """Of Tailrope."""
    sdk: list[str]
    """The SDK that it serves under, with its version."""
    is_disabled: bool
    """TAILROPE_DISABLE is set: everything is stock."""
    transport: Literal["tailrope", "stock"] | None
    """Whose transport serves by `install()`. None where that was not called, or taken back."""
    store: str | None
    """The address of the store of `install()`, without user, password and options."""
    prefer_resumable: bool | None
    """Whether `install()` has clients of 2026-07-28 fall back to a revision that can resume."""
    event_stores: list[EventStoreStatus]
    """The event stores that were made for single servers, and are in use."""
    notices: list[str]
    """What is unusual, and what it means."""


def status() -> Status:
    """What is in force in this process: the SDK and its version, whose transport serves, with which store, and whether
    clients are steered to a revision that can resume. `install()` logs the same."""
    installed = None if is_disabled() else _engage.installed()
    transport, runtime, prefer_resumable = installed or (None, None, None)
    return {
        "version": __version__,
        "sdk": [f"mcp {_seam.VERSION}"],
        "is_disabled": is_disabled(),
        "transport": transport,
        "store": None if runtime is None else _address(runtime),
        "prefer_resumable": prefer_resumable,
        "event_stores": [_of_store(store) for store in _engage.stores],
        "notices": _notices() if installed is not None else [_unsupported] if _unsupported else [],
    }


def _address(runtime: Runtime) -> str:
    return "" if runtime.store is None else runtime.store.address


def _of_store(store: OwnStore) -> EventStoreStatus:
    return {
        "store": _address(store.runtime),
        "transport": "stock" if store.stock else "tailrope",
        "prefer_resumable": store.prefer_resumable,
    }


def _notices() -> list[str]:
    notices = []
    if _installs > 1:
        notices.append(
            f"install() was called {_installs} times: the last call's options hold for sessions opened since, and "
            "sessions that were open before keep theirs"
        )
    if _engage.stores:
        notices.append(
            f"{len(_engage.stores)} tailrope.mcp.EventStore beside install(): a server that was given one takes its "
            "store and options from there, not from install()"
        )
    if _stock_sessions:
        notices.append(
            f"{_stock_sessions} sessions were open before install(): the SDK's transport serves them to their end, so "
            "their calls cannot be resumed. Call install() before the server starts"
        )
    return notices


def note_install() -> None:
    """To be called where `install()` succeeds, before anything is in force."""
    global _installs, _stock_sessions, _unsupported
    _unsupported = None
    if _installs == 0:
        _stock_sessions = _open_sessions()
    _installs += 1


def note_unsupported(why: str) -> None:
    """To be called where `install()` leaves everything as it is."""
    global _unsupported
    _unsupported = why


def note_uninstall() -> None:
    global _installs, _stock_sessions, _unsupported
    _installs = _stock_sessions = 0
    _unsupported = None


def _open_sessions() -> int:
    """The sessions of all session managers that there are. Those that ours serves are not counted."""
    sdk_manager: Any = import_module("mcp.server.streamable_http_manager")
    of = sdk_manager.StreamableHTTPSessionManager
    # Nobody else keeps a list of them; instances refer to their class.
    managers = {id(it): it for it in gc.get_referrers(of, *of.__subclasses__()) if isinstance(it, of)}
    sessions = [session for it in managers.values() for session in getattr(it, "_server_instances", {}).values()]
    return sum(getattr(session, "_tailrope", None) is None for session in sessions)


def log() -> None:
    """What `install()` has put in force."""
    now = status()
    logger.info(
        "tailrope %s is installed: sdk=%s store=%s transport=%s prefer_resumable=%s%s",
        now["version"],
        ", ".join(now["sdk"]),
        now["store"],
        now["transport"],
        now["prefer_resumable"],
        "".join(f"; {notice}" for notice in now["notices"]),
    )


def log_store(store: OwnStore) -> None:
    """What the event store of single servers puts in force for them."""
    logger.info(
        "tailrope %s serves the servers that get an event store: sdk=mcp %s store=%s prefer_resumable=%s%s",
        __version__,
        _seam.VERSION,
        _address(store.runtime),
        store.prefer_resumable,
        "" if _engage.installed() is None else "; other servers have the store and options of install()",
    )
