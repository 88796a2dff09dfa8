"""What a drain is for: what was there when it began. Servers that start later in the same process are not drained."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import hypercorn.asyncio
import pytest
import tailrope
import tailrope.mcp
import uvicorn
from asgi import OPEN, Asgi, Part, outgoing, until
from kit.peer import Peer
from mcp.server.lowlevel import Server as SdkServer
from mcp.server.streamable_http import EventStore
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from servers.python.flavors import BUILDERS, Ops, installed
from tailrope._native import stats_of
from tailrope.testing._server import _free_port

pytestmark = [pytest.mark.ours, pytest.mark.usefixtures("uninstalled")]

PING = {"jsonrpc": "2.0", "id": 1, "method": "ping"}


class Own(EventStore):
    """A store that a user wrote."""

    def __init__(self) -> None:
        self.events = 0

    async def store_event(self, stream_id: str, message: Any) -> str:
        self.events += 1
        return str(self.events)

    async def replay_events_after(self, last_event_id: str, send_callback: Any) -> str | None:
        return None


STORES: dict[str, Any] = {
    "no store": lambda: None,
    "one EventStore": tailrope.mcp.EventStore,
    "a store of their own": Own,
}


def installed_one(store: Any) -> Any:
    return StreamableHTTPSessionManager(SdkServer("x"), event_store=store)


@pytest.mark.parametrize("kept", STORES)
async def test_servers_that_start_behind_a_drain_are_not_drained(kept: str) -> None:
    tailrope.install()
    store = STORES[kept]()
    for _ in range(20):
        manager = installed_one(store)
        async with manager.run():
            session = await opened(manager)
            listening = Asgi(manager, "GET", session=session)
            await until(lambda listening=listening: listening.sent)
            assert b'"result"' in (await answered(manager, "POST", PING, session)).body
            assert await tailrope.drain() is True
            await listening.task
            assert b"\nretry: " in listening.body


@pytest.mark.parametrize("kept", STORES)
async def test_transports_made_behind_a_drain_are_not_drained(kept: str) -> None:
    store = STORES[kept]()
    for _ in range(20):
        made = tailrope.mcp.StreamableHTTPServerTransport("s1", event_store=store)
        async with made.connect() as (inbox, outbox):
            opening = Asgi(made, "POST", OPEN)
            async with asyncio.timeout(60):
                await inbox.receive()
            result = {"protocolVersion": "2025-11-25", "capabilities": {}, "serverInfo": {"name": "x", "version": "1"}}
            await outbox.send(outgoing({"jsonrpc": "2.0", "id": 0, "result": result}))
            await opening.task
            assert await tailrope.drain() is True
            # It was there.
            late = Asgi(made, "GET")
            await late.task
            assert b"\nretry: " in late.body


@pytest.mark.parametrize("way", ["install", "resumable", "manager"])
@pytest.mark.parametrize("is_used", [True, False])
async def test_a_drain_takes_no_session_from_its_beginning_on_and_what_runs_goes_on(way: str, is_used: bool) -> None:
    if way == "install":
        tailrope.install()
    manager = (tailrope.mcp if way == "manager" else sdk()).StreamableHTTPSessionManager(SdkServer("x"))
    if way == "resumable":
        tailrope.mcp.resumable(manager)
    async with manager.run():
        session = await opened(manager) if is_used else None
        # A drain lasts as long as a connection that nobody reads.
        stuck = await unread(manager, session) if session else None
        draining = asyncio.ensure_future(tailrope.drain())
        await asyncio.sleep(0)
        assert (await answered(manager, "POST", OPEN)).status == 503
        if stuck is not None and session is not None:
            assert not draining.done()
            assert b"\nretry: " in (await answered(manager, "POST", PING, session)).body
            stuck.is_read.set()
        assert await draining is True
        # It was there before the drain.
        assert (await answered(manager, "POST", OPEN)).status == 503
        if session is not None:
            assert (await answered(manager, "DELETE", None, session)).status == 200


async def test_a_drain_that_nobody_waits_for_is_over_when_it_is_over() -> None:
    tailrope.install()
    manager = installed_one(None)
    async with manager.run():
        listening = await unread(manager, await opened(manager))
        draining = asyncio.ensure_future(tailrope.drain())
        await asyncio.sleep(0)
        draining.cancel()
        with suppress(asyncio.CancelledError):
            await draining
        listening.is_read.set()
        await listening.task
    later = installed_one(None)
    async with later.run():
        await opened(later)


async def test_a_wait_of_a_drain_that_is_cut_short_ends_the_drain() -> None:
    tailrope.install(drain_within_ms=600_000)
    manager = installed_one(None)
    async with manager.run():
        listening = await unread(manager, await opened(manager))
        assert await tailrope.drain(within_ms=1) is False
        later = installed_one(None)
        async with later.run():
            await opened(later)
        listening.is_read.set()
        await listening.task


def test_a_drain_that_cannot_wait_drains_nothing() -> None:
    tailrope.install()

    async def serve() -> None:
        manager = installed_one(None)
        async with manager.run():
            await opened(manager)

    asyncio.run(serve())
    with pytest.raises(tailrope.TailropeError, match="asyncio event loops"):
        tailrope.drain().send(None)
    asyncio.run(serve())


async def test_a_session_that_a_drain_has_left_goes_on_in_a_server_that_starts_behind_it(tmp_path: Path) -> None:
    tailrope.install(store=f"sqlite:{tmp_path / 'events.db'}", owner_lost_ms=600_000)
    manager = installed_one(None)
    async with manager.run():
        session = await opened(manager)
        assert await tailrope.drain() is True
    later = installed_one(None)
    async with later.run():
        assert b'"result"' in (await answered(later, "POST", PING, session)).body
        assert list(later._server_instances) == [session]


@pytest.mark.usefixtures("alone")
async def test_what_one_store_holds_is_counted_once() -> None:
    store = tailrope.mcp.EventStore()
    manager = tailrope.mcp.resumable(installed_one(store))
    async with manager.run():
        session = await opened(manager)
        await answered(manager, "POST", PING, session)
        events = stats_of([store.runtime.engine])["events"]
        assert events and await tailrope.drain() is True
        later = tailrope.mcp.resumable(installed_one(store))
        async with later.run():
            await opened(later)
            held = stats_of([store.runtime.engine])
            now = tailrope.stats()
            assert [now[name] for name in ("events", "bytes")] == [held["events"], held["bytes"]]


@asynccontextmanager
async def by_uvicorn(app: Any, port: int) -> AsyncIterator[None]:
    server = uvicorn.Server(uvicorn.Config(app, port=port, log_level="warning", ws="none"))
    task = asyncio.create_task(server.serve())
    await until(lambda: server.started)
    yield
    server.should_exit = True
    await task


@asynccontextmanager
async def by_hypercorn(app: Any, port: int) -> AsyncIterator[None]:
    config = hypercorn.Config()
    config.bind = [f"127.0.0.1:{port}"]
    stop = asyncio.Event()
    task = asyncio.create_task(hypercorn.asyncio.serve(app, config, shutdown_trigger=stop.wait))  # type: ignore[arg-type]
    yield
    stop.set()
    await task


@pytest.mark.parametrize("host", [by_uvicorn, by_hypercorn])
async def test_a_host_may_start_again(host: Any) -> None:
    tailrope.install()
    for _ in range(3):
        port = _free_port()
        async with host(BUILDERS[installed()[0]]({}, None, None, Ops(tailrope=True)), port):
            peer = await connected(port)
            listening = await peer.listen()
            assert await peer.ask("script", {"steps": ["emit 1", "return x"]}) == "x"
        assert (await listening.rest())[-1].retry is not None


async def connected(port: int) -> Peer:
    async with asyncio.timeout(60):
        while True:
            with suppress(OSError):
                return await Peer.open(port)
            await asyncio.sleep(0.01)


def sdk() -> Any:
    import mcp.server.streamable_http_manager

    return mcp.server.streamable_http_manager


async def answered(manager: Any, method: str, body: Any = None, session: str | None = None) -> Asgi:
    call = Asgi(manager, method, body, session=session)
    async with asyncio.timeout(60):
        await call.task
    return call


class Unread(Asgi):
    """A connection whose peer takes nothing yet."""

    def __init__(self, manager: Any, session: str) -> None:
        super().__init__(manager, "GET", session=session)
        self.is_read = asyncio.Event()

    async def _send(self, part: Part) -> None:
        await super()._send(part)
        await self.is_read.wait()


async def unread(manager: Any, session: str) -> Unread:
    connection = Unread(manager, session)
    await until(lambda: connection.sent)
    return connection


async def opened(manager: Any) -> str:
    """A session: its id."""
    opening = await answered(manager, "POST", OPEN)
    assert opening.status == 200, opening.body
    headers = dict(opening.sent[0]["headers"])
    return str(headers[b"mcp-session-id"].decode())
