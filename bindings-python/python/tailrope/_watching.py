"""What is counted in this process, also for Prometheus, and whether it can serve."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Literal, TypedDict

from tailrope._native import exposition, health_json, live_answer, stats_of
from tailrope._runtime import runtimes

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, MutableMapping, Sequence
    from typing import Any

    from tailrope._native import Engine

Condition = Literal["ok", "degraded", "unavailable"]
"""How well something is. What is `degraded` serves; what is `unavailable` refuses."""


class StoreHealth(TypedDict):
    """Whether the event store is reached, and stores."""

    status: Condition
    away_ms: int
    """For how long it has been away; 0 while it is there."""
    refused_ms: int
    """For how long it has refused what was to be stored, as on a full disk; 0 while it stores."""
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


async def _answer(
    scope: MutableMapping[str, Any],
    send: Callable[[MutableMapping[str, Any]], Awaitable[None]],
    status: int,
    headers: Sequence[tuple[str, str]],
    text: str,
) -> None:
    body = text.encode()
    raw = [(name.encode(), value.encode()) for name, value in (*headers, ("content-length", str(len(body))))]
    await send({"type": "http.response.start", "status": status, "headers": raw})
    await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})


class _Endpoint:
    """An ASGI app. Mount it, give it to a `Route`, or return it from a custom route."""

    def __init__(self, answer: Callable[[str, str], tuple[int, Sequence[tuple[str, str]], str]]) -> None:
        self._answer = answer

    async def __call__(
        self,
        scope: MutableMapping[str, Any],
        receive: Callable[[], Awaitable[MutableMapping[str, Any]]],
        send: Callable[[MutableMapping[str, Any]], Awaitable[None]],
    ) -> None:
        if scope["type"] != "http":
            return
        query = scope.get("query_string", b"").decode("latin-1")
        await _answer(scope, send, *self._answer(scope["method"], query))


def _said(status: int, content_type: str, text: str) -> tuple[int, Sequence[tuple[str, str]], str]:
    return status, [("content-type", content_type), ("cache-control", "no-store")], text


def _ready(_method: str, _query: str) -> tuple[int, Sequence[tuple[str, str]], str]:
    status, text = _told()
    return _said(status, "application/json", text)


def _exposed(_method: str, _query: str) -> tuple[int, Sequence[tuple[str, str]], str]:
    return _said(200, *exposition(_engines(), str(os.getpid())))


def _shown(method: str, query: str) -> tuple[int, Sequence[tuple[str, str]], str]:
    engines = [engine for runtime in runtimes() if (engine := runtime.watched()) is not None]
    return live_answer(method, query, engines)


readyz = _Endpoint(_ready)
"""For load balancers, an ASGI app: status 200 while this process serves, 503 while requests should go elsewhere, with
`health()` as JSON."""

metrics_endpoint = _Endpoint(_exposed)
"""For Prometheus, an ASGI app: `metrics()`."""

live = _Endpoint(_shown)
"""For operators, an ASGI app: a page that shows the sessions, calls, connections and tasks of this process while they
run. No payload is on it, but who calls what: put it behind your own authentication."""
