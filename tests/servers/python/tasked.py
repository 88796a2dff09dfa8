"""A tool of long calls that asks: `tasked`, on mcp 2.x. It tells a file which process ran it, and in which round.

The file gets one line of JSON for each fact: `begin` with its round before a round does anything, `cancelled` where it
is cancelled, `end` right before its result is returned.
"""

import asyncio
import json
import os
from typing import Any

from mcp_types import ElicitRequest, ElicitRequestFormParams, InputRequiredResult

from .control import CONTROL
from .marked import Facts

SCHEMA = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}


def question(message: str) -> Any:
    return ElicitRequest(params=ElicitRequestFormParams(message=message, requested_schema=SCHEMA))


class Tasked:
    """One run of a call, as `plan` says:

    token: what its questions and its result begin with; facts: the file. ms: how long each of its steps takes; gate:
    it waits there before its end. rounds: how often it returns `InputRequiredResult` with so many questions (`keys`),
    the same keys in each round. asks: how often it asks while it runs. says: how often it reports progress in a step.
    """

    def __init__(self, plan: dict[str, Any], ctx: Any) -> None:
        self.plan, self.ctx = plan, ctx
        self.facts = Facts(plan["facts"])

    async def run(self) -> Any:
        state = json.loads(self.ctx.request_state or '{"round": 0, "answers": []}')
        number, answers = state["round"], state["answers"]
        try:
            self.facts.tell("begin", process=os.getpid(), round=number)
            responses = self.ctx.input_responses or {}
            answers += [responses[key].content["name"] for key in sorted(responses)]
            await self._step()
            if number < self.plan.get("rounds", 0):
                messages = {f"q{at}": f"{self.plan['token']}/{number}/{at}" for at in range(self.plan.get("keys", 1))}
                return InputRequiredResult(
                    input_requests={key: question(message) for key, message in messages.items()},
                    request_state=json.dumps({"round": number + 1, "answers": answers}),
                )
            for at in range(self.plan.get("asks", 0)):
                message = f"{self.plan['token']}/ask/{at}"
                answer = await self.ctx.session.elicit_form(message, SCHEMA, self.ctx.request_id)
                answers.append(answer.content["name"])
                await self._step()
            if "gate" in self.plan:
                await CONTROL.gate(self.plan["gate"])
            self.facts.tell("end")
            return " ".join([self.plan["token"], *answers])
        except asyncio.CancelledError:
            self.facts.tell("cancelled")
            raise
        finally:
            self.facts.close()

    async def _step(self) -> None:
        says = self.plan.get("says", 0)
        for at in range(says):
            await self.ctx.report_progress(at + 1, says, f"part {at + 1}")
            await asyncio.sleep(self.plan.get("ms", 0) / 1000 / says)
        if not says:
            await asyncio.sleep(self.plan.get("ms", 0) / 1000)


def register_tasked(tool: Any, context: Any) -> None:
    async def tasked(plan: dict[str, Any], ctx: context):  # type: ignore[no-untyped-def]
        return await Tasked(plan, ctx).run()

    tool()(tasked)
