"""Which versions of the SDK are supported. Imports nothing of the SDK."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, version

from tailrope._native import TailropeError

try:
    VERSION = version("mcp")
except PackageNotFoundError:
    VERSION = ""

SUPPORTED = "mcp 1.30 and later 1.x, mcp 2.2 and later 2.x"
_OLDEST = {1: (1, 30), 2: (2, 2)}


def unsupported(text: str) -> TailropeError:
    error = TailropeError(text)
    error.code = "unsupported_sdk"
    return error


def check_sdk() -> None:
    """Raises TailropeError (code `unsupported_sdk`) where the SDK is missing or too old."""
    if not VERSION:
        msg = f"The package mcp is not installed, and Tailrope serves under it (supported: {SUPPORTED}). Install mcp."
        raise unsupported(msg)
    found = tuple(int(number) for number in re.findall(r"\d+", VERSION)[:2])
    if found < _OLDEST.get(found[0], (1,)):
        msg = (
            f"mcp {VERSION} is too old for this Tailrope (supported: {SUPPORTED}): its server lacks what sessions are "
            "resumed with. Upgrade mcp."
        )
        raise unsupported(msg)
