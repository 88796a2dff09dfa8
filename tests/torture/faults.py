"""Servers whose store is behind a bad network: cut amid an append, silent, slow, refusing. (D6; I1, I2, I9)

The store itself keeps what it has. Events may fail; those that do not come in their order, every call ends, nothing
comes twice, and all is well again when the network is.
"""

from __future__ import annotations

import asyncio
import random
import time

from torture.handoff import wave
from torture.hosts import Host, port_of, through
from torture.proxy import DELAYED, DIRECTIONS, DRIP, PLAIN, SPLIT, Proxy, Shape
from torture.recorder import Recorder
from torture.setting import Setting

# How long an operation is tried by the store's own driver, and waited for by the engine.
TIMEOUTS = "timeout_ms=1500&connect_timeout_ms=700"
STORE_TIMEOUT_MS = 2_500
STORE_WAIT_MS = 2_500
# A process that cannot reach its store for so long is not taken for gone: nobody else asks.
OWNER_LOST_MS = 30_000
BETWEEN_S = (0.05, 0.5)


class Weather:
    """What the network between server and store does, until told to stop."""

    def __init__(self, recorder: Recorder, setting: Setting, proxy: Proxy) -> None:
        self.recorder, self.proxy = recorder, proxy
        self.random = random.Random(f"{setting.seed}/weather")
        # So many faults at least, whatever the calls take.
        self.least = 4
        self.is_over = False

    async def run(self) -> None:
        while not self.is_over or self.least > 0:
            await asyncio.sleep(self.random.uniform(*BETWEEN_S))
            self.least -= 1
            how = self.random.choice(["cut", "within", "silence", "long silence", "refuse", "slow"])
            self.recorder.count(how)
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
            elif how == "refuse":
                self.proxy.refuse()
                await asyncio.sleep(self.random.uniform(0.1, 1.0))
            elif how == "slow":
                self.shape(self.random.choice([DRIP, SPLIT, DELAYED]))
                await asyncio.sleep(self.random.uniform(0.2, 0.6))
            else:
                self.proxy.silence()
                await asyncio.sleep(self.random.uniform(0.1, 0.8) + (2.6 if how == "long silence" else 0))
            self.shape(PLAIN)
            self.proxy.heal()

    def shape(self, shape: Shape) -> None:
        for link in self.proxy.links.values():
            for pump in link.pumps.values():
                pump.shape = shape


async def run(recorder: Recorder, setting: Setting) -> None:
    async with Proxy(port_of(setting.place), setting.seed) as proxy:
        place = f"{through(setting.place, proxy.port)}&{TIMEOUTS}"
        engine = {
            "store_timeout_ms": STORE_TIMEOUT_MS,
            "store_wait_ms": STORE_WAIT_MS,
            "owner_lost_ms": OWNER_LOST_MS,
        }
        host = await Host.start(setting.server, place, **engine)
        try:
            number = 0
            while number == 0 or time.monotonic() < setting.deadline:
                weather = Weather(recorder, setting, proxy)
                blowing: list[asyncio.Task[None]] = []

                def begin(weather: Weather = weather, blowing: list[asyncio.Task[None]] = blowing) -> None:
                    # Sessions open in good weather: what is not begun cannot be read to its end.
                    blowing.append(asyncio.create_task(weather.run()))

                plan = {"unsure": True, "count": setting.events * 4, "standalone": 0}
                await wave(recorder, setting, number, [host], [], begun=begin, **plan)
                weather.is_over = True
                await asyncio.gather(*blowing)
                number += 1
        finally:
            await host.stop()
