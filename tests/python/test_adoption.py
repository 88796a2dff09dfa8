"""A session whose process is gone goes on in the one that is asked for it, in each way in which a server is mounted.

Every test runs on SQLite, and some on the servers at the addresses in `TAILROPE_TEST_REDIS` and
`TAILROPE_TEST_POSTGRES`.
"""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tailrope
import tailrope.mcp
from conftest import KIND
from kit.elsewhere import GONE, NEVER_LOST, WAIT_S, Wandering, at, dense, known, start
from kit.peer import NEWEST, OLD, Peer, last_id, logs, results
from kit.raw import Reply, Wire
from kit.servers import LOWLEVEL, Kind, Server, gate, until
from kit.stock import LINE
from program import python
from tailrope import AdoptedSession, _runtime
from tailrope.mcp._adopting import Adoption
from tailrope.mcp._streams import Inbox

pytestmark = pytest.mark.ours

LOW = LOWLEVEL[f"lowlevel-mcp{LINE}"]


@pytest.fixture
def address(tmp_path: Path) -> str:
    return f"sqlite:{tmp_path / 'events.db'}"


@contextmanager
def two(kind: Kind, place: str, **options: Any) -> Iterator[tuple[Server, Server]]:
    """The process that is going to go, and the one that goes on."""
    both = [start(kind, place, **options) for _ in range(2)]
    try:
        yield both[0], both[1]
    finally:
        for server in both:
            server.stop()


async def leave(server: Server) -> None:
    """Ends the process in order."""
    server.process.send_signal(signal.SIGTERM)
    assert await server.died(WAIT_S), server.log()


async def moved(here: Server, there: Server, **more: Any) -> Wandering:
    """A client whose session the store knows, and whose requests land on the second server from now on."""
    peer = await Wandering.opened(here, there, **more)
    (await known(peer)).drop()
    return peer


async def adopted(server: Server, count: int = 1) -> None:
    await server.until_stats(lambda stats: stats["sessions_adopted"] == count)


async def serves(peer: Peer) -> None:
    """Everything that a client does."""
    listed = await peer.post({"jsonrpc": "2.0", "id": "list", "method": "tools/list"})
    answer = (await listed.until_terminal(WAIT_S))[-1].message
    assert "echo" in [tool["name"] for tool in answer["result"]["tools"]]
    events = await (await peer.call("script", {"steps": ["emit 1", "close", "emit 1", "return x"]})).rest(WAIT_S)
    while not results(events):
        events += await (await peer.resume(last_id(events))).rest(WAIT_S)
    dense(events, 1, 2)
    assert results(events) == ["x"]
    running = await peer.call("script", {"steps": ["elicit hm"]})
    assert (await peer.respond(await asked(running), accepted("yes"))).status == 202
    assert results(await running.until_terminal(WAIT_S)) == ['{"name":"yes"}']


async def asked(running: Reply) -> Any:
    """The id of the question that the call asks."""
    while (event := await running.event(WAIT_S)) is not None:
        if event.message is not None and "method" in event.message and "id" in event.message:
            return event.message["id"]
    raise AssertionError


def accepted(name: str) -> dict[str, Any]:
    return {"action": "accept", "content": {"name": name}}


async def test_i13_session_of_a_process_that_was_killed_goes_on(kind: Kind, place: str) -> None:
    with two(kind, place) as (here, there):
        peer = await moved(here, there)
        session, name = peer.session, f"ran-{peer.session}"
        running = await at(peer, here).call("script", {"steps": [f"mark {name}", "emit 1", f"gate {gate()}"]}, id=1)
        events = await running.some(1, WAIT_S)
        here.kill()
        assert await peer.ask("echo", {"text": "x"}) == "x"
        await serves(peer)
        assert peer.session == session and (await there.stats())["sessions_adopted"] == 1
        # What ran gets one end, and does not run again.
        rest = await (await peer.resume(last_id(events))).until_terminal(WAIT_S)
        [error] = results(rest)
        assert GONE in error["message"]
        assert name not in (await there.state())["marks"]
        assert (await peer.delete()).status == 200
        assert (await peer.call("echo", {"text": "x"})).status == 404


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (KIND, {}),
        (KIND, {"way": "resumable"}),
        (KIND, {"way": "resumable", "around": "django"}),
        (KIND, {"store": "event-store"}),
        (KIND, {"json_response": True}),
        (LOW, {"way": "manager"}),
        (LOW, {}),
    ],
    ids=lambda given: "-".join(map(str, given.values())) if isinstance(given, dict) else given.name,
)
@pytest.mark.parametrize("revision", [NEWEST, OLD[0]])
async def test_session_of_a_process_that_has_left_goes_on_at_once(
    kind: Kind, options: dict[str, Any], revision: str, address: str
) -> None:
    if kind is not KIND and revision != NEWEST:
        pytest.skip("the way in does not matter to it")
    # Nobody would wait so long.
    with two(kind, address, engine=NEVER_LOST, **options) as (here, there):
        peer = await moved(here, there, revision=revision)
        await leave(here)
        assert await peer.ask("echo", {"text": "x"}) == "x"
        if "json_response" not in options and revision == NEWEST:
            await serves(peer)
        assert (await peer.delete()).status == 200
        assert (await peer.call("echo", {"text": "x"})).status == 404


async def test_each_library_goes_on_at_once(kind: Kind, place: str) -> None:
    with two(kind, place, engine=NEVER_LOST) as (here, there):
        peer = await moved(here, there)
        await leave(here)
        await serves(peer)


async def test_server_is_told_what_lasts(address: str) -> None:
    def request(number: int, method: str, **params: str) -> dict[str, Any]:
        return {"jsonrpc": "2.0", "id": number, "method": method, "params": params}

    with two(LOW, address, engine=NEVER_LOST) as (here, there):
        peer = await moved(here, there)
        for message in (
            request(1, "logging/setLevel", level="error"),
            request(2, "logging/setLevel", level="debug"),
            request(3, "resources/subscribe", uri="test://a"),
            request(4, "resources/subscribe", uri="test://b"),
            request(5, "resources/unsubscribe", uri="test://a"),
        ):
            reply = await peer.post(message)
            assert "result" in (await reply.until_terminal(WAIT_S))[-1].message
        await leave(here)
        assert await peer.ask("echo", {"text": "x"}) == "x"
        marks = (await there.state())["marks"]
        assert marks == {"level debug": 1, "subscribed test://b": 1}
        # An id that was told again is one of a request that has ended.
        assert await peer.ask("echo", {"text": "x"}, id=2) == "x"


async def test_standalone_stream_goes_on(address: str) -> None:
    with two(KIND, address, engine=NEVER_LOST) as (here, there):
        peer = await moved(here, there)
        listening = await at(peer, here).listen()
        await at(peer, here).ask("script", {"steps": ["standalone a", "return x"]})
        before = [event async for event in some_logs(listening, 1)]
        await leave(here)
        await peer.ask("script", {"steps": ["standalone b", "return x"]})
        again = await peer.resume(last_id(before))
        assert logs([event async for event in some_logs(again, 1)]) == ["b"]


async def some_logs(reply: Reply, count: int) -> Any:
    while count and (event := await reply.event(WAIT_S)) is not None:
        yield event
        count -= len(logs([event]))


async def test_o15_hook_that_raises_leaves_the_session_to_who_comes_next(kind: Kind, address: str) -> None:
    name = gate()
    with two(kind, address, engine=NEVER_LOST, on_adopted={"raises_until": name}) as (here, there):
        peer = await moved(here, there)
        await leave(here)
        for _ in range(2):
            refused = await peer.call("echo", {"text": "x"})
            assert refused.status == 503 and int(refused.headers["retry-after"]) >= 1
            assert "error" in await refused.json()
        assert f"adopted {peer.session} lab" in (await there.state())["marks"]
        assert (await there.stats())["sessions"] == 0
        await there.open(name)
        await serves(peer)
        assert (await there.state())["marks"][f"adopted {peer.session} lab"] == 3
        log = await there.logged("OSError: not yet")
        assert log.count("ERROR:tailrope:session ") == 2 and log.count("is not adopted: on_adopted raised") == 2
        assert log.count("OSError: not yet") == 2, log


class Taken:
    """The native half of an adoption, whose session nothing is known of."""

    session_id, name, replay = "s1", "name", ()
    session: Any = None

    def __init__(self) -> None:
        self.refused: list[str] = []

    def refuse(self, fault: str, text: str) -> None:
        self.refused.append(fault)


@pytest.mark.one_line
@pytest.mark.parametrize("is_stubborn", [False, True])
async def test_o15_hook_that_hangs_is_left_when_the_engine_gives_up(is_stubborn: bool) -> None:
    began, cancelled = asyncio.Event(), asyncio.Event()

    async def hang(_session: AdoptedSession) -> None:
        began.set()
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.set()
                if not is_stubborn or ended:
                    raise

    ended: list[bool] = []
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    adopted, manager = Taken(), SimpleNamespace(app=None)
    adoption = Adoption(_runtime.Runtime({"on_adopted": hang}), manager, adopted)  # type: ignore[arg-type]
    before = asyncio.all_tasks()
    performing = asyncio.create_task(adoption.perform(Inbox(), {"type": "http"}, never, send))
    await began.wait()
    # As the server of a session does that has ended.
    adoption.refuse("its server has ended")
    await performing
    assert sent[0]["status"] == 503 and adopted.refused == ["session_unread"]
    await cancelled.wait()
    ended.append(True)
    for task in asyncio.all_tasks() - before:
        task.cancel()


async def never() -> Any:
    await asyncio.Event().wait()


async def test_i12_adoption_goes_on_without_the_client_that_asked_for_it(address: str) -> None:
    name = gate()
    with two(KIND, address, engine=NEVER_LOST, on_adopted={"waits_for": name}) as (here, there):
        peer = await moved(here, there)
        await leave(here)
        wire = await Wire.open(there.port)
        call = {"name": "script", "arguments": {"steps": ["mark ran", "return x"]}}
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call}).encode()
        headers = peer.headers(Host=f"127.0.0.1:{there.port}", Content_Type="application/json")
        await wire.send("POST", peer.path, headers, body)
        await there.at(name)
        wire.close()
        # Whoever comes now waits, too.
        waiting = [asyncio.create_task(peer.ask("echo", {"text": "x"})), asyncio.create_task(peer.listen())]
        assert "ran" not in (await there.state())["marks"]
        await there.open(name)
        assert await waiting[0] == "x"
        assert (await waiting[1]).status == 200
        await there.mark("ran")
        assert (await there.stats())["sessions_adopted"] == 1


@pytest.mark.parametrize("gone", ["left", "lost"])
async def test_a_delete_may_be_the_first_that_comes(gone: str, address: str) -> None:
    with two(KIND, address, engine=NEVER_LOST if gone == "left" else {}) as (here, there):
        peer = await moved(here, there)
        await leave(here) if gone == "left" else here.kill()
        assert (await peer.delete()).status == 200
        assert (await peer.call("echo", {"text": "x"})).status == 404


async def test_i7_session_goes_on_for_its_own_user_alone(kind: Kind, address: str) -> None:
    with two(kind, address, engine=NEVER_LOST, auth=True) as (here, there):
        peer = await moved(here, there, headers={"authorization": "Bearer alice-token"})
        await leave(here)
        bob = at(peer, there)
        bob.extra = {"authorization": "Bearer bob-token"}
        assert (await bob.call("echo", {"text": "x"})).status == 404
        assert await peer.ask("whoami") == "alice"
        assert (await bob.call("echo", {"text": "x"})).status == 404
        other = at(peer, there)
        other.extra = {"authorization": "Bearer alice-second-token"}
        assert await other.ask("whoami") == "alice"


async def test_i11_session_that_does_not_fit_is_left_to_others(address: str) -> None:
    with two(KIND, address, engine={**NEVER_LOST, "max_sessions": 1}) as (here, there):
        peer = await moved(here, there)
        other = await there.peer()
        running = await other.call("script", {"steps": ["emit 1", f"gate {(name := gate())}", "return x"]})
        await running.some(1, WAIT_S)
        await leave(here)
        refused = await peer.call("echo", {"text": "x"})
        assert refused.status == 503, await refused.body()
        await there.open(name)
        assert results(await running.until_terminal(WAIT_S)) == ["x"]
        assert (await other.delete()).status == 200
        assert await peer.ask("echo", {"text": "x"}) == "x"


async def test_i11_nothing_is_left_of_offers_and_adoptions(address: str) -> None:
    with two(KIND, address, engine=NEVER_LOST) as (here, there):
        peer = await moved(here, there)
        before = (await there.state())["tasks"]
        for _ in range(5):
            assert await peer.ask("echo", {"text": "x"}) == "x"
        await until(there.state, lambda state: state["tasks"] <= before)
        await leave(here)
        assert await peer.ask("echo", {"text": "x"}) == "x"
        assert (await peer.delete()).status == 200
        await until(there.state, lambda state: state["tasks"] <= before)
        held = (await there.held())["objects"]
        assert held.get("Adoption", 0) == held.get("SessionServer", 0) == 0, held


async def test_session_that_was_adopted_is_adopted_again(address: str) -> None:
    with two(KIND, address, engine=NEVER_LOST) as (here, there):
        peer = await moved(here, there)
        await leave(here)
        assert await peer.ask("echo", {"text": "x"}) == "x"
        last = start(KIND, address, engine=NEVER_LOST)
        try:
            third = at(peer, last)
            # It is relayed to its new owner first.
            assert await third.ask("echo", {"text": "x"}) == "x"
            await leave(there)
            await serves(third)
            assert (await last.stats())["sessions_adopted"] == 1
        finally:
            last.stop()


@pytest.mark.parametrize("way", ["install", "resumable"])
def test_server_that_ends_late_leaves_the_session_that_came_back(way: str, address: str) -> None:
    """A thread may hold the server of before, whose session another process took over and this one has again."""
    done = python(
        """
from servers.python.flavors import BUILDERS, Ops
_, way, place = sys.argv
async def main(flavor):
    app = BUILDERS[flavor]({}, None, None, Ops(True))
    tailrope.install(store=place) if way == "install" else tailrope.mcp.resumable(app, store=place)
    async with Life(app):
        keys = await opened(app)
        async def is_served():
            sent = await call(app, "POST", {"jsonrpc": "2.0", "id": 1, "method": "ping"}, keys)
            assert sent[0]["status"] == 200, sent
        await call(app, "POST", {"jsonrpc": "2.0", "method": "notifications/initialized"}, keys)
        [manager] = {getattr(route.endpoint, "session_manager", None) for route in app.routes} - {None}
        session_id = keys[0][1].decode()
        before = manager._server_instances[session_id]
        before._tailrope._session.release()
        await is_served()
        now = manager._server_instances[session_id]
        await manager._discard_session(session_id, before)
        await is_served()
        assert before.is_terminated and manager._server_instances[session_id] is now is not before
for flavor in installed(): asyncio.run(main(flavor))
""",
        50,
        way,
        address,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("way", ["direct", "relayed"])
async def test_o6_answer_to_a_question_of_the_owner_before_reaches_nobody(way: str, address: str) -> None:
    with two(KIND, address) as (here, there):
        peer = await moved(here, there)
        before = await asked(await at(peer, here).call("script", {"steps": ["elicit a"]}, id="before"))
        here.kill()
        running = await peer.call("script", {"steps": ["elicit b"]}, id="after")
        now = await asked(running)
        other = start(KIND, address)
        try:
            client = peer if way == "direct" else at(peer, other)
            for _ in range(2):
                assert (await client.respond(before, accepted("before"))).status == 202
            assert (await client.respond(now, accepted("now"))).status == 202
            assert results(await running.until_terminal(WAIT_S)) == ['{"name":"now"}']
            assert (await there.stats())["answers_unasked"] == 2
        finally:
            other.stop()


@pytest.mark.usefixtures("uninstalled")
@pytest.mark.parametrize(
    "way",
    [
        tailrope.install,
        tailrope.mcp.EventStore,
        lambda **given: tailrope.mcp.StreamableHTTPSessionManager(None, **given),
    ],
    ids=["install", "store", "manager"],
)
def test_hook_is_a_function(way: Callable[..., Any]) -> None:
    with pytest.raises(ValueError, match="on_adopted must be a function that takes an AdoptedSession"):
        way(on_adopted="yes")


def test_hook_cannot_change_what_it_is_given() -> None:
    session = AdoptedSession("s", None)
    with pytest.raises(AttributeError):
        session.session_id = "other"  # type: ignore[misc]
