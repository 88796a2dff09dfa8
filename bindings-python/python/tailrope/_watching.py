"""What is counted in this process, and whether it can serve."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Literal, TypedDict

from tailrope._native import Engine, health_json, live_answer
from tailrope._runtime import runtimes

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, MutableMapping, Sequence
    from typing import Any

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


def stats() -> dict[str, int]:
    """What Tailrope did and holds in this process, by name: docs/reference/counters.md. Several engines are put
    together."""
    across = dict(Engine.counters())
    total: dict[str, int] = dict(Engine().stats())
    counted: set[int] = set()
    for runtime in runtimes():
        stats, store = runtime.stats(), id(runtime.store)
        for name, value in stats.items():
            match across[name]:
                case "max":
                    total[name] = max(total[name], value)
                case "min":
                    total[name] = min(total[name], value)
                case "stores" if store in counted:
                    pass
                case _:
                    total[name] += value
        if stats and runtime.store is not None:
            counted.add(store)
    return total


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


class _Readyz:
    """An ASGI app for load balancers: status 200 while this process serves, 503 while requests should go elsewhere,
    with `health()` as JSON. Mount it, give it to a `Route`, or return it from a custom route."""

    async def __call__(
        self,
        scope: MutableMapping[str, Any],
        receive: Callable[[], Awaitable[MutableMapping[str, Any]]],
        send: Callable[[MutableMapping[str, Any]], Awaitable[None]],
    ) -> None:
        if scope["type"] != "http":
            return
        status, text = _told()
        await _answer(scope, send, status, [("content-type", "application/json"), ("cache-control", "no-store")], text)


class _Live:
    """An ASGI app for operators: a page that shows the sessions, calls, connections and tasks of this process while
    they run. No payload is on it, but who calls what: put it behind your own authentication. Mount it, give it to a
    `Route`, or return it from a custom route."""

    async def __call__(
        self,
        scope: MutableMapping[str, Any],
        receive: Callable[[], Awaitable[MutableMapping[str, Any]]],
        send: Callable[[MutableMapping[str, Any]], Awaitable[None]],
    ) -> None:
        if scope["type"] != "http":
            return
        engines = [engine for runtime in runtimes() if (engine := runtime.watched()) is not None]
        query = scope.get("query_string", b"").decode("latin-1")
        await _answer(scope, send, *live_answer(scope["method"], query, engines))


readyz = _Readyz()
live = _Live()
