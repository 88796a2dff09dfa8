"""The processes of the demo: how they are started, what they report, and how they end."""

import asyncio
import contextlib
import functools
import json
import os
import signal
import socket
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from notes import Notes

HERE = Path(__file__).parent
# Node may count a machine's sleep where Python does not; a difference that large is no delay of a pipe.
CLOCK_DIFFERENCE_S = 5


@dataclass
class Language:
    title: str
    command: list[str]
    """What starts a program, with its name in the place of `{}`."""


# Where cargo leaves server.rs and client.rs: `make demo-rust` builds them.
EXAMPLES = Path(os.environ.get("CARGO_TARGET_DIR") or HERE.parent / "target") / "debug" / "examples"

LANGUAGES = {
    "python": Language("Python: mcp 2.x", [sys.executable, f"{HERE}/{{}}.py"]),
    "node": Language(
        "Node: @modelcontextprotocol/server and client 2.x", [os.environ.get("NODE", "node"), f"{HERE}/{{}}.mjs"]
    ),
    "rust": Language("Rust: rmcp 3.11", [f"{EXAMPLES}/demo_{{}}"]),
}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def start(language: Language, program: str, *arguments: str) -> Process:
    command = [*(part.replace("{}", program) for part in language.command), *arguments]
    try:
        return await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE)
    except FileNotFoundError:
        raise SystemExit(f"{command[0]} is needed for this part of the demo") from None


async def wait_for_server(process: Process, port: int) -> None:
    for _ in range(300):
        if process.returncode is not None:
            raise SystemExit(f"the server ended with status {process.returncode} before it listened")
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            await asyncio.sleep(0.1)
        else:
            writer.close()
            return
    raise SystemExit("the server did not listen within 30 s")


async def read(process: Process, story: Notes, told: Callable[[dict[str, object]], None] | None = None) -> None:
    """Pass on what a process reports, one line of JSON per fact, to `told`, or to the story's own."""
    assert process.stdout is not None  # it is started with a pipe
    offset: float | None = None
    async for line in process.stdout:
        fact = json.loads(line)
        if offset is None:
            offset = time.monotonic() - fact["at"]
            offset = offset if abs(offset) > CLOCK_DIFFERENCE_S else 0.0
        story.note(functools.partial(told or story.told, fact), fact["at"] + offset)


async def stop(process: Process) -> None:
    if process.returncode is None:
        process.send_signal(signal.SIGTERM)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), 5)
    if process.returncode is None:
        process.kill()
        await process.wait()
