"""`tailrope probe URL`: words on the command line, words on the terminal, an exit status."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from tailrope.probe._facts import Options, Unusable
from tailrope.probe._report import CHECKS, WORDS, probe

FLAGS = ("--json", "--help")
VALUES = ("--tool", "--arguments", "--header", "--timeout-ms", "--idle-ms", "--only", "--skip")
Print = Callable[[str], Any]


class UsageError(Exception):
    pass


def parse(words: list[str]) -> tuple[Options, bool]:
    """The options, and whether the report is wanted as JSON."""
    urls: list[str] = []
    given: dict[str, list[str]] = {}
    rest = iter(words)
    for word in rest:
        name, has_value, value = word.partition("=")
        if not word.startswith("--"):
            urls.append(word)
        elif word in FLAGS:
            given[word] = []
        elif name in VALUES:
            following = value if has_value else next(rest, None)
            if following is None:
                raise UsageError(f"{name} needs a value")
            given.setdefault(name, []).append(following)
        else:
            raise UsageError(f"no option {name}")
    if len(urls) != 1 or urlsplit(urls[0]).scheme not in ("http", "https") or not urlsplit(urls[0]).hostname:
        raise UsageError("give one URL, http:// or https://")
    options = Options(urls[0], dict(header(text) for text in given.get("--header", [])))
    options.tool = given.get("--tool", [None])[-1]
    if "--arguments" in given:
        options.arguments = arguments(given["--arguments"][-1])
        if options.tool is None:
            raise UsageError("--arguments needs --tool")
    options.timeout_ms = milliseconds("--timeout-ms", given, options.timeout_ms)
    options.idle_ms = milliseconds("--idle-ms", given, options.idle_ms)
    options.only, options.skip = names("--only", given), names("--skip", given)
    return options, "--json" in given


def header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon or not name.strip() or any(char in text for char in "\r\n\0"):
        # The value may be a secret, so it is not said again.
        raise UsageError("--header is 'NAME: VALUE'")
    return name.strip(), value.strip()


def arguments(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise UsageError("--arguments is a JSON object")
    return value


def milliseconds(name: str, given: dict[str, list[str]], default: float) -> float:
    text = given.get(name, [str(int(default))])[-1]
    if not text.isascii() or not text.isdigit() or not 0 < int(text[:10]) <= 3_600_000:
        raise UsageError(f"{name} is a number of milliseconds, up to 3600000")
    return int(text)


def names(option: str, given: dict[str, list[str]]) -> tuple[str, ...]:
    wanted = tuple(name for text in given.get(option, []) for name in text.split(",") if name)
    known = [check["name"] for check in CHECKS]
    for name in wanted:
        if name not in known:
            raise UsageError(f"no check {name}: there are {', '.join(known)}")
    return wanted


def main(words: list[str] | None = None) -> int:
    """Run one command; its exit status."""
    words = sys.argv[1:] if words is None else words
    usage = "\n".join(WORDS["usage"])
    if "--help" in words or "-h" in words:
        print(usage)
        return 0
    try:
        if words[:1] != ["probe"]:
            raise UsageError("give a command: probe")
        options, is_json = parse(words[1:])
    except UsageError as fault:
        print(f"tailrope: {fault}\n\n{usage}", file=sys.stderr)
        return 2
    try:
        report = asyncio.run(probe(options))
    except Unusable as fault:
        print(f"tailrope: {fault}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    print(json.dumps(report.as_json(), indent=2, ensure_ascii=False) if is_json else report.as_text())
    return report.exit
