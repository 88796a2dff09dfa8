"""What is counted in this process, also for Prometheus, and whether it can serve."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Literal, TypedDict

from tailrope._native import exposition, health_json, stats_of
from tailrope._runtime import runtimes

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, MutableMapping
    from typing import Any

    from tailrope._native import Engine

Condition = Literal["ok", "degraded", "unavailable"]
"""How well something is. What is `degraded` serves; what is `unavailable` refuses."""


class StoreHealth(TypedDict):
    """Whether the event store is reached."""

    status: Condition
    away_ms: int
    """For how long it has been away; 0 while it is there."""
    refusing: bool
    """Calls are refused, because another process may have the sessions by now."""


class DrainHealth(TypedDict):
    """Whether the process is going away."""

    status: Condition
    draining: bool


class WaitingHealth(TypedDict):
    """What waits for the event store."""

    status: Condition
    bytes: int


class Health(TypedDict):
    """Whether this process can serve."""

    status: Condition
    """The worst of the others."""
    store: StoreHealth
    drain: DrainHealth
    waiting: WaitingHealth


def _engines() -> list[Engine]:
    return [engine for runtime in runtimes() if (engine := runtime.counts) is not None]


def stats() -> dict[str, int]:
    """What Tailrope did and holds in this process, by name: docs/reference/counters.md. Several engines are put
    together."""
    return stats_of(_engines())


def metrics() -> str:
    """The same as the text that Prometheus reads. Each sample has the label `process`, which is the id of this
    process."""
    return exposition(_engines(), str(os.getpid()))[1]


def _told() -> tuple[int, str]:
    return health_json([parts for runtime in runtimes() if (parts := runtime.health()) is not None])


def health() -> Health:
    """Whether this process can serve: the event store, a drain, and what waits for the store. Asks nobody, so it
    returns at once."""
    told: Health = json.loads(_told()[1])
    return told


class _Answer:
    """An ASGI app that says what is so now. Mount it, give it to a `Route`, or return it from a custom route."""

    def __init__(self, said: Callable[[], tuple[int, str, str]]) -> None:
        self._said = said

    async def __call__(
        self,
        scope: MutableMapping[str, Any],
        receive: Callable[[], Awaitable[MutableMapping[str, Any]]],
        send: Callable[[MutableMapping[str, Any]], Awaitable[None]],
    ) -> None:
        if scope["type"] != "http":
            return
        status, content_type, text = self._said()
        body = text.encode()
        headers = [
            (b"content-type", content_type.encode()),
            (b"content-length", str(len(body)).encode()),
            (b"cache-control", b"no-store"),
        ]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})


def _ready() -> tuple[int, str, str]:
    status, text = _told()
    return status, "application/json", text


def _exposed() -> tuple[int, str, str]:
    return 200, *exposition(_engines(), str(os.getpid()))


readyz = _Answer(_ready)
"""For load balancers, an ASGI app: status 200 while this process serves, 503 while requests should go elsewhere, with
`health()` as JSON."""

metrics_endpoint = _Answer(_exposed)
"""For Prometheus, an ASGI app: `metrics()`."""
