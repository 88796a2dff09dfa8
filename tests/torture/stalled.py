"""One of ten streams in a session stops reading while its tool emits as fast as it can: nobody else may notice.

Three times the same on a server of its own: the siblings alone, beside a reader that reads all of it, and beside one
that reads nothing. The siblings' latency and the server's memory are compared, generously: what a stalled reader costs
where something is wrong grows with what is emitted. Afterwards the reader wakes up, and gets all of it or is told what
is missing.

    .venv/mcp2/bin/python -m torture.stalled      (in tests/; `make torture-stalled`)
"""

from __future__ import annotations

import argparse
import asyncio
import re
import statistics
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field

from kit.peer import Peer, last_id, results
from kit.raw import Event, Reply, Truncated
from kit.servers import Server

from torture.ending import end
from torture.hosts import KINDS, OURS

SIBLINGS = 9
EVENT_BYTES = 64_000
# What the stream keeps; a reader that missed more is told so.
KEPT_BYTES = 4 << 20
OPTIONS = {"engine": {"max_bytes_per_stream": KEPT_BYTES}}
SHORT_MB = 64
FULL_MB = 1_000
# A busy machine makes single calls late by anything, so it is the usual one that is looked at.
LATENCY_FACTOR = 5.0
LATENCY_SLACK_S = 0.25
# Some copies of what the stream keeps, and what an allocator holds back.
MEMORY_SLACK_BYTES = 32 << 20
WAIT_S = 120.0
# A server that takes longer for all of it hangs.
LIMIT_S = 480.0
# rmcp's own service has no word for a gap.
MUTE = "rmcp"
ALONE, READ, STALLED = "alone", "read", "stalled"
MODES = (ALONE, READ, STALLED)
END = "return all"
GAP = re.compile(r"gap (\d+) (\d+)")


@dataclass
class Measured:
    """What siblings and server were like beside a reader."""

    mode: str
    latencies_s: list[float] = field(default_factory=list)
    grown_bytes: int = 0
    took_s: float = 0.0
    # Of the events that were emitted for the stalled reader: read, and announced as missing.
    read: int = 0
    missing: int = 0
    resumes: int = 0

    def median_s(self, part: slice = slice(None)) -> float:
        return statistics.median(self.latencies_s[part])

    def halves_s(self) -> tuple[float, float]:
        middle = len(self.latencies_s) // 2
        return self.median_s(slice(middle)), self.median_s(slice(middle, None))

    def __str__(self) -> str:
        first, last = self.halves_s()
        text = f"{self.mode:8} {self.took_s:6.1f} s  {len(self.latencies_s):6} calls of siblings, "
        text += (
            f"median {first * 1e3:5.1f} ms, then {last * 1e3:5.1f} ms  memory +{self.grown_bytes / (1 << 20):5.1f} MiB"
        )
        if self.mode == STALLED:
            text += f"  woke up to {self.read} events, {self.missing} announced as missing, {self.resumes} resumes"
        return text


async def sibling(peer: Peer, measured: Measured, over: asyncio.Event) -> None:
    while not over.is_set():
        started = time.monotonic()
        reply = await peer.call("script", {"steps": ["emit 1", "return quick"]}, wait_s=WAIT_S)
        events = await reply.rest(WAIT_S)
        measured.latencies_s.append(time.monotonic() - started)
        assert results(events) == ["quick"], events
        reply.close()
        await asyncio.sleep(0.005)


async def watched(server: Server, measured: Measured, over: asyncio.Event) -> None:
    before = server.rss()
    while not over.is_set():
        await asyncio.sleep(0.05)
        measured.grown_bytes = max(measured.grown_bytes, server.rss() - before)


async def drained(reply: Reply) -> None:
    """Read all of it and keep nothing."""
    while await reply._chunk():
        pass


async def emitted(server: Server) -> None:
    """Wait until the tool of the stalled reader has emitted all."""
    deadline = time.monotonic() + WAIT_S * 5
    while not await server.passed(f"finished {END}"):
        assert time.monotonic() < deadline, "the tool is not over"
        await asyncio.sleep(0.2)


async def woken(server: Server, peer: Peer, reply: Reply, count: int, measured: Measured) -> None:
    """Read on, resume until the result: every event in order and once, or announced as missing."""
    blocks: list[Event] = []
    while not results(blocks):
        # A connection that was cut for its reader's sake may end anywhere, even inside an event.
        with suppress(Truncated, AssertionError, ConnectionError):
            while (block := await reply.block(WAIT_S)) is not None:
                blocks.append(block)
        reply.close()
        if not results(blocks):
            measured.resumes += 1
            reply = await peer.resume(last_id(blocks))
            assert reply.status == 200, (reply.status, await reply.body())
    wanted = 1
    for block in blocks:
        if block.comment is not None and (gap := GAP.fullmatch(block.comment)):
            assert int(gap[1]) == wanted, f"a gap from {gap[1]} is announced where {wanted} is next"
            wanted += int(gap[2])
            measured.missing += int(gap[2])
        elif isinstance(block.message, dict) and block.message.get("method") == "notifications/progress":
            number = int(block.message["params"]["progress"])
            if server.kind.name == MUTE and number > wanted:
                measured.missing += number - wanted
                wanted = number
            assert number == wanted, f"{number} came where {wanted} is next"
            wanted += 1
            measured.read += 1
    assert wanted == count + 1, f"ended before {wanted} of {count}"
    assert results(blocks) == ["all"], results(blocks)


async def measure(name: str, mode: str, megabytes: int) -> Measured:
    """One mode on a server of its own."""
    measured = Measured(mode)
    count = megabytes * 1_000_000 // EVENT_BYTES
    over = asyncio.Event()
    async with Server.running(KINDS[name], OPTIONS) as server:
        peer = await Peer.open(server.port)
        # What the process takes for good.
        warm = await peer.call("script", {"steps": [f"emit 300 {EVENT_BYTES}"]})
        await drained(warm)
        started = time.monotonic()
        async with asyncio.TaskGroup() as group:
            for _ in range(SIBLINGS):
                group.create_task(sibling(peer, measured, over))
            group.create_task(watched(server, measured, over))
            if mode == ALONE:
                await asyncio.sleep(2)
            else:
                buffer = 4096 if mode == STALLED else None
                steps = [f"emit {count} {EVENT_BYTES}", END]
                reply = await peer.call("script", {"steps": steps}, receive_buffer=buffer, wait_s=WAIT_S)
                if mode == READ:
                    await drained(reply)
                else:
                    await emitted(server)
            over.set()
        measured.took_s = time.monotonic() - started
        if mode == STALLED:
            await woken(server, peer, reply, count, measured)
    return measured


def judge(found: dict[str, Measured]) -> list[str]:
    read, stalled = found[READ], found[STALLED]
    faults = []
    most = LATENCY_FACTOR * read.median_s() + LATENCY_SLACK_S
    if stalled.median_s() > most:
        faults.append(f"a sibling's call takes {stalled.median_s():.3f} s, {read.median_s():.3f} s beside a reader")
    first, last = stalled.halves_s()
    if last > LATENCY_FACTOR * first + LATENCY_SLACK_S:
        faults.append(f"a sibling's call took {first:.3f} s at first, then {last:.3f} s")
    if stalled.grown_bytes > read.grown_bytes + MEMORY_SLACK_BYTES:
        faults.append(f"memory grew by {stalled.grown_bytes >> 20} MiB, {read.grown_bytes >> 20} MiB beside a reader")
    return faults


async def stalled(name: str, megabytes: int) -> tuple[dict[str, Measured], list[str]]:
    """All modes on this server, and what is wrong."""
    found = {}
    for mode in MODES:
        found[mode] = await measure(name, mode, megabytes)
    return found, judge(found)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="A reader that stalls while its tool emits as fast as it can.")
    parser.add_argument("--megabytes", type=int, default=FULL_MB)
    parser.add_argument("--servers", nargs="*", default=list(OURS))
    options = parser.parse_args(arguments)
    broken = []
    for name in options.servers:
        found: dict[str, Measured] = {}
        try:
            found, faults = asyncio.run(asyncio.wait_for(stalled(name, options.megabytes), LIMIT_S))
        except Exception as fault:
            faults = [f"{type(fault).__name__}: {fault}"]
        for measured in found.values():
            print(f"{name:10} {measured}", flush=True)
        for fault in faults:
            print(f"{name:10} {fault}", flush=True)
        broken += [name] if faults else []
    print(f"{len(options.servers)} servers, {options.megabytes} MB each, {len(broken)} that a stalled reader harms")
    return end("stalled", broken)


if __name__ == "__main__":
    sys.exit(main())
