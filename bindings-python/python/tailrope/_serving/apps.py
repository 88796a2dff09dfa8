"""What is served: the ASGI app of a server, and where its endpoints are."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from typing import TYPE_CHECKING, Any

from starlette.routing import Mount, Route

from tailrope.mcp._manager import managers_in

if TYPE_CHECKING:
    from collections.abc import Iterator

    from starlette.types import ASGIApp


def imported(name: str) -> Any:
    """The object that `module:name` names. Modules are found from the working directory, too.

    Raises:
        ValueError: it is no such name, or the module has no such object.
        ImportError: there is no such module, or it cannot be imported.
    """
    module_name, _, path = name.partition(":")
    if not module_name or not path:
        msg = f"{name!r} is not of the form module:server, as in shop.main:mcp"
        raise ValueError(msg)
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    found: Any = importlib.import_module(module_name)
    for part in path.split("."):
        if not hasattr(found, part):
            msg = f"the module {module_name} has no {path}"
            raise ValueError(msg)
        found = getattr(found, part)
    return found


def app_of(served: Any, path: str | None, host: str) -> ASGIApp:
    """The ASGI app of a server of the SDK or of fastmcp; an ASGI app is one already.

    Raises:
        TypeError: it is neither.
        ValueError: there is no endpoint at `path`.
    """
    if path is not None and not path.startswith("/"):
        msg = f"path must begin with a slash, not {path!r}"
        raise ValueError(msg)
    if callable(of_fastmcp := getattr(served, "http_app", None)):
        app: ASGIApp = of_fastmcp(path=path)
        return app
    if callable(of_sdk := getattr(served, "streamable_http_app", None)):
        known = inspect.signature(of_sdk).parameters
        # What the server itself would have been told of its address: it checks requests by it.
        given = {"host": host, "streamable_http_path": path}
        arguments = {name: it for name, it in given.items() if name in known and it is not None}
        if path is not None and "streamable_http_path" not in known:
            served.settings.streamable_http_path = path
        app = of_sdk(**arguments)
        return app
    if not callable(served):
        msg = (
            "tailrope.serve() takes a server (MCPServer, FastMCP) or an ASGI app, or the name of one as in "
            f"shop.main:mcp, not {served!r}"
        )
        raise TypeError(msg)
    if path is not None:
        msg = "path is for servers: an ASGI app has its own paths"
        raise ValueError(msg)
    app = served
    return app


def endpoints(app: Any, below: str = "") -> Iterator[str]:
    """The paths at which an app serves MCP, as far as they can be seen."""
    seen = 0
    while not isinstance(getattr(app, "routes", None), list) and seen < _MAX_WRAPPERS:
        app, seen = getattr(app, "app", None), seen + 1
    for route in getattr(app, "routes", None) or ():
        if isinstance(route, Mount):
            yield from endpoints(route.app, below + route.path)
        elif isinstance(route, Route) and next(managers_in(route.endpoint), None) is not None:
            yield below + route.path


_MAX_WRAPPERS = 32
