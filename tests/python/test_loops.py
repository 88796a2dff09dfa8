"""Event loops and their threads: what wakes a connection, and what is let go of when a loop ends. No sockets."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
import time
import weakref
from contextvars import ContextVar, copy_context
from pathlib import Path
from typing import Any

import pytest
import tailrope
import tailrope.mcp
from asgi import Asgi, outgoing, transport, until
from tailrope import _runtime
from tailrope.mcp import _engage

pytestmark = [pytest.mark.ours, pytest.mark.usefixtures("uninstalled")]


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
        listening = Asgi(made, "GET", session="dead")
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
        _runtime.current_loop().arm(_engage.default().runtime, 60_000)
        return weakref.ref(asyncio.get_running_loop())

    loops = [asyncio.run(use()) for _ in range(5)]
    gc.collect()
    # The last one of a thread is remembered until there is another.
    assert sum(loop() is not None for loop in loops) <= 1


class Witness:
    """Something that a frame holds, and which goes with the frame."""


def test_i11_frames_that_wait_on_closed_loops_are_let_go() -> None:
    tailrope.install()
    witnesses: list[weakref.ref[Witness]] = []

    async def leave(name: str) -> None:
        made = tailrope.mcp.StreamableHTTPServerTransport(name)
        connection = made.connect()
        streams = await connection.__aenter__()
        listening = Asgi(made, "GET", session=name)
        witness = Witness()
        witnesses.append(weakref.ref(witness))
        # The frames that serve the request have its scope, and so all of this.
        listening.scope["state"] = {"held": (connection, streams, witness)}
        await until(lambda: listening.sent)
        for task in asyncio.all_tasks():
            task._log_destroy_pending = False  # type: ignore[attr-defined]

    async def remember() -> None:
        _runtime.current_loop()

    for number in range(20):
        loop = asyncio.new_event_loop()
        loop.run_until_complete(leave(f"left-{number}"))
        loop.close()
    # The last loop of a thread is remembered until there is another.
    asyncio.run(remember())
    gc.collect()
    assert [witness() for witness in witnesses] == [None] * 20


async def test_i11_an_engine_without_sessions_is_let_go() -> None:
    tailrope.install()

    async def serve() -> weakref.ref[Any]:
        async with transport() as (made, _inbox, _outbox):
            listening = Asgi(made, "GET")
            await until(lambda: listening.sent)
            made.close_standalone_sse_stream()
            await listening.task
            return weakref.ref(made._tailrope.runtime)

    runtime = await serve()
    tailrope.uninstall()
    here = _runtime.current_loop()
    for known in list(here._timers):
        here._timers[known][1].cancel()
        here._tick(known)
    del known
    gc.collect()
    assert runtime() is None


async def test_i11_timers_and_signals_hold_nothing_of_the_first_user(tmp_path: Path) -> None:
    class User:
        pass

    user: ContextVar[User | None] = ContextVar("user", default=None)
    tailrope.install(store=f"sqlite:{tmp_path / 'events.db'}")
    runtime = _engage.installed.runtime

    def come() -> weakref.ref[User]:
        came = User()
        user.set(came)
        runtime.here().arm(runtime, 600_000)
        return weakref.ref(came)

    came = copy_context().run(come)
    gc.collect()
    assert came() is None


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
