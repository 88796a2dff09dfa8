"""What `install()` changes in the SDK: our transport's class in the place of its own, and ours in front of its session
managers."""

from __future__ import annotations

from functools import partial, wraps
from inspect import iscoroutinefunction
from typing import Any

import mcp.server.streamable_http_manager

from tailrope.mcp import _adopting, _ask, _engage, _hosts
from tailrope.mcp._front import Fronted
from tailrope.mcp._transport import StreamableHTTPServerTransport, in_place_of_stock

sdk_manager: Any = mcp.server.streamable_http_manager
"""Where the seam is. Untyped: a name that the module imports is what gets replaced."""

_before: Any = None
"""The class that the session manager had, where ours is in its place."""
_ours: Any = None
_methods: dict[str, tuple[Any, Any]] = {}
"""What is changed of session managers: the SDK's method by its name, and ours around it."""


def _admitting(stock: Any) -> Any:
    @wraps(stock)
    def _admit_session(self: Any, *args: Any, **kwargs: Any) -> Any:
        way = _engage.installed
        with _engage.engine_bounds(self, None if way is None else way.runtime_for(self.event_store)):
            return stock(self, *args, **kwargs)

    return _admit_session


def _discarding(stock: Any) -> Any:
    @wraps(stock)
    async def _discard_session(self: Any, session_id: str, transport: Any) -> None:
        await _adopting.discard(partial(stock, self), self, session_id, transport)

    return _discard_session


_front = Fronted(lambda _manager: _engage.installed)
_AROUND = {"_admit_session": _admitting, "_discard_session": _discarding}
"""Ours, by the method that they stand around, where there is one. Else the SDK's own bound of sessions is met first."""


def patch() -> None:
    """Puts our class where the SDK's session manager looks for its transport. The SDK is one that it fits into."""
    global _before, _ours
    if _ours is not None:
        return
    _before = sdk_manager.StreamableHTTPServerTransport
    members = {
        "__module__": __name__,
        "__doc__": StreamableHTTPServerTransport.__doc__,
        "_way": staticmethod(lambda: _engage.installed),
    }
    # Somebody else's class, of a tracing library for instance, stays in front of ours as it was of the SDK's.
    _ours = type("SeamTransport", (in_place_of_stock(_before),), members)
    sdk_manager.StreamableHTTPServerTransport = _ours
    manager = sdk_manager.StreamableHTTPSessionManager
    manager.asgi_app = _front
    for name, around in _AROUND.items():
        stock = getattr(manager, name, None)
        ours = around(stock)
        if stock is not None and iscoroutinefunction(stock) == iscoroutinefunction(ours):
            setattr(manager, name, ours)
            _methods[name] = (stock, ours)
    _hosts.patch()
    _hosts.patch_manager()


def unpatch() -> None:
    """Takes ours away. Where somebody else's class is on top of ours, ours stays under it and serves nothing."""
    global _before, _ours
    if _ours is None or sdk_manager.StreamableHTTPServerTransport is not _ours:
        return
    sdk_manager.StreamableHTTPServerTransport = _before
    manager = sdk_manager.StreamableHTTPSessionManager
    if vars(manager).get("asgi_app") is _front:
        del manager.asgi_app
    for name, (stock, ours) in _methods.items():
        if getattr(manager, name) is ours:
            setattr(manager, name, stock)
    _methods.clear()
    _before = _ours = None
    _hosts.unpatch_manager()
    if not _engage.explicit:
        _ask.unpatch()
        _hosts.unpatch()
