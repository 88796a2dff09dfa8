"""What a request has to pass between the HTTP server and the session that it is for.

Only where nothing of it can decide about a request may the front take the requests of the session. So everything on the
way has to be known, as it was published: what is not known may be authentication.
"""

from __future__ import annotations

import sys
from functools import cache
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any

from mcp.server.streamable_http import StreamableHTTPServerTransport as StockTransport
from mcp.server.transport_security import (
    RequestBodyLimitMiddleware,
    TransportSecurityMiddleware,
    TransportSecuritySettings,
)
from starlette.applications import Starlette
from starlette.middleware.errors import ServerErrorMiddleware
from starlette.middleware.exceptions import ExceptionMiddleware
from starlette.routing import Match, Mount, Route, Router, WebSocketRoute

from tailrope.mcp import _below, _manager
from tailrope.mcp._arrivals import Between
from tailrope.mcp._front import Fronted

if TYPE_CHECKING:
    from starlette.types import Scope

_MAX_DEPTH = 64
_METHODS = ("GET", "POST")
"""Those of the requests that the front takes."""


def check(app: Any, scope: Scope, transport: Any) -> int:
    """Checks that nothing stands between an app and the transport of a session, for requests like one that came. The
    largest body that the session's manager takes.

    Args:
        app: the app.
        scope: what the app was given of the request that routers look at.
        transport: the transport.

    Raises:
        Between: something stands there, or may.
    """
    probes: dict[str, Scope] = {method: {**scope, "method": method} for method in _METHODS}
    for _ in range(_MAX_DEPTH):
        kind = _published(app)
        if _is(kind, "starlette.applications", "Starlette") or _is(
            kind, "fastmcp.server.http", "StarletteWithLifespan"
        ):
            _own(app, Starlette, "__call__")
            app = app.middleware_stack
        elif kind in _TRANSPARENT or _is(kind, "fastmcp.server.http", "RequestContextMiddleware"):
            _own(app, kind, "__call__")
            app = app.app
        elif kind is Router:
            app = _routed(app, probes)
        elif any(_is(kind, module, "StreamableHTTPASGIApp") for module in _ENDPOINTS):
            _own(app, kind, "__call__")
            return _managed(app.session_manager, transport)
        else:
            raise Between(_name(app))
    raise Between("an app that is nested too deeply")


_TRANSPARENT = (ServerErrorMiddleware, ExceptionMiddleware)
"""What only acts when something fails."""
_ENDPOINTS = ("mcp.server.streamable_http_manager", "mcp.server.fastmcp.server", "fastmcp.server.http")


def allowed(security: Any) -> tuple[list[str] | None, list[str] | None]:
    """The hosts and origins whose requests pass the SDK's own check; None where it lets every host and origin pass.

    Raises:
        Between: it is another check.
    """
    if type(security) is not TransportSecurityMiddleware or type(security.settings) is not TransportSecuritySettings:
        raise Between(_name(security))
    for name in ("validate_request", "_validate_host", "_validate_origin", "_validate_content_type"):
        _own(security, TransportSecurityMiddleware, name)
    settings = security.settings
    if not settings.enable_dns_rebinding_protection:
        return None, None
    return list(settings.allowed_hosts), list(settings.allowed_origins)


def _routed(router: Any, probes: dict[str, Scope]) -> Any:
    """The app that a router gives these requests to."""
    _own(router, Router, "__call__")
    stack = router.middleware_stack
    if (
        not isinstance(stack, MethodType)
        or stack.__self__ is not router
        or stack.__func__ is not _function(Router, "app")
    ):
        raise Between("middleware of a router")
    _own(router, Router, "app")
    found = {method: _first(router, probes[method]) for method in _METHODS}
    route = found["POST"]
    if any(it is not route for it in found.values()):
        raise Between("another route at the same path")
    _own(route, type(route), "handle")
    return route.app


def _first(router: Any, probe: Scope) -> Any:
    for route in router.routes:
        kind = type(route)
        if kind not in (Route, Mount, WebSocketRoute):
            raise Between(f"a route of the class {kind.__qualname__}")
        _own(route, kind, "matches")
        match, child = route.matches(probe)
        if match is Match.FULL:
            probe.update(child)
            return route
    raise Between("no route")


def _managed(manager: Any, transport: Any) -> int:
    """The largest body that a session manager takes, where it gives the session of this transport its requests as they
    are."""
    stock = sys.modules["mcp.server.streamable_http_manager"]
    for name in ("handle_request", "_handle_request", "_handle_stateful_request"):
        _own(manager, stock.StreamableHTTPSessionManager, name)
    sessions: Any = manager._server_instances
    limit: Any = vars(manager).get("asgi_app")
    if type(limit) is not RequestBodyLimitMiddleware or not isinstance(type(manager).asgi_app, Fronted):
        raise Between(f"the asgi_app of {_name(manager)}")
    _own(limit, RequestBodyLimitMiddleware, "__call__")
    handle: Any = limit.app
    if not isinstance(handle, MethodType) or handle.__self__ is not manager or handle.__name__ != "_handle_request":
        raise Between(f"the asgi_app of {_name(manager)}")
    if sessions.get(transport.mcp_session_id) is not transport:
        raise Between(f"the transport is none of {_name(manager)}")
    _own(transport, StockTransport, "handle_request")
    under = vars(StockTransport).get("_handle_request")
    if not isinstance(under, FunctionType) or under.__code__.co_filename not in (
        _below.__file__,
        _file(StockTransport),
    ):
        raise Between(f"_handle_request of {_name(transport)}")
    ours = getattr(type(transport), "_handle_request", None)
    if not isinstance(ours, FunctionType) or not ours.__module__.startswith("tailrope."):
        raise Between(f"_handle_request of {_name(transport)}")
    return limit.max_body_size


def _own(it: Any, kind: Any, name: str) -> None:
    """Checks that a method of an object is the one that its class was published with.

    Raises:
        Between: somebody has put another one there, or around it.
    """
    found = getattr(type(it), name, None)
    if found is not _function(kind, name) or name in getattr(it, "__dict__", {}):
        raise Between(f"{name} of {_name(it)}")


def _function(kind: Any, name: str) -> FunctionType:
    """The function of a class, which is in the class's own file.

    Raises:
        Between: it is none, or somebody has replaced it.
    """
    found = getattr(kind, name, None)
    owner = next((base for base in kind.__mro__ if name in vars(base)), kind)
    if type(found) is not FunctionType or found.__code__.co_filename != _file(owner):
        raise Between(f"{name} of {kind.__module__}.{kind.__qualname__}")
    return found


@cache
def _file(kind: Any) -> str | None:
    return getattr(sys.modules.get(kind.__module__), "__file__", None)


def _published(it: Any) -> Any:
    """The class of an object, without what `resumable()` has made of it."""
    kind = type(it)
    return kind.__bases__[1] if kind in _manager.made.values() else kind


def _is(kind: Any, module: str, name: str) -> bool:
    """Whether it is the class of a module, which may not be there."""
    return kind is getattr(sys.modules.get(module), name, None)


def _name(it: Any) -> str:
    kind = it if isinstance(it, type | FunctionType) else type(it)
    return f"{kind.__module__}.{kind.__qualname__}"
