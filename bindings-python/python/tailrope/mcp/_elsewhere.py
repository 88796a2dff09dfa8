"""Requests for sessions that this process does not have: the event store knows them (I7).

A session manager answers 404 for every session that is not its own. Where the store outlives the process the session
may live in another one, or have lived before a restart: then its streams are read here, as its transport would serve
them, and what else comes for it is relayed to its process. A user who may not use the session gets the
manager's own answer, as for a session that never was.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from mcp.server.transport_security import RequestBodyLimitMiddleware, TransportSecurityMiddleware
from starlette.requests import ClientDisconnect, Request

from tailrope import _telemetry
from tailrope._errors import TailropeError
from tailrope._native import Refusal
from tailrope.mcp import _adopting, _hosts, _sdk, _sender, _server
from tailrope.mcp._answer import write_connection, write_refusal
from tailrope.mcp._principal import log_user, requester

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from tailrope._native import Connection, Session
    from tailrope._runtime import Loop, Runtime
    from tailrope.mcp._principal import Requester

logger = logging.getLogger("tailrope")


def wanted_session(manager: Any, scope: Scope) -> str | None:
    """The session of a request that the manager would answer with 404. Other requests stay with the SDK."""
    if scope["type"] != "http" or scope["method"] not in ("GET", "POST", "DELETE") or manager.stateless:
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
    """Serves a request for a session by the event store. False when it has none: the SDK has to answer."""
    if runtime.store is None:
        return False
    is_read = scope["method"] == "GET"
    try:
        if not runtime.engine.outlives_process():
            return False
        here = runtime.here()
        # First, as the look-up takes the stream over.
        if is_read and await is_refused(manager, scope, receive, send):
            return True
        who = requester(scope, runtime)
        session = await _look_up(runtime, here, session_id, scope, who)
    except TailropeError as error:
        logger.warning("a session cannot be looked up: %s", error)
        await write_refusal(send, runtime.engine.refusal(_sdk.MAJOR, "session_unread", ""), session_id.encode("ascii"))
        return True
    if session is None:
        return False
    connection: Connection | None = None
    try:
        if is_read:
            connection = await _open(runtime, manager, session, here, who, scope, send)
        elif session.is_elsewhere:
            connection = await _relay(runtime, manager, session, here, who, scope, receive, send)
        else:
            # It is another manager's in this process.
            return False
    finally:
        if connection is None:
            session.let_go()
    if connection is not None:
        _hosts.opened(session)
        await write_connection(connection, runtime, here, receive, send, session_id.encode("ascii"))
    return True


def note_unknown(runtime: Runtime, session_id: str, scope: Scope) -> None:
    """The SDK answers that there is no such session, which its log does not say."""
    try:
        who = requester(scope, runtime)
    except Exception:
        # The option's function fails: it names nobody.
        who = (None, None)
    server = _server.of_scope(runtime, scope)
    named = (*who, log_user(scope, runtime))
    runtime.engine.unknown_session(session_id, server, scope["method"], scope["headers"], *named, _sdk.MAJOR)


async def _look_up(runtime: Runtime, here: Loop, session_id: str, scope: Scope, who: Requester) -> Session | None:
    """The session, if the store has it for this principal.

    Raises:
        TailropeError: the store cannot tell.
    """
    engine = runtime.engine
    server = _server.of_scope(runtime, scope)
    look_up = engine.look_up_session(
        session_id, server, scope["method"], scope["headers"], *who, _sdk.MAJOR, here.waiters
    )
    if look_up is None:
        # Nobody can tell whose request it is.
        return None
    while True:
        is_told, session = look_up.take()
        if is_told:
            return session
        # A store that does not answer in time is given up at a tick.
        here.arm(runtime, engine.due_in_ms())
        future: asyncio.Future[None] = here.loop.create_future()
        if here.waiters.park(look_up.key, future):
            await future


async def is_refused(manager: Any, scope: Scope, receive: Receive, send: Send) -> bool:
    """The SDK's own checks of hosts and origins, in its own words. Whether the request is answered by them."""
    security = TransportSecurityMiddleware(manager.security_settings)
    refused = await security.validate_request(Request(scope, receive), is_post=scope["method"] == "POST")
    if refused is not None:
        await refused(scope, receive, send)
    return refused is not None


async def _open(
    runtime: Runtime, manager: Any, session: Session, here: Loop, who: Requester, scope: Scope, send: Send
) -> Connection | None:
    """Opens the connection that a transport of the session would; None when the request is refused, and answered."""
    server = _server.of_scope(runtime, scope)
    opened: Any = session.admit(
        "GET", scope["headers"], b"", manager.json_response, server, *who, log_user(scope, runtime)
    )
    if not isinstance(opened, Refusal):
        opened = session.open(opened, here.waiters, False)
    return await _opened(opened, scope, send)


async def _relay(
    runtime: Runtime,
    manager: Any,
    session: Session,
    here: Loop,
    who: Requester,
    scope: Scope,
    receive: Receive,
    send: Send,
) -> Connection | None:
    """Relays a POST or a DELETE. The connection is its answer; None when it is refused here, and answered."""
    connection: Connection | None = None

    async def relay(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal connection
        if await is_refused(manager, scope, receive, send):
            return
        method: str = scope["method"]
        try:
            body = await Request(scope, receive).body() if method == "POST" else b""
        except ClientDisconnect:
            # It left in the middle of its own message (F-22).
            return
        server = _server.of_scope(runtime, scope)
        opened: Any = session.admit(
            method, scope["headers"], body, manager.json_response, server, *who, log_user(scope, runtime)
        )
        if not isinstance(opened, Refusal):
            _adopting.offer(runtime, manager, session, here, scope)
            opened = _unparsable(runtime, body) or session.relay(
                opened,
                method,
                _telemetry.relaying(scope["headers"], body),
                body,
                runtime.relayed_headers,
                *_sender.written(scope, runtime.relayed_state),
                manager.json_response,
                here.waiters,
            )
        connection = await _opened(opened, scope, send)

    # What the SDK has in front of its own sessions.
    await RequestBodyLimitMiddleware(relay, manager.max_request_body_size)(scope, receive, send)
    return connection


def _unparsable(runtime: Runtime, body: bytes) -> Refusal | None:
    """The answer to messages that the SDK does not take. Their own process could not give it any more."""
    try:
        if body:
            _sdk.parse(body)
    except _sdk.ValidationError as error:
        return runtime.engine.refusal(_sdk.MAJOR, "invalid_message", str(error))
    return None


async def _opened(opened: Connection | Refusal, scope: Scope, send: Send) -> Connection | None:
    if not isinstance(opened, Refusal):
        return opened
    session_id = _sdk.header(scope, b"mcp-session-id") or ""
    await write_refusal(send, opened, session_id.encode("ascii"))
    return None
