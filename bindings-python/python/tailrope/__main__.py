"""`python -m tailrope`, and the console script `tailrope`: the native half has the whole command."""

from __future__ import annotations

import signal
import sys

from tailrope._native import command


def main() -> None:
    # Python's own handler would wait for the end of the command.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(command(sys.argv[1:]))


if __name__ == "__main__":
    main()
