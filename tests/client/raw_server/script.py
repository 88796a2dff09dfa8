"""Scenarios as data, and what a stream of one has: its log, and what each of its connections does.

A stream:

    log           what it carries: "progress N", "log TEXT", "ask NAME" (sampling), "result TEXT", "error TEXT"
                  (JSON-RPC), "failure TEXT" (a result with isError); up to a result or an error
    connections   what the answer to its POST does, what the first resume gets and so on, as lists of steps; an object
                  {"times": N, "steps": [...]} stands for N of them. The last one is used for all that come later
    retry_ms      in priming events; absent: none is sent
    ids           "each" (each event has one of its own), "constant" (all have the same), "none"
    newline       "lf", "crlf" or "cr"

Steps, each a string:

    prime [changed]   an event with the position's id (under a changing name), `retry` and empty data
    retry MS          a block with nothing but this
    send N            the next events of the log; `send rest`: all that are left
    half id|data|block  the next event without its end: its id alone, half its data, all but the empty line
    raw TEXT          these bytes; \\n and others as in JSON
    comment           a keep-alive
    comments MS EVERY  keep-alives for so long
    split             from now on each byte is a chunk of its own
    wait MS           a pause
    answered          wait for the client's answer to the last question
    hold              keep the connection until the client leaves it
    meet N            wait until N streams are here
    down MS           refuse connections for so long, from now on
    lose              forget the session: everything is answered 404 from now on
    status CODE [NAME=VALUE]  no stream but this status, with a JSON-RPC error; must be the first step
    vanish            reset before a byte of the answer; must be the first step
    close, cut, reset  end the body; end the connection, but not the body; reset it. A list that ends otherwise closes
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

VECTORS = Path(__file__).resolve().parents[2] / "vectors" / "client_scenarios.json"
NEWLINES = {"lf": "\n", "crlf": "\r\n", "cr": "\r"}
TERMINAL = ("result", "error", "failure")
STREAM_KEYS = {"log", "connections", "retry_ms", "ids", "newline"}


def load() -> dict[str, dict[str, Any]]:
    """All scenarios, by name."""
    scenarios = json.loads(VECTORS.read_text())["scenarios"]
    found = {scenario["name"]: scenario for scenario in scenarios}
    assert len(found) == len(scenarios), "two scenarios of one name"
    return found


@dataclass
class Stream:
    """One stream of one session. Its ids say position and visit, so any of them can be presented."""

    name: str
    script: dict[str, Any]
    request_id: Any = None
    token: Any = None
    # How far the server itself has come: where ids do not tell the position, it goes on from here.
    sent: int = 0
    visits: int = 0
    connections: int = 0
    # The `retry` that the client has been told, and when its last connection ended.
    told_ms: int | None = None
    # The same of a Retry-After, for the next connection alone.
    floor_ms: int = 0
    ended_ms: float | None = None
    ended_how: str | None = None

    def __post_init__(self) -> None:
        unknown = set(self.script) - STREAM_KEYS
        assert not unknown, f"{self.name}: {unknown}"
        self.log: list[str] = []
        for entry in self.script["log"]:
            if isinstance(entry, dict):
                word = entry["each"]
                self.log += [f"{word} {number}" for number in range(entry["from"], entry["to"] + 1)]
            else:
                self.log.append(entry)
        self.ids = self.script.get("ids", "each")
        self.newline = NEWLINES[self.script.get("newline", "lf")]

    def steps(self, number: int) -> list[str]:
        """What the connection of this number does."""
        at = 0
        steps: list[str] = []
        for entry in self.script["connections"]:
            times = entry["times"] if isinstance(entry, dict) else 1
            steps = entry["steps"] if isinstance(entry, dict) else entry
            at += times
            if number < at:
                break
        return steps

    def told(self) -> int | None:
        """How long the client was asked to stay away this time."""
        floor_ms, self.floor_ms = self.floor_ms, 0
        return max(self.told_ms or 0, floor_ms) if floor_ms else self.told_ms

    def is_over(self, position: int) -> bool:
        return position == len(self.log) and bool(self.log) and self.log[-1].split(" ")[0] in TERMINAL

    def id_at(self, position: int, is_changed: bool = False) -> str:
        if self.ids == "constant":
            return f"{self.name}.same"
        if is_changed:
            self.visits += 1
            return f"{self.name}.{position}~{self.visits}"
        return f"{self.name}.{position}"

    def position_of(self, cursor: str) -> int | None:
        """The position that this id of ours names."""
        if self.ids != "each":
            return self.sent
        text = cursor.removeprefix(f"{self.name}.").split("~")[0]
        return int(text) if text.isdigit() and int(text) <= len(self.log) else None

    def event(self, position: int) -> list[str]:
        """The lines of the event at this position, from 1."""
        lines = [] if self.ids == "none" else [f"id: {self.id_at(position)}"]
        return [*lines, f"data: {json.dumps(self.message(self.log[position - 1]), ensure_ascii=False)}"]

    def priming(self, position: int, is_changed: bool) -> list[str]:
        lines = [] if self.ids == "none" else [f"id: {self.id_at(position, is_changed)}"]
        if (retry_ms := self.script.get("retry_ms")) is not None:
            lines.append(f"retry: {retry_ms}")
        return [*lines, "data: "]

    def message(self, entry: str) -> dict[str, Any]:
        word, _, text = entry.partition(" ")
        if word == "progress":
            params: dict[str, Any] = {"progressToken": self.token, "progress": int(text)}
            return {"jsonrpc": "2.0", "method": "notifications/progress", "params": params}
        if word == "log":
            return {"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": text}}
        if word == "ask":
            content = {"role": "user", "content": {"type": "text", "text": text}}
            params = {"messages": [content], "maxTokens": 10}
            return {"jsonrpc": "2.0", "id": f"ask-{text}", "method": "sampling/createMessage", "params": params}
        if word == "error":
            return {"jsonrpc": "2.0", "id": self.request_id, "error": {"code": -32_050, "message": text}}
        assert word in TERMINAL, entry
        result = {"content": [{"type": "text", "text": text}], "isError": word == "failure"}
        return {"jsonrpc": "2.0", "id": self.request_id, "result": result}
