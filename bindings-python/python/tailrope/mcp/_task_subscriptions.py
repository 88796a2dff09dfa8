"""Subscriptions that name tasks: served by the SDK, with what becomes of the tasks between the events of its stream."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from tailrope._native import Refusal
from tailrope.mcp import _hosts, _server
from tailrope.mcp._answer import content_type_of, until_disconnected, write_refusal
from tailrope.mcp._principal import requester

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Scope, Send

    from tailrope._native import TaskSubscription
    from tailrope._runtime import Runtime
    from tailrope.mcp._runs import Received

logger = logging.getLogger("tailrope")


async def serve(runtime: Runtime, app: ASGIApp, scope: Scope, received: Received, send: Send) -> None:
    """Serves a `subscriptions/listen` that names tasks."""
    server, who, waiters = _server.of_scope(runtime, scope), requester(scope, runtime), runtime.here().waiters
    native = runtime.engine.subscribe_to_tasks(server, received.body, scope["headers"], *who, waiters)
    if native is None:
        await app(scope, received, send)
    elif isinstance(native, Refusal):
        await write_refusal(send, native)
    else:
        await Subscription(runtime, native, received, send).serve(app, scope)


class Subscription:
    """One subscription, until its stream ends or its client leaves."""

    is_handing_over = False
    """A drain ends it, and does not wait for it."""

    def __init__(self, runtime: Runtime, native: TaskSubscription, received: Received, send: Send) -> None:
        self._runtime = runtime
        self._here = runtime.here()
        self._native = native
        self._received = received
        self._client = send
        self._is_stream = False
        self._writing = asyncio.Lock()
        self._over = asyncio.Event()
        """For the SDK the client has left then."""
        self._taken = asyncio.Event()
        _hosts.opened(self)

    @property
    def has_ended(self) -> bool:
        return self._over.is_set()

    def drain(self) -> None:
        self._native.drain()

    async def serve(self, app: ASGIApp, scope: Scope) -> None:
        telling = self._here.loop.create_task(self._tell())
        try:
            await app(scope, self._receive, self._send)
            if self._is_stream and not self.has_ended:
                # The SDK has nothing more to say, and the tasks go on.
                await self._until_over()
        finally:
            self._over.set()
            telling.cancel()
            self._native.leave()
            self._here.waiters.forget(self._native.key)

    async def _until_over(self) -> None:
        watcher = self._here.loop.create_task(until_disconnected(self._received))
        over = self._here.loop.create_task(self._over.wait())
        try:
            await asyncio.wait([watcher, over], return_when=asyncio.FIRST_COMPLETED)
        finally:
            watcher.cancel()
            over.cancel()

    async def _tell(self) -> None:
        """Writes what becomes of the tasks, as it comes."""
        waiters, key = self._here.waiters, self._native.key
        try:
            while not self.has_ended:
                self._here.arm(self._runtime, self._runtime.engine.due_in_ms())
                future: asyncio.Future[None] = self._here.loop.create_future()
                if waiters.park(key, future):
                    await future
                await self._write()
        except ConnectionError as error:
            # How ASGI says that the peer is gone (F-22).
            logger.debug("the peer is gone: %r", error)
        except Exception:
            logger.exception("a subscription to tasks is not served any more")
        finally:
            self._over.set()
            self._taken.set()

    async def _write(self) -> None:
        async with self._writing:
            while self._is_stream and not self.has_ended and (data := self._native.next()) is not None:
                await self._client({"type": "http.response.body", "body": data, "more_body": True})
            if self._is_stream and not self.has_ended and self._native.is_over:
                await self._client({"type": "http.response.body", "body": b"", "more_body": False})
                self._over.set()
        self._taken.set()

    # What the SDK sees.

    async def _receive(self) -> Message:
        receiving = self._here.loop.create_task(self._received())
        over = self._here.loop.create_task(self._over.wait())
        try:
            await asyncio.wait([receiving, over], return_when=asyncio.FIRST_COMPLETED)
            return receiving.result() if receiving.done() else {"type": "http.disconnect"}
        finally:
            receiving.cancel()
            over.cancel()

    async def _send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._is_stream = self._native.begin(content_type_of(message))
        if message["type"] != "http.response.body" or not self._is_stream:
            await self._client(message)
            return
        if self.has_ended:
            return
        self._native.push(message.get("body", b""))
        if not message.get("more_body", False):
            self._native.end()
        await self._write()
        while not self._native.takes and not self.has_ended:
            # It has to be acknowledged first.
            self._taken.clear()
            await self._taken.wait()
