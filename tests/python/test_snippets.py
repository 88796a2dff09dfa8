"""The snippets of README and docs/start run as they are printed, except their port; tests/node has those of Node."""

from __future__ import annotations

import ast
import asyncio
import importlib.metadata
import re
import subprocess
import sys
from pathlib import Path

import pytest
from kit.snippets import EVERY, ROOT, Snippet, snippets
from tailrope.testing import serve

SDK_LINE = int(importlib.metadata.version("mcp").split(".")[0])
# Which SDK lines a page of docs/start, or a snippet of README, is written for. What is new must be named here.
LINES = {
    "README.md: mcp 2.x": {2},
    "README.md: mcp 1.x": {1},
    "README.md: fastmcp 3.x and 4.x": {2},
    "docs/start/fastapi.md": {2},
    "docs/start/fastmcp.md": {1, 2},
    "docs/start/mcp-1.md": {1},
    "docs/start/mcp-2.md": {2},
    "docs/start/ways.md": {2},
}
# Runs a program that serves, on the port that it is told.
ON_PORT = """
import os, runpy, sys, uvicorn
plain = uvicorn.Config.__init__
def on_port(self, *args, **kwargs):
    plain(self, *args, **kwargs)
    self.port = int(os.environ["PORT"])
uvicorn.Config.__init__ = on_port
runpy.run_path(sys.argv[1], run_name="__main__")
"""
SNIPPETS = snippets("python")
WAIT_MS = 60_000


def group(snippet: Snippet) -> str:
    return f"{snippet.page}: {snippet.title}" if snippet.page == "README.md" else snippet.page


def of(page: str) -> dict[str, str]:
    """The snippets of a page for this SDK line, by their titles."""
    if SDK_LINE not in LINES[page]:
        pytest.skip(f"written for mcp {min(LINES[page])}.x; this environment has mcp {SDK_LINE}.x")
    return {snippet.title: snippet.text for snippet in SNIPPETS if group(snippet) == page}


def run(text: str) -> str:
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.one_line
def test_every_snippet_is_run() -> None:
    assert {group(snippet) for snippet in SNIPPETS} == set(LINES)


@pytest.mark.one_line
def test_every_snippet_of_the_documents_is_python() -> None:
    for snippet in snippets("python", EVERY):
        compile(snippet.text, snippet.page, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


@pytest.mark.parametrize("page", [page for page in LINES if page.startswith("README")])
async def test_a_server_of_the_readme_can_be_resumed(page: str, tmp_path: Path) -> None:
    (text,) = of(page).values()
    (tmp_path / "server.py").write_text(text)
    async with serve([sys.executable, "-c", ON_PORT, str(tmp_path / "server.py")], wait_ms=WAIT_MS) as server:
        call = await (await server.session()).call("nothing", {})
        # To the response, and then again from the first id.
        await call.collect()
        call.assert_exactly_once()
        assert call.ids and call.is_answered


@pytest.mark.parametrize("page", [page for page in LINES if page.startswith("docs")])
async def test_the_programs_of_a_page_run(page: str, tmp_path: Path) -> None:
    programs = of(page)
    server = programs.pop("server.py", "")
    client = programs.pop("client.py", None)
    if not server:
        (text,) = programs.values()
        run(text)
        return
    # What stands alone goes on from the server above it.
    program, main, serves = server.partition("if __name__")
    (tmp_path / "server.py").write_text("\n".join([program, *programs.values(), main + serves]))
    path = "/mcp/" if 'app.mount("/mcp"' in server else "/mcp"
    command = [sys.executable, "-c", ON_PORT, str(tmp_path / "server.py")]
    async with serve(command, path=path, wait_ms=WAIT_MS) as serving:
        shown = client and asyncio.create_task(asyncio.to_thread(run, client.replace("8000", str(serving.port))))
        call = await (await serving.session()).call("build_report", {"pages": 3})
        assert await call.until_closed() == [1, 2]
        await call.collect()
        call.assert_exactly_once([1, 2, 3, "3 pages"])
        if shown:
            assert await shown == "page 1\npage 2\npage 3\npage 4\npage 5\n5 pages\n"


@pytest.mark.one_line
@pytest.mark.parametrize("snippet", snippets("rust"), ids=lambda snippet: f"{snippet.page}: {snippet.title}")
def test_a_snippet_in_rust_is_what_is_compiled(snippet: Snippet) -> None:
    """It is part of the file that it names; of one that names none, everything that it calls is there."""

    def code(text: str) -> str:
        return re.sub(r"\s+", "", re.sub(r"//.*", "", text))

    if snippet.source:
        assert code(snippet.text) in code((ROOT / snippet.source).read_text()), snippet.source
        return
    known = "".join(
        path.read_text() for crate in ("server-rust", "core") for path in (ROOT / crate / "src").rglob("*.rs")
    )
    named = set(re.findall(r"\b(\w+)(?=\(|::|!)", re.sub(r"//.*", "", snippet.text)))
    # What other crates have.
    named -= {"SockRef", "send_notification", "set_tcp_user_timeout", "socket2", "tap_io"}
    named -= {"EnvFilter", "init", "tracing_subscriber", "with_env_filter"}
    assert named and not {name for name in named if not re.search(rf"\b{name}\b", known)}
