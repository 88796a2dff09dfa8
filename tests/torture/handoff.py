"""Readers that drop and resume at random while their streams grow: replay and live tail have no seam. (D1; I1 to I6)"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from kit.peer import NEWEST

from torture.hosts import Host, hosted, port_of, through
from torture.proxy import DELAYED, PLAIN, Proxy, Shape, any_shape
from torture.recorder import Recorder
from torture.setting import Setting
from torture.wire import Connection, Hung, Session, Stream

# A revision without priming and without early close; every so manieth session has it.
OLD, OLD_EVERY = "2025-06-18", 4
# How often a refused resume is tried again before it counts as a hang.
TRIES = 20
# A reader that stands still while its stream grows drops nothing. Where there were fewer drops than so many, there are
# more waves, up to so many.
LEAST_DROPS = 20
MOST_WAVES = 3


class Reader:
    """Reads one stream to its end, over as many connections as it likes."""

    def __init__(
        self, session: Session, stream: Stream, seed: str, setting: Setting, hosts: list[Host], proxies: list[Proxy]
    ) -> None:
        self.session, self.stream, self.setting = session, stream, setting
        self.hosts, self.proxies = hosts, proxies
        self.random = random.Random(seed)
        self.recorder: Recorder = session.recorder

    async def call(self, body: bytes, begun: Callable[[], None]) -> None:
        """Make the call and read it to its end. `begun` is told once it can be resumed, or never will be."""
        try:
            connection = await self._connect("POST", body=body)
            await self._primed(connection)
        finally:
            begun()
        await self._all(connection, lambda: self.stream.is_over)
        await self._again()
        self.stream.done()

    async def listen(self, last_n: int, opened: asyncio.Event) -> None:
        """Read the standalone stream up to its event of this number."""
        connection = await self._connect("GET")
        await self._primed(connection)
        opened.set()
        await self._all(connection, lambda: self.stream.last_n >= last_n)
        self.stream.done()

    # Connections

    async def _connect(self, method: str, cursor: str | None = None, body: bytes | None = None) -> Connection:
        at = 0 if method == "POST" or cursor is None else self.random.randrange(len(self.hosts))
        proxy = self.proxies[at] if self.proxies and self.random.random() < 0.4 else None
        # The first bytes of a call say how to come back to it: no fault before them.
        for _ in range(TRIES):
            with suppress(ConnectionError):
                return await self.session.connect(
                    method,
                    self.stream,
                    cursor=cursor,
                    body=body,
                    port=self.hosts[at].port,
                    proxy=proxy,
                    process=self.hosts[at].process_name,
                )
            await asyncio.sleep(0.05)
        raise self.stream.hung(f"{method}: no connection")

    async def _primed(self, connection: Connection) -> None:
        if self.session.revision == OLD and self.stream.request is None:
            # Nothing comes on it before the first event.
            if not await connection.until(lambda: connection.status == 200, self.setting.hang_s):
                raise self.stream.hung(f"the standalone stream does not open, status {connection.status}")
            return
        if not await connection.until(lambda: bool(connection.ids), self.setting.hang_s):
            # A revision without priming, or a stock stream that says nothing of itself.
            if connection.status == 200 and self.stream.request is None:
                return
            raise self.stream.hung(f"no id on the first connection, status {connection.status}")

    async def _resume(self) -> Connection:
        """Come back with the last id, or now and then with one before it."""
        status: int | None = None
        deadline = time.monotonic() + self.setting.hang_s
        while time.monotonic() < deadline:
            ids = self.stream.ids
            cursor = (ids[-1] if self.random.random() < 0.85 else self.random.choice(ids[-20:])) if ids else None
            connection = await self._connect("GET", cursor)
            left = max(0.1, deadline - time.monotonic())
            await connection.until(lambda: connection.status is not None, left)  # noqa: B023
            status = connection.status
            if status in (200, 204):
                self.recorder.count("resumes")
                return connection
            await connection.over(1)
            connection.drop()
            self.recorder.count(f"resumes answered {status}")
            await asyncio.sleep(0.05)
        raise self.stream.hung(f"resume answered {status}")

    # Reading

    async def _all(self, connection: Connection, is_over: Any) -> None:
        """Read on, and drop and resume, until it is over and the server has said so."""
        seen, moved = self.stream.last_n, time.monotonic()
        while True:
            await self._some(connection, is_over)
            if is_over():
                break
            if self.stream.last_n != seen:
                seen, moved = self.stream.last_n, time.monotonic()
            if time.monotonic() > moved + self.setting.hang_s:
                raise self.stream.hung("nothing comes though the tool emits")
            dropped = connection
            late = self.random.random() < 0.2
            if not late:
                await self._lose(dropped)
            if self.random.random() < 0.7:
                await asyncio.sleep(self.random.uniform(0, 0.06))
            connection = await self._resume()
            # The newest reader takes over from one that nobody closed.
            if late:
                await connection.until(lambda: bool(connection.ids), 1)  # noqa: B023
                await self._lose(dropped)
        if self.stream.request is not None:
            # The terminal ends its connection on every path.
            last = next((each for each in reversed(self.stream.open) if each.has_terminal), None)
            if last is not None and not await last.over(self.setting.hang_s):
                raise self.stream.hung("the connection of the response stays open")
        for left in list(self.stream.open):
            left.drop()

    async def _some(self, connection: Connection, is_over: Any) -> None:
        """Read a while: some events, or some time, or until the server ends it."""
        wanted = connection.events + self.random.choice([0, 0, 1, 2, 5, 20, 60, 1_000_000])
        until = time.monotonic() + self.random.choice([0, 0.01, 0.05, 0.2, 1.0])
        while not is_over() and connection.closed is None:
            if not self.stream.ids:
                # There is no way back yet.
                await connection.until(lambda: bool(self.stream.ids), self.setting.hang_s)
            if connection.events >= wanted or time.monotonic() >= until:
                return
            await connection.until(lambda: is_over() or connection.events >= wanted, 0.02)

    async def _lose(self, connection: Connection) -> None:
        if connection.closed is not None:
            return
        self.recorder.count("drops")
        how = self.random.choice(["drop", "drop", "leave", "half", "fault"])
        link = connection.proxy.links.get(connection.port) if connection.proxy is not None else None
        if link is None or how != "fault":
            if how == "half":
                connection.half_close()
                await asyncio.sleep(0.01)
            if how == "leave":
                connection.leave()
            connection.drop()
            return
        how = self.random.choice(["reset", "end", "half", "hole"])
        link.after(self.random.randint(0, 300), how)  # type: ignore[arg-type]
        await connection.over(0.3)
        # Of a black hole the client learns nothing; it gives up, and what is under way is lost.
        connection.drop()

    async def _again(self) -> None:
        """A stream that is over can be read again from anywhere; at its end there is nothing more."""
        if self.random.random() > 0.4 or not self.stream.ids:
            return
        ids = list(self.stream.ids)
        for cursor in (self.random.choice(ids), ids[-1]):
            connection = await self._connect("GET", cursor)
            if not await connection.over(self.setting.hang_s):
                connection.drop()
                raise self.stream.hung("a finished stream that is read again stays open")


async def wave(
    recorder: Recorder,
    setting: Setting,
    number: int,
    hosts: list[Host],
    proxies: list[Proxy],
    begun: Callable[[], None] | None = None,
    plan: Callable[[str, int], dict[str, Any]] = lambda _name, _call: {},
    heard: int | None = None,
) -> None:
    """Some sessions with some calls each, all at once, read by as many readers.

    `begun` is told when all of them can be resumed. `plan` adds to what a session's call does, `heard` is how much is
    said on standalone streams.
    """
    left = setting.sessions * setting.calls
    last_n = setting.events // 3 if heard is None else heard

    def one_begun() -> None:
        nonlocal left
        left -= 1
        if left == 0 and begun is not None:
            begun()

    async def session(index: int) -> None:
        name = f"w{number}s{index}"
        seed = f"{setting.seed}/{name}"
        revision = OLD if index % OLD_EVERY == OLD_EVERY - 1 else NEWEST
        client = await Session.open(recorder, name, hosts[0].port, revision)
        listener = Stream(client, "standalone")
        opened = asyncio.Event()
        streams = [listener]
        reader = Reader(client, listener, f"{seed}/standalone", setting, hosts, proxies)
        reading = [asyncio.create_task(reader.listen(last_n, opened))]
        # Nothing is said before it listens.
        waiting = asyncio.create_task(opened.wait())
        await asyncio.wait([waiting, *reading], return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        for call in range(setting.calls):
            told = recorder.facts_file(f"{name}-r{call}")
            steps = {
                "facts": told,
                "count": setting.events,
                "seed": random.Random(f"{seed}/{call}").randrange(1 << 30),
                "pause_ms": [0, setting.pause_ms],
                "bytes": 300,
                "close": 0.04,
                "standalone": last_n if call == 0 else 0,
                **plan(name, call),
            }
            stream, body = client.request(f"r{call}", steps)
            reader = Reader(client, stream, f"{seed}/{call}", setting, hosts, proxies)
            streams.append(stream)
            reading.append(asyncio.create_task(reader.call(body, one_begun)))
            if "unsure" in steps and "until" not in steps:
                # Also its response may be one that the store does not take.
                stream.gone("unstored")
        for stream, outcome in zip(streams, await asyncio.gather(*reading, return_exceptions=True), strict=True):
            if isinstance(outcome, Hung):
                # What was left out counts as lost.
                stream.done()
            elif isinstance(outcome, BaseException):
                raise outcome
            for open in list(stream.open):
                open.drop()
        with suppress(OSError, TimeoutError):
            await client.peer.delete()

    outcomes = await asyncio.gather(*(session(index) for index in range(setting.sessions)), return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome


def late(of: random.Random) -> tuple[Shape, Shape]:
    """What a store is asked and what it answers are late, each on its own."""
    return of.choice([PLAIN, DELAYED]), of.choice([PLAIN, DELAYED])


async def run(recorder: Recorder, setting: Setting) -> None:
    """Waves until the time is up, at least one; on a shared store readers come back at a second process, too."""
    if setting.store not in ("redis", "postgres"):
        return await waves(recorder, setting, setting.place)
    async with Proxy(port_of(setting.place), f"{setting.seed}/store", late) as store:
        await waves(recorder, setting, through(setting.place, store.port))


async def waves(recorder: Recorder, setting: Setting, place: str) -> None:
    hosts = [await hosted(setting.server, place)]
    try:
        if setting.is_shared:
            hosts.append(await hosted(setting.server, place))
        async with (
            Proxy(hosts[0].port, f"{setting.seed}/a", any_shape) as first,
            Proxy(hosts[-1].port, f"{setting.seed}/b", any_shape) as second,
        ):
            proxies = [first, second][: len(hosts)]
            number = 0
            while (
                number == 0
                or time.monotonic() < setting.deadline
                or (recorder.notes["drops"] < LEAST_DROPS and number < MOST_WAVES)
            ):
                await wave(recorder, setting, number, hosts, proxies)
                number += 1
    finally:
        for host in hosts:
            host.stop()
