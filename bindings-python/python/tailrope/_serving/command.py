"""The command `tailrope serve`."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING, Any, cast

from tailrope._errors import TailropeError
from tailrope._options import Options
from tailrope._serving import server, workers

if TYPE_CHECKING:
    from collections.abc import Sequence

USAGE_ERROR = 2
_NOT_AS_WORDS = ("encryption_keys", "log_user", "on_adopted", "pace", "principal")
"""Options that are functions or objects, or must not be seen in a list of processes."""
_FLAGS = ("log_calls",)
"""Options that are True or False."""


def main(words: Sequence[str]) -> int:
    """Runs the command with the words behind its name, and gives its exit status."""
    given = vars(_parser().parse_args(words))
    count, settings = given.pop("workers"), dict(given.pop("uvicorn") or ())
    if given["log_level"] is not None:
        settings["log_level"] = given["log_level"]
    fixed = {name: given.pop(name) for name in ("server", "host", "port", "path", "store", "log_level")}
    options = cast("Options", {name: value for name, value in given.items() if value is not None})
    worker = workers.Worker.of_environment()
    try:
        if worker is None and count > 1:
            return workers.run(words, count, fixed["host"], fixed["port"])
        prepared = server.prepared(
            fixed["server"],
            fixed["host"],
            fixed["port"],
            fixed["path"],
            settings,
            fixed["store"],
            options,
            worker=worker,
        )
    except (ImportError, OSError, TailropeError, TypeError, ValueError) as error:
        print(f"tailrope serve: {error}", file=sys.stderr)
        return 1
    server.run(prepared)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tailrope serve", description="Serve MCP, resumable, from Tailrope's own listener: docs/deploy/serve.md."
    )
    parser.add_argument("server", metavar="MODULE:SERVER", help="a server (MCPServer, FastMCP) or an ASGI app")
    parser.add_argument("--host", default="127.0.0.1", help="default 127.0.0.1")
    parser.add_argument("--port", type=int, default=8_000, help="default 8000; 0 is any free port")
    parser.add_argument("--path", help="of the endpoint of a server, default the server's own")
    parser.add_argument("--workers", type=_count, default=1, metavar="N", help="processes that share the port")
    parser.add_argument("--store", metavar="ADDRESS", help="the event store, as in sqlite:events.db")
    parser.add_argument("--log-level", help="of uvicorn")
    parser.add_argument(
        "--uvicorn", type=_setting, action="append", metavar="NAME=VALUE", help="a further setting of uvicorn"
    )
    group = parser.add_argument_group("options of tailrope.install(), see docs/reference/options.md")
    for name in sorted(Options.__optional_keys__ - {*_NOT_AS_WORDS}):
        word = f"--{name.replace('_', '-')}"
        if name in _FLAGS:
            group.add_argument(word, action=argparse.BooleanOptionalAction)
        else:
            group.add_argument(word, type=_value, metavar="VALUE")
    return parser


def _count(text: str) -> int:
    count = int(text)
    if count < 1:
        raise ValueError
    return count


def _value(text: str) -> Any:
    """A number, a list, or else a text."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _setting(text: str) -> tuple[str, Any]:
    name, is_given, value = text.partition("=")
    if not is_given:
        raise ValueError
    return name, _value(value)
