"""The test kit for users' own servers: what it starts, what it does to connections, and what it finds."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import AsyncIterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from conftest import HERE, KIND
from kit.servers import TESTS, Server, gate
from starlette.applications import Starlette
from tailrope import testing
from tailrope.testing import Call, NotExactlyOnce, Session, TailropeError, open_session, serve
from tailrope.testing._record import Connection, check

pytestmark = [pytest.mark.ours, pytest.mark.one_line]
VECTORS = json.loads((HERE.parent / "vectors" / "test_kit.json").read_text())["vectors"]
MINE = str(TESTS / "servers" / "python" / "mine.py")
ENV = {"PYTHONPATH": os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])}
COUNTED = [1, 2, 3, 4, 5, 6, "counted to 6"]


def recorded(vector: dict[str, Any]) -> list[Connection]:
    """The connections of a vector, as a call keeps them."""
    at: dict[str, Any] = {}
    connections: list[Connection] = []
    for number, each in enumerate(vector["connections"], 1):
        assert set(each) <= {"after", "again", "status", "gaps", "events", "end"}, each
        after = each.get("after")
        head = at[after] if after is not None else None
        method: Any = "POST" if after is None else "GET"
        connection = Connection(number, method, after, each.get("status", 200), each.get("again", False), head)
        for id, message in each["events"]:
            at[id] = connection.add(id, whole(message), None)
        connection.gaps, connection.end = each.get("gaps", []), each["end"]
        connections.append(connection)
    return connections


def whole(message: Any) -> Any:
    if isinstance(message, int):
        params = {"progressToken": "kit-1", "progress": message}
        return {"jsonrpc": "2.0", "method": "notifications/progress", "params": params}
    if isinstance(message, str):
        return {"jsonrpc": "2.0", "id": 1, "result": {"content": [{"type": "text", "text": message}]}}
    return message


@pytest.mark.parametrize("vector", VECTORS, ids=[vector["name"] for vector in VECTORS])
def test_verdict(vector: dict[str, Any]) -> None:
    def verdict() -> None:
        check("call 1 (tool)", recorded(vector), 1, "kit-1", vector["expected"])

    if vector["finds"] is None:
        verdict()
        return
    finds = {"lost": [], "repeated": [], "out_of_order": [], "foreign": [], **vector["finds"]}
    text = finds.pop("text", None)
    with pytest.raises(NotExactlyOnce) as failure:
        verdict()
    assert {name: getattr(failure.value, name) for name in finds} == finds
    assert isinstance(failure.value, AssertionError)
    if text is not None:
        assert str(failure.value).splitlines() == text


def test_long_lists_are_shown_in_part() -> None:
    values = list(range(1, 1001))
    with pytest.raises(NotExactlyOnce) as failure:
        vector = {"connections": [{"events": [["a", 1]], "end": "cut"}]}
        check("call 1 (tool)", recorded(vector), 1, "kit-1", [*values, "x" * 1000])
    lines = str(failure.value).splitlines()
    assert "... 960 more ..." in lines[1] and max(map(len, lines)) < 500
    assert failure.value.lost == [*values[1:], "x" * 1000]


async def closed_and_cut(session: Session) -> Call:
    """A call whose connection is closed by the server, then cut, and read from an older id."""
    call = await session.call("count", {"to": 6, "close_at": 2})
    assert call.connections[0].status == 200
    assert await call.until_closed() == [1, 2]
    await call.resume()
    await call.cut(after=2)
    await call.resume(after=call.ids[1])
    assert await call.read() == [2]
    assert await call.collect() == COUNTED
    assert [each.end for each in call.connections] == ["closed", "cut", "closed", "closed"]
    call.assert_exactly_once(COUNTED)
    call.assert_exactly_once()
    return call


TARGETS: dict[str, Any] = {
    "a module's server": "servers.python.mine:server",
    "a file": MINE,
    "a command": [sys.executable, "-m", "uvicorn", "--factory", "servers.python.mine:make", "--port", "{port}"],
}


@pytest.mark.parametrize("target", list(TARGETS))
async def test_a_process_is_served(target: str) -> None:
    async with serve(TARGETS[target], env=ENV, cwd=TESTS) as server:
        call = await closed_and_cut(await server.session())
        assert call.report().splitlines()[0] == "  connection 1: POST: 200: 1, 2; closed by the server"
    with pytest.raises(TailropeError) as refused:
        await open_session(server.url)
    assert refused.value.code == "no_connection"


@pytest.mark.parametrize("what", ["server", "make"])
async def test_an_object_is_served_in_the_tests_own_loop(what: str) -> None:
    import tailrope

    sys.modules.pop("servers.python.mine", None)
    mine = import_module("servers.python.mine")
    try:
        async with serve(mine.server if what == "server" else mine.make()) as server:
            call = await closed_and_cut(await server.session())
            assert tailrope.stats()["sessions"] >= 1
            with pytest.raises(TailropeError) as refused:
                await server.restart()
            assert refused.value.code == "not_restartable"
            assert await call.session.delete() == 200
    finally:
        tailrope.uninstall()


async def test_a_killed_server_goes_on_with_a_durable_store(tmp_path: Path) -> None:
    env = {**ENV, "STORE": f"sqlite:{tmp_path / 'events.db'}"}
    async with serve(MINE, env=env) as server:
        session = await server.session()
        done = await session.call("count", {"to": 6, "close_at": 3})
        await done.until_closed()
        await done.resume()
        assert await done.read(4) == [4, 5, 6, "counted to 6"]
        running = await session.call("count", {"to": 100_000, "pause_ms": 1})
        await running.cut(after=5)
        port, before = server.port, server.log
        await server.restart()
        assert server.port == port and server.log.startswith(before)
        await done.resume(after=done.ids[2])
        assert await done.collect() == COUNTED
        done.assert_exactly_once(COUNTED)
        await running.resume()
        *counted, end = await running.collect()
        # What was stored when the process died, and then an error: nobody works on it any more.
        assert counted == list(range(1, len(counted) + 1)) and end["code"] < 0
        running.assert_exactly_once()


async def test_without_a_durable_store_a_restart_is_found_to_lose(tmp_path: Path) -> None:
    async with serve(MINE, env=ENV) as server:
        session = await server.session()
        call = await session.call("count", {"to": 6, "pause_ms": 200})
        await call.cut(after=2)
        await server.restart()
        with pytest.raises(TailropeError) as refused:
            await call.collect()
        assert (refused.value.code, refused.value.status) == ("refused", 404)
        with pytest.raises(NotExactlyOnce) as failure:
            call.assert_exactly_once(COUNTED)
        assert failure.value.lost == COUNTED[2:]


async def test_events_that_a_stock_transport_loses_are_named() -> None:
    with pytest.raises(NotExactlyOnce) as failure:
        await resumed_amid_a_replay("stock")
    assert failure.value.lost == [3, 4, 5, 6, 7]
    assert str(failure.value).splitlines()[:4] == [
        "call 1 (script) did not come exactly once",
        "  lost: 3, 4, 5, 6, 7",
        '  sent:     1, 2, 3, 4, 5, 6, 7, "x"',
        '  received: 1, 2, "x"',
    ]
    await resumed_amid_a_replay("tailrope")


async def resumed_amid_a_replay(transport: str) -> None:
    """F-10: a tool goes on while the store takes its time over a resume."""
    server = Server(KIND, {"store": "lab"}, transport)
    try:
        session = await server.session()
        name, slow, end = gate(), gate(), gate()
        steps = ["emit 2", f"gate {name}", "emit 5", f"mark {name}", f"gate {end}", "return x"]
        call = await session.call("script", {"steps": steps})
        await call.cut(after=2)
        await server.plan(gate=slow, gate_on="priming")
        resuming = asyncio.create_task(call.resume())
        if transport == "stock":
            # The log has been read, and nobody is registered yet for what comes.
            await server.at(slow)
            await server.open(name)
            await server.mark(name)
        await server.open(name, slow)
        await resuming
        await server.open(end)
        await call.collect(read_again=False)
        session.close()
        call.assert_exactly_once([1, 2, 3, 4, 5, 6, 7, "x"])
    finally:
        server.kill()


async def test_errors_name_what_failed(tmp_path: Path) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text("raise SystemExit('no database')\n")
    with pytest.raises(TailropeError, match="it ended with 1\nno database") as fault:
        await serve(str(broken))
    assert fault.value.code == "not_started"
    # On a busy machine what it prints may come later.
    for start_ms in (500, 2_000, 8_000):
        with pytest.raises(TailropeError, match=r"does not listen on port") as fault:
            await serve(["sh", "-c", "echo elsewhere; sleep 60"], start_ms=start_ms)
        assert fault.value.code == "not_started"
        if "\nelsewhere" in str(fault.value):
            break
    else:
        pytest.fail(str(fault.value))
    with pytest.raises(TypeError, match="int is no server"):
        await serve(7)

    @contextlib.asynccontextmanager
    async def lifespan(_app: Any) -> AsyncIterator[None]:
        raise ValueError("no database")
        yield

    with pytest.raises(TailropeError, match="the application's startup failed") as fault:
        await serve(Starlette(lifespan=lifespan))
    assert fault.value.code == "not_started"

    async with serve(MINE, env=ENV) as server:
        session = await server.session()
        call = await session.call("count", {"to": 2, "pause_ms": 60_000})
        assert await call.read() == [1]
        session.wait_ms = 200
        with pytest.raises(
            TailropeError, match="nothing came for 200 ms on connection 1\n  connection 1: POST"
        ) as fault:
            await call.read()
        assert fault.value.code == "timed_out" and call.received == [1]
        session.wait_ms = server.wait_ms
        with pytest.raises(TailropeError) as fault:
            await call.resume(after="of another call")
        assert fault.value.code == "no_cursor"
        with pytest.raises(TailropeError, match="name what was sent"):
            call.assert_exactly_once()
        call = await session.call("count", {"to": 2})
        with pytest.raises(TailropeError, match=r"ended \(closed\) after 3 of 4 messages") as fault:
            await call.read(4)
        assert fault.value.code == "ended_early"
        assert await session.send({"jsonrpc": "2.0", "method": "notifications/roots/list_changed"}) == 202
        session.id = "unknown"
        with pytest.raises(TailropeError) as fault:
            await session.call("count", {"to": 1})
        assert (fault.value.code, fault.value.status) == ("refused", 404)


async def test_a_stock_server_without_ids_has_nothing_to_resume(tmp_path: Path) -> None:
    async with serve(MINE, env={**ENV, "STORE": "stock"}) as server:
        session = await server.session()
        call = await session.call("count", {"to": 3})
        await call.cut(after=1)
        with pytest.raises(TailropeError) as fault:
            await call.resume()
        assert fault.value.code == "no_cursor"
        whole = await session.call("count", {"to": 3})
        assert await whole.collect() == [1, 2, 3, "counted to 3"]
        whole.assert_exactly_once([1, 2, 3, "counted to 3"])


def test_everything_public_is_documented() -> None:
    text = (HERE.parents[1] / "docs" / "testing" / "kit.md").read_text()
    for name in testing.__all__:
        assert f"`{name}" in text or name in ("Serving", "Target"), name
