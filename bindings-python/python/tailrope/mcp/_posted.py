"""Requests that other processes relay to a session of this one: its handlers get them as if they had come here."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import sys
from collections import deque
from typing import TYPE_CHECKING, Any

import anyio
from mcp.server.auth.middleware.auth_context import auth_context_var
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from starlette.requests import Request

from tailrope.mcp import _sdk, _sender
from tailrope.mcp._outcomes import Outcomes

if TYPE_CHECKING:
    from starlette.types import Message, Scope

    from tailrope._native import Posted, Session
    from tailrope._runtime import Loop
    from tailrope.mcp._session_server import SessionServer

logger = logging.getLogger("tailrope")

PLACE = ("app", "asgi", "http_version", "path", "raw_path", "root_path", "scheme", "server")
"""What a request says of its destination, and nothing of its sender."""


class Posts(Outcomes):
    """What other processes relay to one session, beside what becomes of its own messages."""

    def __init__(self, server: SessionServer, session: Session, here: Loop) -> None:
        self._server = server
        self._waiting: deque[Posted] = deque()
        self._is_delivering = False
        self._place: dict[str, Any] = {}
        self._context = contextvars.copy_context()
        super().__init__(server.runtime, session, here)

    def note_place(self, scope: Scope) -> None:
        """A request came here: those that are relayed are for the same place."""
        if not self._place:
            self._place = {name: scope[name] for name in PLACE if name in scope}

    def _perform(self) -> None:
        self._waiting.extend(self._session.take_posted())
        if self._waiting and not self._is_delivering:
            self._is_delivering = True
            self._start(self._deliver())

    async def _deliver(self) -> None:
        """One after the other, as they came."""
        try:
            while self._waiting:
                posted = self._waiting.popleft()
                try:
                    with self._server.request():
                        await self._dispatch(posted)
                except Exception:
                    # It harms this request and no other (I9).
                    logger.exception("a request that another process relayed is not served")
                    posted.refuse("internal", "")
        finally:
            self._is_delivering = False

    async def _dispatch(self, posted: Posted) -> None:
        server, session = self._server, self._session
        if server.is_terminated:
            posted.refuse("session_ended", "")
            return
        admission = posted.admit(server.json_response)
        if admission is None:
            return
        if admission.action == "delete":
            await server.delete()
            return
        rewritten = admission.rewritten
        body = posted.body if rewritten is None else rewritten
        if not body:
            # Nothing of it is for the handlers.
            session.received(admission)
            posted.done()
            return
        try:
            message = _sdk.parse(body)
        except _sdk.ValidationError as error:
            posted.refuse("invalid_message", str(error))
            return
        request = self._request(posted)
        context = self._context.copy()
        context.run(enter, request)
        if admission.action == "call":
            if posted.begin(admission):
                await server.begin(session, request, message, context)
            return
        try:
            await server.pass_on(session, admission, request, message, context)
        except anyio.ClosedResourceError:
            posted.refuse("session_ended", "")
            return
        posted.done()

    def _request(self, posted: Posted) -> Request:
        """What handlers see of it."""
        body = posted.body
        is_read = False

        async def receive() -> Message:
            nonlocal is_read
            if is_read:
                # Whether its client is still there is not known here.
                await asyncio.get_running_loop().create_future()
            is_read = True
            return {"type": "http.request", "body": body, "more_body": False}

        session_id = self._server.session_id.encode("ascii")
        scope = {
            "type": "http",
            "path": "/",
            "query_string": b"",
            **self._place,
            "method": posted.method,
            "headers": [
                *posted.headers,
                (b"content-length", b"%d" % len(body)),
                (b"content-type", b"application/json"),
                (b"mcp-session-id", session_id),
            ],
            **_sender.read(posted.auth_json),
        }
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
    current = getattr(sys.modules.get("fastmcp.server.http"), "_current_http_request", None)
    if isinstance(current, contextvars.ContextVar):
        current.set(request)
