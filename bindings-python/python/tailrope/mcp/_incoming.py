"""Requests of a session that do not come through its transport: handlers get them as if they had."""

from __future__ import annotations

import asyncio
import contextvars
import sys
from typing import TYPE_CHECKING, Any, Protocol

import anyio
from mcp.server.auth.middleware.auth_context import auth_context_var
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from starlette.requests import Request

from tailrope.mcp import _sdk

if TYPE_CHECKING:
    from starlette.types import Message, Scope

    from tailrope._native import Admission, Session
    from tailrope.mcp._session_server import SessionServer


class Incoming(Protocol):
    """One POST. When it is dropped and was not settled, it is refused."""

    def begin(self, admission: Admission) -> bool:
        """Puts the requests of a call in flight. False where they are not, and nothing is dispatched."""

    def done(self) -> None:
        """The SDK has been given a message that gets no answer."""

    def refuse(self, fault: str, text: str) -> None:
        """It is not taken: see the core's `Fault`."""


async def dispatch(
    server: SessionServer,
    session: Session,
    incoming: Incoming,
    admission: Admission,
    body: bytes,
    request: Request,
    context: contextvars.Context,
) -> None:
    """Gives the SDK what a POST says. Its handlers run in `context`, which becomes that of the request."""
    try:
        message = _sdk.parse(body)
    except _sdk.ValidationError as error:
        incoming.refuse("invalid_message", str(error))
        return
    context.run(enter, request)
    if admission.action == "call":
        if incoming.begin(admission):
            await server.begin(session, request, message, context)
        return
    try:
        await server.pass_on(session, admission, request, message, context)
    except anyio.ClosedResourceError:
        incoming.refuse("session_ended", "")
        return
    incoming.done()


def request_of(scope: Scope, body: bytes) -> Request:
    """A request whose body has been read. Whether its client is still there is not known here."""
    is_read = False

    async def receive() -> Message:
        nonlocal is_read
        if is_read:
            await asyncio.get_running_loop().create_future()
        is_read = True
        return {"type": "http.request", "body": body, "more_body": False}

    return Request(scope, receive)


def enter(request: Request) -> None:
    """Makes the running context that of a request: it is a copy of that of another one for the same server."""
    user = request.scope.get("user")
    auth_context_var.set(user if isinstance(user, AuthenticatedUser) else None)
    # The trace is that of this request, and not of the one that opened the session.
    tracing, propagate = sys.modules.get("opentelemetry.context"), sys.modules.get("opentelemetry.propagate")
    if tracing is not None and propagate is not None:
        tracing.attach(propagate.extract(request.headers, context=tracing.Context()))
    # fastmcp has the request in a variable of its own, too.
    current: Any = getattr(sys.modules.get("fastmcp.server.http"), "_current_http_request", None)
    if isinstance(current, contextvars.ContextVar):
        current.set(request)
