"""A call at one process, its reader at a second, the answer to its question at a third, a cancellation at a fourth,
while the first one is restarted. (I13, F-90 to F-93)

Every test runs on SQLite, and on the servers at the addresses in `TAILROPE_TEST_REDIS` and `TAILROPE_TEST_POSTGRES`, in
a namespace of its own.
"""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
from kit.elsewhere import NEVER_LOST, OWNER_LOST_MS, WAIT_S, Wandering, at, start
from kit.ending import ENDS_S
from kit.peer import Peer, last_id, results
from kit.raw import Event
from kit.servers import Kind, Server, gate

pytestmark = [pytest.mark.ours, pytest.mark.first]

ANSWER = {"action": "accept", "content": {"name": "yes"}}
ANSWERED = '{"name":"yes"}'


@asynccontextmanager
async def four(kind: Kind, place: str, engine: dict[str, Any]) -> AsyncIterator[list[Server]]:
    """Four servers of one store."""
    async with AsyncExitStack() as stack:
        servers = await asyncio.gather(*(asyncio.to_thread(start, kind, place, engine=engine) for _ in range(4)))
        for server in servers:
            stack.callback(server.stop)
        yield list(servers)


class Two:
    """Two calls of one session at `first`: one asks a question behind a close, one waits to be cancelled."""

    CANCELLED = 77

    def __init__(self, peer: Peer, first: Server) -> None:
        self.peer, self.first = peer, first
        self.gate = gate()
        self.marks = [f"{word}-{peer.session}" for word in ("asks", "waits")]
        # What the readers of both have, and the question's id.
        self.asks: list[Event] = []
        self.waits: list[Event] = []
        self.question: Any = None

    async def begin(self, second: Server) -> None:
        asks, waits = self.marks
        steps = [f"mark {asks}", "emit 1", "close", "elicit hm"]
        self.asks = await (await at(self.peer, self.first).call("script", {"steps": steps})).rest(WAIT_S)
        steps = [f"mark {waits}", "emit 1", f"gate {self.gate}", "return late"]
        waiting = await at(self.peer, self.first).call("script", {"steps": steps}, id=self.CANCELLED)
        self.waits = await waiting.some(1, WAIT_S)
        waiting.drop()
        self.reading = await at(self.peer, second).resume(last_id(self.asks))
        while self.question is None:
            event = await self.reading.event(WAIT_S)
            assert event is not None, "the connection ended without a question"
            self.asks.append(event)
            if isinstance(event.message, dict) and event.message.get("method") == "elicitation/create":
                self.question = event.message["id"]

    async def ends(self, server: Server, asks: bool) -> Any:
        """The end of a call, as a client gets it that reads it there from now on."""
        seen = self.asks if asks else self.waits
        while True:
            events = await (await at(self.peer, server).resume(last_id(seen))).rest(WAIT_S)
            seen += events
            if found := results(seen):
                assert len(found) == 1
                return found[0]

    async def runs(self, servers: list[Server]) -> list[int]:
        """How often both were begun in these processes."""
        states = [await server.state() for server in servers]
        return [sum(state["marks"].get(mark, 0) for state in states) for mark in self.marks]

    async def goes_on(self, others: list[Server], restart: Callable[[], Server]) -> None:
        """The session is served by all processes, also by the next one in place of the first. Nothing has run twice."""
        again = await asyncio.to_thread(restart)
        try:
            for server in (*others, again):
                assert await at(self.peer, server).ask("echo", {"text": "on"}) == "on"
            assert await self.runs([*others, again]) == [0, 0], "nothing runs twice"
        finally:
            again.stop()


async def test_f90_answer_reaches_the_process_that_asks_while_it_is_restarted(kind: Kind, place: str) -> None:
    async with four(kind, place, {**NEVER_LOST, "drain_within_ms": 120_000}) as (first, second, third, fourth):
        peer = await Wandering.opened(first)
        two = Two(peer, first)
        await two.begin(second)
        assert await two.runs([first, second, third, fourth]) == [1, 1]
        first.process.send_signal(signal.SIGTERM)
        assert (await at(peer, fourth).cancel(two.CANCELLED)).status == 202
        end = await two.ends(third, asks=False)
        assert isinstance(end, dict) and "code" in end, "a cancelled call ends with an error"
        assert (await at(peer, third).respond(two.question, ANSWER)).status == 202
        two.asks += await two.reading.rest(WAIT_S)
        assert (results(two.asks) or [await two.ends(fourth, asks=True)]) == [ANSWERED]
        assert await asyncio.to_thread(first.exit_code, ENDS_S) in (0, -signal.SIGTERM, 128 + signal.SIGTERM)
        await two.goes_on([second, third, fourth], lambda: start(kind, place, engine=NEVER_LOST))


async def test_f90_question_of_a_killed_process_ends_with_its_call(kind: Kind, place: str) -> None:
    async with four(kind, place, {"owner_lost_ms": OWNER_LOST_MS}) as (first, second, third, fourth):
        peer = await Wandering.opened(first)
        two = Two(peer, first)
        await two.begin(second)
        assert await two.runs([first, second, third, fourth]) == [1, 1]
        first.kill()
        # Whether they are too late is not for the client to know.
        told = await asyncio.gather(
            at(peer, third).respond(two.question, ANSWER), at(peer, fourth).cancel(two.CANCELLED)
        )
        assert [reply.status for reply in told] == [202, 202]
        two.asks += await two.reading.rest(WAIT_S)
        ends = results(two.asks) or [await two.ends(fourth, asks=True)]
        ends += [await two.ends(third, asks=False)]
        assert all(isinstance(end, dict) and "is gone" in end["message"] for end in ends), json.dumps(ends)
        await two.goes_on([second, third, fourth], lambda: start(kind, place))
