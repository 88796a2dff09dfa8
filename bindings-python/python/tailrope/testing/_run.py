"""Serves a target on a port of 127.0.0.1, for `serve("module:name")`: python -m tailrope.testing._run TARGET PORT."""

from __future__ import annotations

import importlib
import os
import sys

from tailrope.testing._server import application, made


def main(target: str, port: int) -> None:
    import uvicorn

    sys.path.insert(0, os.getcwd())
    module, _, name = target.partition(":")
    found = importlib.import_module(module)
    for part in (name or "app").split("."):
        found = getattr(found, part)
    uvicorn.run(application(made(found)), host="127.0.0.1", port=port, log_level="warning")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
