"""The snippets of the documents, as they are printed."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^(?:<!-- as in (\S+) -->\n)?```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# README, and the pages that tell how to start.
START = [ROOT / "README.md", *sorted((ROOT / "docs" / "start").glob("*.md"))]
EVERY = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


@dataclass(frozen=True)
class Snippet:
    page: str
    language: str
    text: str
    # The file that the text above it says it is taken from.
    source: str

    @property
    def title(self) -> str:
        """What its first line says of it, where that is a comment."""
        found = re.match(r"(?:#|//) (.+)", self.text)
        return found[1] if found else ""


def snippets(language: str, pages: list[Path] = START) -> list[Snippet]:
    """All of a language, in the order of their pages."""
    found = []
    for page in pages:
        name = page.relative_to(ROOT).as_posix()
        found += [Snippet(name, kind, text, source) for source, kind, text in BLOCK.findall(page.read_text())]
    return [snippet for snippet in found if snippet.language == language]
