"""Every example runs as a user would run it. A server serves a stock client through a call that closes its connection;
a client makes such a call."""

import asyncio
import contextlib
import importlib.metadata
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tailrope.testing._server import _free_port

EXAMPLES = Path(__file__).parents[2] / "examples" / "python"
SDK_LINE = int(importlib.metadata.version("mcp").split(".")[0])
PAGES = 20
CALL_TIMEOUT_S = 60
# Which SDK lines an example is written for. A new file in the folder must be named here.
LINES = {
    "durable_sqlite": {2},
    "fastapi_mount": {2},
    "own_event_store": {2},
    "resumable_client_mcp1": {1},
    "resumable_client_mcp2": {2},
    "server_fastmcp": {1, 2},
    "server_mcp1": {1},
    "server_mcp2": {2},
    "test_my_server": {2},
}

# Servers that have a client as an example, too.
CLIENTS = {"server_mcp1": "resumable_client_mcp1", "server_mcp2": "resumable_client_mcp2"}

# Those that are a user's tests of the others.
TESTS = {"test_my_server"}


def test_every_example_is_run() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == set(LINES)


@contextlib.contextmanager
def running(name: str, folder: Path) -> Iterator[tuple[int, subprocess.Popen[bytes]]]:
    """Start an example, wait until it listens, kill it if the test has not ended it."""
    port = _free_port()
    environment = os.environ | {"PORT": str(port), "STORE": f"sqlite:{folder / 'events.db'}"}
    process = subprocess.Popen([sys.executable, str(EXAMPLES / f"{name}.py")], env=environment)
    try:
        deadline = time.monotonic() + 60
        while True:
            assert process.poll() is None, f"{name} ended with status {process.returncode}"
            assert time.monotonic() < deadline, f"{name} does not listen"
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                break
            time.sleep(0.05)
        yield port, process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


async def call(url: str) -> tuple[list[int], str]:
    """Call the tool with the stock client of the installed SDK; returns the progress it was told and the result."""
    progress: list[int] = []

    async def on_progress(value: float, total: float | None, message: str | None) -> None:
        progress.append(int(value))

    arguments = {"pages": PAGES}
    if SDK_LINE == 1:
        from mcp import ClientSession
        from mcp.client.streamable_http import streamable_http_client

        async with streamable_http_client(url) as (read, write, _), ClientSession(read, write) as session:
            await session.initialize()
            result = await session.call_tool("build_report", arguments, progress_callback=on_progress)
    else:
        from mcp import Client

        async with Client(url, mode="legacy") as client:
            result = await client.call_tool("build_report", arguments, progress_callback=on_progress)
    return progress, result.content[0].text


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", sorted(set(LINES) - set(CLIENTS.values()) - TESTS))
def test_example_loses_nothing(name: str, tmp_path: Path) -> None:
    if SDK_LINE not in LINES[name]:
        pytest.skip(f"written for mcp {min(LINES[name])}.x; this environment has mcp {SDK_LINE}.x")
    with running(name, tmp_path) as (port, process):
        progress, text = asyncio.run(asyncio.wait_for(call(f"http://127.0.0.1:{port}/mcp"), CALL_TIMEOUT_S))
        assert progress == list(range(1, PAGES + 1))
        assert text == f"{PAGES} pages"
        if name in CLIENTS:
            client_loses_nothing(CLIENTS[name], port)

        process.send_signal(signal.SIGTERM)
        # Nothing is connected any more; a server that still hangs would hang in production too.
        process.wait(timeout=30)


def client_loses_nothing(name: str, port: int) -> None:
    command = [sys.executable, str(EXAMPLES / f"{name}.py"), f"http://127.0.0.1:{port}/mcp"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=CALL_TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line for line in lines if line.startswith("page")] == [f"page {page}" for page in range(1, PAGES + 1)]
    assert len([line for line in lines if line.startswith("back after")]) == 1
    assert lines[-1] == f"{PAGES} pages" and not done.stderr


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", sorted(TESTS))
def test_example_tests_pass(name: str) -> None:
    if SDK_LINE not in LINES[name]:
        pytest.skip(f"written for mcp {min(LINES[name])}.x; this environment has mcp {SDK_LINE}.x")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(EXAMPLES / f"{name}.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0 and "3 passed" in done.stdout, done.stdout + done.stderr
