"""install(): Tailrope under every server of the process. Imports nothing of the SDK before it is known to fit."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, Literal, Unpack

from tailrope._options import (
    MEMORY,
    Options,
    check_on_unsupported,
    check_prefer_resumable,
    check_transport,
    is_disabled,
)
from tailrope.mcp import _engage, _seam, _status

if TYPE_CHECKING:
    from tailrope._native import Store

logger = logging.getLogger("tailrope")


def install(
    *,
    store: str | Store = MEMORY,
    transport: Literal["tailrope", "stock"] = "tailrope",
    prefer_resumable: bool = True,
    on_unsupported: Literal["raise", "stock"] = "stock",
    **options: Unpack[Options],
) -> None:
    """Makes every Streamable HTTP server of the process resumable.

    For `MCPServer` and lowlevel `Server` of mcp 2.x, `FastMCP` of mcp 1.x, fastmcp 3.x and 4.x. To be
    called before the servers open sessions; called again, it replaces the options for new sessions.
    Stateless servers stay with the SDK. Does nothing while TAILROPE_DISABLE=1 is in the environment. What is in
    force afterwards is logged in one line, and told by `tailrope.status()`.

    Args:
        store: the event store: an address, see `tailrope.open_store`, or a store that is open. With one that
            outlives the process, this process also serves sessions of other processes, and sessions that were opened
            before a restart.
        transport: `tailrope`, or `stock`, which leaves the SDK's transport in place and puts the store behind it
            where a server has no event store of its own.
        prefer_resumable: refuse requests of 2026-07-28 and name the older revisions, so that clients fall back to
            2025-11-25. With False such requests are left to the SDK and counted, and the first one is logged as a
            warning.
        on_unsupported: what to do when Tailrope does not fit under the installed SDK: leave everything `stock` with an
            ERROR in the log, so that an upgrade of the SDK stops no server, or `raise`.
        options: bounds and times, see `tailrope.Options`; durations are in milliseconds. Those of the
            store are given to `open_store()` where that opened it.

    Raises:
        ValueError: an unknown or wrong option.
        TailropeError: the store cannot be opened (code `store_not_opened`), or Tailrope does not fit under the SDK and
            `on_unsupported` is `raise` (code `unsupported_sdk`).
    """
    check_transport(transport)
    check_prefer_resumable(prefer_resumable)
    check_on_unsupported(on_unsupported)
    if is_disabled():
        logger.warning("TAILROPE_DISABLE is set: servers stay with the SDK's own transport")
        return
    if (difference := _seam.difference()) is not None:
        _status.refuse(difference, on_unsupported)
        return
    from tailrope.mcp import _patch

    # Raises before anything has changed.
    way = _engage.Way(dict(options), store=store, prefer_resumable=prefer_resumable, transport=transport)
    _patch.patch()
    _status.note_install()
    _engage.installed = way
    _status.log()


def uninstall() -> None:
    """Takes `install()` back: sessions that are opened from now on are served by the SDK's transport.

    Servers that another way makes resumable stay so, and classes that others have put on top of ours stay.
    """
    _engage.installed = None
    _status.note_uninstall()
    patch = sys.modules.get("tailrope.mcp._patch")
    if patch is not None:
        patch.unpatch()
