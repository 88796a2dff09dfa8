"""The command `tailrope` of this package, which is native: tests/rust/probe.rs says what it does."""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys
from collections.abc import Iterator

import pytest
import tailrope.__main__
from kit.servers import ROOT

pytestmark = [pytest.mark.ours, pytest.mark.one_line]

VECTORS = json.loads((ROOT / "tests/vectors/probe.json").read_text())
# It is there for servers in any language, so it has to run where no SDK is.
WITHOUT_SDK = """
import sys
sys.modules["mcp"] = None
from tailrope.__main__ import main
main()
"""


@pytest.fixture
def faulty() -> Iterator[str]:
    """The address of a faulty server."""
    process = subprocess.Popen(
        [sys.executable, "-m", "raw_server.faulty"],
        cwd=ROOT / "tests/client",
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    port = process.stdout.readline().split()[1]
    yield f"http://127.0.0.1:{port}/python/unknown-404"
    process.communicate("", timeout=10)


def test_the_package_has_the_command() -> None:
    (script,) = importlib.metadata.entry_points(group="console_scripts", name="tailrope")
    assert script.load() is tailrope.__main__.main


def test_it_prints_what_the_vectors_say_without_an_sdk(faulty: str) -> None:
    command = [sys.executable, "-c", WITHOUT_SDK, "probe", faulty, "--only", "ping,made-up-cursor"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=40)
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.splitlines() == [f"{faulty}: faulty 1, 2025-11-25", *VECTORS["text"]]
