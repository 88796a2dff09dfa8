"""Calls that may become tasks: the SDK is given each in a task of our own, and its client what the engine says.

A call ends with its client as long as it is no task. From then on it ends by itself, by its client's `tasks/cancel`, or
with its session manager.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import deque
from typing import TYPE_CHECKING, Any

from tailrope import _telemetry
from tailrope.mcp import _ask, _hosts, _sdk, _server
from tailrope.mcp._answer import begin_stream, end_stream, until_disconnected, write_json, write_refusal
from tailrope.mcp._principal import log_user, requester
from tailrope.mcp._runs import CALL, Origin, Run, with_headers, with_message

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.types import ASGIApp, Receive, Scope, Send

    from tailrope._native import Relayed, TaskCall
    from tailrope._runtime import Runtime
    from tailrope.mcp._runs import Received

logger = logging.getLogger("tailrope")

END_S = 5.0
"""So long runs are waited for that were cancelled because their session manager ends."""

MAX_WAITING = 256 << 10
"""So many bytes of its answer wait for a slow client before the run waits, too."""

origins: dict[int, Origin] = {}
"""The requests about tasks that are being served, by their keys: each may begin a run."""

Headers = list[tuple[bytes, bytes]]

Reply = tuple[str, int, bytes]
"""What the client is to be given, a status, and bytes."""


async def serve(
    runtime: Runtime, manager: Any, app: ASGIApp, scope: Scope, received: Received, send: Send, tool: str | None
) -> None:
    """Serves a call whose client takes tasks."""
    server, who = _server.of_scope(runtime, scope), requester(scope, runtime)
    named, waiters = log_user(scope, runtime), runtime.here().waiters
    native = runtime.engine.open_call(
        received.body, server, tool, not manager.json_response, scope["headers"], *who, named, waiters
    )
    if native is None:
        await app(scope, received, send)
        return
    call = Call(runtime, manager, app, native, Origin.of(scope))
    # What we add must not make a body too large that was not.
    body = native.body if len(native.body) <= manager.max_request_body_size else received.body
    # In this mode the SDK does not look at the connection.
    watcher = runtime.here().loop.create_task(call.watch(received)) if manager.json_response else None
    try:
        call.run(0, body, call.origin, received if watcher is None else None)
        await call.answer(send)
    finally:
        if watcher is not None:
            watcher.cancel()


class Call:
    """One call, from its first run to the end of its last one."""

    def __init__(self, runtime: Runtime, manager: Any, app: ASGIApp, native: TaskCall, origin: Origin) -> None:
        self._runtime = runtime
        self._engine = runtime.engine
        self._here = runtime.here()
        self._app = app
        self._native = native
        self.origin = origin
        self._runs: dict[int, Run] = {}
        self._replies: deque[Reply] = deque()
        self._waiting = 0
        self._is_linked = True
        """The client of the call is there, and gets what the run sends."""
        self._turns: set[asyncio.Future[None]] = set()
        self._asks: dict[int, asyncio.Future[dict[str, Any] | None]] = {}
        self._asked = 0
        self._is_closed = False
        # The client of the call has closed its connection.
        self._is_left = False
        self._serving: asyncio.Task[None] | None = None
        self._open_calls = _hosts.calls_of(manager)
        self._open_calls.add(self)
        _hosts.opened(self)

    @property
    def has_ended(self) -> bool:
        return self._is_closed

    @property
    def is_handing_over(self) -> bool:
        """Whether something runs whose end another process could show, or the store does not have that end yet."""
        return self._native.is_handing_over or any(not run.is_over for run in self._runs.values())

    def drain(self) -> None:
        """The host stops: what runs is waited for, and what waits for its client goes on in other processes."""
        self._native.drain()

    async def close(self) -> None:
        """The session manager ends, and with it what it serves."""
        self._leave()
        if running := [run for run in self._runs.values() if not run.is_over]:
            for run in running:
                run.cancel()
            await asyncio.wait([run.task for run in running if run.task is not None], timeout=END_S)
        self._close()
        if self._serving is not None:
            self._serving.cancel()
            await asyncio.wait([self._serving])

    def serve(self) -> None:
        """Serves the call in a task of its own, which outlives the request, until there is nothing left to do."""
        if not self._is_closed:
            self._serving = self._here.loop.create_task(self._serve(), context=self.origin.context.copy())

    async def _serve(self) -> None:
        try:
            while self._goes_on():
                await self._told()
        finally:
            self._close()

    def _goes_on(self) -> bool:
        """Does what the engine says. Whether something is left to do."""
        try:
            while not self._is_closed and (steps := self._native.take_steps()):
                for step in steps:
                    self._perform(*step)
            self._arm()
            if self._native.is_over:
                self._close()
        except Exception:
            logger.exception("a call that may become a task is not served any more")
            self._give_up()
            self._close()
        self._turn()
        return not self._is_closed

    async def _told(self) -> None:
        """Waits until the engine may have something to say."""
        future: asyncio.Future[None] = self._here.loop.create_future()
        if self._here.waiters.park(self._native.key, future):
            await future

    def _close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._open_calls.discard(self)
            for number in list(self._asks):
                self._settle(number, None)
            self._turn()
            # Who answers the call's client waits for the engine.
            self._here.waiters.wake(self._native.key)

    def _perform(self, what: str, number: int, data: bytes, start: tuple[int | Relayed | None, Headers] | None) -> None:
        match what:
            case "unlink":
                self._runs[0].unlink()
                self._is_linked = False
            case "disconnect":
                self._runs[number].gone.set()
            case "kill":
                self._runs[number].cancel()
            case "start" if start is not None:
                self._run_again(number, data, *start)
            case "answer":
                self._settle(number, json.loads(data))
            case "refuse":
                self._settle(number, None)
            case _:
                self._replies.append((what, number, data))
                self._waiting += len(data)

    def _arm(self) -> None:
        self._here.arm(self._runtime, self._engine.due_in_ms())

    def _turn(self) -> None:
        for future in self._turns:
            if not future.done():
                future.set_result(None)

    async def turn(self) -> None:
        """Waits until there may be something new, of a call that has not ended."""
        future: asyncio.Future[None] = self._here.loop.create_future()
        self._turns.add(future)
        try:
            await future
        finally:
            self._turns.discard(future)

    async def has_room(self) -> None:
        """Waits until the client has taken most of what waits for it."""
        # Who writes the answer may wait for the client: what waits is known when the steps are taken.
        self._goes_on()
        while self._waiting > MAX_WAITING and self._is_linked and not self._is_closed:
            await self.turn()

    def _leave(self) -> None:
        try:
            self._native.leave()
        except RuntimeError:
            logger.exception("a call cannot be left to other processes")

    def _give_up(self) -> None:
        """The call cannot be served: it has no result."""
        self._leave()
        for run in self._runs.values():
            run.cancel()

    # Runs.

    def run(self, number: int, body: bytes, origin: Origin, client: Receive | None = None) -> None:
        """Gives the SDK the call. From `client` it learns that its client leaves, as long as that concerns it."""
        _ask.patch()
        for other in [other for other, run in self._runs.items() if run.is_over]:
            del self._runs[other]
        run = self._runs[number] = Run(number, self._native, self._arm, self.has_room)
        if client is not None:
            run.leaving = (client, self._left)
        length = {b"content-length": b"%d" % len(body)}
        scope = {**origin.scope, "extensions": {}, "headers": with_headers(origin.scope["headers"], length), CALL: self}
        context = origin.context.copy()
        _telemetry.begin_run(self._native, body, _sdk.spanned, context)
        task = run.start(self._app, scope, body, context)
        task.add_done_callback(self._ended)

    def _run_again(self, number: int, body: bytes, context: int | Relayed | None, of_message: Headers) -> None:
        """Gives the SDK the call in the context of another request."""
        own = self.origin
        if context is None:
            origin = own
        elif isinstance(context, int):
            # Where its client has left it is not there any more.
            origin = origins.get(context, own)
        else:
            origin = own.relayed(context)
        scope = {**origin.scope, "headers": with_message(origin.scope["headers"], of_message)}
        self.run(number, body, Origin(scope, origin.context))

    def _ended(self, task: asyncio.Task[None]) -> None:
        fault = None if task.cancelled() else task.exception()
        if fault is not None:
            logger.error("a call that may become a task is not served any more", exc_info=fault)
            self._give_up()
            self._close()

    # Questions of handlers.

    async def ask(self, method: str, params: Mapping[str, Any] | None) -> dict[str, Any] | None:
        """Asks the client for a handler. None where it cannot be asked."""
        if self._is_closed:
            return None
        self._asked += 1
        number = self._asked
        future = self._asks[number] = self._here.loop.create_future()
        request = {"jsonrpc": "2.0", "id": number, "method": method, "params": dict(params or {})}
        try:
            self._native.question(number, json.dumps(request, separators=(",", ":")))
            self._arm()
            answer: dict[str, Any] | None = await future
            return answer
        except asyncio.CancelledError:
            if not self._is_closed:
                self._native.withdrawn(number)
            raise
        finally:
            del self._asks[number]

    def _settle(self, number: int, answer: dict[str, Any] | None) -> None:
        future = self._asks.get(number)
        if future is not None and not future.done():
            future.set_result(answer)

    # The client of the call.

    async def watch(self, receive: Receive) -> None:
        """Waits until the client of the call leaves."""
        if await until_disconnected(receive):
            self._left()

    def _left(self) -> None:
        self._is_left = True
        self._here.waiters.wake(self._native.key)

    async def answer(self, send: Send) -> None:
        """Serves the call and writes its answer, until that ends or the client leaves. The rest is served behind it."""
        is_begun = is_answered = False
        try:
            while True:
                goes_on = self._goes_on()
                while self._replies and not is_answered:
                    reply = self._replies.popleft()
                    self._waiting -= len(reply[2])
                    is_begun = is_begun or reply[0] == "begin"
                    is_answered = await self._reply(send, *reply)
                    self._turn()
                if is_answered or self._is_left:
                    return
                if not goes_on:
                    is_answered = True
                    if is_begun:
                        await end_stream(send)
                    else:
                        await write_refusal(send, self._engine.refusal(_sdk.MAJOR, "internal", ""))
                    return
                await self._told()
        except ConnectionError as error:
            # How ASGI says that the peer is gone (F-22).
            logger.debug("the peer is gone: %r", error)
        finally:
            self._is_linked = False
            self._turn()
            if not is_answered and not self._is_closed:
                self._native.client_gone()
            if not self._is_closed and self._goes_on():
                self.serve()
            else:
                self._runs.clear()

    async def _reply(self, send: Send, what: str, status: int, data: bytes) -> bool:
        """Writes a part of the answer. Whether it was the last one."""
        match what:
            case "begin":
                await begin_stream(send)
            case "write":
                await send({"type": "http.response.body", "body": data, "more_body": True})
            case "end":
                await end_stream(send)
            case "body":
                await write_json(send, status, data)
            case "pass_on":
                run = self._runs[0]
                for message in run.answer or ():
                    await send(message)
                if run.fault is not None:
                    raise run.fault
        return what in ("end", "body", "pass_on")
