"""A Python client that follows tasks, driven by a test: tasks.py claim|fastmcp|plain [--line].

`claim` is the SDK's client with an extension for the answer that is a task, `fastmcp` is fastmcp's with fastmcp-tasks,
and `plain` is the SDK's client as it comes. Orders and what it prints: ../driver.py, with `tool` and `arguments`.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Literal

import mcp_types as types
from mcp.client import Client, ClientExtension, ResultClaim
from mcp.client.streamable_http import streamable_http_client

TASKS = "io.modelcontextprotocol/tasks"
MODERN = "2026-07-28"


def show(**line: Any) -> None:
    print(json.dumps(line), flush=True)


async def on_question(_: Any, params: Any) -> types.ElicitResult:
    show(asked=params.message)
    return types.ElicitResult(action="accept", content={"name": f"re: {params.message}"})


class Created(types.Result):
    result_type: Literal["task"] = "task"
    task_id: str
    poll_interval_ms: int = 1_000


class Params(types.RequestParams):
    task_id: str
    input_responses: dict[str, Any] | None = None


class About(types.Request[Params, str]):
    method: str
    params: Params
    name_param = "taskId"


class Told(types.Result):
    status: str = ""
    status_message: str | None = None
    poll_interval_ms: int = 1_000
    input_requests: dict[str, Any] | None = None
    result: dict[str, Any] | None = None
    error: dict[str, Any] | None = None


async def follow(created: Created, ctx: Any) -> types.CallToolResult:
    """What an application writes: it polls, and answers."""

    async def ask(method: str, **more: Any) -> Told:
        return await ctx.session.send_request(
            About(method=method, params=Params(task_id=created.task_id, **more)), Told
        )

    interval_ms = created.poll_interval_ms
    while True:
        await asyncio.sleep(interval_ms / 1_000)
        told = await ask("tasks/get")
        interval_ms = told.poll_interval_ms
        if told.status_message:
            show(said=told.status_message)
        if told.input_requests:
            answers = {}
            for key, question in told.input_requests.items():
                answer = await on_question(None, types.ElicitRequestFormParams.model_validate(question["params"]))
                answers[key] = answer.model_dump(mode="json", by_alias=True, exclude_none=True)
            await ask("tasks/update", input_responses=answers)
        elif told.status != "working":
            return types.CallToolResult.model_validate(told.result or {"content": [], "isError": True})


class Tasks(ClientExtension):
    identifier = TASKS

    def claims(self) -> Any:
        return [ResultClaim(result_type="task", model=Created, resolve=follow)]


@asynccontextmanager
async def connected(kind: str, url: str, has_line: bool) -> AsyncIterator[Any]:
    """A client that can call tools."""
    if kind == "fastmcp":
        from fastmcp import Client as FastClient
        from fastmcp.client.elicitation import ElicitResult
        from fastmcp_tasks import client as _  # noqa: F401  # registers itself

        async def answer(message: str, response_type: Any, params: Any, ctx: Any) -> Any:
            show(asked=message)
            return ElicitResult(action="accept", content={"name": f"re: {message}"})

        async with FastClient(url, elicitation_handler=answer) as fast:
            yield fast
        return
    async with AsyncExitStack() as stack:
        server: Any = url
        if has_line:
            import tailrope.client

            http_client = await stack.enter_async_context(tailrope.client.http_client(initial_delay_ms=20))
            server = streamable_http_client(url, http_client=http_client)
        extensions = {"extensions": [Tasks()]} if kind == "claim" else {}
        yield await stack.enter_async_context(Client(server, elicitation_callback=on_question, **extensions))


async def ask(client: Any, order: dict[str, Any]) -> None:
    name = order["call"]

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        show(said=message)

    told = {"progress_handler" if hasattr(client, "transport") else "progress_callback": on_progress}
    try:
        result = await client.call_tool(order["tool"], order["arguments"], **told)
    except Exception as fault:
        show(call=name, error=f"{type(fault).__name__}: {fault}")
        return
    show(call=name, **{"error" if result.is_error else "result": result.content[0].text})


async def drive(kind: str, url: str, has_line: bool) -> None:
    """One client, until an order closes it."""
    tasks = {}
    async with connected(kind, url, has_line) as client:
        show(connected=client.protocol_version)
        while line := await asyncio.to_thread(sys.stdin.readline):
            order = json.loads(line)
            if "cancel" in order:
                tasks[order["cancel"]].cancel()
            elif "call" in order:
                tasks[order["call"]] = asyncio.create_task(ask(client, order))
            else:
                break
        for task in tasks.values():
            task.cancel()
    show(closed=True)


async def main(kind: str, *options: str) -> None:
    while line := await asyncio.to_thread(sys.stdin.readline):
        await drive(kind, json.loads(line)["connect"], "--line" in options)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
