"""Plays a scenario to a client and judges what came of it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from client.drivers import Drivers
from client.outcome import Fault, judge
from client.raw_server.script import load
from client.raw_server.server import RawServer

SCENARIOS = load()
# A stock client that waits for longer is taken to wait for ever; a scenario may name another time.
STOCK_MS = 6_000
# With the line nothing waits for it, so that a busy machine may take its time.
LIMIT_MS = 60_000


@dataclass
class Played:
    faults: list[Fault]
    report: dict[str, Any]
    record: list[dict[str, Any]]

    def story(self) -> str:
        lines = [f"{word}: {details}" for word, details in self.faults]
        lines += ["the client said:", json.dumps(self.report), "the server was asked:"]
        for entry in self.record:
            shown = {
                key: value for key, value in entry.items() if value is not None and key not in ("headers", "params")
            }
            lines.append(json.dumps(shown))
        return "\n".join(lines)


def comes_to_an_end(known: str | None) -> bool:
    """Whether a stock client with this outcome ends by itself, so that it may take its time on a busy machine."""
    found = set((known or "hangs").split(", "))
    return "hangs" not in found and ("lost" not in found or "fails" in found)


async def play(
    drivers: Drivers, name: str, client: str, line: dict[str, Any] | None, is_patient: bool = False
) -> Played:
    """`is_patient`: wait for a stock client as long as for one with the line."""
    scenario = SCENARIOS[name]
    plan = scenario["plan"]
    if line is None and not is_patient:
        plan = {**plan, "limit_ms": scenario.get("stock_ms", STOCK_MS)}
    plan = {"limit_ms": LIMIT_MS, **plan}
    async with RawServer(scenario) as server:
        report = await drivers.get(client, line).run(server.url, plan)
        record = server.record()
    return Played(judge(scenario, report, record), report, record)
