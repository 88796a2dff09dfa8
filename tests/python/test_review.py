"""Faults that a review found: waiting and waking, cancellation, user stores, install. No sockets."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import logging
import sys
import threading
import time
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import anyio
import mcp.server.streamable_http_manager as sdk_manager
import pytest
import tailrope
import tailrope.mcp
from mcp.server.streamable_http import EventMessage, EventStore
from tailrope import _runtime
from tailrope.mcp import _engage, _sdk
from tailrope.mcp._streams import MAX_INBOX, Inbox

pytestmark = pytest.mark.ours

OPEN = {
    "jsonrpc": "2.0",
    "id": 0,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "x", "version": "1"},
    },
}
Part = dict[str, Any]


def request(id: int) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": {"name": "x", "arguments": {}}}


class Asgi:
    """One ASGI request to a transport. The peer is there until `leave`."""

    def __init__(self, transport: Any, method: str, body: Any = None, *headers: tuple[bytes, bytes]) -> None:
        self.sent: list[Part] = []
        self.left = asyncio.Event()
        self.got = asyncio.Event()
        self._unread = b"" if body is None else json.dumps(body).encode()
        self._read = False
        self.scope: Part = {
            "type": "http",
            "method": method,
            "path": "/mcp",
            "query_string": b"",
            "headers": [
                (b"accept", b"application/json, text/event-stream"),
                (b"content-type", b"application/json"),
                (b"mcp-session-id", b"s1"),
                (b"mcp-protocol-version", b"2025-11-25"),
                *headers,
            ],
        }
        self.task = asyncio.ensure_future(transport.handle_request(self.scope, self._receive, self._send))

    async def _receive(self) -> Part:
        if not self._read:
            self._read = True
            return {"type": "http.request", "body": self._unread, "more_body": False}
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, part: Part) -> None:
        self.sent.append(part)
        self.got.set()

    @property
    def status(self) -> int:
        status: int = self.sent[0]["status"]
        return status

    @property
    def body(self) -> bytes:
        return b"".join(part.get("body", b"") for part in self.sent[1:])


async def until(condition: Callable[[], Any], wait_s: float = 15.0) -> None:
    async with asyncio.timeout(wait_s):
        while not condition():
            await asyncio.sleep(0.005)


@contextlib.asynccontextmanager
async def transport(store: Any = None, **options: Any) -> AsyncIterator[tuple[Any, Any, Any]]:
    """A transport with its two streams, whose client is of 2025-11-25."""
    made = tailrope.mcp.StreamableHTTPServerTransport("s1", event_store=store, **options)
    async with made.connect() as (inbox, outbox):
        opening = Asgi(made, "POST", OPEN)
        await inbox.receive()
        result = {"protocolVersion": "2025-11-25", "capabilities": {}, "serverInfo": {"name": "x", "version": "1"}}
        await outbox.send(outgoing({"jsonrpc": "2.0", "id": 0, "result": result}))
        await opening.task
        yield made, inbox, outbox


def outgoing(message: dict[str, Any], related: int | str | None = None) -> Any:
    from mcp.shared.message import ServerMessageMetadata, SessionMessage

    metadata = None if related is None else ServerMessageMetadata(related_request_id=related)
    return SessionMessage(_sdk.parse(json.dumps(message).encode()), metadata=metadata)


def note(number: int) -> dict[str, Any]:
    params = {"progressToken": "p", "progress": number}
    return {"jsonrpc": "2.0", "method": "notifications/progress", "params": params}


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    yield
    tailrope.uninstall()


# Waiting and waking


async def test_i11_a_connection_leaves_no_key_behind() -> None:
    """The watcher of a connection ends after its connection: what it wakes is nobody's any more."""
    async with transport() as (made, _inbox, _outbox):
        waiters = _runtime.current_loop().waiters
        before = waiters.in_use
        for _ in range(20):
            listening = Asgi(made, "GET")
            await until(lambda listening=listening: listening.sent)
            made.close_standalone_sse_stream()
            await listening.task
            await asyncio.sleep(0)
        await asyncio.sleep(0.02)
        assert waiters.in_use == before


def test_a_loop_that_was_closed_with_open_connections_harms_no_other() -> None:
    """The process's engine is shared by its loops; its tick reaches the waiters of all of them."""
    tailrope.install(keep_alive_ms=50)
    dead = asyncio.new_event_loop()
    hold: list[Any] = []

    async def leave() -> None:
        made = tailrope.mcp.StreamableHTTPServerTransport("dead")
        connection = made.connect()
        hold.extend([made, connection, await connection.__aenter__()])
        listening = Asgi(made, "GET", None, (b"x", b"y"))
        listening.scope["headers"][2] = (b"mcp-session-id", b"dead")
        hold.append(listening)
        await until(lambda: listening.sent)

    async def live() -> None:
        async with transport() as (made, _inbox, _outbox):
            listening = Asgi(made, "GET")
            await until(lambda: listening.body.count(b": keep-alive") >= 4)
            listening.left.set()
            await listening.task

    dead.run_until_complete(leave())
    dead.close()
    try:
        faults: list[Any] = []
        alive = asyncio.new_event_loop()
        alive.set_exception_handler(lambda _loop, context: faults.append(context))
        alive.run_until_complete(live())
        alive.close()
        assert not faults
    finally:
        for task in asyncio.all_tasks(dead):
            task._log_destroy_pending = False  # type: ignore[attr-defined]


def test_i11_loops_that_were_closed_are_let_go() -> None:
    async def use() -> Any:
        _runtime.current_loop().arm(_engage.default_runtime(), 60_000)
        return weakref.ref(asyncio.get_running_loop())

    loops = [asyncio.run(use()) for _ in range(5)]
    gc.collect()
    # The last one of a thread is remembered until there is another.
    assert sum(loop() is not None for loop in loops) <= 1


async def test_i11_an_engine_without_sessions_is_let_go() -> None:
    tailrope.install()

    async def serve() -> weakref.ref[Any]:
        async with transport() as (made, _inbox, _outbox):
            listening = Asgi(made, "GET")
            await until(lambda: listening.sent)
            made.close_standalone_sse_stream()
            await listening.task
            return weakref.ref(made._runtime)

    runtime = await serve()
    tailrope.uninstall()
    here = _runtime.current_loop()
    for known in list(here._timers):
        here._timers[known][1].cancel()
        here._tick(known)
    del known
    gc.collect()
    assert runtime() is None


# Cancellation


def session_message(number: int) -> Any:
    return outgoing(note(number))


async def test_a_cancelled_sender_passes_its_place_on() -> None:
    inbox = Inbox()
    for number in range(MAX_INBOX):
        await inbox.put(session_message(number))
    waiting = [asyncio.ensure_future(inbox.put(session_message(number))) for number in range(MAX_INBOX + 1)]
    await asyncio.sleep(0)
    for task in waiting[:-1]:
        task.cancel()
    await asyncio.sleep(0)
    for _ in range(MAX_INBOX):
        await inbox.receive()
    async with asyncio.timeout(15):
        await waiting[-1]


async def test_a_sender_that_is_cancelled_when_it_was_woken_wakes_the_next() -> None:
    inbox = Inbox()
    for number in range(MAX_INBOX):
        await inbox.put(session_message(number))
    first, second = (asyncio.ensure_future(inbox.put(session_message(number))) for number in range(2))
    await asyncio.sleep(0)
    await inbox.receive()
    first.cancel()
    async with asyncio.timeout(15):
        await second


async def test_i13_a_request_that_is_cancelled_before_anybody_saw_it_gets_its_end() -> None:
    """As middleware does that cancels the application when its client has left."""
    async with transport() as (made, inbox, _outbox):
        for number in range(MAX_INBOX):
            await inbox.put(session_message(number))
        call = Asgi(made, "POST", request(1))
        await asyncio.sleep(0.02)
        assert made._session.in_flight == 1
        call.task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await call.task
        assert made._session.in_flight == 0
        await inbox.receive()
        again = Asgi(made, "POST", request(1))
        await asyncio.sleep(0.02)
        assert made._session.in_flight == 1, again.sent
        again.task.cancel()


async def test_f22_a_client_that_leaves_in_its_own_message_is_no_fault() -> None:
    async with transport() as (made, _inbox, _outbox):
        posted = Asgi(made, "POST", request(1))
        posted._read = True
        posted.left.set()
        await posted.task
        assert not posted.sent and made._session.in_flight == 0


async def test_a_message_waits_for_room_before_it_is_accepted() -> None:
    async with transport() as (made, inbox, _outbox):
        for number in range(MAX_INBOX):
            await inbox.put(session_message(number))
        posted = Asgi(made, "POST", note(1))
        await asyncio.sleep(0.02)
        assert not posted.sent, "202 says that it is taken"
        await inbox.receive()
        await posted.task
        assert posted.status == 202


async def test_a_message_of_a_session_that_has_ended_is_not_accepted() -> None:
    async with transport() as (made, _inbox, _outbox):
        pass
    posted = Asgi(made, "POST", note(1))
    await posted.task
    assert posted.status == 404


async def test_a_transport_that_is_not_connected_says_so() -> None:
    made = tailrope.mcp.StreamableHTTPServerTransport("s1")
    with pytest.raises((ValueError, RuntimeError), match="connect"):
        await Asgi(made, "POST", OPEN).task


async def test_f50_a_request_that_settled_without_a_response_holds_no_session() -> None:
    async with transport(idle_timeout=100) as (made, inbox, _outbox):
        call = Asgi(made, "POST", request(1))
        item = await inbox.receive()
        await until(lambda: call.sent)
        call.left.set()
        await call.task
        detached = made.idle_scope.deadline - anyio.current_time()
        assert detached > 3_000
        if _sdk.MAJOR >= 2:
            await item.metadata.on_request_unanswered()
            assert made.idle_scope.deadline - anyio.current_time() < 200


# Stores that users wrote


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
    async with transport(store) as (made, inbox, outbox):
        call = Asgi(made, "POST", request(1))
        await inbox.receive()
        store.answer = answer
        async with asyncio.timeout(15):
            with pytest.raises(tailrope.TailropeError):
                await outbox.send(outgoing(note(1), 1))
        store.answer = None
        async with asyncio.timeout(15):
            await outbox.send(outgoing({"jsonrpc": "2.0", "id": 1, "result": {}}))
            await call.task
        assert b'"result"' in call.body


@pytest.mark.parametrize("bad", [7, "\udc80", b"7"])
async def test_i9_a_replay_of_nonsense_is_a_store_fault(bad: Any) -> None:
    store = Store()
    async with transport(store) as (made, _inbox, _outbox):
        store.replayed = [(bad, _sdk.parse(json.dumps(note(1)).encode()))]
        resumed = Asgi(made, "GET", None, (b"last-event-id", b"999"))
        async with asyncio.timeout(15):
            await resumed.task
        assert resumed.status in (200, 400)


async def test_a_send_that_waits_for_the_store_when_its_session_ends_is_told() -> None:
    store = Store()
    hang = asyncio.Event()

    async def never(_event_id: str) -> str:
        await hang.wait()
        return ""

    async with transport(store) as (made, inbox, outbox):
        call = Asgi(made, "POST", request(1))
        await inbox.receive()
        store.answer = never
        sending = asyncio.ensure_future(outbox.send(outgoing(note(1), 1)))
        await asyncio.sleep(0.02)
    with pytest.raises(anyio.ClosedResourceError):
        await sending
    await call.task


async def test_install_again_replaces_the_options_of_user_stores_too() -> None:
    store = Store()
    tailrope.install(retry_ms=1_111)
    async with transport(store) as (first, _inbox, _outbox):
        assert first._runtime.engine.options()["retry_ms"] == 1_111
    tailrope.install(retry_ms=2_222)
    async with transport(store) as (second, _inbox, _outbox):
        assert second._runtime.engine.options()["retry_ms"] == 2_222


# Responses that cannot be written


async def test_i13_a_response_that_cannot_be_written_is_answered_with_an_error() -> None:
    """Text with a lone surrogate, as file names have it, is no JSON. The SDK's sending must not raise (I9)."""
    async with transport() as (made, inbox, outbox):
        call = Asgi(made, "POST", request(1))
        await inbox.receive()
        item = outgoing({"jsonrpc": "2.0", "id": 1, "result": {"text": "x"}})
        _sdk.unwrap(item.message).result["text"] = "\udc80"
        await outbox.send(item)
        async with asyncio.timeout(15):
            await call.task
        answer = json.loads(call.body.decode().split("data: ")[-1])
        assert answer["id"] == 1 and answer["error"]["code"] == -32603


async def test_a_notification_that_cannot_be_written_raises_in_its_handler() -> None:
    async with transport() as (made, inbox, outbox):
        call = Asgi(made, "POST", request(1))
        await inbox.receive()
        item = outgoing({"jsonrpc": "2.0", "method": "notifications/x", "params": {"text": "x"}}, 1)
        _sdk.unwrap(item.message).params["text"] = "\udc80"
        with pytest.raises(ValueError):
            await outbox.send(item)
        call.task.cancel()


# install()


def test_install_with_a_wrong_option_changes_nothing() -> None:
    stock = sdk_manager.StreamableHTTPServerTransport
    for wrong in ({"retry_ms": -1}, {"nonsense": 1}, {"store_timeout_ms": 0}, {"store_timeout_ms": "1"}):
        with pytest.raises(ValueError):
            tailrope.install(prefer_resumable=True, **wrong)  # type: ignore[arg-type]
        assert _engage.runtime_for(None, explicit=False) is None
        assert sdk_manager.StreamableHTTPServerTransport is stock
    tailrope.install(retry_ms=1_234)
    with pytest.raises(ValueError):
        tailrope.install(retry_ms=-1)
    runtime = _engage.runtime_for(None, explicit=False)
    assert runtime is not None and runtime.engine.options()["retry_ms"] == 1_234


@pytest.mark.parametrize("level", [1_000, sys.maxsize])
async def test_a_logger_that_is_silenced_by_a_high_level_serves(level: int) -> None:
    logger = logging.getLogger("tailrope")
    before = logger.level
    logger.setLevel(level)
    try:
        tailrope.install()
        async with transport() as (made, _inbox, _outbox):
            here = _runtime.current_loop()
            here.arm(made._runtime, 0)
            here._timers[made._runtime][1].cancel()
            here._tick(made._runtime)
    finally:
        logger.setLevel(before)


async def test_the_kill_switch_leaves_a_server_with_our_store_working(monkeypatch: pytest.MonkeyPatch) -> None:
    """`event_store=tailrope.mcp.EventStore()` on the SDK's own transport: within its limits, but working."""
    monkeypatch.setenv("TAILROPE_DISABLE", "1")
    store = tailrope.mcp.EventStore(max_events_per_stream=3)
    ids = [await store.store_event("a", _sdk.parse(json.dumps(note(number)).encode())) for number in range(5)]
    other = await store.store_event("b", None)
    assert len({*ids, other}) == 6
    got: list[Any] = []

    async def collect(event: EventMessage) -> None:
        got.append(event)

    assert await store.replay_events_after(ids[2], collect) == "a"
    assert [event.event_id for event in got] == ids[3:]
    for gone in (ids[0], "nonsense"):
        assert await store.replay_events_after(gone, collect) is None
    assert await store.replay_events_after(other, collect) == "b"
    assert len(got) == 2


async def test_threads_of_other_loops_are_woken() -> None:
    """A message of another thread's loop reaches a connection of this one."""
    tailrope.install()
    async with transport() as (made, _inbox, outbox):
        listening = Asgi(made, "GET")
        await until(lambda: listening.sent)
        await asyncio.sleep(0.02)

        def other() -> None:
            asyncio.run(outbox.send(outgoing({"jsonrpc": "2.0", "method": "notifications/x"})))

        thread = threading.Thread(target=other)
        thread.start()
        await until(lambda: b"notifications/x" in listening.body)
        await asyncio.to_thread(thread.join)
        listening.left.set()
        await listening.task


def test_a_loop_that_changed_its_thread_is_woken() -> None:
    """It ran here before and runs in another thread now, while this one runs a loop of its own."""
    tailrope.install()
    moved = asyncio.new_event_loop()
    outboxes: list[Any] = []
    waited: list[float] = []

    async def first() -> None:
        _runtime.current_loop()

    async def second() -> None:
        async with transport() as (made, _inbox, outbox):
            listening = Asgi(made, "GET")
            await until(lambda: listening.sent)
            await asyncio.sleep(0.02)
            listening.got.clear()
            outboxes.append(outbox)
            before = time.monotonic()
            # Only the wake-up may end this before its time.
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(listening.got.wait(), 30)
            waited.append(time.monotonic() - before)
            listening.task.cancel()

    async def send() -> None:
        await outboxes[0].send(outgoing({"jsonrpc": "2.0", "method": "notifications/x"}))

    moved.run_until_complete(first())
    thread = threading.Thread(target=moved.run_until_complete, args=(second(),))
    thread.start()
    while not outboxes:
        time.sleep(0.01)
    time.sleep(0.05)
    asyncio.run(send())
    thread.join()
    moved.close()
    assert waited[0] < 15
