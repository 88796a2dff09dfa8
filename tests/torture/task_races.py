"""Two things at once on two processes that are well: whichever comes first, there is one outcome, and it stays."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from kit.servers import gate

from torture.task_rules import RUNS_ONCE

if TYPE_CHECKING:
    from torture.task_client import Client
    from torture.tasks import Ordeal

TASK_AFTER_MS = 100
AT_ONCE = 4
WAIT_S = 30.0
# One of the two is so much later at most.
APART_S = 0.03

Kind = Callable[["Ordeal", "Client", random.Random], Awaitable[str]]


async def race(kind: Kind, count: int, ordeal: Ordeal) -> Counter[str]:
    """So many of a kind: how often which outcome was seen. What is broken is among the faults of the ordeal."""
    places, clients = asyncio.Semaphore(AT_ONCE), []

    async def one(number: int) -> str:
        name = f"{kind.__name__}-{number}"
        dice = random.Random(f"{ordeal.setting.seed}/{name}")
        async with places:
            client = ordeal.client(name, {"token": name, "facts": ordeal.recorder.facts_file(name)})
            clients.append(client)
            try:
                async with asyncio.timeout(WAIT_S * 2):
                    return await kind(ordeal, client, dice)
            except TimeoutError:
                # It has no end, which is a fault.
                return "hung"

    outcomes = Counter(await asyncio.gather(*(one(number) for number in range(count))))
    await ordeal.settle(clients)
    return outcomes


async def soon(dice: random.Random, work: Callable[[], Awaitable[Any]]) -> None:
    await asyncio.sleep(dice.choice([0, dice.uniform(0, APART_S)]))
    await work()


async def together(dice: random.Random, *works: Callable[[], Awaitable[Any]]) -> None:
    await asyncio.gather(*(soon(dice, work) for work in works))


async def outcome(client: Client) -> str:
    await client.poll()
    return str(client.case.ends[0].task["status"])


async def asked(client: Client) -> dict[str, Any]:
    """The questions of the task, once it has some."""
    while True:
        task = (await client.about(client.node(), "get")).task
        if questions := task.get("inputRequests"):
            return dict(questions)
        await asyncio.sleep(0.02)


async def cancel_against_completion(ordeal: Ordeal, client: Client, dice: random.Random) -> str:
    here, there = ordeal.fleet.nodes[:2]
    client.case.plan["gate"] = name = gate()
    await client.begin(here)
    assert here.host is not None
    host, other = here.host, dice.choice([here, there])
    await together(dice, lambda: host.open(name), lambda: client.about(other, "cancel"))
    return await outcome(client)


async def answer_against_cancel(ordeal: Ordeal, client: Client, dice: random.Random) -> str:
    nodes = ordeal.fleet.nodes[:2]
    client.case.plan |= ordeal.one_question
    await client.begin(nodes[0])
    answers = client.answers(await asked(client))
    dice.shuffle(nodes)
    await together(
        dice,
        lambda: client.about(nodes[0], "update", inputResponses=answers),
        lambda: client.about(nodes[1], "cancel"),
    )
    return await outcome(client)


async def answer_against_window(ordeal: Ordeal, client: Client, dice: random.Random) -> str:
    client.case.plan["ms"] = TASK_AFTER_MS + dice.uniform(-20, 10)
    await client.begin(ordeal.fleet.nodes[0])
    return "answered in time" if client.case.direct is not None else await outcome(client)


async def equal_updates(ordeal: Ordeal, client: Client, dice: random.Random) -> str:
    client.case.plan |= {"rounds": 1, "keys": 2, "ms": 1.5 * TASK_AFTER_MS}
    here, there = ordeal.fleet.nodes[:2]
    await client.begin(here)
    if client.case.task is None:
        return "asked in time"
    answers = client.answers(await asked(client))
    await asyncio.gather(*(client.about(node, "update", inputResponses=answers) for node in (here, there)))
    return await outcome(client)


async def leaving_against_decision(ordeal: Ordeal, client: Client, dice: random.Random) -> str:
    client.case.plan["ms"] = 4 * TASK_AFTER_MS
    calling = asyncio.create_task(client.begin(ordeal.fleet.nodes[0]))
    deadline = time.monotonic() + WAIT_S
    while not ordeal.recorder.told(client.case.name) and time.monotonic() < deadline:
        await asyncio.sleep(0.002)
    # It has begun a little before.
    await asyncio.sleep(TASK_AFTER_MS / 1_000 + dice.uniform(-0.06, 0.03))
    calling.cancel()
    with suppress(asyncio.CancelledError):
        await calling
    while time.monotonic() < deadline:
        facts = [fact["fact"] for fact in ordeal.recorder.told(client.case.name)]
        if over := [fact for fact in facts if fact in ("end", "cancelled")]:
            break
        await asyncio.sleep(0.02)
    else:
        ordeal.trial.faults.append(f"{client.case.name}: {RUNS_ONCE}; its handler neither ends nor is cancelled")
        return "hung"
    if client.case.task is not None:
        return await outcome(client)
    return f"left: {', '.join(over)}"


RACES: tuple[Kind, ...] = (
    cancel_against_completion,
    answer_against_cancel,
    answer_against_window,
    equal_updates,
    leaving_against_decision,
)
