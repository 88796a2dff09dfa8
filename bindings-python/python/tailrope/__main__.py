"""`python -m tailrope`, and the console script `tailrope`: the native half has every command but `serve`."""

from __future__ import annotations

import signal
import sys

from tailrope._native import command


def main() -> None:
    if sys.argv[1:2] == ["serve"]:
        from tailrope._serving.command import main as serve

        sys.exit(serve(sys.argv[2:]))
    # Python's own handler would wait for the end of the command.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(command(sys.argv[1:]))


if __name__ == "__main__":
    main()
