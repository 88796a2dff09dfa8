"""What tests have in common that take a process from under its calls: sessions with calls, and reading all of them to
their ends at the processes that can be reached."""

from __future__ import annotations

import asyncio
import random
import time

from torture.hosts import Host
from torture.proxy import Proxy
from torture.recorder import Recorder
from torture.setting import Setting
from torture.wire import Connection, Hung, Session, Stream

# Events of a stream that a process takes before its store has answered: so many are gone with it.
AHEAD = 128
# After so long nothing is left to be read of a log that does not grow.
QUIET_S = 1.0


class Round:
    """Calls at the first of the hosts, and readers that come back at any of them."""

    def __init__(self, recorder: Recorder, setting: Setting, seed: str, hosts: list[Host]) -> None:
        self.recorder, self.setting, self.hosts = recorder, setting, hosts
        self.first = hosts[0]
        self.random = random.Random(seed)
        self.streams: list[Stream] = []

    async def call(self, client: Session, name: str, plan: dict[str, object], proxy: Proxy | None) -> Connection:
        plan = {
            "facts": self.recorder.facts_file(f"{client.name}-{name}"),
            "seed": self.random.randrange(1 << 30),
            "pause_ms": [0, 2],
            "bytes": 200,
            **plan,
        }
        stream, body = client.request(name, plan)
        self.streams.append(stream)
        connection = await client.connect("POST", stream, body=body, proxy=proxy, process=self.first.process_name)
        await self.first_id(connection)
        return connection

    async def first_id(self, connection: Connection) -> None:
        if not await connection.until(lambda: bool(connection.ids), self.setting.hang_s):
            raise self.hung(connection, f"no first id, status {connection.status}")

    async def resumed(self, client: Session, stream: Stream, cursor: str) -> Connection:
        """At one of the processes that can be reached."""
        host = self.random.choice(self.hosts)
        connection = await client.connect("GET", stream, cursor=cursor, port=host.port, process=host.process_name)
        self.recorder.count("resumes")
        return connection

    async def read(self, client: Session, before: Connection) -> None:
        """To the end: the response, or the error that says that its process is gone. Then all of it once more.

        What any reader ever got is in the store, so whoever reads from the start gets that, too.
        """
        stream = before.stream
        assert stream is not None
        await self.to_the_end(client, stream, stream.ids[-1])
        await self.to_the_end(client, stream, stream.ids[0])
        stream.done()

    async def to_the_end(self, client: Session, stream: Stream, cursor: str) -> None:
        deadline = time.monotonic() + self.setting.hang_s
        while time.monotonic() < deadline:
            connection = await self.resumed(client, stream, cursor)
            await connection.over(self.setting.hang_s)
            if connection.has_terminal or (connection.status == 204 and stream.is_over):
                return
            connection.drop()
            cursor = connection.ids[-1] if connection.ids else cursor
            await asyncio.sleep(0.05)
        raise stream.hung("no end after its process was gone")

    async def hear(self, client: Session, before: Connection, facts: str, ahead: int = 0) -> None:
        """What its process had taken of the standalone stream. So many of the last may be gone with it."""
        stream = before.stream
        assert stream is not None
        said = [
            fact["n"]
            for fact in self.recorder.told(facts)
            if fact["fact"] in ("taken", "failed") and fact["stream"] == stream.name
        ]
        last_n = max(said, default=0) - ahead
        deadline = time.monotonic() + self.setting.hang_s
        while time.monotonic() < deadline:
            connection = await self.resumed(client, stream, stream.ids[-1])
            heard = await connection.until(lambda: stream.last_n >= last_n, 2.0)
            while heard and ahead and await another(connection):
                pass
            connection.drop()
            if heard:
                stream.done()
                return
        raise self.hung(before, f"heard {stream.last_n} of {last_n} on the standalone stream")

    def hung(self, connection: Connection, says: str) -> Hung:
        assert connection.stream is not None
        return connection.stream.hung(says)


async def another(connection: Connection) -> bool:
    """Whether one more event comes on it. Only waiting tells that none does."""
    events, ids = connection.events, len(connection.ids)
    return await connection.until(lambda: connection.events > events or len(connection.ids) > ids, QUIET_S)
