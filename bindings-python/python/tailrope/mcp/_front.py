"""In front of a session manager, through whose `asgi_app` all its requests go."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tailrope._options import is_disabled
from tailrope.mcp import _adopting, _elsewhere, _engage, _hosts, _modern, _sdk, _server

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.types import ASGIApp, Receive, Scope, Send

    from tailrope.mcp._engage import Way


class Fronted:
    """A session manager's `asgi_app` with ours in front of it, where a way is in force for the manager. It stands in
    the class, so that managers that were made before have it too, and lose it again when it is taken away."""

    def __init__(self, way_of: Callable[[Any], Way | None]) -> None:
        self._way_of = way_of

    def __get__(self, manager: Any, owner: Any = None) -> Any:
        if manager is None:
            return self
        try:
            app = manager.__dict__["asgi_app"]
        except KeyError:
            raise AttributeError("asgi_app") from None
        way = None if is_disabled() else self._way_of(manager)
        return app if way is None else _Front(way, manager, app)

    def __set__(self, manager: Any, app: ASGIApp) -> None:
        # The manager is just being made: what is wrong with its store is better told now than to its first client.
        _engage.check_manager(manager)
        manager.__dict__["asgi_app"] = app


class _Front:
    """Serves requests of 2026-07-28, and those for sessions that not the manager, but the event store knows."""

    def __init__(self, way: Way, manager: Any, app: ASGIApp) -> None:
        self._way = way
        self._manager = manager
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        _sdk.settle(scope)
        _server.came(scope)
        token = _engage.serving.set(_hosts.tenure_of(self._manager))
        try:
            await self._serve(scope, receive, send)
        finally:
            _engage.serving.reset(token)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        runtime = self._way.runtime_for(self._manager.event_store)
        await (runtime or self._way.runtime).ready()
        await _adopting.settled(self._manager, scope)
        while (session_id := _elsewhere.wanted_session(self._manager, scope)) is not None:
            if runtime is None:
                break
            is_served = await _elsewhere.serve(runtime, self._manager, session_id, scope, receive, send)
            if is_served:
                return
            # It may have begun to go on here since it was looked up.
            if not await _adopting.settled(self._manager, scope):
                _elsewhere.note_unknown(runtime, session_id, scope)
                break
        named = None
        if scope["type"] == "http" and scope["method"] == "POST" and not self._manager.stateless:
            named = _sdk.modern_revision(scope)
        if named is None:
            await self._app(scope, receive, send)
        else:
            await _modern.serve(self._way, runtime, self._manager, self._app, scope, receive, send, named)
