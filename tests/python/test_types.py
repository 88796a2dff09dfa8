"""What a type checker has to refuse, and what it has to take. Each wrong line says so at its end."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.ours, pytest.mark.one_line]

CODE = """
import tailrope
import tailrope.client
import tailrope.mcp
from mcp.server.lowlevel import Server
from tailrope import Options, PaceOptions, Principal, ServersStatus, Status, StoreOptions
from tailrope import anything  # wrong
from tailrope.client import anything_else  # wrong
from tailrope.mcp import resumable, something  # wrong

server: Server = Server("x")
options: Options = {"retry_ms": 5, "max_sessions": 3}
of_store: StoreOptions = {"retention_ms": 5}
paced: PaceOptions = {"hold_ms": 0}
named: Principal = lambda request: request.headers.get("x-user")
status: Status = tailrope.status()
servers: list[ServersStatus] = status["servers"]
misspelled: Options = {"retry": 5}  # wrong
tailrope.install(store="memory:", **options)
tailrope.install(principal=named)
tailrope.install(retries_ms=5)  # wrong
tailrope.install(retry_ms="5")  # wrong
tailrope.open_store("memory:", **of_store)
tailrope.open_store("memory:", retry_ms=5)  # wrong
tailrope.Pace(**paced)
tailrope.Pace(retention="1")  # wrong
tailrope.mcp.StreamableHTTPSessionManager(server, None, True, retry_interval=5, max_sessions=7, retry_ms=5)
tailrope.mcp.StreamableHTTPSessionManager(app=server, json_response=True)
tailrope.mcp.StreamableHTTPSessionManager(server, nonsense=1)  # wrong
tailrope.mcp.StreamableHTTPSessionManager(server, retry_ms="5")  # wrong
tailrope.mcp.StreamableHTTPServerTransport("x", retry_interval=5)
tailrope.mcp.StreamableHTTPServerTransport("x", nonsense=1)  # wrong
tailrope.mcp.EventStore("memory:", nonsense=1)  # wrong
resumable(server, nonsense=1)  # wrong
tailrope.client.http_client_factory(max_attempts=5)(headers={}, verify=False)
tailrope.client.http_client_factory(nonsense=1)  # wrong
tailrope.nothing  # wrong
tailrope.mcp.nothing  # wrong
"""


@pytest.mark.timeout(180)
def test_a_type_checker_refuses_what_is_wrong_and_nothing_else(tmp_path: Path) -> None:
    file = tmp_path / "typed.py"
    file.write_text(CODE)
    # On a line that is wrong, the name of what is imported beside is not known either.
    command = [sys.executable, "-m", "mypy", "--strict", "--disable-error-code=type-arg", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    found = {int(line) for line in re.findall(r"typed\.py:(\d+): error", done.stdout)}
    wrong = {number for number, line in enumerate(CODE.splitlines(), 1) if line.endswith("# wrong")}
    assert found == wrong, done.stdout + done.stderr


def test_a_star_leaves_the_names_of_others_alone() -> None:
    names: dict[str, object] = {}
    exec("import mcp\nfrom tailrope import *", names)
    assert names["mcp"].__name__ == "mcp"  # type: ignore[attr-defined]
    assert {"install", "Options", "StoreOptions", "PaceOptions", "Principal", "ServersStatus"} <= names.keys()
