"""The tasks of a faulty server: what it answers to requests of 2026-07-28. faulty.py names the faults."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

REVISION = "2026-07-28"
EXTENSION = "io.modelcontextprotocol/tasks"
TIME = "2026-11-28T02:17:58.048Z"
REQUIRED = {"requiredCapabilities": {"extensions": {EXTENSION: {}}}}
RESULT = {"content": [{"type": "text", "text": "done"}], "resultType": "complete"}


class Tasks:
    """Every call becomes a task, which is over at its second poll."""

    def __init__(self, has: Callable[[str], bool]) -> None:
        self.has = has
        # How often each was polled.
        self.polls: dict[str, int] = {}
        self.ended: dict[str, str] = {}

    def answer(self, message: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """The status, and what is in the message besides its id."""
        method, params = str(message.get("method")), message["params"]
        capabilities = params["_meta"]["io.modelcontextprotocol/clientCapabilities"]
        if EXTENSION not in capabilities.get("extensions", {}):
            if not method.startswith("tasks/"):
                return error(-32_022)
            if not self.has("tasks-open"):
                return error(-32_021, {} if self.has("tasks-unnamed") else REQUIRED)
        if method == "server/discover":
            return 200, {"result": self.discovered()}
        if method == "tools/call":
            return 200, {"result": RESULT if self.has("quick") else self.created()}
        return self.about(method, str(params.get("taskId")))

    def discovered(self) -> dict[str, Any]:
        settings: Any = {"x": 1} if self.has("tasks-settings") else [] if self.has("tasks-list") else {}
        older = {"tasks": {}} if self.has("tasks-older") else {}
        return {"resultType": "complete", "capabilities": {"extensions": {EXTENSION: settings}, **older}}

    def created(self) -> dict[str, Any]:
        id = f"{'tâche' if self.has('task-id') else 'task'}-{len(self.polls)}"
        self.polls[id] = 0
        whole = {"task": {}} if self.has("task-whole") else {}
        return {**self.fields(id, "working"), "resultType": "task", **whole}

    def fields(self, id: str, status: str) -> dict[str, Any]:
        return {
            "taskId": id,
            "status": 1 if self.has("task-status") else status,
            "createdAt": "today" if self.has("task-date") else TIME,
            "lastUpdatedAt": TIME,
            "ttlMs": 1.5 if self.has("task-ttl") else None,
            "pollIntervalMs": 0 if self.has("task-pause") else 20,
            **({"statusMessage": None} if self.has("task-message") else {}),
        }

    def about(self, method: str, id: str) -> tuple[int, dict[str, Any]]:
        is_known = id in self.polls or (self.has("tasks-known") and method == "tasks/get")
        is_gone = (self.has("task-lost") and method == "tasks/get") or (self.has("task-forgets") and id in self.ended)
        if self.has("tasks-acked") and method != "tasks/get":
            is_known = True
        if not is_known or is_gone:
            return error(-32_602)
        if method == "tasks/get":
            return 200, {"result": self.polled(id)}
        if self.has("task-refuses"):
            return error(-32_603)
        if method == "tasks/cancel":
            self.ended[id] = "cancelled"
        return 200, {"result": {} if self.has("task-acks-bare") else {"resultType": "complete"}}

    def polled(self, id: str) -> dict[str, Any]:
        self.polls[id] = polls = self.polls.get(id, 0) + 1
        status = self.ended.get(id) or ("working" if polls < 2 else "completed")
        if self.has("task-asks"):
            status = "input_required"
        if self.has("task-changes") and polls > 2:
            status = "working"
        if self.has("task-odd"):
            status = "busy"
        told = {**self.fields("another" if self.has("task-other") else id, status), "resultType": "complete"}
        if status == "completed" and not self.has("task-empty"):
            told["result"] = RESULT
        if status == "input_required":
            told["inputRequests"] = {"q": {}}
        return {**told, "resultType": "task"} if self.has("task-typed") else told


def error(code: int, data: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
    return 400, {"error": {"code": code, "message": "refused", **({} if data is None else {"data": data})}}
