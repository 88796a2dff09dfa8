"""A client of revision 2026-07-28, without a library: each request is a POST of its own."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Callable
from typing import Any

from kit.raw import ACCEPT, WAIT_S, Reply, request

MODERN = "2026-07-28"
TASKS = "io.modelcontextprotocol/tasks"
UNDECLARED = -32021
UNKNOWN = -32602
STEERED = -32022
TERMINAL = ("completed", "failed", "cancelled")


class Modern:
    """One client. `declares` is whether it takes tasks, `headers` are sent with every request."""

    def __init__(self, port: int, *, declares: bool = True, headers: dict[str, str] | None = None) -> None:
        self.port = port
        self.declares = declares
        self.headers = headers or {}
        self.capabilities: dict[str, Any] = {"elicitation": {"form": {}}, "sampling": {}}
        self._ids = itertools.count(1)

    def message(self, method: str, params: dict[str, Any], **meta: Any) -> bytes:
        capabilities = {**self.capabilities, **({"extensions": {TASKS: {}}} if self.declares else {})}
        meta = {
            "io.modelcontextprotocol/protocolVersion": MODERN,
            "io.modelcontextprotocol/clientInfo": {"name": "raw", "version": "1"},
            "io.modelcontextprotocol/clientCapabilities": capabilities,
            **meta,
        }
        body = {"jsonrpc": "2.0", "id": next(self._ids), "method": method, "params": {**params, "_meta": meta}}
        return json.dumps(body).encode()

    async def post(self, method: str, params: dict[str, Any], name: str | None = None, **meta: Any) -> Reply:
        """The reply, whose body is still to be read."""
        headers = {
            "Accept": ACCEPT,
            "Content-Type": "application/json",
            "Mcp-Protocol-Version": MODERN,
            "Mcp-Method": method,
            **({} if name is None else {"Mcp-Name": name}),
            **self.headers,
        }
        return await request(self.port, "POST", "/mcp", headers, self.message(method, params, **meta))

    async def call(self, tool: str, arguments: dict[str, Any] | None = None, **meta: Any) -> Reply:
        return await self.post("tools/call", {"name": tool, "arguments": arguments or {}}, tool, **meta)

    async def result(self, tool: str, arguments: dict[str, Any] | None = None, **meta: Any) -> Any:
        """The result of a call, which may be the handle of a task."""
        answer = await (await self.call(tool, arguments, **meta)).json()
        return answer["result"]

    async def begin(self, tool: str, arguments: dict[str, Any] | None = None, **meta: Any) -> str:
        """Calls a tool that takes long: the id of its task."""
        result = await self.result(tool, arguments, **meta)
        assert result["resultType"] == "task", result
        return str(result["taskId"])

    async def about(self, method: str, task: str, **params: Any) -> Any:
        """The answer to a request about a task."""
        return await (await self.post(f"tasks/{method}", {"taskId": task, **params}, task)).json()

    async def get(self, task: str) -> Any:
        return (await self.about("get", task))["result"]

    async def update(self, task: str, **responses: Any) -> Any:
        return await self.about("update", task, inputResponses=responses)

    async def until(self, task: str, condition: Callable[[Any], bool], wait_s: float = WAIT_S) -> Any:
        """How the task stands once it stands so."""
        async with asyncio.timeout(wait_s):
            while not condition(told := await self.get(task)):
                await asyncio.sleep(0.02)
        return told

    async def ended(self, task: str, wait_s: float = WAIT_S) -> Any:
        return await self.until(task, lambda told: told["status"] in TERMINAL, wait_s)

    async def asked(self, task: str) -> dict[str, Any]:
        """The questions of a task, once it has some."""
        told = await self.until(task, lambda told: told["status"] not in ("working",))
        assert told["status"] == "input_required", told
        return dict(told["inputRequests"])


def text_of(result: Any) -> str:
    """The text that a tool returned."""
    return str(result["content"][0]["text"])
