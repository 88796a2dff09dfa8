"""A client without any package: a call whose connection its server closes, the resume of that call, and a task.

`python client.py URL` raises where an answer is not as it should be.
"""

import http.client
import json
import sys
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

WAIT_S = 60.0
TASKS = "io.modelcontextprotocol/tasks"
HEADERS = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}
Message = dict[str, Any]


class Client:
    def __init__(self, url: str) -> None:
        self.where = urlsplit(url)
        self.headers = dict(HEADERS)

    def ask(self, method: str, message: Message | None = None, **more: str) -> http.client.HTTPResponse:
        connection = http.client.HTTPConnection(self.where.hostname or "", self.where.port, timeout=WAIT_S)
        headers = {**self.headers, **{name.replace("_", "-"): value for name, value in more.items()}}
        connection.request(method, self.where.path, None if message is None else json.dumps(message), headers)
        response = connection.getresponse()
        assert response.status in (200, 202), (response.status, response.read())
        return response


def events(response: http.client.HTTPResponse) -> Iterator[tuple[str | None, Message | None]]:
    """The id and the message of each event, until the connection ends."""
    fields: dict[str, str] = {}
    for line in response:
        text = line.decode().rstrip("\r\n")
        if text:
            name, _, value = text.partition(":")
            fields[name] = value.removeprefix(" ")
        elif fields:
            data = fields.get("data")
            yield fields.get("id"), json.loads(data) if data else None
            fields = {}


def answers(response: http.client.HTTPResponse) -> list[Message]:
    if "event-stream" not in (response.headers["Content-Type"] or ""):
        return [json.loads(response.read())]
    return [message for _, message in events(response) if message is not None]


def resumed_call(url: str) -> None:
    client = Client(url)
    params: Message = {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "try", "version": "1"},
    }
    opened = client.ask("POST", {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params})
    client.headers["Mcp-Session-Id"] = opened.headers["Mcp-Session-Id"]
    assert answers(opened)[-1]["result"]["protocolVersion"] == "2025-11-25"
    client.headers["Mcp-Protocol-Version"] = "2025-11-25"
    client.ask("POST", {"jsonrpc": "2.0", "method": "notifications/initialized"}).read()
    params = {"name": "work", "arguments": {}, "_meta": {"progressToken": "p"}}
    response = client.ask("POST", {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})
    messages: list[Message] = []
    cursor, connections = None, 0
    while not any("result" in message for message in messages):
        for name, message in events(response):
            cursor = name or cursor
            messages += [message] if message else []
        connections += 1
        assert cursor, "no event had an id"
        if not any("result" in message for message in messages):
            response = client.ask("GET", Last_Event_ID=cursor)
    progress = [message["params"]["progress"] for message in messages if "method" in message]
    assert progress == [1, 2, 3, 4], progress
    assert messages[-1]["result"]["content"][0]["text"] == "done", messages[-1]
    assert connections > 1, "the connection was not closed"
    print(f"  a call over {connections} connections: 4 of 4 events, and its result")


def task(url: str) -> None:
    client = Client(url)
    about = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": {"name": "try", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {"extensions": {TASKS: {}}},
    }
    client.headers["Mcp-Protocol-Version"] = "2026-07-28"

    def request(method: str, about_what: str, **params: Any) -> Message:
        message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": about}}
        answer = answers(client.ask("POST", message, Mcp_Method=method, Mcp_Name=about_what))[-1]
        assert "result" in answer, answer
        return dict(answer["result"])

    handle = request("tools/call", "work", name="work", arguments={})
    assert handle["resultType"] == "task", handle
    deadline = time.monotonic() + WAIT_S
    while (status := request("tasks/get", handle["taskId"], taskId=handle["taskId"]))["status"] == "working":
        assert time.monotonic() < deadline, status
        time.sleep(0.05)
    assert status["status"] == "completed", status
    assert status["result"]["content"][0]["text"] == "done", status
    print("  a task, and its result")


if __name__ == "__main__":
    resumed_call(sys.argv[1])
    task(sys.argv[1])
