"""Requests that other processes relay to a session of this one: its handlers get them as if they had come here."""

from __future__ import annotations

import contextvars
import logging
from collections import deque
from typing import TYPE_CHECKING, Any

from tailrope.mcp import _sender
from tailrope.mcp._incoming import dispatch, request_of
from tailrope.mcp._outcomes import Outcomes

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import Scope

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
        await dispatch(server, session, posted, admission, body, self._request(posted), self._context.copy())

    def _request(self, posted: Posted) -> Request:
        """What handlers see of it."""
        body = posted.body
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
        return request_of(scope, body)
