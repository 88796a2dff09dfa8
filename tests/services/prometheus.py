"""Prometheus for tests, which start it themselves: each has servers of its own to scrape.

`prometheus` sets TAILROPE_TEST_PROMETHEUS, the program, and TAILROPE_TEST_PROMTOOL, its checker.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import common


def packages() -> list[str]:
    return ["prometheus"]


def start(folder: Path, kinds: list[str]) -> tuple[dict[str, str], list[subprocess.Popen[bytes]]]:
    """Finds the programs; nothing runs that would have to be ended."""
    programs = {name: common.program(name, "prometheus") for name in ("prometheus", "promtool")}
    return {f"TAILROPE_TEST_{name.upper()}": path for name, path in programs.items()}, []
