"""The rules of tests/vectors/event_store.json, on our stores at the SDK's hook and on stores that a user wrote. (D6)

tests/node/store_rules.test.mjs has the same cases under the same names.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tailrope.mcp
from kit.fixtures import named
from kit.places import empty_place
from mcp.server.streamable_http import EventMessage, EventStore
from servers.python.stores import LabStore
from store_rules import CASES, Run, Subject, check_all, load, refusing

pytestmark = [pytest.mark.ours, pytest.mark.one_line]

ROOT = Path(__file__).parents[2]
SERVICES = ROOT / "tests" / "services"
OWN = ROOT / "examples" / "python" / "own_event_store.py"
BOUND = 50
LARGEST = 2 << 20


async def by_payload(is_faulty: bool) -> None:
    """The store `test-threaded:` fails where a message says so."""


def ours(address: str, bound: bool, faulty: Any = None) -> Subject:
    limits: Any = {"max_events_per_stream": BOUND} if bound else {}
    store = tailrope.mcp.EventStore(address, max_event_bytes=LARGEST, **limits)
    return Subject(store, store.scoped, faulty, ("hunter2", "maxmemory", address))


def memory(folder: Path, bound: bool) -> Subject:
    return ours("memory:", bound)


def slow(folder: Path, bound: bool) -> Subject:
    return ours("test-threaded:?delay_ms=2", bound, by_payload)


def real(kind: str) -> Callable[[Path, bool], Subject]:
    def make(folder: Path, bound: bool) -> Subject:
        address = empty_place(kind, folder)
        return ours(address, bound, refusing(address))

    return make


def lab(folder: Path, bound: bool) -> Subject:
    store = LabStore(cap=BOUND if bound else None)

    async def faulty(is_faulty: bool) -> None:
        store.plan(fail="notification" if is_faulty else None, times=9)

    return Subject(store, None, faulty)


def slow_lab(folder: Path, bound: bool) -> Subject:
    subject = lab(folder, bound)
    subject.store.plan(latency_ms=[3, 0, 1])
    return Subject(subject.store)


def own(folder: Path, bound: bool) -> Subject:
    """The store of examples/python."""
    SqliteEventStore = load(str(OWN), "SqliteEventStore")
    # The example is a server, too; no other test of this process is to have its transport.
    tailrope.uninstall()
    store = SqliteEventStore(str(folder / "own.db"), **({"kept_events": BOUND} if bound else {}))
    return Subject(store, None, refusing(f"sqlite:{folder / 'own.db'}"))


NEW_LINE = pytest.mark.skipif(tailrope.mcp._sdk.MAJOR < 2, reason="the example is written for mcp 2.x")
SUBJECTS: list[Any] = [
    pytest.param(memory, id="memory"),
    pytest.param(slow, id="slow"),
    pytest.param(real("sqlite"), id="sqlite"),
    *(pytest.param(real(kind), id=kind, marks=named(kind).marks) for kind in ("redis", "postgres")),
    pytest.param(lab, id="users"),
    pytest.param(slow_lab, id="slow users"),
    pytest.param(own, id="example", marks=NEW_LINE),
]
HAS = {
    "bound": {"memory", "slow", "sqlite", "redis", "postgres", "users", "slow users", "example"},
    "largest": {"memory", "slow", "sqlite", "redis", "postgres"},
    "faults": {"slow", "sqlite", "redis", "postgres", "users", "example"},
    "sessions": {"memory", "slow", "sqlite", "redis", "postgres"},
}


@pytest.fixture(scope="module", autouse=True)
def redis() -> Iterator[None]:
    """A Redis server that refuses does so to everybody: this file, which may run beside others, has one of its own."""
    if not os.environ.get("TAILROPE_TEST_REDIS"):
        yield
        return
    command = [str(SERVICES / "with"), "redis", "--", "sh", "-c", 'echo "$TAILROPE_TEST_REDIS"; read -r _']
    # It ends when its input does, so it does not outlive this process either.
    with (
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as servers,
        pytest.MonkeyPatch.context() as environment,
    ):
        assert servers.stdout is not None
        address = servers.stdout.readline().strip()
        assert address, "no server started"
        environment.setenv("TAILROPE_TEST_REDIS", address)
        yield


@pytest.mark.parametrize(
    ("make", "case"),
    [
        pytest.param(*subject.values, case, id=f"{subject.id}, {case['name']}", marks=subject.marks)
        for subject in SUBJECTS
        for case in CASES
        if subject.id in HAS.get(case.get("needs"), {subject.id})
    ],
)
async def test_rule(make: Callable[[Path, bool], Subject], case: dict[str, Any], tmp_path: Path) -> None:
    await Run(make(tmp_path, case.get("needs") == "bound")).run(case)


# Stores that break a rule, so that it is known that the cases find them.


class BrokenStore(EventStore):
    """A list of everything, with one mistake."""

    def __init__(self, mistake: str) -> None:
        self.mistake = mistake
        self.rows: list[tuple[str, str, Any]] = []
        self.dropped: set[str] = set()
        self.given = 0
        self.lock = asyncio.Lock()

    async def store_event(self, stream_id: str, message: Any) -> str:
        async with self.lock:
            return await self.put(stream_id, message)

    async def put(self, stream_id: str, message: Any) -> str:
        self.given += 1
        event_id = str(self.given)
        match self.mistake:
            case "gives an id for each stream":
                event_id = str(sum(stream_id == stream for _, stream, _ in self.rows) + 1)
            case "gives an id with a blank":
                event_id = f"{stream_id} {self.given}"
            case "gives a number":
                return self.given  # type: ignore[return-value]
            case "keeps no priming" if message is None:
                return event_id
            case "takes what is too much" if len(self.rows) >= BOUND:
                self.dropped.add(self.rows.pop(0)[0])
            case "forgets when it is full" if len(self.rows) >= BOUND:
                self.rows.pop(0)
            case "puts new events first":
                self.rows.insert(0, (event_id, stream_id, message))
                return event_id
        self.rows.append((event_id, stream_id, message))
        return event_id

    async def replay_events_after(self, last_event_id: str, send_callback: Any) -> str | None:
        if self.mistake == "locks while it replays":
            async with self.lock:
                return await self.tell(last_event_id, send_callback)
        return await self.tell(last_event_id, send_callback)

    async def tell(self, last_event_id: str, send_callback: Any) -> str | None:
        known = [at for at, (event_id, _, _) in enumerate(self.rows) if event_id == last_event_id]
        if not known and last_event_id in self.dropped:
            known = [-1]
        if not known and self.mistake == "replays everything for an unknown id":
            known = [-1]
        if not known or not self.rows:
            return None
        after, stream_id = known[0], self.rows[max(known[0], 0)][1]
        first = after if self.mistake == "replays the cursor, too" else after + 1
        for event_id, of, message in self.rows[first:]:
            if message is None and self.mistake != "replays primings":
                continue
            if (
                of == stream_id
                or self.mistake == "mixes streams"
                or (self.mistake == "compares loosely" and of in stream_id)
            ):
                await send_callback(EventMessage(message, None if self.mistake == "replays no ids" else event_id))
                if self.mistake == "replays one event":
                    break
        return None if self.mistake == "does not name the stream" else stream_id


MISTAKES = {
    "gives an id for each stream": "a-replay-tells-of-one-stream-and-no-other",
    "gives an id with a blank": "events-come-back-in-the-order-in-which-they-were-stored",
    "gives a number": "events-come-back-in-the-order-in-which-they-were-stored",
    "keeps no priming": "a-priming-event-is-a-cursor-and-no-message",
    "takes what is too much": "what-was-dropped-is-unknown-and-never-a-part",
    "puts new events first": "events-come-back-in-the-order-in-which-they-were-stored",
    "locks while it replays": "a-replay-whose-reader-waits-holds-up-no-store",
    "replays everything for an unknown id": "an-unknown-id-means-nothing",
    "replays the cursor, too": "a-replay-begins-strictly-after-the-id",
    "replays primings": "a-priming-event-is-a-cursor-and-no-message",
    "mixes streams": "a-replay-tells-of-one-stream-and-no-other",
    "compares loosely": "a-replay-tells-of-one-stream-and-no-other",
    "replays no ids": "a-replay-begins-strictly-after-the-id",
    "replays one event": "a-replay-beside-a-store-has-no-hole",
    "does not name the stream": "a-replay-tells-of-one-stream-and-no-other",
}


@pytest.mark.parametrize("mistake", MISTAKES)
async def test_a_store_that_breaks_a_rule_is_found(mistake: str) -> None:
    (case,) = (case for case in CASES if case["name"] == MISTAKES[mistake])
    subject = Subject(BrokenStore(mistake))
    # One that locks waits for itself for ever.
    with pytest.raises((AssertionError, TimeoutError)):
        await Run(subject, 1.0 if mistake == "locks while it replays" else 30.0).run(case)


async def test_a_store_without_a_mistake_breaks_no_rule() -> None:
    for case in CASES:
        if case.get("needs") in (None, "bound"):
            await Run(Subject(BrokenStore("forgets when it is full" if "needs" in case else "none"))).run(case)


def test_the_rules_run_on_any_store_of_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As docs/stores/own.md says."""
    store = tmp_path / "my_store.py"
    store.write_text(MY_STORE.replace("[HERE]", ""))
    command = [sys.executable, str(ROOT / "tests/python/store_rules.py"), f"{store}:Mine"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ok        a-replay-changes-nothing" in done.stdout
    store.write_text(MY_STORE.replace("[HERE]", "[:-1]"))
    assert asyncio.run(check_all(load(str(store), "Mine"))) > 0
    assert "FAILED    a-replay-changes-nothing" in capsys.readouterr().out


MY_STORE = """
from mcp.server.streamable_http import EventMessage, EventStore

class Mine(EventStore):
    def __init__(self):
        self.rows = []

    async def store_event(self, stream_id, message):
        self.rows.append((str(len(self.rows)) + "-", stream_id, message))
        return self.rows[-1][0]

    async def replay_events_after(self, last_event_id, send_callback):
        known = [(at, of) for at, (event_id, of, _) in enumerate(self.rows) if event_id == last_event_id]
        if not known:
            return None
        ((after, stream_id),) = known
        rest = [row for row in self.rows[after + 1:] if row[1] == stream_id and row[2] is not None]
        for event_id, _, message in rest[HERE]:
            await send_callback(EventMessage(message, event_id))
        return stream_id
"""
