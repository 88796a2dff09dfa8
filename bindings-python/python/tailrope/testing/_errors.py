"""The kit's verdict on a call."""

from __future__ import annotations

from typing import Any


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
