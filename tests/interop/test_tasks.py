"""Official clients, as they are published, follow a long call as a task. (T-01 to T-27)

Its connections are closed every two seconds, its server's processes restart one after the other, and it asks twice, by
`InputRequiredResult` and while it runs: it runs once, has one result, and each question comes once.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import tempfile
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from kit.tap import until
from torture.fleet import Fleet, fleet
from torture.setting import SHORT, Setting

from interop.driver import RUST_TASKS, TASKS, Driver, Hosts
from interop.road import Road

MODERN = "2026-07-28"
# Its command answers no questions.
SILENT = "inspector"
# These do not show what a task says of itself.
MUTE = (SILENT, "fastmcp-tasks")
# The SDK's client as it comes knows no tasks.
PLAIN = "plain"
CLIENTS = (*(client for client in TASKS if client != PLAIN), RUST_TASKS)
LINED = tuple(f"{client}+line" for client in (PLAIN, "claim", "ext-tasks", RUST_TASKS))
SERVERS = ("mcp2", "fastmcp4", "handler-v2", "mcp2-front", "node-v2-front")
STORES = {"sqlite": 2, "redis": 3}
# In every run; the others carry the mark `full`.
QUICK = {("ext-tasks", "mcp2", "sqlite"), ("claim", "handler-v2", "sqlite")}
QUICK_LINED = ("plain+line", "ext-tasks+line")
# A step of the call: it has three, with a question behind each but the last.
STEP_MS, FULL_STEP_MS = 1_000, 10_000
TASK_AFTER_MS = 300
LIFE_S, FULL_LIFE_S = 0.5, 2.0
DRAIN_MS = 120_000
WAIT_S = 120.0
HOW: dict[str, Any] = {
    "drain_within_ms": DRAIN_MS,
    "task_after_ms": TASK_AFTER_MS,
    "owner_lost_ms": 30_000,
}


@dataclass(frozen=True)
class Length:
    step_ms: int
    life_s: float


SHORT_CALL, FULL_CALL = Length(STEP_MS, LIFE_S), Length(FULL_STEP_MS, FULL_LIFE_S)
lengths = pytest.mark.parametrize(
    "length",
    [pytest.param(SHORT_CALL, id="short"), pytest.param(FULL_CALL, id="half-a-minute", marks=pytest.mark.full)],
)


def marks_of(client: str, server: str, store: str) -> list[pytest.MarkDecorator]:
    marks = [] if (client, server, store) in QUICK else [pytest.mark.full]
    if store != "sqlite" and (variable := f"TAILROPE_TEST_{store.upper()}") not in os.environ:
        marks.append(pytest.mark.skip(reason=f"{variable} names no server"))
    return marks


matrix = pytest.mark.parametrize(
    ("client", "server", "store"),
    [
        pytest.param(client, server, store, marks=marks_of(client, server, store))
        for client in CLIENTS
        for server in SERVERS
        for store in STORES
    ],
)


def facts_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


class Call:
    """A call of the tool `tasked`, and the servers that it is made to."""

    def __init__(self, driver: Driver, nodes: Fleet, road: Road, facts: Path, plan: dict[str, Any]) -> None:
        self.driver, self.nodes, self.road, self.facts = driver, nodes, road, facts
        self.plan = {"token": uuid.uuid4().hex[:6], "facts": str(facts), **plan}

    async def begin(self) -> None:
        await self.driver.connect(f"http://127.0.0.1:{self.road.port}/mcp")
        await self.until(lambda: bool(self.driver.revision))
        assert self.driver.revision == [MODERN]
        await self.driver.order(call="call", tool="tasked", arguments={"plan": self.plan})
        # A process that stops makes no tasks.
        await self.until(lambda: "tasks/get" in self.road.methods() or self.driver.is_over())

    def told(self, fact: str) -> list[dict[str, Any]]:
        return [each for each in facts_of(self.facts) if each["fact"] == fact]

    def story(self) -> str:
        logs = "\n".join(node.host.log()[-3_000:] for node in self.nodes.nodes if node.host is not None)
        said = "\n".join(map(str, self.driver.lines))
        return (
            f"client said:\n{said}\n{self.driver.stderr()}\nit asked: {self.road.methods()}\n"
            f"servers did: {facts_of(self.facts)}\nservers logged:\n{logs}"
        )

    async def until(self, condition: Any) -> None:
        await until(condition, self.story, WAIT_S)

    async def restart_all(self) -> None:
        """One after the other, each with the time that its calls take."""
        for node in self.nodes.nodes:
            node.is_avoided = True
            # A load balancer takes a process out before that stops.
            await self.until(lambda port=node.port: self.road.waiting[port] == 0)
            wrong = await node.restart(WAIT_S)
            assert wrong is None, (wrong, self.story())
            node.is_avoided = False

    async def over(self) -> None:
        await self.until(self.driver.is_over)
        await self.driver.order()
        await self.until(lambda: self.driver.is_closed)


def check(call: Call, rounds: int = 0, asks: int = 0) -> None:
    """One execution, one result, each question once."""
    token = call.plan["token"]
    questions = [*(f"{token}/{number}/0" for number in range(rounds)), *(f"{token}/ask/{at}" for at in range(asks))]
    assert call.driver.results() == [" ".join([token, *(f"re: {each}" for each in questions)])], call.story()
    assert call.driver.asked == questions, call.story()
    assert [each["round"] for each in call.told("begin")] == list(range(rounds + 1)), call.story()
    assert (len(call.told("end")), call.told("cancelled")) == (1, []), call.story()


@asynccontextmanager
async def called(
    hosts: Hosts, client: str, server: str, store: str, length: Length, times: dict[str, int], breaks_every: int = 0
) -> AsyncIterator[Call]:
    """A call that was begun. It asks so often, and takes the same time where it asks nobody."""
    with tempfile.TemporaryDirectory() as folder:
        setting = Setting(server, store, "1", SHORT, Path(folder))
        dice = random.Random(f"{client} {server} {store}")
        how = {**HOW, **({"prefer_resumable": False} if client.startswith(PLAIN) else {})}
        plan = {"ms": length.step_ms * (1 if times else 3), "says": 5, **times}
        async with (
            fleet(setting, STORES[store], **how) as nodes,
            Road(lambda: nodes.any(dice).port, length.life_s, breaks_every) as road,
            hosts.drivers.get(client) as driver,
        ):
            call = Call(driver, nodes, road, Path(folder) / "facts", plan)
            await call.begin()
            yield call


@matrix
@lengths
async def test_call_is_followed_through_cuts_and_restarts(
    hosts: Hosts, client: str, server: str, store: str, length: Length
) -> None:
    times = {} if client == SILENT else {"rounds": 1, "asks": 1}
    async with called(hosts, client, server, store, length, times) as call:
        restarting = asyncio.create_task(call.restart_all())
        await call.over()
        await restarting
        check(call, **times)
        assert call.road.connections > 2, call.story()
        assert call.road.methods().count("tools/call") == 1
        assert client in MUTE or call.driver.said, call.story()


@pytest.mark.parametrize(
    "client", [pytest.param(each, marks=[] if each in QUICK_LINED else [pytest.mark.full]) for each in LINED]
)
@lengths
async def test_call_survives_requests_that_break_with_tailrope_below_its_client(
    hosts: Hosts, client: str, length: Length
) -> None:
    """Every third request about the task is broken, and done by the server all the same."""
    times = {"rounds": 1, "asks": 1}
    async with called(hosts, client, "mcp2", "sqlite", length, times, breaks_every=3) as call:
        await call.over()
        check(call, **times)
        assert call.road.broken > 1, call.story()
