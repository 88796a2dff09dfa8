"""Many clients that come back together, and one that comes back very often."""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from kit.servers import ROOT, TESTS

from client.drivers import CLIENTS, MOST_LINE, command
from client.outcome import CLOCK_MS

pytestmark = pytest.mark.full
HERD = 1_000
HERD_RETRY_MS = 1_000
# Later by up to its whole length; a window of some width shows the spread better than the default one.
HERD_JITTER = 1.0
# A machine that stands still while they come back bunches them, but not each time.
HERDS = 3
# The lines share what is below them; what recursed for each reconnect would be over in both by then.
RESUMES = {"mcp1": 2_000, "mcp2": 10_000, "ts1": 2_000, "ts2": 10_000}
SAMPLES = 10
MIB = 1 << 20
# Several times what the longest takes where it has a processor for itself.
PROGRAM_S = 240
TURN = asyncio.Semaphore(1)


class RawProcess:
    """The scripted server as a process of its own, so that it does not share a processor's turn with the tests."""

    def __init__(self, process: asyncio.subprocess.Process, url: str) -> None:
        self._process = process
        self.url = url

    async def ask(self, what: str) -> Any:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{what}\n".encode())
        return json.loads(await self._process.stdout.readline())


@asynccontextmanager
async def raw_process(scenario: dict[str, Any], *options: str) -> AsyncIterator[RawProcess]:
    pipe = asyncio.subprocess.PIPE
    words = [sys.executable, "-m", "client.raw_server", json.dumps(scenario), *options]
    process = await asyncio.create_subprocess_exec(*words, cwd=TESTS, stdin=pipe, stdout=pipe, limit=MOST_LINE)
    try:
        assert process.stdout is not None
        line = (await process.stdout.readline()).decode()
        assert line.startswith("READY "), line
        yield RawProcess(process, line.split()[1])
    finally:
        process.kill()
        await process.wait()


async def program(words: list[str]) -> dict[str, Any]:
    """What a program prints at its end. One runs at a time: they do not wait, they work."""
    async with TURN:
        return await program_alone(words)


async def program_alone(words: list[str]) -> dict[str, Any]:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*words, cwd=ROOT, stdout=pipe, stderr=pipe)
    try:
        out, err = await asyncio.wait_for(process.communicate(), PROGRAM_S)
    except TimeoutError as late:
        raise AssertionError(f"{words} has not ended after {PROGRAM_S} s") from late
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, err.decode()[-4_000:]
    return dict(json.loads(out))


async def herd(client: str) -> tuple[list[float], list[float]]:
    """When each of a herd came back, in order, and for how long each of them planned to be away."""
    steps = [["prime", f"meet {HERD}"], ["prime changed", "send rest"]]
    scenario = {"streams": {"*": {"log": ["result x"], "retry_ms": HERD_RETRY_MS, "connections": steps}}}
    options = json.dumps({"jitter": HERD_JITTER})
    async with raw_process(scenario) as server:
        report = await program([*command(client, "herd"), server.url, str(HERD), options])
        record = await server.ask("record")
    assert (report["answered"], report["faults"]) == (HERD, [])
    resumes = [entry for entry in record if entry["method"] == "GET"]
    assert len({entry["stream"] for entry in resumes}) == HERD <= len(resumes) < HERD * 1.1
    away_ms = [entry["at_ms"] - entry["ended_ms"] for entry in resumes]
    assert min(away_ms) >= HERD_RETRY_MS - CLOCK_MS, f"one came after {min(away_ms)} ms"
    firsts = [entry for entry in resumes if entry["number"] == 1]
    planned, kept = sorted(report["delays"]), sorted(entry["at_ms"] - entry["ended_ms"] for entry in firsts)
    assert len(planned) == len(kept) == HERD
    # Where each keeps its own delay, the shortest time away is no shorter than the shortest delay, and so on.
    early = [(away, delay) for away, delay in zip(kept, planned, strict=True) if away < delay - CLOCK_MS]
    assert not early, f"{len(early)} came earlier than planned: {early[:5]}"
    return sorted(entry["at_ms"] for entry in firsts), planned


@pytest.mark.first
@pytest.mark.parametrize("client", ("mcp2", "ts2"))
async def test_f75_a_thousand_clients_of_a_closing_server_return_spread_over_the_jitter(client: str) -> None:
    window_ms = HERD_RETRY_MS * HERD_JITTER
    widths_ms: list[float] = []
    while len(widths_ms) < HERDS and not any(width > window_ms / 2 for width in widths_ms):
        came, planned = await herd(client)
        assert planned[0] >= HERD_RETRY_MS and planned[-1] <= HERD_RETRY_MS + window_ms + CLOCK_MS
        # What was planned is even over the window; when it arrives says more of this machine than of the plan.
        tenths = Counter(min(9, int((delay - HERD_RETRY_MS) / window_ms * 10)) for delay in planned)
        assert all(HERD * 0.04 < tenths[tenth] < HERD * 0.16 for tenth in range(10)), tenths
        widths_ms.append(came[HERD * 9 // 10] - came[HERD // 10])
    # They do arrive spread, too.
    assert widths_ms[-1] > window_ms / 2, widths_ms


@pytest.mark.first
@pytest.mark.parametrize("client", CLIENTS)
async def test_ten_thousand_resumes_of_one_stream_hold_neither_memory_nor_sockets(client: str) -> None:
    count = RESUMES[client]
    log = [{"each": "progress", "from": 1, "to": count}, "result x"]
    steps = [{"times": count, "steps": ["prime changed", "send 1"]}, ["prime changed", "send rest"]]
    scenario = {"streams": {"a": {"log": log, "retry_ms": 0, "connections": steps}}}
    async with raw_process(scenario, "--quiet") as server:
        report = await program([*command(client, "soak"), "--line", "{}", server.url, str(count // SAMPLES)])
        state = await server.ask("state")
    assert report.get("result") == "x", report
    assert (report["progress"], state["resumes"]) == (count, {"a": count})
    # One for the stream, one or two for what else the client asks, and what its HTTP library keeps.
    assert state["most_sockets"] <= 6, state
    assert max(report["descriptors"]) <= report["descriptors"][0] + 4, report
    # The least of some samples: garbage comes and goes. A few hundred bytes for each resume would be too much. What
    # the process has from the system moves by whole pages of the allocators, so it is only held to be of that size.
    for what, most in (("held", 2 * MIB), ("rss", 40 * MIB)):
        grown = min(report[what][-3:]) - min(report[what][2:5])
        assert grown < most, f"{what}: {grown / MIB:.1f} MiB: {report}"
