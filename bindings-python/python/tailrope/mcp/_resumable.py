"""resumable(): Tailrope under the servers of one ASGI app. Imports nothing of the SDK before it is known to fit."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Literal, TypeVar, Unpack

from tailrope._options import MEMORY, Options, check_on_unsupported, check_prefer_resumable, is_disabled
from tailrope.mcp import _seam, _status
from tailrope.mcp._engage import Way

if TYPE_CHECKING:
    from tailrope._native import Store

logger = logging.getLogger("tailrope")

App = TypeVar("App")


def resumable(
    app: App,
    *,
    store: str | Store = MEMORY,
    prefer_resumable: bool = True,
    on_unsupported: Literal["raise", "stock"] = "stock",
    **options: Unpack[Options],
) -> App:
    """Makes the Streamable HTTP servers in an ASGI app resumable, and returns the app.

    The app is what `streamable_http_app()` of the SDK or `http_app()` of fastmcp returned, or a Starlette or FastAPI
    app that such apps are mounted in, or middleware around one. Only the session managers that are found in it change:
    other servers of the process stay as they are. To be called when everything is mounted. Called again for the same
    app, it replaces the options for new sessions.

    Args:
        app: the ASGI app.
        store: the event store, see `tailrope.install`. All servers of the app share it, except those that were given
            a `tailrope.mcp.EventStore`.
        prefer_resumable: see `tailrope.install`.
        on_unsupported: see `tailrope.install`.
        options: see `tailrope.install`.

    Raises:
        ValueError: an unknown or wrong option, or there is no session manager in the app.
        TailropeError: the store cannot be opened (code `store_not_opened`), or Tailrope does not fit under the SDK and
            `on_unsupported` is `raise` (code `unsupported_sdk`).
    """
    check_prefer_resumable(prefer_resumable)
    check_on_unsupported(on_unsupported)
    if is_disabled():
        logger.warning("TAILROPE_DISABLE is set: servers stay with the SDK's own transport")
        return app
    if (difference := _seam.difference(explicit=True)) is not None:
        _status.refuse(difference, on_unsupported)
        return app
    from tailrope.mcp._manager import convert, engage, managers_in, misfit

    found = list(managers_in(app))
    if not found:
        msg = (
            "there is no session manager of the SDK in this app. Pass what streamable_http_app() or http_app() "
            "returned, or the app that it is mounted in, and call resumable() when everything is mounted. Where your "
            "own code makes the session manager, make a tailrope.mcp.StreamableHTTPSessionManager"
        )
        raise ValueError(msg)
    if (difference := next((why for it in found if (why := misfit(it)) is not None), None)) is not None:
        _status.refuse(difference, on_unsupported)
        return app
    way = Way(dict(options), store=store, prefer_resumable=prefer_resumable)
    for manager in found:
        convert(manager, way)
    engage(way)
    return app
