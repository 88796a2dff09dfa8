"""Readers of sessions that this process does not have: the event store knows them (I7).

A session manager answers 404 for every session that is not its own. Where the store outlives the process the session
may live in another one, or have lived before a restart: then its streams are read here, as its transport would serve
them. Whoever may not read the session gets the manager's own answer, as for a session that never was.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from mcp.server.transport_security import TransportSecurityMiddleware
from starlette.requests import Request

from tailrope._errors import TailropeError
from tailrope._native import Refusal, refusal
from tailrope.mcp import _hosts, _sdk
from tailrope.mcp._answer import write_connection, write_refusal
from tailrope.mcp._principal import asker

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from tailrope._native import Connection, Session
    from tailrope._runtime import Loop, Runtime
    from tailrope.mcp._principal import Asker

logger = logging.getLogger("tailrope")


def wanted_session(manager: Any, scope: Scope) -> str | None:
    """The session of a GET that the manager would answer with 404. Other requests stay with the SDK."""
    if scope["type"] != "http" or scope["method"] != "GET" or manager.stateless:
        return None
    # Not public. An SDK that has them no more answers 404 as before.
    sessions = getattr(manager, "_server_instances", None)
    if sessions is None or getattr(manager, "_task_group", None) is None:
        return None
    session_id = _sdk.header(scope, b"mcp-session-id")
    if session_id is None or not session_id.isascii():
        return None
    transport = sessions.get(session_id)
    # Another process may have taken over one that has ended, and is still there.
    if transport is not None and not transport.is_terminated:
        return None
    if _sdk.modern_revision(scope) is not None:
        # The manager gives these to its entry for 2026-07-28, whatever session they name.
        return None
    return session_id


async def serve(runtime: Runtime, manager: Any, session_id: str, scope: Scope, receive: Receive, send: Send) -> bool:
    """Serves a GET of a session from the event store. False when there is none: the SDK has to answer."""
    if runtime.store is None:
        return False
    try:
        if not runtime.engine.outlives_process():
            return False
        here = runtime.here()
        # The SDK's own checks of hosts and origins, in its own words. First, as the look-up takes the stream over.
        security = TransportSecurityMiddleware(manager.security_settings)
        refused = await security.validate_request(Request(scope, receive), is_post=False)
        if refused is not None:
            await refused(scope, receive, send)
            return True
        who = asker(scope, runtime)
        session = await _adopt(runtime, here, session_id, scope, who)
    except TailropeError as error:
        logger.warning("a session cannot be looked up: %s", error)
        await write_refusal(send, refusal(_sdk.MAJOR, "session_not_told", ""), session_id.encode("ascii"))
        return True
    if session is None:
        return False
    connection: Connection | None = None
    try:
        connection = await _open(manager, session, here, who, scope, send)
    finally:
        if connection is None:
            session.let_go()
    if connection is not None:
        _hosts.opened(session, runtime)
        await write_connection(connection, runtime, here, receive, send, session_id.encode("ascii"))
    return True


async def _adopt(runtime: Runtime, here: Loop, session_id: str, scope: Scope, who: Asker) -> Session | None:
    """The session, if the store has it for this principal.

    Raises:
        TailropeError: the store cannot tell.
    """
    engine = runtime.engine
    adoption = engine.adopt_session(session_id, scope["headers"], *who, _sdk.MAJOR, here.waiters)
    while True:
        is_told, session = adoption.take()
        if is_told:
            return session
        # A store that does not answer in time is given up at a tick.
        here.arm(runtime, engine.due_in_ms())
        future: asyncio.Future[None] = here.loop.create_future()
        if here.waiters.park(adoption.key, future):
            await future


async def _open(manager: Any, session: Session, here: Loop, who: Asker, scope: Scope, send: Send) -> Connection | None:
    """Opens the connection that a transport of the session would; None when the request is refused, and answered."""
    opened: Any = session.admit("GET", scope["headers"], b"", manager.json_response, *who)
    if not isinstance(opened, Refusal):
        opened = session.open(opened, here.waiters, False)
    if isinstance(opened, Refusal):
        session_id = _sdk.header(scope, b"mcp-session-id") or ""
        await write_refusal(send, opened, session_id.encode("ascii"))
        return None
    connection: Connection = opened
    return connection
