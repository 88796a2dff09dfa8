"""`python -m tailrope`, and the console script `tailrope`."""

from __future__ import annotations

import sys


def main() -> None:
    from tailrope.probe._cli import main as run

    sys.exit(run())


if __name__ == "__main__":
    main()
