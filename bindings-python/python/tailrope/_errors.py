"""What the package raises."""

from __future__ import annotations

from typing import Any, Literal

ErrorCode = Literal[
    "closed",
    "forked",
    "session_ended",
    "session_exists",
    "too_many_sessions",
    "finished",
    "full",
    "too_large",
    "store_full",
    "inbox_full",
    "gone",
    "out_of_order",
    "rolled_back",
    "fenced",
    "store_failed",
    "store_timed_out",
    "store_not_opened",
    "session_lost",
    "stream_lost",
    "no_stream",
    "unauthorized",
    "unexpected_answer",
    "not_resumable",
    "gave_up",
    "event_too_large",
    "unsupported_sdk",
    "not_asyncio",
    "not_started",
    "not_restartable",
    "no_connection",
    "refused",
    "timed_out",
    "no_cursor",
    "ended_early",
]
"""What went wrong. The names are stable and the same in every language: docs/reference/errors.md."""


class TailropeError(RuntimeError):
    """What could not be done, and its `code`. `status` is the HTTP status of the answer that says so, where there is
    one."""

    code: ErrorCode
    status: int | None

    def __init__(self, message: str, code: ErrorCode, status: int | None = None) -> None:
        super().__init__(message)
        self.code, self.status = code, status

    def __reduce__(self) -> tuple[Any, ...]:
        # Classes below this one differ in how they are made, and one is made at run time.
        return TailropeError, (str(self), self.code, self.status)


TailropeError.__module__ = "tailrope"
