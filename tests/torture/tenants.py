"""Two tenants whose sessions use the same request ids on one store, and cursors of everybody's. (D2; I7, F-01 to F-09)

Sessions read their own streams as they do anywhere. Beside them, sessions that do nothing else ask with cursors of
neighbours and of the other tenant, with guesses, and with own cursors that were changed. What is no cursor of the
session is answered as one that never was.
"""

from __future__ import annotations

import asyncio
import random
import time
from contextlib import suppress
from dataclasses import dataclass

from kit.peer import ALPHABET, unknown_like

from torture.handoff import Reader
from torture.hosts import Host, hosted, user
from torture.recorder import Recorder
from torture.setting import Setting
from torture.wire import Hung, Session, Stream

TENANTS = ("alice", "bob")
REQUESTS = (0, 1, 2)
# How long an answer that stays open is listened to.
LISTEN_S = 0.5
GUESSES = ("1", "0", "999999999", "standalone", "_GET_stream", "a" * 33 + ".1", "a" + "A" * 32, "zz", "a" * 119)


@dataclass
class Target:
    """A stream whose cursors others try, too."""

    stream: Stream
    tenant: str


class Tenants:
    def __init__(self, recorder: Recorder, setting: Setting, hosts: list[Host]) -> None:
        self.recorder, self.setting, self.hosts = recorder, setting, hosts
        self.targets: list[Target] = []
        self.pairs = 0
        self.is_over = False

    async def session(self, tenant: str, index: int) -> None:
        """One session's calls, with the same ids as everybody's, and its standalone stream."""
        setting, name = self.setting, f"{tenant}{index}"
        headers = user(tenant)
        client = await Session.open(self.recorder, name, self.hosts[0].port, headers=headers)
        heard = setting.events // 3
        listener = Stream(client, "standalone")
        opened = asyncio.Event()
        reader = Reader(client, listener, f"{setting.seed}/{name}", setting, self.hosts, [])
        reading = [asyncio.create_task(reader.listen(heard, opened))]
        streams = [listener]
        waiting = asyncio.create_task(opened.wait())
        await asyncio.wait([waiting, *reading], return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        for id in REQUESTS:
            steps = {
                "facts": self.recorder.facts_file(f"{name}-{id}"),
                "count": setting.events,
                "seed": index * 10 + id,
                "pause_ms": [0, setting.pause_ms],
                "bytes": 200,
                "close": 0.03,
                # Not the first: mcp 1.x tells nobody whether what a handler of the id 0 sends is related to it.
                "standalone": heard if id == 1 else 0,
            }
            stream, body = client.request(f"r{id}", steps, id)
            streams.append(stream)
            reader = Reader(client, stream, f"{setting.seed}/{name}/{id}", setting, self.hosts, [])
            reading.append(asyncio.create_task(reader.call(body, lambda: None)))
        self.targets += [Target(stream, tenant) for stream in streams]
        for stream, outcome in zip(streams, await asyncio.gather(*reading, return_exceptions=True), strict=True):
            if isinstance(outcome, Hung):
                stream.done()
            elif isinstance(outcome, BaseException):
                raise outcome

    async def prober(self, tenant: str, index: int) -> None:
        """A session without streams of its own that tries everybody's cursors."""
        of = random.Random(f"{self.setting.seed}/prober/{tenant}{index}")
        name = f"prober-{tenant}{index}"
        client = await Session.open(self.recorder, name, self.hosts[0].port, headers=user(tenant))
        while not self.is_over:
            ready = [target for target in self.targets if target.stream.ids]
            if not ready:
                await asyncio.sleep(0.01)
                continue
            target = of.choice(ready)
            cursor = of.choice(target.stream.ids)
            self.pairs += 1
            pair = f"p{self.pairs}"
            at = of.randrange(len(self.hosts))
            await self.probe(client, at, "foreign", cursor, pair)
            await self.probe(client, at, "unknown", unknown_like(cursor), pair)
            await self.probe(client, at, "unknown", of.choice(GUESSES), f"{pair}-guess")
            await asyncio.sleep(of.uniform(0, 0.05))

    async def probe(self, client: Session, at: int, kind: str, cursor: str, pair: str) -> None:
        connection = await client.connect(
            "GET",
            None,
            cursor=cursor,
            port=self.hosts[at].port,
            process=self.hosts[at].process_name,
            probe=kind,
            pair=pair,
        )
        self.recorder.count("probes")
        if not await connection.until(lambda: connection.status is not None, self.setting.hang_s):
            self.recorder.tell("hung", session=client.name, stream=None, says="a probe has no answer")
        if connection.status == 200:
            # There are stock servers that answer a cursor that they do not know like this, and say nothing more.
            wait_s = LISTEN_S if self.setting.is_stock else self.setting.hang_s
            await connection.until(lambda: bool(connection.ids), wait_s)
        # One that stays open shows all that it has at once, and more only to who should not see it.
        await connection.over(LISTEN_S)
        connection.drop()

    async def mutations(self, tenant: str) -> None:
        """A session tries what was made of its own cursors, beside the true ones, once its stream is over."""
        of = random.Random(f"{self.setting.seed}/mutant/{tenant}")
        name = f"mutant-{tenant}"
        client = await Session.open(self.recorder, name, self.hosts[0].port, headers=user(tenant))
        steps = {"facts": self.recorder.facts_file(name), "count": 10, "seed": 1, "pause_ms": [0, 1]}
        stream, body = client.request("r0", steps, 0)
        connection = await client.connect("POST", stream, body=body, process=self.hosts[0].process_name)
        if not await connection.over(self.setting.hang_s):
            connection.drop()
            raise stream.hung("a short call does not end")
        stream.done()
        for number in range(20):
            cursor = of.choice(stream.ids)
            mutated = mutate(cursor, of)
            if mutated in stream.ids:
                continue
            # Compared with one of the same form whose stream never was.
            pair = f"m{number}-{tenant}"
            await self.probe(client, 0, "unknown", mutated, pair)
            await self.probe(client, 0, "unknown", unknown_like(mutated), pair)

    async def borrowed(self) -> None:
        """A tenant with the other one's session id is told what somebody with a session that never was is told."""
        alice = await Session.open(self.recorder, "lender", self.hosts[0].port, headers=user("alice"))
        bob = await Session.open(self.recorder, "borrower", self.hosts[0].port, headers=user("bob"))
        assert alice.peer.session is not None
        changed = alice.peer.session[:-1] + ("0" if alice.peer.session[-1] != "0" else "1")
        for number in range(len(self.hosts)):
            for kind, session in (("foreign", alice.peer.session), ("unknown", changed)):
                bob.peer.session = session
                await self.probe(bob, number, kind, "", f"borrowed{number}")


def mutate(cursor: str, of: random.Random) -> str:
    """One character changed, lost or doubled: in the stream's nonce, the position or its tag."""
    # What lies between position and tag only makes ids differ; it opens the same whatever it is.
    places = [*range(1, 23), *range(28, 33)]
    at = of.choice(places) if len(cursor) > 33 else of.randrange(len(cursor))
    head, tail = cursor[:at], cursor[at + 1 :]
    return of.choice([head + of.choice(ALPHABET) + tail, head + tail, head + cursor[at] * 2 + tail])


async def run(recorder: Recorder, setting: Setting) -> None:
    # Readers of own cursors go to any process, and so do those who try others'.
    hosts = [await hosted(setting.server, setting.place, auth=True)]
    try:
        if setting.is_shared:
            hosts.append(await hosted(setting.server, setting.place, auth=True))
        number = 0
        while number == 0 or time.monotonic() < setting.deadline:
            tenants = Tenants(recorder, setting, hosts)
            probing = [
                asyncio.create_task(tenants.prober(tenant, number * 10 + n)) for tenant in TENANTS for n in (1, 2)
            ]
            first = number * setting.sessions
            sessions = [
                tenants.session(tenant, index)
                for index in range(first, first + max(2, setting.sessions // 2))
                for tenant in TENANTS
            ]
            try:
                await asyncio.gather(*sessions)
                if number == 0:
                    with suppress(Hung):
                        await asyncio.gather(*(tenants.mutations(tenant) for tenant in TENANTS))
                    await tenants.borrowed()
            finally:
                tenants.is_over = True
                await asyncio.gather(*probing)
            number += 1
    finally:
        for host in hosts:
            host.stop()
