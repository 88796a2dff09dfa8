"""What the kit raises: failures of a test's steps, and the verdict on a call."""

from __future__ import annotations

from typing import Any, Literal

Code = Literal["not_started", "not_restartable", "no_connection", "refused", "timed_out", "no_cursor", "closed"]


class KitError(Exception):
    """A step of the test that could not be done. `code` is stable and the same in every language:

    - `not_started`: the server did not come to listen, or has ended.
    - `not_restartable`: only a server in a process of its own can be killed and started again.
    - `no_connection`: the server did not take the connection, or broke it before it answered.
    - `refused`: it answered something else than was asked for; `status` is the HTTP status.
    - `timed_out`: nothing came for `wait_ms`.
    - `no_cursor`: no event has had an id yet, so there is nothing to resume after.
    - `closed`: the connection is over, and had less than was waited for.
    """

    def __init__(self, code: Code, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.code, self.status = code, status


class NotExactlyOnce(AssertionError):
    """A call's messages did not come exactly once. The lists hold messages in their short form, see `Call.received`."""

    def __init__(
        self,
        message: str,
        lost: list[Any],
        repeated: list[Any],
        out_of_order: list[Any],
        foreign: list[Any],
    ) -> None:
        super().__init__(message)
        self.lost, self.repeated, self.out_of_order, self.foreign = lost, repeated, out_of_order, foreign
