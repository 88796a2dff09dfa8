"""A client of 2026-07-28 behind a load balancer without affinity: it calls, polls at random processes, answers and
cancels, and writes down what it was answered."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from kit.modern import Modern
from kit.raw import Reply

from torture.fleet import Fleet, Node
from torture.task_rules import TERMINAL, Asked, Case, text_of

# A request waits while its owner changes or the store is away.
WAIT_S = 60.0
PAUSE_S = (0.05, 0.25)
# How likely a client answers some of the questions only, and how likely two processes get its answers at once.
SOME = 0.3
TWICE = 0.3


def name_of(key: str, asked: int) -> str:
    """An answer; two answers to one question differ."""
    return f"{key}-{asked}".replace(" ", "_")


async def messages_of(reply: Reply) -> Any:
    """The answer: the body, or the last event of a stream."""
    if reply.is_sse:
        return (await reply.rest(WAIT_S))[-1].message
    return json.loads(await reply.body(WAIT_S))


class Client:
    """Plays one call from its POST to the end of its task."""

    def __init__(self, case: Case, fleet: Fleet, seed: str, is_enough: Callable[[], bool]) -> None:
        self.case, self.fleet, self.random = case, fleet, random.Random(seed)
        self.is_enough = is_enough
        self.notes: Counter[str] = Counter()
        self.count = 0

    def node(self) -> Node:
        return self.fleet.any(self.random)

    async def ask(self, node: Node, what: str, method: str, params: dict[str, Any], **more: Any) -> Asked:
        """Sends a request and returns its answer."""
        # A process that is just starting takes no connection yet.
        host = node.host
        assert host is not None
        asked = Asked(what, host.process.pid, time.monotonic(), **more)
        self.case.asked.append(asked)
        self.notes[f"requests: {what}"] += 1
        client = Modern(node.port)
        name = params.get("name", params.get("taskId"))
        try:
            async with asyncio.timeout(WAIT_S):
                reply = await client.post(method, params, name)
                try:
                    asked.status = reply.status
                    asked.answer = await messages_of(reply)
                finally:
                    reply.close()
        except Exception as fault:
            asked.fault = f"{type(fault).__name__}: {fault}"
        asked.ended = time.monotonic()
        return asked

    async def about(self, node: Node, what: str, **params: Any) -> Asked:
        names = {key: answer["content"]["name"] for key, answer in params.get("inputResponses", {}).items()}
        return await self.ask(node, what, f"tasks/{what}", {"taskId": self.case.task, **params}, responses=names)

    def answers(self, questions: dict[str, Any]) -> dict[str, Any]:
        self.count += 1
        names = {key: name_of(question["params"]["message"], self.count) for key, question in questions.items()}
        return {key: {"action": "accept", "content": {"name": name}} for key, name in names.items()}

    async def begin(self, at: Node | None = None) -> None:
        """Calls, there or anywhere, and answers what is asked before the call is a task."""
        params: dict[str, Any] = {"name": "tasked", "arguments": {"plan": self.case.plan}}
        while True:
            asked = await self.ask(at or self.node(), "call", "tools/call", params)
            result = asked.answer.get("result") if isinstance(asked.answer, dict) else None
            if result is None:
                self.notes["calls that were not answered"] += 1
                self.case.is_given_up = True
                return
            if result["resultType"] == "task":
                self.case.task = result["taskId"]
                self.notes["tasks"] += 1
                return
            if result["resultType"] != "input_required":
                self.case.direct = text_of(result)
                self.notes["calls that ended in time"] += 1
                return
            answers = self.answers(result["inputRequests"])
            self.case.before += [answers[key]["content"]["name"] for key in sorted(answers)]
            params = {**params, "inputResponses": answers, "requestState": result["requestState"]}

    async def update(self, questions: dict[str, Any]) -> None:
        if len(questions) > 1 and self.random.random() < SOME:
            chosen = self.random.sample(sorted(questions), self.random.randint(1, len(questions) - 1))
            questions = {key: questions[key] for key in chosen}
        answers = self.answers(questions)
        nodes = [self.node()]
        if self.random.random() < TWICE:
            nodes.append(self.node())
        await asyncio.gather(*(self.about(node, "update", inputResponses=answers) for node in nodes))

    async def play(self, cancel_after_s: float | None = None) -> None:
        await self.begin()
        if self.case.task is None:
            return
        cancelling = None if cancel_after_s is None else asyncio.create_task(self.cancel(cancel_after_s))
        try:
            await self.poll()
        finally:
            if cancelling is not None:
                await cancelling

    async def poll(self) -> None:
        # At once: the handle is that of a task which every process knows.
        while not self.is_enough():
            task = (await self.about(self.node(), "get")).task
            status = task.get("status")
            if status in TERMINAL:
                self.notes[f"tasks {status}"] += 1
                return
            if status == "input_required":
                await self.update(task["inputRequests"])
                continue
            await asyncio.sleep(self.random.uniform(*PAUSE_S))

    async def cancel(self, after_s: float) -> None:
        await asyncio.sleep(after_s)
        for _ in range(5):
            if (await self.about(self.node(), "cancel")).is_taken:
                return
            await asyncio.sleep(0.1)

    async def everywhere(self) -> None:
        """Asks every process once more."""
        await asyncio.gather(*(self.about(node, "get") for node in self.fleet.nodes))
