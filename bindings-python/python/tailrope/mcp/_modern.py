"""Requests of revision 2026-07-28, which has no sessions: steered to a revision that can resume, or served by the SDK,
with tasks for long calls of the clients that take them."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

from tailrope._native import announce, missing_capability
from tailrope.mcp import _elsewhere, _task_calls, _task_queries, _task_subscriptions
from tailrope.mcp._answer import write_refusal
from tailrope.mcp._runs import Received, with_headers, with_message

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from tailrope._runtime import Runtime
    from tailrope.mcp._engage import Way

logger = logging.getLogger("tailrope")

MAX_STEERED_BYTES = 4 << 20
"""A body that is answered without being served is read up to here, for the id of its request."""
_NEEDS_ANNOUNCEMENT = ("call", "task", "listen", "undeclared")
"""What becomes of requests only where the server does not make tasks itself."""
_MAKES_TASKS = "_tailrope_makes_tasks"
"""The member of a session manager whose server has said whether it makes tasks itself."""


async def serve(
    way: Way,
    runtime: Runtime | None,
    manager: Any,
    app: ASGIApp,
    scope: Scope,
    receive: Receive,
    send: Send,
    named: str,
) -> None:
    """Serves a POST that names the revision `named`. Without a runtime the SDK's own transport serves sessions."""
    engine = (runtime or way.runtime).engine
    received = await Received.of(receive, max(manager.max_request_body_size, MAX_STEERED_BYTES))
    if received is None:
        # It left in the middle of its own message (F-22).
        return
    body = received.body
    makes_tasks: bool | None = True if runtime is None else vars(manager).get(_MAKES_TASKS)
    routed = engine.route_post(named, body, way.prefer_resumable, bool(makes_tasks))
    if routed is not None and makes_tasks is None and routed[0] in _NEEDS_ANNOUNCEMENT:
        makes_tasks = await _ask(manager, app, scope, named)
        routed = engine.route_post(named, body, way.prefer_resumable, makes_tasks)
    route, tool, takes_tasks = routed or ("steer" if way.prefer_resumable else "pass", None, False)
    if route == "steer":
        await write_refusal(send, engine.steer(body, named))
    elif route in ("undeclared", "task") and await _elsewhere.is_refused(manager, scope, receive, send):
        return
    elif route == "undeclared":
        await write_refusal(send, missing_capability(body))
    elif route == "task" and runtime is not None:
        await _task_queries.serve(runtime, manager, app, scope, send, body)
    elif route == "call" and runtime is not None:
        await _task_calls.serve(runtime, manager, app, scope, received, send, tool)
    elif route == "listen" and runtime is not None:
        await _task_subscriptions.serve(runtime, app, scope, received, send)
    else:
        if not way.prefer_resumable and not takes_tasks:
            engine.note_unresumable(named)
        if route == "discover":
            await _discover(manager, app, scope, received, send)
        else:
            await app(scope, received, send)


class _Answer:
    """What an ASGI app sends, instead of sending it."""

    def __init__(self) -> None:
        self.messages: list[Message] = []

    async def send(self, message: Message) -> None:
        self.messages.append(message)

    @property
    def body(self) -> bytes:
        return b"".join(it.get("body", b"") for it in self.messages if it["type"] == "http.response.body")


async def _discover(manager: Any, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    """Has the server's answer to `server/discover` announce tasks, unless the server does."""
    answer = _Answer()
    await app(scope, receive, answer.send)
    announcement, body = announce(answer.body)
    _note(manager, announcement)
    if body is None:
        for message in answer.messages:
            await send(message)
        return
    start = answer.messages[0]
    await send({**start, "headers": with_headers(start["headers"], {b"content-length": b"%d" % len(body)})})
    await send({"type": "http.response.body", "body": body, "more_body": False})


def _note(manager: Any, announcement: str) -> bool:
    """Notes whether the server makes tasks itself. An answer that cannot say so is no answer."""
    if announcement != "unchanged":
        vars(manager)[_MAKES_TASKS] = announcement == "by_host"
    return announcement == "by_host"


async def _ask(manager: Any, app: ASGIApp, scope: Scope, named: str) -> bool:
    """Asks the server whether it makes tasks itself, where no client has asked before."""
    meta = {
        "io.modelcontextprotocol/protocolVersion": named,
        "io.modelcontextprotocol/clientInfo": {"name": "tailrope", "version": "0"},
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    body = json.dumps({"jsonrpc": "2.0", "id": 0, "method": "server/discover", "params": {"_meta": meta}}).encode()
    of_message = [(b"content-type", b"application/json"), (b"mcp-method", b"server/discover")]
    of_message.append((b"content-length", b"%d" % len(body)))
    answer = _Answer()
    asking = {**scope, "headers": with_message(scope["headers"], of_message)}
    try:
        await app(asking, Received([{"type": "http.request", "body": body, "more_body": False}], None), answer.send)
    except Exception:
        # The call itself is going to show what is wrong.
        logger.warning("whether the server makes tasks itself cannot be asked", exc_info=True)
    return _note(manager, announce(answer.body)[0])
