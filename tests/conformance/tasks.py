"""The Python server that the conformance suite asks about tasks: python tasks.py [--front].

As server.py, with the tools that the scenarios of tasks need, each as a user would write it.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import mcp_types as types
import tailrope
from mcp.server.mcpserver import Context, MCPServer
from mcp.shared.exceptions import MCPError
from pydantic import BaseModel
from server import parsed, serve_app

FAILS_AFTER_S = 1.0
WORKS_S = 1.0
AFTER_MS = 300
# The suite wants tasks of these, also where the answer comes at once; and some tools for clients with tasks only.
PACE = {
    **dict.fromkeys(
        ("slow_compute", "protocol_error_job", "confirm_delete", "multi_input"), tailrope.Pace(task_after_ms=0)
    ),
    "failing_job": tailrope.Pace(task_after_ms=0, requires_task=True),
    "test_tool_with_task": tailrope.Pace(requires_task=True),
}


class Confirmed(BaseModel):
    confirm: bool


class Named(BaseModel):
    name: str


server = MCPServer("conformance")


@server.tool()
async def greet(name: str) -> str:
    return f"Hello, {name}!"


@server.tool()
async def slow_compute(seconds: float, ctx: Context, label: str = "") -> str:
    await ctx.report_progress(0, seconds, label)
    await asyncio.sleep(seconds)
    return f"computed {label}"


@server.tool()
async def failing_job() -> str:
    await asyncio.sleep(FAILS_AFTER_S)
    raise ValueError("the job has failed")


@server.tool()
async def protocol_error_job() -> str:
    await asyncio.sleep(FAILS_AFTER_S)
    raise MCPError(types.INTERNAL_ERROR, "the job broke the protocol")


def asking(key: str, message: str, schema: dict[str, Any]) -> types.InputRequiredResult:
    """The call is to be made again with the answer."""
    question = types.ElicitRequestFormParams(message=message, requested_schema=schema)
    return types.InputRequiredResult(input_requests={key: types.ElicitRequest(params=question)})


@server.tool()
async def confirm_delete(filename: str, ctx: Context) -> str | types.InputRequiredResult:
    """Is called a second time with the answer."""
    if not ctx.input_responses:
        return asking("confirm", f"Delete {filename}?", Confirmed.model_json_schema())
    return f"{filename}: {ctx.input_responses['confirm']}"


@server.tool()
async def multi_input(ctx: Context) -> str:
    """Asks twice at once, while it runs."""
    answers = await asyncio.gather(ctx.elicit("Your name?", Named), ctx.elicit("Confirmed?", Confirmed))
    return ", ".join(answer.action for answer in answers)


@server.tool()
async def test_tool_with_task(ctx: Context) -> str | types.InputRequiredResult:
    """Asks before it becomes a task, and works after that."""
    if not ctx.input_responses:
        return asking("user_name", "Your name?", Named.model_json_schema())
    await asyncio.sleep(WORKS_S)
    return f"Hello, {ctx.input_responses['user_name']}"


if __name__ == "__main__":
    args = parsed()
    if args.transport == "stock":
        sys.exit("the SDK makes no tasks")
    # The suite's client without tasks is to be answered, not steered.
    tailrope.install(prefer_resumable=False, task_after_ms=AFTER_MS, pace=PACE)
    serve_app(server.streamable_http_app(host="127.0.0.1"), is_fronted=args.front)
