"""A client of 2026-07-28 that takes tasks: the SDK's, unmodified, with an extension that polls.

It reads the URL and then its calls from its input, and reports what its application sees, one line of JSON each.
"""

import asyncio
import json
import sys
import time
from contextvars import ContextVar
from typing import Any, Literal

import mcp_types as types
from mcp import Client, MCPError
from mcp.client import ClientExtension, ResultClaim


class Task(types.Result):
    """What the SDK has no models of: a task as it begins, the question how it stands, and the answer."""

    result_type: Literal["task"] = "task"
    task_id: str
    poll_interval_ms: int


class TaskId(types.RequestParams):
    task_id: str


class GetTask(types.Request[TaskId, Literal["tasks/get"]]):
    method: Literal["tasks/get"] = "tasks/get"
    params: TaskId
    name_param = "taskId"


class State(types.Result):
    status: str
    poll_interval_ms: int = 0
    result: dict[str, Any] | None = None
    error: dict[str, Any] | None = None


# The one whose task is polled.
current: ContextVar[str] = ContextVar("current")


async def follow(task: Task, ctx: Any) -> types.CallToolResult:
    """Poll the task until it has ended."""
    report("task", call=current.get())
    pause_ms = task.poll_interval_ms
    while True:
        await asyncio.sleep(pause_ms / 1_000)
        report("poll", call=current.get())
        state = await ctx.session.send_request(GetTask(params=TaskId(task_id=task.task_id)), State)
        if state.result is not None:
            return types.CallToolResult.model_validate(state.result)
        if state.error is not None:
            raise MCPError(state.error["code"], state.error["message"])
        pause_ms = state.poll_interval_ms


class Tasks(ClientExtension):
    identifier = "io.modelcontextprotocol/tasks"

    def claims(self) -> Any:
        return [ResultClaim(result_type="task", model=Task, resolve=follow)]


def report(what: str, **fields: object) -> None:
    print(json.dumps({"at": time.monotonic(), "what": what, **fields}), flush=True)


async def main() -> None:
    lines = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    url = (await lines.readline()).decode().strip()
    async with Client(url, extensions=[Tasks()]) as client, asyncio.TaskGroup() as calls:
        report("open", revision=str(client.protocol_version))
        while line := await lines.readline():
            calls.create_task(make(client, json.loads(line)))


async def make(client: Client, order: dict[str, Any]) -> None:
    """Make one call, beside others."""
    call = order["arguments"]["call"]
    current.set(call)
    report("call", call=call, tool=order["tool"])
    try:
        result = await client.call_tool(order["tool"], order["arguments"])
        says = result.content[0].text  # type: ignore[union-attr]
        report("failure" if result.is_error else "result", call=call, text=says)
    except (MCPError, OSError) as error:
        report("failure", call=call, text=str(error) or type(error).__name__)


if __name__ == "__main__":
    asyncio.run(main())
