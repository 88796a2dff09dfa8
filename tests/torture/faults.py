"""Servers whose store is behind a bad network: cut in the middle of an append, silent, slow, refusing. (D6; I1, I2, I9)

The store itself keeps what it has. Events may fail; those that do not come in their order, every call ends, nothing
comes twice, and all is well again when the network is.
"""

from __future__ import annotations

import asyncio
import random
import time
from typing import Any

from torture.handoff import wave
from torture.hosts import Host, hosted, port_of, through
from torture.proxy import DELAYED, DIRECTIONS, DRIP, PLAIN, SPLIT, Proxy, Shape
from torture.recorder import Recorder
from torture.setting import Setting

# How long an operation is tried by the store's own driver, and waited for by the engine.
TIMEOUTS = "timeout_ms=1500&connect_timeout_ms=700"
STORE_TIMEOUT_MS = 2_500
STORE_WAIT_MS = 2_500
# Faults of one wave, and the good weather before each.
FAULTS = 6
BETWEEN_S = (0.2, 0.8)


class Weather:
    """What the network between server and store does."""

    def __init__(self, recorder: Recorder, seed: str, proxy: Proxy) -> None:
        self.recorder, self.proxy = recorder, proxy
        self.random = random.Random(seed)

    async def run(self) -> None:
        for _ in range(FAULTS):
            await asyncio.sleep(self.random.uniform(*BETWEEN_S))
            how = self.random.choice(["cut", "within", "within", "silence", "long silence", "refuse", "slow"])
            self.recorder.count(how)
            await self.fault(how)
            self.shape(PLAIN)
            self.proxy.heal()

    async def fault(self, how: str) -> None:
        if how == "cut":
            self.proxy.cut()
        elif how == "within":
            # In the middle of what is asked, or of what is answered: taken, perhaps, and never told.
            for link in list(self.proxy.links.values()):
                link.after(
                    self.random.randint(1, 3_000),
                    self.random.choice(["reset", "end", "half", "hole"]),
                    self.random.choice(DIRECTIONS),
                )
            await asyncio.sleep(self.random.uniform(0.1, 0.5))
        elif how == "refuse":
            self.proxy.refuse()
            await asyncio.sleep(self.random.uniform(0.1, 1.0))
        elif how == "slow":
            self.shape(self.random.choice([DRIP, SPLIT, DELAYED]))
            await asyncio.sleep(self.random.uniform(0.2, 0.6))
        else:
            self.proxy.silence()
            await asyncio.sleep(self.random.uniform(0.1, 0.8) + (2.6 if how == "long silence" else 0))

    def shape(self, shape: Shape) -> None:
        for link in self.proxy.links.values():
            for pump in link.pumps.values():
                pump.shape = shape


async def bad_wave(recorder: Recorder, setting: Setting, number: int, host: Host, proxy: Proxy) -> None:
    """Calls under bad weather. The first of each session lasts until it is good again, and its response has to come."""
    until = recorder.folder / f"calm{number}"
    lasting: list[str] = []
    begun = asyncio.Event()

    def plan(name: str, call: int) -> dict[str, Any]:
        more: dict[str, Any] = {"unsure": "", "pause_ms": [0, 60], "standalone": 0}
        if call == 0:
            lasting.append(f"{name}-r{call}")
            return {**more, "until": str(until)}
        return {**more, "count": setting.events * call}

    async def weather() -> None:
        # Sessions open in good weather: what is not begun cannot be read to its end.
        await begun.wait()
        try:
            await Weather(recorder, f"{setting.seed}/{number}", proxy).run()
            # All is well again once readers of every one of them have had an event that was sent since.
            good = time.monotonic()
            before = {name: recorder.last_emitted(name) for name in lasting}
            while any(recorder.last_seen[name] <= n for name, n in before.items()):
                if time.monotonic() > good + setting.hang_s:
                    recorder.tell("hung", session=f"w{number}", says="the store is well, and no new event comes")
                    break
                await asyncio.sleep(0.1)
        finally:
            until.touch()

    blowing = asyncio.create_task(weather())
    try:
        await wave(recorder, setting, number, [host], [], begun=begun.set, plan=plan, heard=0)
        await blowing
    finally:
        blowing.cancel()


async def run(recorder: Recorder, setting: Setting) -> None:
    async with Proxy(port_of(setting.place), setting.seed) as proxy:
        place = f"{through(setting.place, proxy.port)}&{TIMEOUTS}"
        engine = {
            "store_timeout_ms": STORE_TIMEOUT_MS,
            "store_wait_ms": STORE_WAIT_MS,
        }
        host = await hosted(setting.server, place, **engine)
        try:
            number = 0
            while number == 0 or time.monotonic() < setting.deadline:
                await bad_wave(recorder, setting, number, host, proxy)
                number += 1
        finally:
            host.stop()
