"""Fleets: several processes on one store, without affinity, that are asked as one server.

A fleet is a `Kind` like any other, and what it starts a `Server`. Requests go to a random process each (`TAILROPE_SEED`
chooses others), or to one that the host of the processes chooses, where they have one port. What tests ask for below
`/ctl/` is asked of each process: gates open everywhere, marks and counters are added up.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Coroutine, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from services.common import free_ports

from kit.balancer import Balancer
from kit.elsewhere import CALM
from kit.places import empty_place
from kit.raw import Reply
from kit.servers import RUST, SERVERS, START_S, TESTS, TRANSPORT, Kind, Server, ask, written

SEED = os.environ.get("TAILROPE_SEED", "1")
PROCESSES = 3
# In place of the language and the SDK line of a fleet that has several.
MIXED = "mixed"
ENDS = (0, -signal.SIGTERM, -signal.SIGINT)


@dataclass(frozen=True)
class Fleet(Kind):
    """Processes of these servers on a store of this kind. `is_hosted`: one host of their language has them all."""

    members: tuple[Kind, ...]
    store: str
    is_hosted: bool = False

    @property
    def changing(self) -> tuple[str, ...]:
        return max((member.changing for member in self.members), key=len)

    def lacks(self) -> str | None:
        """Why it cannot be started: nothing names the server of its store."""
        variable = f"TAILROPE_TEST_{self.store.upper()}"
        return None if self.store == "sqlite" or variable in os.environ else f"{variable} names no server"

    def start(self, options: dict[str, Any] | None = None, transport: str = TRANSPORT, **env: str) -> Server:
        if transport == "stock":
            # The SDK's own, to be compared with: it has no fleets.
            return self.members[0].start(options, transport, **env)
        return (Hosted if self.is_hosted else Balanced)(self, options, transport, **env)


def _fleet(name: str, store: str, *servers: str, is_hosted: bool = False) -> Fleet:
    members = tuple({**SERVERS, **RUST}[server] for server in servers)
    kinds = {(member.language, member.line) for member in members}
    language, line = kinds.pop() if len(kinds) == 1 else (MIXED, MIXED)
    return Fleet(f"{name}-{store}", language, line, members, store, is_hosted)


FLEETS = {
    fleet.name: fleet
    for fleet in (
        *(_fleet("mcp2x3", store, *["mcp2"] * PROCESSES) for store in ("redis", "postgres")),
        *(_fleet("node-v2x3", store, *["node-v2"] * PROCESSES) for store in ("redis", "postgres")),
        *(_fleet("towerx3", store, *["tower"] * PROCESSES) for store in ("redis", "postgres")),
        _fleet(MIXED, "redis", "mcp2", "node-v2", "mcp2"),
        *(_fleet("every", store, "mcp2", "node-v2", "tower") for store in ("redis", "postgres", "sqlite")),
        _fleet("uvicorn-workers", "sqlite", *["mcp2"] * PROCESSES, is_hosted=True),
        _fleet("node-cluster", "sqlite", *["node-v2"] * PROCESSES, is_hosted=True),
    )
}


def servers_of(kind: Kind) -> tuple[Kind, ...]:
    """The servers that may answer a request: one, or those of a fleet."""
    return kind.members if isinstance(kind, Fleet) else (kind,)


async def refused_call(server: Server, reply: Reply, id: Any = None) -> Any:
    """The error of a call that its owner refuses with 400. Another process may have begun the answer by then, so it
    comes in there: docs/deploy/several-processes.md. It may name this id."""
    if isinstance(server.kind, Fleet) and reply.status == 200:
        (answer,) = [event.message for event in await reply.rest() if event.is_terminal]
        return answer["error"]
    answer = await reply.json()
    assert reply.status == 400 and answer["id"] in (None, id), (reply.status, answer)
    return answer["error"]


class Processes:
    """The processes of a fleet, in the shape of one."""

    def __init__(self, each: Iterable[Any]) -> None:
        self._each = list(each)

    def poll(self) -> int | None:
        """None while all of them run."""
        return next((code for process in self._each if (code := process.poll()) is not None), None)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for all, and give the exit code of the one that ended worst."""
        codes = [process.wait(timeout) for process in self._each]
        return min(codes, key=lambda code: (code in ENDS, code))

    def send_signal(self, number: int) -> None:
        for process in self._each:
            process.send_signal(number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class FleetServer(Server):
    """What all fleets have in common. `controls` are the ports at which each process answers what tests ask."""

    controls: list[int]
    pids: list[int]

    def __init__(self, kind: Fleet, options: dict[str, Any] | None, transport: str, **env: str) -> None:
        self.kind, self.options, self.transport = kind, options or {}, transport
        self._folder = tempfile.TemporaryDirectory()
        address = self.options.get("address") or empty_place(kind.store, Path(self._folder.name))
        shared = {**self.options, "address": address, "engine": {**CALM, **self.options.get("engine", {})}}
        self._begin(kind, shared, transport, env)

    def _begin(self, kind: Fleet, options: dict[str, Any], transport: str, env: dict[str, str]) -> None:
        raise NotImplementedError

    def rss(self) -> int:
        pages = (int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in self.pids)
        return sum(pages) * os.sysconf("SC_PAGESIZE")

    def descriptors(self) -> int:
        return sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in self.pids)

    async def ctl(self, path: str, body: Any = None, **query: Any) -> Any:
        if path == "mark":
            return await self._reached(query["name"], query.get("count", 1))
        if path == "act":
            # Its call runs in one of them.
            marks = await self._marks(f"acting {query['name']}")
            return await ask(next(port for port, count in marks.items() if count > 0), path, body, **query)
        return combined(await asyncio.gather(*(ask(port, path, body, **query) for port in self.controls)))

    async def _marks(self, name: str) -> dict[int, int]:
        """How often each process has set this mark."""
        states = await asyncio.gather(*(ask(port, "state") for port in self.controls))
        return {port: state["marks"].get(name, 0) for port, state in zip(self.controls, states, strict=True)}

    async def _reached(self, name: str, count: int) -> Any:
        """What one process answers that is asked for a mark: nothing, or what is missing."""
        while sum((counts := await self._marks(name)).values()) < count:
            if missing := await first_empty(
                ask(port, "mark", name=name, count=known + 1) for port, known in counts.items()
            ):
                return missing
        return {}


async def first_empty(asking: Iterable[Coroutine[Any, Any, Any]]) -> Any:
    """The first answer that is empty, or else the last one."""
    tasks = [asyncio.ensure_future(each) for each in asking]
    answer: Any = None
    try:
        for task in asyncio.as_completed(tasks):
            if not (answer := await task):
                break
    finally:
        for each in tasks:
            each.cancel()
    return answer


def combined(answers: Sequence[Any]) -> Any:
    """What several processes answer, as if one had: numbers are added up, by their names."""
    known = [answer for answer in answers if answer is not None]
    if not known:
        return None
    if isinstance(known[0], dict):
        names = dict.fromkeys(name for answer in known for name in answer)
        return {name: combined([answer.get(name) for answer in known]) for name in names}
    if isinstance(known[0], list):
        return [part for answer in known for part in answer]
    return sum(known) if isinstance(known[0], int | float) else known[0]


class Balanced(FleetServer):
    """Servers of their own, and a load balancer before them that knows nothing of sessions."""

    def _begin(self, kind: Fleet, options: dict[str, Any], transport: str, env: dict[str, str]) -> None:
        with ThreadPoolExecutor(len(kind.members)) as pool:
            starting = [pool.submit(member.start, options, transport, **env) for member in kind.members]
        self.nodes = [each.result() for each in starting if each.exception() is None]
        if len(self.nodes) < len(starting):
            self._end_nodes()
            raise next(fault for each in starting if (fault := each.exception()) is not None)
        self.process = Processes(node.process for node in self.nodes)
        self.controls, self.pids = [node.port for node in self.nodes], [node.process.pid for node in self.nodes]
        dice = random.Random(f"{SEED}/{kind.name}")
        self._balancer = Balancer(lambda: dice.choice(self.controls))
        self.port = self._balancer.port

    def log(self) -> str:
        return "".join(node.log() for node in self.nodes)

    def _end_nodes(self) -> None:
        for node in self.nodes:
            node.kill()

    def kill(self) -> None:
        self._balancer.stop()
        self._end_nodes()
        self._folder.cleanup()


class Hosted(FleetServer):
    """Processes that one host has started, and that take their connections from one port."""

    def _begin(self, kind: Fleet, options: dict[str, Any], transport: str, env: dict[str, str]) -> None:
        self.stderr = tempfile.TemporaryFile("w+")  # noqa: SIM115
        (self.port,) = free_ports(1)
        member = kind.members[0]
        words = member.command(transport, options)
        if kind.language == "python":
            # A worker of a busy machine does not answer within the default of five seconds.
            command = [member.python, "-m", "uvicorn", "--workers", str(len(kind.members)), "--port", str(self.port)]
            command += ["--timeout-worker-healthcheck", "60", "--log-level", "warning", "servers.python.worker:app"]
            env = {**env, "TAILROPE_TEST_SERVER": json.dumps(words[3:])}
        else:
            program = TESTS / "servers" / "node" / "cluster.mjs"
            command = [*words[:2], str(program), str(len(kind.members)), *words[3:], "--port", str(self.port)]
        with tempfile.TemporaryFile("w+") as said:
            self.process = subprocess.Popen(
                command,
                cwd=TESTS,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=self.stderr,
                env={**os.environ, **env},
            )
            # Each says at which port it answers tests, and who it is.
            found = self._workers(said, len(kind.members))
        self.controls, self.pids = [port for port, _ in found], [pid for _, pid in found]

    def _workers(self, said: IO[str], count: int) -> list[tuple[int, int]]:
        deadline = time.monotonic() + START_S
        while True:
            found = re.findall(r"^WORKER (\d+) (\d+)$", written(said), re.M)
            if len(found) == count:
                return [(int(port), int(pid)) for port, pid in found]
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise AssertionError(f"{self.kind.name} did not start\n{self.log()}")
            time.sleep(0.02)

    def kill(self) -> None:
        # The host first, which would start others in their place.
        self.process.kill()
        self.process.wait(10)
        for pid in getattr(self, "pids", []):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._folder.cleanup()
