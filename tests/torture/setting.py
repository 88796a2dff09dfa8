"""What one run of one test is about: which server, which store, how much, for how long."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path

from kit.places import empty_place


@dataclass(frozen=True)
class Size:
    """How much of everything at once, and for how long it is repeated."""

    sessions: int
    calls: int
    events: int
    pause_ms: float
    seconds: float
    rounds: int
    kills: int
    pauses: int
    outages: int
    # Faults beside the rolling restart, and how long a call takes, at least and at most.
    node_faults: int
    call_s: tuple[float, float]


SHORT = Size(
    sessions=5,
    calls=3,
    events=40,
    pause_ms=40,
    seconds=0,
    rounds=100,
    kills=1,
    pauses=1,
    outages=1,
    node_faults=1,
    call_s=(0.2, 3.0),
)
FULL = Size(
    sessions=30,
    calls=4,
    events=100,
    pause_ms=60,
    seconds=15,
    rounds=1_000,
    kills=4,
    pauses=2,
    outages=2,
    node_faults=3,
    call_s=(1.0, 30.0),
)


@dataclass
class Setting:
    server: str
    store: str
    seed: str
    size: Size
    folder: Path
    place: str = ""
    started: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self.place = self.place or empty_place("memory" if self.is_stock else self.store, self.folder)

    @property
    def is_stock(self) -> bool:
        return self.server.startswith("stock")

    @property
    def is_shared(self) -> bool:
        """Whether a second process can serve the same sessions."""
        return self.store != "memory" and not self.is_stock

    @property
    def hang_s(self) -> float:
        """How long nothing may happen where something has to. A busy machine takes its time; stock servers are
        known to hang, and are not waited for as long."""
        return 4.0 if self.is_stock else 60.0

    @property
    def deadline(self) -> float:
        return self.started + self.size.seconds

    @property
    def sessions(self) -> int:
        return self.size.sessions

    @property
    def calls(self) -> int:
        return self.size.calls

    @property
    def events(self) -> int:
        return self.size.events

    @property
    def pause_ms(self) -> float:
        return self.size.pause_ms
