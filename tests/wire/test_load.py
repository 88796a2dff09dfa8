"""The load client of the benchmarks, which checks every event of what it asks for. (I3, I12, F-10, F-16, F-70)"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from kit.elsewhere import ROOM
from kit.servers import ROOT, Farm

pytestmark = [pytest.mark.ours, pytest.mark.full, pytest.mark.first]

SESSIONS = 8
SECONDS = 3
EVENTS = 2_000
# Sessions side by side, or one call after the other.
MEASURES = (f"echo:{SESSIONS}", "emit", "replay", f"poll:{SESSIONS}", f"resume:{SESSIONS}")


@pytest.fixture(scope="session")
def load_client() -> Path:
    manifest = ["--manifest-path", str(ROOT / "Cargo.toml")]
    subprocess.run(["cargo", "build", "--quiet", "-p", "tailrope-bench-client", *manifest], check=True)
    return Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "debug" / "tailrope-bench-client"


async def run(client: Path, port: int, measure: str) -> dict[str, Any]:
    options = {"port": port, "seconds": SECONDS, "rounds": 2, "events": EVENTS}
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(client, *words, measure, stdout=pipe, stderr=pipe)
    said, complaints = await process.communicate()
    assert process.returncode == 0, complaints.decode()
    return dict(json.loads(said))


@pytest.mark.timeout(600)
@pytest.mark.parametrize("measure", MEASURES)
async def test_load_client_finds_nothing_wrong(farm: Farm, load_client: Path, measure: str) -> None:
    server = farm.get(retry_ms=10, engine=ROOM)
    found = await run(load_client, server.port, measure)
    assert found["faults"] == 0, found
    assert found["count"] >= (SESSIONS if ":" in measure else 2), found
