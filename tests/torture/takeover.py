"""The newest reader has the stream, whatever becomes of the one before. (D4; I4, F-30 to F-32)

A path dies without a word, the next reader comes within 50 ms at any process, then the dead path is alive again.
"""

from __future__ import annotations

import asyncio
import random
import time
from contextlib import suppress

from torture.hosts import Host, hosted
from torture.proxy import Proxy
from torture.recorder import Recorder
from torture.setting import Setting
from torture.wire import Connection, Hung, Session, Stream

SESSIONS = 10
BETWEEN_S = 0.05


class Readers:
    """The readers of one stream, one after the other."""

    def __init__(
        self, session: Session, stream: Stream, setting: Setting, hosts: list[Host], proxies: list[Proxy]
    ) -> None:
        self.session, self.stream, self.setting = session, stream, setting
        self.hosts, self.proxies = hosts, proxies
        self.random = random.Random(f"{setting.seed}/{session.name}/takeover")
        self.left: list[asyncio.Task[None]] = []

    async def connect(self, method: str, at: int, cursor: str | None = None, body: bytes | None = None) -> Connection:
        return await self.session.connect(
            method,
            self.stream,
            cursor=cursor,
            body=body,
            port=self.hosts[at].port,
            proxy=self.proxies[at],
            process=self.hosts[at].process_name,
        )

    async def run(self, body: bytes, rounds: int, end: str) -> None:
        """So many takeovers; then the tool is told, by the file `end`, to answer, and the last reader gets that."""
        current, at = await self.connect("POST", 0, body=body), 0
        await self.served(current, "the first reader is not served")
        for _ in range(rounds):
            link = await self.session.link(self.proxies[at], current)
            link.black_hole()
            await asyncio.sleep(self.random.uniform(0, BETWEEN_S))
            at = self.random.randrange(len(self.hosts))
            started = time.monotonic()
            newer = await self.connect("GET", at, cursor=self.stream.ids[-1])
            await self.served(newer, "a newer reader is not served")
            self.session.recorder.count("takeovers")
            self.session.recorder.longest("takeover ms", (time.monotonic() - started) * 1000)
            if self.random.random() < 0.7:
                self.left.append(asyncio.create_task(self.revived(current, link)))
            else:
                current.drop()
            current = newer
            events = current.events
            # The stream goes on at the newest reader, also while older ones come back to life.
            if not await current.until(lambda: current.events > events, self.setting.hang_s):  # noqa: B023
                raise self.hung("the newest reader gets nothing more", current)
        (self.session.recorder.folder / end).touch()
        if not await current.until(lambda: current.has_terminal, self.setting.hang_s):
            raise self.hung("no response at the newest reader", current)
        if not await current.over(self.setting.hang_s):
            raise self.hung("the connection of the response stays open", current)
        await asyncio.gather(*self.left)
        self.stream.done()

    async def served(self, connection: Connection, otherwise: str) -> None:
        if not await connection.until(lambda: connection.status == 200 and bool(connection.ids), self.setting.hang_s):
            raise self.hung(otherwise, connection)

    async def revived(self, old: Connection, link: object) -> None:
        """The path is back after a while: what was under way arrives, and then the server's end of it."""
        await asyncio.sleep(self.random.uniform(0, 0.15))
        link.revive()  # type: ignore[attr-defined]
        if not await old.over(self.setting.hang_s):
            old.drop()
            raise self.hung("an older reader's connection is left open", old)

    def hung(self, says: str, connection: Connection) -> Hung:
        return self.stream.hung(f"{says}, status {connection.status}")

    def close(self) -> None:
        for task in self.left:
            task.cancel()
        for connection in list(self.stream.open):
            connection.drop()


async def session(
    recorder: Recorder, setting: Setting, index: int, rounds: int, hosts: list[Host], proxies: list[Proxy]
) -> None:
    client = await Session.open(recorder, f"s{index}", hosts[0].port)
    end = f"s{index}.end"
    steps = {
        "facts": recorder.facts_file(f"s{index}"),
        "until": str(recorder.folder / end),
        "count": 0,
        "seed": index,
        "pause_ms": [1, 12],
        "bytes": 100,
    }
    stream, body = client.request("r", steps)
    readers = Readers(client, stream, setting, hosts, proxies)
    try:
        await readers.run(body, rounds, end)
    except Hung:
        # What was left out counts as lost.
        stream.done()
    finally:
        (recorder.folder / end).touch()
        readers.close()
        with suppress(OSError, TimeoutError):
            await client.peer.delete()


async def run(recorder: Recorder, setting: Setting) -> None:
    hosts = [await hosted(setting.server, setting.place)]
    try:
        if setting.is_shared:
            hosts.append(await hosted(setting.server, setting.place))
        async with Proxy(hosts[0].port, "a") as first, Proxy(hosts[-1].port, "b") as second:
            proxies = [first, second]
            rounds = max(1, setting.size.rounds // SESSIONS)
            sessions = (session(recorder, setting, index, rounds, hosts, proxies) for index in range(SESSIONS))
            await asyncio.gather(*sessions)
    finally:
        for host in hosts:
            host.stop()
