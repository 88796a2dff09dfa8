"""A user's own EventStore under our transport: slow, failing, returning nonsense. (D6 (a), I9; F-58, F-59)"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from kit.peer import Peer, counts, last_id, logs, results, seen
from kit.raw import Event, Reply
from kit.servers import TESTS, TRANSPORT, Farm, Server, gate

pytestmark = pytest.mark.first

SECRETS = (b"hunter2", b"10.0.0.7", b"redis", b"sqlite", b"the disk", b"Traceback", b" at ")


def clean(reply: Reply) -> None:
    """No detail of the store reaches a client. Stock transports hand it on, which is not what the faults are about."""
    if TRANSPORT != "stock":
        for secret in SECRETS:
            assert secret not in bytes(reply.raw), secret


def outcomes(events: list[Event]) -> list[str]:
    """What came of the steps that a tool tried; of those that raised, only that."""
    (words,) = results(events)
    return [outcome.split()[0] for outcome in json.loads(words)]


async def works(peer: Peer) -> None:
    assert await peer.ask("script", {"steps": ["emit 2", "return fine"]}) == "fine"


async def test_f58_failed_notification_raises_in_the_handler_and_harms_nothing_else(lab: Server) -> None:
    peer = await lab.peer()
    await lab.plan(fail="notification", times=1)
    reply = await peer.call("script", {"steps": ["try emit 1", "try emit 1", "try emit 1"]})
    events = await reply.until_terminal()
    assert (outcomes(events), counts(events)) == (["raised", "ok", "ok"], [2, 3])
    clean(reply)
    await works(peer)


async def test_f58_uncaught_store_fault_fails_that_call_only(lab: Server) -> None:
    peer = await lab.peer()
    await lab.plan(fail="notification", times=1)
    reply = await peer.call("script", {"steps": ["emit 1", "return x"]})
    events = await reply.until_terminal()
    answer = events[-1].message
    assert "error" in answer or answer["result"]["isError"], answer
    # The SDK puts a tool's exception into the result, so what we raise must not quote the store.
    clean(reply)
    await works(peer)


async def test_f58_failing_standalone_notification_leaves_the_stream_working(lab: Server) -> None:
    peer = await lab.peer()
    stream = await peer.listen()
    await lab.plan(fail="notification", times=1)
    reply = await peer.call("script", {"steps": ["try standalone one", "try standalone two"]})
    assert outcomes(await reply.until_terminal()) == ["raised", "ok"]
    assert logs(await stream.some(1)) == ["two"]
    await works(peer)


async def test_f58_failed_question_fails_in_the_handler(lab: Server) -> None:
    peer = await lab.peer()
    await lab.plan(fail="request", times=1)
    reply = await peer.call("script", {"steps": ["try elicit name", "return after"]})
    assert results(await reply.until_terminal()) == ["after"]
    await works(peer)


async def test_f59_response_that_is_not_stored_goes_to_its_reader_once(lab: Server) -> None:
    peer = await lab.peer()
    await lab.plan(fail="terminal", times=1000)
    reply = await peer.call("script", {"steps": ["emit 1", "return x"]}, id=9)
    events = await reply.rest()
    await lab.plan()
    assert (counts(events), results(events)) == ([1], ["x"])
    again = await peer.resume(last_id(events))
    answer = (await again.rest())[-1].message
    assert answer["id"] == 9 and answer["error"]["code"] < 0
    clean(reply)
    clean(again)
    await works(peer)


async def test_f59_failed_response_of_a_detached_call_is_answered_on_resume(lab: Server) -> None:
    peer = await lab.peer()
    name = gate()
    reply = await peer.call("script", {"steps": ["emit 1", f"gate {name}", f"return {name}"]}, id=9)
    cursor = last_id(await reply.some(1))
    reply.drop()
    await lab.plan(fail="terminal", times=1)
    failed = (await lab.state())["marks"].get("store failed", 0)
    await lab.open(name)
    # Others that used this server had it fail, too.
    await lab.mark("store failed", failed + 1)
    resumed = await peer.resume(cursor)
    events = await resumed.rest()
    assert events[-1].message["id"] == 9 and "error" in events[-1].message
    clean(resumed)


async def test_failed_priming_is_refused_or_served_but_never_silent(lab: Server) -> None:
    peer = await lab.peer()
    await lab.plan(fail="priming", times=1)
    reply = await peer.call("script", {"steps": ["return x"]})
    if reply.is_sse:
        await reply.until_terminal()
    else:
        assert reply.status >= 400
        await reply.json()
    clean(reply)
    await lab.plan()
    await works(peer)


BAD = ["newline", "return", "blank", "empty", "accent", "nul", "long", "number", "none"]


@pytest.mark.parametrize("bad", BAD)
async def test_bad_id_of_a_notification_is_a_store_fault(lab: Server, bad: str) -> None:
    peer = await lab.peer()
    await lab.plan(bad_id=bad)
    reply = await peer.call("script", {"steps": ["try emit 1", "try emit 1"]})
    events = await reply.until_terminal()
    assert (outcomes(events), counts(events)) == (["raised", "ok"], [2])
    for event in events:
        assert event.id is None or re.fullmatch(r"[\x21-\x7e]{1,512}", event.id)
    await works(peer)


@pytest.mark.parametrize("bad", BAD)
async def test_bad_id_of_a_response_is_a_store_fault(lab: Server, bad: str) -> None:
    peer = await lab.peer()
    await lab.plan(bad_id=bad, bad_on="terminal")
    reply = await peer.call("script", {"steps": ["emit 1", "return x"]}, id=4)
    events = await reply.rest()
    assert events[-1].message["id"] == 4 and "result" in events[-1].message
    assert events[-1].id is None, "nobody can resume behind it"
    await works(peer)


@pytest.mark.ours
async def test_the_stores_ids_go_on_the_wire(lab: Server) -> None:
    peer = await lab.peer()
    reply = await peer.call("script", {"steps": ["emit 3", "return x"]})
    events = await reply.until_terminal()
    assert all(re.fullmatch(r"\d+", event.id or "") for event in events if event.data), events


@pytest.mark.ours
async def test_stream_names_are_safe_and_apart(lab: Server) -> None:
    if lab.kind.name.startswith("fastmcp"):
        pytest.skip("fastmcp puts a prefix of its own before our names")
    before = set((await lab.state())["store"]["names"])
    alice, bob = await lab.peer(), await lab.peer()
    for peer in (alice, bob):
        for id in (1, 2):
            await peer.ask("echo", {"text": "x"}, id=id)
    names = set((await lab.state())["store"]["names"]) - before
    # Two initialize streams and four calls, each a stream of its own.
    assert len(names) == 6, names
    for name in names:
        # Example stores split at `_`; sessions and nonces are hex, joined by something else.
        assert re.fullmatch(r"[0-9a-f]{16,}[^0-9a-zA-Z_]?[0-9a-f]{16,}|[0-9a-f]{32,}", name), name


async def outside(server: Server, *steps: str) -> tuple[Peer, list[str], str]:
    """A finished call whose first cursors, that of its priming event and the next, are not in the engine's window."""
    peer = await server.peer()
    name = gate()
    reply = await peer.call("script", {"steps": ["emit 1", f"gate {name}", *(steps or ["emit 40"]), f"return {name}"]})
    first = await reply.event()
    assert first is not None and first.is_priming
    cursors = [str(first.id), last_id(await reply.some(1))]
    reply.drop()
    await server.open(name)
    await server.mark(f"finished return {name}")
    return peer, cursors, name


# The engine's window of the stream.
SMALL = {"max_events_per_stream": 5, "store_wait_ms": 300, "store_timeout_ms": 10_000}


class Users:
    """Servers over an event store that a user wrote: the tests' own, and that of the examples."""

    def __init__(self, kind: str, farm: Farm, folder: Path) -> None:
        self.kind, self.farm, self.folder = kind, farm, folder

    def get(self, **options: Any) -> Server:
        if self.kind == "example":
            options["address"] = str(self.place(**options))
        return self.farm.get(store=self.kind, engine=SMALL, **options)

    def place(self, cap: int = 0) -> Path:
        """Where the example keeps its events: a folder in Node, a file in Python."""
        place = self.folder / str(cap)
        if self.farm.kind.language == "node":
            place.mkdir(exist_ok=True)
        return place

    async def faulty(self, server: Server, is_faulty: bool) -> None:
        if self.kind == "example" and server.kind.language == "python":
            # The data base refuses what is written, for which another process has to ask it.
            words = ["yes" if is_faulty else "no", f"sqlite:{self.place()}"]
            refuse = await asyncio.create_subprocess_exec(sys.executable, TESTS / "services" / "refuse", *words)
            assert await refuse.wait() == 0
        else:
            await server.plan(**({"fail": "notification", "times": 99} if is_faulty else {}))


@pytest.fixture(scope="module", params=["lab", "example"])
def users(request: pytest.FixtureRequest, farm: Farm, tmp_path_factory: pytest.TempPathFactory) -> Users:
    if request.param == "example" and farm.kind.line == "mcp1":
        pytest.skip("the example is written for mcp 2.x")
    return Users(request.param, farm, tmp_path_factory.mktemp("users"))


def told(events: list[Event]) -> list[tuple[str | None, Any]]:
    return [(event.id, event.message) for event in events if not event.is_priming]


@pytest.mark.ours
async def test_i2_i3_every_cursor_into_a_users_store_gets_its_exact_suffix(users: Users) -> None:
    peer, cursors, name = await outside(users.get())
    events = await (await peer.resume(cursors[0])).rest()
    assert counts(events) == list(range(1, 42)) and results(events) == [name]
    whole = told(events)
    # Those before the last five are the store's to replay, the others are in the window.
    for index in (0, 1, 20, 35, 36, 37, 39, 40):
        assert told(await (await peer.resume(str(whole[index][0]))).rest()) == whole[index + 1 :], index
    complete = await peer.resume(str(whole[-1][0]))
    assert complete.status == 204


@pytest.mark.ours
async def test_cursor_outside_the_window_is_answered_by_the_users_replay(users: Users) -> None:
    server = users.get()
    peer, (_, cursor), name = await outside(server)
    before = (await server.state()).get("store")
    events = await (await peer.resume(cursor)).rest()
    if before is not None:
        assert (await server.state())["store"]["replays"] == before["replays"] + 1
    assert counts(events) == list(range(2, 42)) and results(events) == [name]


@pytest.mark.ours
async def test_users_replay_is_checked_for_ownership(users: Users) -> None:
    server = users.get()
    peer, cursors, name = await outside(server)
    stranger = await server.peer()
    events = await (await peer.resume(cursors[0])).rest()
    # Outside the window and in it.
    for cursor in (*cursors, str(events[-2].id), str(events[-1].id)):
        answers = [await seen(await stranger.resume(one)) for one in (cursor, "999999999")]
        assert answers[0] == answers[1] and answers[0][0] == 400, cursor
        assert name not in str(answers)


@pytest.mark.ours
async def test_i8_what_a_users_store_dropped_is_told_and_never_a_part(users: Users) -> None:
    peer, cursors, name = await outside(users.get(cap=20), "emit 80")
    unknown = await seen(await peer.resume("999999999"))
    for cursor in cursors:
        assert await seen(await peer.resume(cursor)) == unknown
    assert unknown[0] == 400
    # What is left of it is whole; the session works.
    assert await peer.ask("echo", {"text": "after"}) == "after"
    reply = await peer.call("script", {"steps": ["emit 10", f"return {name}"]})
    whole = told(await reply.rest())
    assert told(await (await peer.resume(str(whole[0][0]))).rest()) == whole[1:]


@pytest.mark.ours
async def test_i9_users_store_that_fails_for_a_while_harms_the_events_of_that_while(users: Users) -> None:
    server = users.get()
    peer = await server.peer()
    before, after = gate(), gate()
    steps = ["try emit 2", f"gate {before}", *["try emit 1"] * 2, f"gate {after}", *["try emit 1"] * 2]
    reply = await peer.call("script", {"steps": steps})
    await server.at(before)
    await users.faulty(server, True)
    try:
        await server.open(before)
        await server.at(after)
    finally:
        await users.faulty(server, False)
    await server.open(after)
    events = await reply.until_terminal()
    assert outcomes(events) == ["ok", "raised", "raised", "ok", "ok"]
    assert counts(events) == [1, 2, 5, 6]
    clean(reply)
    whole = told(events)
    for index in range(len(whole) - 1):
        assert told(await (await peer.resume(str(whole[index][0]))).rest()) == whole[index + 1 :], index


@pytest.mark.ours
@pytest.mark.one_process("its event store is in memory")
async def test_store_that_fails_during_a_resume_gets_comments_then_a_clean_end(farm: Farm) -> None:
    server = farm.get(store="lab", engine={**SMALL, "store_timeout_ms": 300})
    await server.plan()
    peer, (_, cursor), _ = await outside(server)
    await server.plan(replay_fails=True)
    reply = await peer.resume(cursor)
    assert reply.status == 200
    blocks = [block async for block in reply.blocks()]
    clean(reply)
    assert all(block.comment is not None or block.is_priming for block in blocks), blocks
    # The next try, with the store back, is as if nothing had been.
    first = next((block.id for block in blocks if block.id), cursor)
    await server.plan()
    events = await (await peer.resume(first)).rest()
    assert counts(events) == list(range(2, 42))


async def test_slow_store_loses_nothing_on_live_resumes(lab: Server) -> None:
    await lab.plan(latency_ms=[5, 1, 0, 9])
    peer = await lab.peer()
    name = gate()
    reply = await peer.call("script", {"steps": [f"until {name}"]})
    got: list[int] = []
    for _ in range(5):
        events = await reply.some(4)
        got += counts(events)
        reply = await peer.resume(last_id(events))
    await lab.open(name)
    events = await reply.until_terminal()
    got += counts(events)
    assert got == list(range(1, len(got) + 1)) and results(events) == [str(len(got))]


async def test_store_that_hangs_on_one_stream_delays_no_other(lab: Server) -> None:
    peer = await lab.peer()
    name = gate()
    await lab.plan(gate=name)
    hanging = await peer.call("script", {"steps": ["emit 1", "return x"]})
    await lab.at(name)
    assert await peer.ask("echo", {"text": "y"}) == "y"
    await lab.open(name)
    assert results(await hanging.until_terminal()) == ["x"]
