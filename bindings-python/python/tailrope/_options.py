"""The options of `install()` and of the event store, in one place."""

from __future__ import annotations

from typing import TypedDict


class Options(TypedDict, total=False):
    """Options of an engine. What is not named keeps its default. Durations are in milliseconds."""

    retry_ms: int
    """How long a client waits before it comes back. Default 3,000."""
    keep_alive_ms: int
    """Longest silence on an open connection before a comment is written; 0 switches it off. Default 15,000."""
    max_connection_ms: int
    """The engine closes a connection at this age; the client resumes. 0 (the default) switches it off."""
    max_connection_bytes: int
    """The engine closes a connection that carried this much; the client resumes. 0 (the default) switches it off."""
    max_events_per_stream: int
    """Events kept for one stream. Default 10,000."""
    max_bytes_per_stream: int
    """Bytes kept for one stream. Default 8 MiB."""
    max_bytes_per_session: int
    """Bytes kept for one session. Default 64 MiB."""
    max_bytes: int
    """Bytes kept in all. Default 512 MiB."""
    max_event_bytes: int
    """A larger event is refused. Default 8 MiB."""
    warn_event_bytes: int
    """A larger event is logged as a warning: clients with small buffers drop it. Default 1 MiB."""
    max_sessions: int
    """Sessions open at once. Default 10,000."""
    retention_ms: int
    """How long a finished stream stays readable. Default 600,000 (10 minutes)."""
    max_age_ms: int
    """Events older than this are trimmed when their stream is written again. Default 3,600,000 (1 hour)."""
    max_detached_ms: int
    """How long requests may run without any contact to their client. Default 3,600,000 (1 hour)."""
    store_wait_ms: int
    """How long a resumed connection waits for a store that cannot be read. Default 10,000."""
    store_timeout_ms: int
    """How long one call of a user's own event store may take. Default 30,000."""


MEMORY = "memory:"


def check_store(store: str) -> None:
    """Refuses addresses of stores that do not exist."""
    if store != MEMORY:
        msg = f"unknown event store {store!r}: {MEMORY!r} is the one there is"
        raise ValueError(msg)
