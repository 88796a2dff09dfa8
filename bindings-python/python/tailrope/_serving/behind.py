"""The app as it stands behind the front: what it is told of clients is what its HTTP server would have seen."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tailrope._serving import between
from tailrope.mcp import _sdk
from tailrope.mcp._arrivals import PASSED, Between, Passed, Terms

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.types import ASGIApp, Receive, Scope, Send

    from tailrope.mcp._arrivals import Arrivals

PEER = b"x-tailrope-peer"
"""Who is connected to the front. The front removes what clients send under this name."""
_OF_ROUTING = ("type", "path", "root_path")


class Behind:
    """The outermost ASGI app of a server with a front.

    Args:
        app: the app that is served.
        around: what the HTTP server puts around an app.
        server: the address at which clients connect.
        unknown: settings of the HTTP server that may concern its requests.
    """

    def __init__(
        self, app: ASGIApp, around: Callable[[ASGIApp], ASGIApp], server: tuple[str, int], unknown: list[str]
    ) -> None:
        self._app = app
        self._unknown = unknown
        self._entry = around(app)
        self._settling = around(_nothing)
        self._server = server
        self.arrivals: Arrivals | None = None
        """Takes what the front does not pass on."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "lifespan":
            headers = scope["headers"]
            peer = next((value for name, value in headers if name == PEER), None)
            scope["headers"] = [pair for pair in headers if pair[0] != PEER]
            if peer is not None:
                address, scheme = peer.decode("ascii").split(" ")
                host, _, port = address.rpartition(":")
                self._settle(scope, scheme, (host.strip("[]"), int(port)))
                scope[PASSED] = Passed(self, {name: scope[name] for name in _OF_ROUTING if name in scope})
        await self._entry(scope, receive, send)

    def _settle(self, scope: Scope, scheme: str, client: tuple[str, int]) -> None:
        """Lets a scope say what it would if the client were connected to the app's own server."""
        scope["client"] = client
        scope["server"] = self._server
        scope["scheme"] = scheme.replace("http", "ws") if scope["type"] == "websocket" else scheme

    def terms(self, entry: Scope, transport: Any, security: Any) -> Terms:
        if self._unknown:
            msg = f"the setting {self._unknown[0]} of uvicorn"
            raise Between(msg)
        max_body_bytes = between.check(self._app, entry, transport)
        return Terms(_sdk.session_versions(), *between.allowed(security), max_body_bytes)

    async def settled(self, scope: Scope, client: tuple[str, int]) -> Scope:
        """The scope of a request that the app does not get, as the app would get it."""
        self._settle(scope, "http", client)
        await self._settling(scope, _never, _never)
        return scope


async def _nothing(scope: Scope, receive: Receive, send: Send) -> None:
    """Stands for the app where only the scope counts."""


async def _never(*_: Any) -> Any:
    msg = "nothing is read or answered here"
    raise RuntimeError(msg)
