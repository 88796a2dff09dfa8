"""Requests about tasks: answered by the engine."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from tailrope._native import Refusal, TaskCall
from tailrope.mcp import _sender, _server, _task_calls
from tailrope.mcp._answer import write_json, write_refusal
from tailrope.mcp._principal import requester
from tailrope.mcp._runs import Origin

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Scope, Send

    from tailrope._native import TaskQuery
    from tailrope._runtime import Runtime


async def serve(runtime: Runtime, manager: Any, app: ASGIApp, scope: Scope, send: Send, body: bytes) -> None:
    """Answers a request about a task."""
    engine, here, headers = runtime.engine, runtime.here(), scope["headers"]
    request = engine.read_task_request(scope["method"], headers, body, manager.json_response)
    if isinstance(request, Refusal):
        await write_refusal(send, request)
        return
    sender = _sender.written(scope, runtime.relayed_state) if request.may_travel else (None, [])
    server, who = _server.of_scope(runtime, scope), requester(scope, runtime)
    query = engine.ask_task(request, server, body, headers, *who, runtime.relayed_headers, *sender, here.waiters)
    if query is None:
        answer: bytes | Refusal = request.unknown()
    else:
        origin = _task_calls.origins[query.key] = Origin.of(scope)
        try:
            answer = await _answer(runtime, manager, app, origin, query)
        finally:
            del _task_calls.origins[query.key]
    if isinstance(answer, Refusal):
        await write_refusal(send, answer)
    else:
        await write_json(send, 200, answer)


async def _answer(runtime: Runtime, manager: Any, app: ASGIApp, origin: Origin, query: TaskQuery) -> bytes | Refusal:
    here = runtime.here()
    served: _task_calls.Call | None = None
    while True:
        answer = query.take()
        here.arm(runtime, runtime.engine.due_in_ms())
        if isinstance(answer, TaskCall):
            served = _task_calls.Call(runtime, manager, app, answer, origin)
            served.serve()
        elif answer is not None:
            return answer
        elif served is not None and not served.has_ended:
            # It is woken in the place of this request.
            await served.turn()
        else:
            future: asyncio.Future[None] = here.loop.create_future()
            if here.waiters.park(query.key, future):
                await future
