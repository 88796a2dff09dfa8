"""How each part of the torture ends: it names what is broken, also where `make torture` collects that of all parts."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

# The file to which names are added.
VARIABLE = "TAILROPE_TORTURE_BROKEN"


def end(part: str, broken: Sequence[str]) -> int:
    """Print the names of what is broken, once each. Returns the exit status."""
    if not broken:
        return 0
    line = f"broken, {part}: {', '.join(dict.fromkeys(broken))}"
    print(f"\n{line}", flush=True)
    if path := os.environ.get(VARIABLE):
        with Path(path).open("a") as file:
            file.write(f"{line}\n")
    return 1
