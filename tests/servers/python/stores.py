"""An event store as a user would write it against the SDK's interface, with faults that a test can order.

It is also the store of the stock transport in the comparison runs: a list per stream and a look-up by id, the
shape that the interface asks for.
"""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

from mcp.server.streamable_http import EventCallback, EventMessage, EventStore

from .control import CONTROL

# A fault's text carries what a real driver's exception would; no test may ever see it on the wire.
SECRET = "redis://user:hunter2@10.0.0.7:6379"

BAD_IDS = {
    "newline": "12\ndata: {}\n\n",
    "return": "12\rid: 13",
    "blank": "1 2",
    "empty": "",
    "accent": "é12",
    "nul": "1\x002",
    "long": "x" * 513,
    "number": 12,
    "none": None,
}


def kind(message: Any) -> str:
    """priming, terminal, request or notification; 1.x wraps messages in a root model."""
    if message is None:
        return "priming"
    inner = getattr(message, "root", message)
    if not hasattr(inner, "method"):
        return "terminal"
    return "request" if hasattr(inner, "id") else "notification"


class LabStore(EventStore):
    """Keeps everything (or `cap` events per stream), and misbehaves as planned."""

    def __init__(self, cap: int | None = None) -> None:
        self.cap = cap
        self.streams: dict[str, list[tuple[str, Any]]] = {}
        self.index: dict[str, str] = {}
        self.numbers = itertools.count(1)
        self.names: list[str] = []
        self.calls = 0
        self.replays = 0
        self.failed = 0
        self.overlaps = 0
        self._busy: set[str] = set()
        self.plan()

    def plan(
        self,
        *,
        latency_ms: list[float] | None = None,
        fail: str | None = None,
        times: int = 1,
        bad_id: str | None = None,
        bad_on: str = "notification",
        gate: str | None = None,
        gate_on: str = "notification",
        replay_primings: bool = False,
        replay_fails: bool = False,
        replay_gate: str | None = None,
        forget: bool = False,
    ) -> None:
        """Set how the store behaves from now on. `fail` names the kind of event that fails, `times` how often.

        `replay_gate` is where a replay waits that has handed over all it found.
        """
        self.latency = itertools.cycle(latency_ms or [0])
        self.slow = bool(latency_ms)
        self.fail, self.times = fail, times
        self.bad_id, self.bad_on = bad_id, bad_on
        self.gate, self.gate_on = gate, gate_on
        self.replay_primings, self.replay_fails, self.replay_gate = replay_primings, replay_fails, replay_gate
        if forget:
            self.streams.clear()
            self.index.clear()

    def state(self) -> dict[str, Any]:
        rows = sum(len(rows) for rows in self.streams.values())
        return {
            "rows": rows,
            "calls": self.calls,
            "replays": self.replays,
            "failed": self.failed,
            "overlaps": self.overlaps,
            "names": sorted(set(self.names)),
        }

    async def store_event(self, stream_id: str, message: Any) -> str:
        self.calls += 1
        if stream_id not in self.names:
            self.names.append(stream_id)
        self.overlaps += stream_id in self._busy
        self._busy.add(stream_id)
        try:
            return await self._store(stream_id, message)
        finally:
            self._busy.discard(stream_id)

    async def _store(self, stream_id: str, message: Any) -> str:
        what = kind(message)
        if self.slow:
            await asyncio.sleep(next(self.latency) / 1000)
        if self.gate is not None and self.gate_on == what:
            await CONTROL.gate(self.gate)
        if self.fail == what and self.times > 0:
            self.times -= 1
            self.failed += 1
            CONTROL.mark("store failed")
            raise ConnectionError(f"cannot write to {SECRET}")
        if self.bad_id is not None and self.bad_on == what:
            bad, self.bad_id = BAD_IDS[self.bad_id], None
            return bad  # type: ignore[return-value]
        event_id = str(next(self.numbers))
        rows = self.streams.setdefault(stream_id, [])
        rows.append((event_id, message))
        self.index[event_id] = stream_id
        if self.cap is not None and len(rows) > self.cap:
            self.index.pop(rows.pop(0)[0])
        return event_id

    async def replay_events_after(self, last_event_id: str, send_callback: EventCallback) -> str | None:
        self.replays += 1
        if self.replay_fails:
            raise ConnectionError(f"cannot read from {SECRET}")
        stream_id = self.index.get(last_event_id)
        if stream_id is None:
            return None
        found = False
        for event_id, message in list(self.streams[stream_id]):
            if found and (message is not None or self.replay_primings):
                await send_callback(EventMessage(message, event_id))
            found = found or event_id == last_event_id
        if self.replay_gate is not None:
            await CONTROL.gate(self.replay_gate)
        return stream_id
