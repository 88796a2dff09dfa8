"""`python -m tailrope`, and the console script `tailrope`: the native half has every command but `serve`."""

from __future__ import annotations

import signal
import sys

from tailrope._native import probe


def main() -> None:
    if sys.argv[1:2] == ["serve"]:
        from tailrope._serving import command

        sys.exit(command.main(sys.argv[2:]))
    # Python's own handler would wait for the end of the command.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(probe(sys.argv[1:]))


if __name__ == "__main__":
    main()
