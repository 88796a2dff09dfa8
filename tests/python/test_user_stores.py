"""Event stores that users wrote, and what their faults do to senders and readers. No sockets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
import tailrope
import tailrope.mcp
from asgi import Asgi, end, note, outgoing, running_call, transport
from mcp.server.streamable_http import EventMessage, EventStore
from tailrope import _runtime
from tailrope.mcp import _sdk

pytestmark = [pytest.mark.ours, pytest.mark.usefixtures("uninstalled")]


class Store(EventStore):
    """A store whose answers a test chooses."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, Any]] = []
        self.answer: Callable[[str], Awaitable[Any]] | None = None
        self.replayed: Any = None
        self.stream: Any = None

    async def store_event(self, stream_id: str, message: Any) -> str:
        self.rows.append((stream_id, message))
        event_id = str(len(self.rows))
        if message is not None and self.answer is not None:
            answer: Any = await self.answer(event_id)
            return answer  # type: ignore[no-any-return]
        return event_id

    async def replay_events_after(self, last_event_id: str, send_callback: Any) -> str | None:
        for event_id, message in self.replayed or []:
            await send_callback(EventMessage(message, event_id))
        stream: str | None = self.stream
        return stream


async def cancelled(_event_id: str) -> str:
    raise asyncio.CancelledError


async def surrogate(_event_id: str) -> str:
    return "\udc80"


@pytest.mark.parametrize("answer", [cancelled, surrogate])
async def test_i9_whatever_a_store_does_its_event_is_settled(answer: Any) -> None:
    store = Store()
    async with running_call(store) as (_, outbox, call):
        store.answer = answer
        async with asyncio.timeout(60):
            with pytest.raises(tailrope.TailropeError):
                await outbox.send(outgoing(note(1), 1))
        store.answer = None
        async with asyncio.timeout(60):
            await end(call, outbox)


@pytest.mark.parametrize("bad", [7, "\udc80", b"7"])
async def test_i9_a_replay_of_nonsense_is_a_store_fault(bad: Any) -> None:
    store = Store()
    async with transport(store) as (made, _inbox, _outbox):
        store.replayed = [(bad, _sdk.parse(json.dumps(note(1)).encode()))]
        resumed = Asgi(made, "GET", None, (b"last-event-id", b"999"))
        async with asyncio.timeout(60):
            await resumed.task
        assert resumed.status in (200, 400)


@asynccontextmanager
async def send_without_answer() -> AsyncIterator[tuple[Any, Any, Asgi, asyncio.Future[None]]]:
    """A send that waits for a store which never answers: transport, outbox, call and send."""
    store = Store()

    async def never(_event_id: str) -> str:
        await asyncio.Event().wait()
        return ""

    async with running_call(store) as (made, outbox, call):
        store.answer = never
        sending = asyncio.ensure_future(outbox.send(outgoing(note(1), 1)))
        await asyncio.sleep(0.02)
        yield made, outbox, call, sending


async def test_a_send_that_waits_for_the_store_when_its_session_ends_is_told() -> None:
    async with send_without_answer() as (_made, _outbox, call, sending):
        pass
    with pytest.raises(anyio.ClosedResourceError):
        await sending
    await call.task


@pytest.mark.parametrize("how", ["fault", "cancelled"])
async def test_senders_are_told_when_nobody_hears_the_store_any_more(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with send_without_answer() as (made, outbox, call, sending):
        outcomes = made._tailrope._outcomes
        if how == "fault":
            monkeypatch.setattr(outcomes, "_settle", None)
            _runtime.current_loop().waiters.wake(made._tailrope._session.key)
        else:
            for task in list(outcomes._tasks):
                task.cancel()
        async with asyncio.timeout(60):
            with pytest.raises(tailrope.TailropeError, match="not known") as told:
                await sending
            monkeypatch.undo()
            assert told.value.code == "store_failed"
            with pytest.raises(tailrope.TailropeError, match="not known"):
                await outbox.send(outgoing(note(2), 1))
            # The engine answers the client where a response is not stored.
            await outbox.send(outgoing({"jsonrpc": "2.0", "id": 1, "result": {}}))
    await call.task
