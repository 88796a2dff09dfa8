"""A tool whose every event says whose it is, and that tells a file of it which outlives its process: `marked`.

An event carries `[[SESSION/STREAM/N]]` in its text. The file gets one line of JSON for each fact, written before what
comes next is done: a `note` which process runs the call, `emit` before an event is handed to the server, then `taken`,
`failed` where an event before it is not stored, or `refused` (`unsure` where the plan says that nobody can know). Times
are those of the machine's monotonic clock, which every process here shares, so that facts of several processes can be
put in order.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

# In the words for an event that is stored, and behind one that is not.
FAILED = "an event that was sent before"
# Events right before a kill that follow at once.
LAST = 10


class Facts:
    """The file. A line is one write, which is there after the process was killed."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def tell(self, fact: str, **more: Any) -> None:
        line = json.dumps({"t": time.monotonic_ns(), "fact": fact, **more})
        os.write(self._file, line.encode() + b"\n")

    def close(self) -> None:
        os.close(self._file)


class Marked:
    """One call, as `plan` says:

    session, stream: the names in the marks; facts: the file. count: how many events; until: a file, and it goes on
    until that is there. pause_ms: least and most between two events, half of them follow at once. bytes: the most that
    is added to a text. close: how likely it closes its connection after an event. standalone: how many events go to the
    session's standalone stream, spread over the call. unsure: what is in the words of faults after which nobody knows
    whether an event was stored; "" is in all of them. kill: {n, at} kills the process at event n: `before` it is sent,
    when it is `sent` and nothing is known of it, when it is `taken`, or `later`, when it may be on the wire.
    """

    def __init__(self, plan: dict[str, Any], ctx: Any, ops: Any) -> None:
        self.plan, self.ctx, self.ops = plan, ctx, ops
        self.names = {"session": plan["session"], "stream": plan["stream"]}
        self.random = random.Random(plan["seed"])
        self.facts = Facts(plan["facts"])
        self.said = 0

    async def run(self) -> str:
        try:
            self.facts.tell("note", process=os.getpid())
            n = 0
            while self._goes_on(n):
                n += 1
                await self._event(n)
                await self._standalone(n)
                if self.random.random() < self.plan.get("close", 0):
                    await self.ops.close(self.ctx, None, None)
                await self._pause(n)
            self.facts.tell("emit", **self.names, n="end")
            return self._text("end")
        finally:
            self.facts.close()

    def _goes_on(self, n: int) -> bool:
        until = self.plan.get("until")
        return n < self.plan["count"] if until is None else not Path(until).exists()

    async def _event(self, n: int) -> None:
        kill = self.plan.get("kill") or {}
        at = kill["at"] if kill.get("n") == n else None
        self.facts.tell("emit", **self.names, n=n)
        if at == "before":
            die()
        sending = asyncio.ensure_future(self.ctx.report_progress(n, None, self._text(n)))
        if at == "sent":
            await asyncio.sleep(0)
            die()
        await self._outcome(sending, n, self.names)
        if at == "taken":
            die()
        if at == "later":
            await asyncio.sleep(0.005)
            die()

    async def _standalone(self, n: int) -> None:
        wanted = self.plan.get("standalone", 0)
        while wanted and self.said < wanted * n // self.plan["count"]:
            self.said += 1
            names = {"session": self.plan["session"], "stream": "standalone"}
            self.facts.tell("emit", **names, n=self.said)
            text = f"[[{self.plan['session']}/standalone/{self.said}]]"
            await self._outcome(self.ctx.session.send_log_message("info", text), self.said, names)

    async def _outcome(self, sending: Any, n: int, names: dict[str, Any]) -> None:
        try:
            await sending
        except Exception as fault:
            why, unsure = str(fault)[:200], self.plan.get("unsure")
            fact = "unsure" if unsure is not None and unsure in why else "refused"
            fact = "failed" if FAILED in why else fact
            self.facts.tell(fact, **names, n=n, why=why)
        else:
            self.facts.tell("taken", **names, n=n)

    async def _pause(self, n: int) -> None:
        low, high = self.plan.get("pause_ms", (0, 0))
        kill = self.plan.get("kill")
        # The store has not answered for the last ones when the process is killed.
        if self.random.random() < 0.5 or (kill and n + LAST >= kill["n"]):
            # Others get their turn all the same.
            await asyncio.sleep(0)
        else:
            await asyncio.sleep(self.random.uniform(low, high) / 1000)

    def _text(self, n: int | str) -> str:
        padding = self.random.randint(0, self.plan.get("bytes", 0))
        return f"[[{self.plan['session']}/{self.plan['stream']}/{n}]]" + "x" * padding


def die() -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(os.getpid(), signal.SIGKILL)
