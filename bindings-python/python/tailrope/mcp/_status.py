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
    from tailrope.mcp._engage import Way

logger = logging.getLogger("tailrope")

_installs = 0
_stock_sessions = 0
"""Sessions that were open at the SDK's transport when `install()` came."""
_unsupported: str | None = None
"""Why servers were left with the SDK's transport."""


class ServersStatus(TypedDict):
    """What one call of `tailrope.mcp.resumable`, or one session manager of ours, has put in force."""

    store: str
    """The address of its store, without user, password and options."""
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
    servers: list[ServersStatus]
    """What is in force for single servers: by `tailrope.mcp.resumable` and session managers of ours."""
    notices: list[str]
    """What is unusual, and what it means."""


def status() -> Status:
    """What is in force in this process: the SDK and its version, whose transport serves, with which store, and whether
    clients are steered to a revision that can resume. `install()` logs the same."""
    way = None if is_disabled() else _engage.installed
    return {
        "version": __version__,
        "sdk": [f"mcp {_seam.VERSION}"],
        "is_disabled": is_disabled(),
        "transport": None if way is None else way.transport,
        "store": None if way is None else way.address,
        "prefer_resumable": None if way is None else way.prefer_resumable,
        "servers": [{"store": way.address, "prefer_resumable": way.prefer_resumable} for way in _engage.explicit],
        "notices": _notices() if way is not None else [_unsupported] if _unsupported else [],
    }


def _notices() -> list[str]:
    notices = _engage.notices()
    if _installs > 1:
        notices.append(
            f"install() was called {_installs} times: the last call's options hold for sessions opened since, and "
            "sessions that were open before keep theirs"
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


def refuse(difference: str, on_unsupported: Literal["raise", "stock"]) -> None:
    """Says that Tailrope does not fit under the SDK.

    Raises:
        TailropeError: that is wanted (code `unsupported_sdk`).
    """
    global _unsupported
    error = _seam.unsupported(difference)
    if on_unsupported == "raise":
        raise error
    _unsupported = str(error)
    logger.error("%s Servers stay with the SDK's own transport, and their calls cannot be resumed.", error)


def is_stock_told() -> bool:
    """Whether the user knows that the SDK's own transport serves: who wants it, or was told that nothing else can."""
    return is_disabled() or _engage.installed is not None or _unsupported is not None


def note_uninstall() -> None:
    global _installs, _stock_sessions, _unsupported
    _installs = _stock_sessions = 0
    _unsupported = None


def _open_sessions() -> int:
    """The sessions of all session managers that there are. Those that ours serves are not counted."""
    sdk_manager: Any = import_module("mcp.server.streamable_http_manager")
    of = sdk_manager.StreamableHTTPSessionManager
    # Nobody else keeps a list of them; instances refer to their class.
    managers = {id(it): it for it in gc.get_referrers(of, *of.__subclasses__()) if issubclass(type(it), of)}
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


def log_explicit(way: Way) -> None:
    """What is in force for single servers."""
    logger.info(
        "tailrope %s serves single servers: sdk=mcp %s store=%s prefer_resumable=%s%s",
        __version__,
        _seam.VERSION,
        way.address,
        way.prefer_resumable,
        "" if _engage.installed is None else "; other servers have the store and options of install()",
    )
