"""What an SSE body says, block by block, with nothing left out: a client hides comments, empty events and lone ids."""

from __future__ import annotations

import functools
import json
import re
from dataclasses import dataclass
from typing import Any

LINE_END = re.compile(rb"\r\n|\n|\r")


@dataclass
class Block:
    """One event, or one comment. `data` is None where there was no data line."""

    id: str | None = None
    data: str | None = None
    retry_ms: int | None = None
    comment: str | None = None
    # When it came, on the clock of the event loop.
    at: float = 0.0

    @property
    def is_priming(self) -> bool:
        return self.id is not None and self.data == ""

    @functools.cached_property
    def message(self) -> dict[str, Any] | None:
        """The JSON-RPC message, if there is one."""
        return parsed(self.data) if self.data else None

    @property
    def is_response(self) -> bool:
        return is_response(self.message)


def parsed(text: str) -> dict[str, Any] | None:
    try:
        message = json.loads(text)
    except ValueError:
        return None
    return message if isinstance(message, dict) else None


def is_response(message: dict[str, Any] | None) -> bool:
    return message is not None and "method" not in message and ("result" in message or "error" in message)


class Decoder:
    """Lines end with CR, LF or CRLF, also where CRLF is split between two reads (W-101)."""

    def __init__(self) -> None:
        self._rest = b""
        self._skips_lf = False
        self._is_first = True
        self._block: Block | None = None

    def feed(self, chunk: bytes) -> list[Block]:
        if self._skips_lf and chunk:
            chunk = chunk.removeprefix(b"\n")
            self._skips_lf = False
        data = self._rest + chunk
        *lines, self._rest = LINE_END.split(data)
        self._skips_lf = data.endswith(b"\r")
        found = (self._line(line) for line in lines)
        return [block for block in found if block is not None]

    def _line(self, line: bytes) -> Block | None:
        text = line.decode("utf-8", "replace")
        if self._is_first:
            text, self._is_first = text.removeprefix("\ufeff"), False
        if not text:
            block, self._block = self._block, None
            return block
        if text.startswith(":"):
            return Block(comment=text[1:].strip())
        name, _, value = text.partition(":")
        value = value.removeprefix(" ")
        block = self._block = self._block or Block()
        if name == "data":
            block.data = value if block.data is None else f"{block.data}\n{value}"
        elif name == "id" and "\0" not in value:
            block.id = value or None
        elif name == "retry" and value.isascii() and value.isdigit():
            block.retry_ms = int(value)
        return None
