"""Puts an event store that is written against the SDK's interface through the cases of tests/vectors/event_store.json.

It knows nothing of pytest, and of Tailrope only how messages are read and written, so that it runs on any store:

    python tests/python/store_rules.py my_store.py:make

`make`, called without arguments for each case, gives a store with nothing in it.
"""

from __future__ import annotations

import asyncio
import importlib.util
import inspect
import json
import re
import subprocess
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mcp.server.streamable_http import EventMessage
from tailrope.mcp import _sdk

CASES: list[dict[str, Any]] = json.loads((Path(__file__).parents[1] / "vectors" / "event_store.json").read_text())[
    "cases"
]
REFUSE = Path(__file__).parents[1] / "services" / "refuse"
WIRE_ID = re.compile(r"[\x21-\x7e]{1,512}")
PATIENCE_S = 60.0

Message = Any
Replay = tuple[str | None, list[tuple[str | None, Message]]]


@dataclass
class Subject:
    """A store with nothing in it, and what a test can do to it."""

    store: Any
    session: Callable[[str], Any] | None = None
    """The part of the store that belongs to a session."""
    faulty: Callable[[bool], Awaitable[None]] | None = None
    """Makes the store fail, or work again."""
    secrets: tuple[str, ...] = ()
    """What no error of the store may say."""


def message_of(short: Any) -> Message:
    """A message as the cases write it; None is a priming event."""
    if short is None:
        return None
    if isinstance(short, dict) and short.keys() == {"json"}:
        return short["json"]
    data = text_of(short)
    return {"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": data}}


def text_of(short: Any) -> str:
    if isinstance(short, str):
        return short
    assert short.keys() == {"text", "times"}, short
    return str(short["text"] * short["times"])


async def replay_of(store: Any, last_event_id: str, on_event: Callable[[], Awaitable[None]] | None = None) -> Replay:
    """The stream of an id and the ids and messages after it. `on_event` is awaited before each is taken."""
    found: list[tuple[str | None, Message]] = []

    async def collect(event: EventMessage) -> None:
        assert isinstance(event, EventMessage), f"replayed {type(event).__name__}, not EventMessage"
        if on_event is not None:
            await on_event()
        found.append((event.event_id, None if event.message is None else json.loads(_sdk.dump(event.message))))

    return await store.replay_events_after(last_event_id, collect), found


class Run:
    """One case on one store. Each kind of step is a method, so that an unknown field is a TypeError."""

    def __init__(self, subject: Subject, patience_s: float = PATIENCE_S) -> None:
        self.subject = subject
        self.patience_s = patience_s
        self.is_faulty = False
        self.ids: set[str] = set()
        # What was stored, by session and stream.
        self.logs: dict[tuple[str | None, str], list[tuple[str, Message]]] = {}
        self.named: dict[str, tuple[tuple[str | None, str], int]] = {}

    async def run(self, case: dict[str, Any]) -> None:
        assert case.keys() <= {"name", "about", "needs", "rules", "steps"} and case["rules"], case["name"]
        try:
            for at, step in enumerate(case["steps"]):
                try:
                    async with asyncio.timeout(self.patience_s):
                        await self.step(step)
                except Exception as error:
                    error.add_note(f"{case['name']}, step {at}: {json.dumps(step)}")
                    raise
        finally:
            # What serves the store may serve others after it.
            if self.is_faulty:
                await self.faulty(False)

    async def step(self, step: Any) -> None:
        if step == "check":
            return await self.check()
        ((kind, value),) = step.items()
        assert kind in ("store", "replay", "nothing", "together", "beside", "waiting", "faulty"), kind
        if not isinstance(value, dict):
            return await getattr(self, kind)(value)
        await getattr(self, kind)(**{"as_" if key == "as" else key: part for key, part in value.items()})

    def at(self, session: str | None) -> Any:
        if session is None:
            return self.subject.store
        assert self.subject.session is not None
        return self.subject.session(session)

    async def put(self, place: tuple[str | None, str], message: Message) -> None:
        parsed = None if message is None else _sdk.parse(json.dumps(message).encode())
        event_id = await self.at(place[0]).store_event(place[1], parsed)
        assert isinstance(event_id, str) and WIRE_ID.fullmatch(event_id), f"no id for the wire: {event_id!r}"
        assert event_id not in self.ids, f"given twice: {event_id!r}"
        self.ids.add(event_id)
        self.logs.setdefault(place, []).append((event_id, message))

    async def store(
        self,
        stream: str,
        message: Any,
        as_: str | None = None,
        count: int | None = None,
        session: str | None = None,
        refused: bool = False,
    ) -> None:
        place = session, stream
        if refused:
            return await self.refused(place, message_of(message))
        for number in range(1, (count or 1) + 1):
            await self.put(place, message_of(message if count is None else f"{message}-{number}"))
            if as_ is not None:
                name = as_ if count is None else f"{as_}-{number}"
                self.named[name] = place, len(self.logs[place]) - 1

    async def refused(self, place: tuple[str | None, str], message: Message) -> None:
        parsed = _sdk.parse(json.dumps(message).encode())
        try:
            event_id = await self.at(place[0]).store_event(place[1], parsed)
        except Exception as error:
            told = f"{error} {error!r}"
            assert not any(secret in told for secret in self.subject.secrets), told
        else:
            raise AssertionError(f"an event that cannot be stored got the id {event_id!r}")

    def rest(self, place: tuple[str | None, str], index: int) -> list[tuple[str, Message]]:
        return [(event_id, message) for event_id, message in self.logs[place][index + 1 :] if message is not None]

    async def replay(self, after: str, messages: list[Any] | None = None, session: str | None = None) -> None:
        place, index = self.named[after]
        assert session == place[0], "that is for `nothing`"
        rest = self.rest(place, index)
        if messages is not None:
            assert [message for _, message in rest] == [message_of(short) for short in messages], "the case is wrong"
        await self.replays(place, index)

    async def replays(self, place: tuple[str | None, str], index: int) -> None:
        event_id = self.logs[place][index][0]
        stream, found = await replay_of(self.at(place[0]), event_id)
        assert stream == place[1], f"the stream of the id is {place[1]!r}, not {stream!r}"
        same(found, self.rest(place, index))

    async def nothing(self, after: str | None = None, id: Any = None, session: str | None = None) -> None:
        event_id = text_of(id) if after is None else self.logs[self.named[after][0]][self.named[after][1]][0]
        stream, found = await replay_of(self.at(session), event_id)
        assert stream is None and found == [], f"an id that means nothing gave {len(found)} events of {stream!r}"

    async def together(self, streams: int, count: int) -> None:
        async def fill(stream: str) -> None:
            for number in range(count):
                await self.put((None, stream), message_of(f"{stream} {number}"))

        await asyncio.gather(*(fill(f"stream {number}") for number in range(streams)))

    async def beside(self, after: str, count: int) -> None:
        place, index = self.named[after]
        event_id = self.logs[place][index][0]

        async def fill() -> None:
            for number in range(count):
                await self.put(place, message_of(f"beside {number}"))

        filling = asyncio.create_task(fill())
        seen: list[tuple[int, list[tuple[str | None, Message]]]] = []
        try:
            is_last = False
            while not is_last:
                is_last, known = filling.done(), len(self.rest(place, index))
                seen.append((known, (await replay_of(self.at(place[0]), event_id))[1]))
                await asyncio.sleep(0)
        finally:
            filling.cancel()
            await asyncio.wait([filling])
        filling.result()
        rest = self.rest(place, index)
        for known, found in seen:
            assert known <= len(found), f"{known} events were stored before, {len(found)} are replayed"
            same(found, rest[: len(found)])

    async def waiting(self, after: str, count: int) -> None:
        place, index = self.named[after]
        known = len(self.rest(place, index))
        is_first = True

        async def fill() -> None:
            nonlocal is_first
            if is_first:
                is_first = False
                for number in range(count):
                    await self.put(place, message_of(f"meanwhile {number}"))
                    await self.put((place[0], "another"), message_of(f"meanwhile {number}"))

        _, found = await replay_of(self.at(place[0]), self.logs[place][index][0], fill)
        assert not is_first and known <= len(found)
        same(found, self.rest(place, index)[: len(found)])

    async def faulty(self, is_faulty: bool) -> None:
        assert self.subject.faulty is not None
        self.is_faulty = is_faulty
        await self.subject.faulty(is_faulty)

    async def check(self) -> None:
        """Every stream, from its first event, from its middle and from its last one."""
        for place, log in self.logs.items():
            for index in sorted({0, len(log) // 2, len(log) - 1}):
                await self.replays(place, index)


def same(found: list[tuple[str | None, Message]], wanted: list[tuple[str, Message]]) -> None:
    ids = [event_id for event_id, _ in found], [event_id for event_id, _ in wanted]
    assert ids[0] == ids[1], f"replayed {brief(ids[0])}, not {brief(ids[1])}"
    for (event_id, message), (_, want) in zip(found, wanted, strict=True):
        assert message == want, f"{event_id}: {brief(message)}, not {brief(want)}"


def brief(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 500 else f"{text[:300]} ... {text[-100:]}"


def refusing(address: str) -> Callable[[bool], Awaitable[None]]:
    """Makes the store at an address fail, or work again."""

    async def faulty(is_faulty: bool) -> None:
        command = [sys.executable, str(REFUSE), "yes" if is_faulty else "no", address]
        done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr

    return faulty


async def check_all(make: Callable[[], Any]) -> int:
    """How many of the cases that every store can be put through fail."""
    failed = 0
    for case in CASES:
        if "needs" in case:
            print(f"left out  {case['name']}: needs {case['needs']}")
            continue
        try:
            made = make()
            await Run(Subject(await made if inspect.isawaitable(made) else made)).run(case)
            print(f"ok        {case['name']}")
        except Exception as error:
            failed += 1
            print(
                f"FAILED    {case['name']}: {type(error).__name__}: {error}",
                *getattr(error, "__notes__", []),
                sep="\n  ",
            )
    return failed


def load(path: str, name: str) -> Any:
    spec = importlib.util.spec_from_file_location("own_store", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Classes look their module up while they are made.
    sys.modules["own_store"] = module
    spec.loader.exec_module(module)
    return getattr(module, name)


if __name__ == "__main__":
    sys.exit(min(asyncio.run(check_all(load(*sys.argv[1].rsplit(":", 1)))), 1))
