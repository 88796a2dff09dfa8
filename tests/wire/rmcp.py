"""What rmcp's service does itself, whatever its session manager says: the tests of it say nothing about ours."""

from __future__ import annotations

import pytest

REASONS: dict[str, str] = {}


def left_out(item: pytest.Item) -> None:
    """Has a test of a Rust server skipped, with the reason, where it is about what rmcp's service does."""
    name = item.originalname if isinstance(item, pytest.Function) else item.name
    if "lab" in getattr(item, "fixturenames", ()):
        item.add_marker(pytest.mark.skip(reason="a store of one's own is a backend of the engine: docs/own-store.md"))
    if reason := REASONS.get(name) or REASONS.get(item.path.name):
        item.add_marker(pytest.mark.skip(reason=reason))
