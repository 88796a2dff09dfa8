"""Puts facts that reach this process over different ways into the order in which they happened."""

import asyncio
import heapq
import itertools
import time
from collections.abc import Callable

from timeline import Timeline

SETTLE_S = 0.05


class Notes:
    """All facts carry a reading of the same monotonic clock, so holding each back for a moment is enough."""

    def __init__(self) -> None:
        self.timeline = Timeline()
        self._pending: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()

    def note(self, fact: Callable[[], None], at: float | None = None) -> None:
        heapq.heappush(self._pending, (at or time.monotonic(), next(self._order), fact))

    def report(self, until: float = float("inf")) -> None:
        while self._pending and self._pending[0][0] <= until:
            self.timeline.now, _, fact = heapq.heappop(self._pending)
            fact()

    async def keep_reporting(self) -> None:
        while True:
            await asyncio.sleep(SETTLE_S / 2)
            self.report(time.monotonic() - SETTLE_S)

    def told(self, fact: dict[str, object]) -> None:
        """Take one fact that a process reported, a line of JSON; called in order."""
        raise NotImplementedError
