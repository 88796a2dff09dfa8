"""The options of the client's half, and what its callbacks are given."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypedDict

from tailrope._native import ClientOptions as NativeOptions


@dataclass(frozen=True, slots=True)
class Resume:
    """A connection that is about to be made for a stream that has lost its own."""

    last_event_id: str | None
    """The cursor; None where the stream has none and is read from where it is."""
    attempt: int
    """1 for the first try after progress, one more for each try that brought nothing."""
    delay_ms: int
    """How long was waited for it."""
    requests: tuple[int | str, ...]
    """The requests that wait; none on a standalone stream."""


@dataclass(frozen=True, slots=True)
class Gap:
    """Events that no client gets any more."""

    first: int | None
    """The position of the first, where the server told it."""
    count: int | None
    """How many. None where the server refused the cursor of a standalone stream: nobody knows."""


Headers = Mapping[str, str]
HeadersCallback = Callable[[], Headers | Awaitable[Headers | None] | None]
Schedule = Callable[[int, Callable[[], None]], Callable[[], object] | None]


class StreamOptions(TypedDict, total=False):
    """How streams come back. What is not named keeps its default. Durations are in milliseconds."""

    initial_delay_ms: int
    """The wait before a resume while the stream has told no `retry`. Default 1,000."""
    max_delay_ms: int
    """The longest wait that back-off makes. A longer `retry` is waited all the same, up to an hour. Default 30,000."""
    growth: float
    """By how much the wait grows with each failure in a row, 1 to 100. Default 1.5."""
    jitter: float
    """How much later than the wait, at most, as a share of it, 0 to 10. Default 0.25."""
    give_up_after_ms: int | None
    """No further try when the tries since the last progress took so long; None: never. Default 600,000."""
    max_attempts: int | None
    """How many tries without progress are made; None: any number. Default 100."""
    max_silence_ms: int | None
    """A connection that is silent for so long counts as broken; None: it may be silent. Default 300,000."""
    max_event_bytes: int
    """What one event may hold. Default 64 MiB."""
    on_resume: Callable[[Resume], object] | None
    """Called before each connection that resumes."""
    on_gap: Callable[[Gap], object] | None
    """Called when the server tells that events are lost."""
    schedule: Schedule | None
    """`schedule(delay_ms, wake)` calls `wake()` after the delay, from any thread, and may return what cancels that: for
    programs that are not always running. Default: the event loop's timers."""


class ClientOptions(StreamOptions, total=False):
    """The same, for a transport."""

    headers: Headers | HeadersCallback | None
    """Headers of the connections that resume, over those of the request that began the stream: a mapping, or a function
    (also an async one) that is called before each connection. Where it raises, that try failed."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The options of one transport, checked."""

    native: NativeOptions
    headers: Headers | HeadersCallback | None = None
    on_resume: Callable[[Resume], object] | None = None
    on_gap: Callable[[Gap], object] | None = None
    schedule: Schedule | None = None


OF_CONNECTIONS = frozenset(("cert", "http1", "http2", "limits", "proxy", "trust_env", "verify"))
"""The settings of an `AsyncClient` that are of what it connects with."""
HOST_OPTIONS = frozenset(("headers", "on_resume", "on_gap", "schedule"))


def checked(options: Mapping[str, Any]) -> Settings:
    """Raises ValueError that names the option that is unknown or out of its range."""
    host = {name: value for name, value in options.items() if name in HOST_OPTIONS}
    for name, value in host.items():
        if value is not None and not callable(value) and not (name == "headers" and isinstance(value, Mapping)):
            msg = f"{name} has to be a function" + (" or a mapping" if name == "headers" else "")
            raise ValueError(msg)
    native = {name: value for name, value in options.items() if name not in HOST_OPTIONS}
    return Settings(NativeOptions(**native), **host)
