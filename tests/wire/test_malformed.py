"""A thousand malformed requests on one keep-alive server: 4xx with a JSON-RPC error, never a 500, never a hang.

The generator is seeded, so a failure names a case that can be run again.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from kit.peer import Peer
from kit.raw import ACCEPT, Wire
from kit.servers import Kind, Server

SEED = 20251125
CASES = 1200
# The Python SDK's host check, body limit and routing, and the HTTP server itself, answer before the transport does.
OWN_WORDS = {403, 405, 411, 413, 414, 421, 431, 501}


@dataclass
class Case:
    """One request that must be refused; `headers` are laid over those of a good request, None takes one away."""

    what: str
    method: str = "POST"
    body: bytes | None = None
    headers: dict[str, str | None] = field(default_factory=dict)
    # Broken before any transport is asked: the HTTP server may answer, or hang up.
    http: bool = False
    # Refused by the Python SDK's own middleware, in plain text.
    own: bool = False


GOOD: dict[str, Any] = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
VALUES: list[Any] = [None, True, False, 0, -1, 1.5, 1e300, "", "x", "\u2028", [], [[]], {}, {"a": 1}, "2.0"]
BAD_IDS: list[Any] = [None, True, False, 1.0, 1.5, -0.5, [], {}, [1], {"id": 1}, "x" * 1025]
CURSOR_TEXT = "abzAZ019-_.~!@#$%^&*()+={}[]|;:'<>?/"


def bodies(chance: random.Random, language: str) -> Iterator[Case]:
    while True:
        # The Python SDK takes no batches, which is a test of its own.
        kind = chance.randrange(10 if language == "node" else 9)
        if kind == 0:
            good = json.dumps(GOOD).encode()
            cut = chance.randrange(1, len(good))
            yield Case("cut off", body=good[:cut])
        elif kind == 1:
            yield Case("noise", body=b"\xff" + chance.randbytes(chance.randrange(0, 60)))
        elif kind == 2:
            yield Case(
                "not a message", body=json.dumps(chance.choice([v for v in VALUES if not isinstance(v, dict)])).encode()
            )
        elif kind == 3:
            yield Case("forbidden id", body=json.dumps({**GOOD, "id": chance.choice(BAD_IDS)}).encode())
            # Null is as good as absent here.
            params = {"requestId": chance.choice(BAD_IDS[1:])}
            cancellation = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params}
            yield Case("cancellation of a forbidden id", body=json.dumps(cancellation).encode())
        elif kind == 4:
            wrong = {**GOOD, "jsonrpc": chance.choice([None, 2, 2.0, "1.0", "2", "", [], True])}
            yield Case("wrong version of JSON-RPC", body=json.dumps(wrong).encode())
        elif kind == 5:
            wrong = {**GOOD, "method": chance.choice([None, 1, True, [], {}])}
            yield Case("method is no text", body=json.dumps(wrong).encode())
        elif kind == 6:
            wrong = {**GOOD, "params": chance.choice([1, "x", True, 1.5])}
            yield Case("params are no structure", body=json.dumps(wrong).encode())
        elif kind == 7:
            depth = chance.choice([300, 3000, 30000])
            opening = chance.choice([b"[", b'{"a":'])
            yield Case("deep nesting, cut off", body=opening * depth)
        elif kind == 8:
            keys = chance.sample(["jsonrpc", "id"], chance.randrange(0, 2))
            yield Case("neither request nor response", body=json.dumps({key: GOOD[key] for key in keys}).encode())
        else:
            batch = [GOOD, {**GOOD, "id": chance.choice(BAD_IDS)}]
            yield Case("a batch with a forbidden id", body=json.dumps(batch).encode())


def cursors(chance: random.Random) -> Iterator[Case]:
    while True:
        kind = chance.randrange(5)
        if kind == 0:
            text = "".join(chance.choices(CURSOR_TEXT, k=chance.randrange(1, 200)))
        elif kind == 1:
            # The length of our form, with something that is not base64url in it.
            text = "a" + "".join(chance.choices("ABCabc019-_", k=31)) + chance.choice("!+/=~*")
        elif kind == 2:
            text = chance.choice("bcxyABZ019") + "".join(chance.choices("ABCabc019-_", k=32))
        elif kind == 3:
            text = (
                "a"
                + "".join(chance.choices("ABCabc019-_", k=32))
                + "."
                + chance.choice(["!", "A", "=", "..", "n", "eDE"])
            )
        else:
            text = chance.choice(["a", "z"]) * chance.choice([1, 2, 8, 31, 32, 121, 400, 4000])
        yield Case("cursor not of our form", "GET", headers={"Last-Event-ID": text, "Accept": "text/event-stream"})


def heads(chance: random.Random, language: str) -> Iterator[Case]:
    good = json.dumps(GOOD).encode()
    while True:
        kind = chance.randrange(8)
        if kind == 0:
            value = chance.choice(
                ["text/plain", "text/event-stream", "application/json", "image/*", "application/jsonp", ";", ","]
            )
            yield Case("accept", body=good, headers={"Accept": value})
        elif kind == 1:
            value = chance.choice([None, "text/plain", "application/xml", "json", "application/jsonx", ""])
            yield Case("content type", body=good, headers={"Content-Type": value}, own=True)
        elif kind == 2:
            value = chance.choice(
                ["1999-01-01", "latest", "2025-11-25x", "", "2025-13-45", "x" * 300, "2025-11-25,2025-06-18"]
            )
            yield Case("version", body=good, headers={"Mcp-Protocol-Version": value})
        elif kind == 3:
            value = "".join(chance.choices("0123456789abcdef~!", k=chance.choice([1, 31, 32, 33, 500])))
            yield Case("unknown session", body=good, headers={"Mcp-Session-Id": value})
        elif kind == 4:
            yield Case("no session", chance.choice(["POST", "GET", "DELETE"]), good, {"Mcp-Session-Id": None})
        elif kind == 5:
            yield Case(
                "get without accept", "GET", headers={"Accept": chance.choice(["application/json", "text/html", ""])}
            )
        elif kind == 6:
            method = chance.choice(["PUT", "PATCH", "OPTIONS", "HEAD", "TRACE", "BREW"])
            yield Case("method", method, good, http=method == "BREW")
        else:
            name = chance.choice(["Mcp-Session-Id", "Last-Event-ID", "Mcp-Protocol-Version"])
            value = chance.choice(["\udcff\udcfe", "caf\u00e9", "caf\udce9", "a\tb", "\x7f", "\udca0"])
            http = language == "python" or value == "\x7f"
            yield Case("bytes in a header", "GET", headers={name: value, "Accept": "text/event-stream"}, http=http)


def cases(language: str) -> list[Case]:
    chance = random.Random(SEED)
    sources = [bodies(chance, language), cursors(chance), heads(chance, language)]
    return [next(sources[number % 3]) for number in range(CASES)]


class KeepAlive:
    """One connection reused as long as the server leaves it open."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.wire: Wire | None = None

    async def ask(self, case: Case, headers: dict[str, str]) -> tuple[int, dict[str, str], bytes] | None:
        is_new = self.wire is None
        if self.wire is None:
            self.wire = await Wire.open(self.port)
        try:
            await self.wire.send(case.method, "/mcp", headers, case.body)
            reply = await self.wire.answer()
            if case.method == "HEAD":
                self.hang_up()
                return reply.status, reply.headers, b""
            if reply.is_sse and reply.status == 200:
                # Not refused: the caller will say so. The body may be endless.
                self.hang_up()
                return reply.status, reply.headers, b""
            payload = await reply.body()
        except (asyncio.IncompleteReadError, ConnectionError):
            self.hang_up()
            # A server hangs up by itself where this process has stood still for some seconds.
            return None if is_new else await self.ask(case, headers)
        if reply.headers.get("connection", "").lower() == "close":
            self.hang_up()
        return reply.status, reply.headers, payload

    def hang_up(self) -> None:
        if self.wire is not None:
            self.wire.close()
            self.wire = None


def judge(kind: Kind, case: Case, answer: tuple[int, dict[str, str], bytes] | None) -> str | None:
    """What is wrong with the answer, or None."""
    if answer is None:
        return None if case.http else "connection lost"
    status, headers, payload = answer
    if not 400 <= status < 500:
        return f"status {status}"
    others = kind.language == "python" and (status in OWN_WORDS or case.own)
    if others or case.http or case.method == "HEAD":
        return None
    if not headers.get("content-type", "").startswith("application/json"):
        return f"{status} as {headers.get('content-type')}: {payload[:80]!r}"
    try:
        error = json.loads(payload)
    except ValueError:
        return f"{status} with {payload[:80]!r}"
    if error.get("jsonrpc") != "2.0" or not isinstance(error.get("error", {}).get("code"), int):
        return f"{status} with {payload[:80]!r}"
    return None


async def run(kind: Kind, peer: Peer, wanted: list[Case]) -> list[str]:
    line = KeepAlive(peer.port)
    wrong = []
    for number, case in enumerate(wanted):
        base: dict[str, str | None] = {"Host": f"127.0.0.1:{peer.port}", **peer.headers(), "Accept": ACCEPT}
        if case.body is not None:
            base["Content-Type"] = "application/json"
        headers = {name: value for name, value in {**base, **case.headers}.items() if value is not None}
        try:
            fault = judge(kind, case, await line.ask(case, headers))
        except TimeoutError:
            line.hang_up()
            fault = "hangs"
        if fault is not None:
            wrong.append(
                f"#{number} {case.what} {case.method} {str(case.headers)[:120]} {(case.body or b'')[:80]!r}: {fault}"
            )
    line.hang_up()
    return wrong


@pytest.mark.one_language("it is refused in the words of the SDK of the process that is asked")
async def test_malformed_requests_are_refused(server: Server) -> None:
    peer = await server.peer()
    wanted = cases(server.kind.language)
    assert len(wanted) >= 1000
    wrong = await run(server.kind, peer, wanted)
    assert not wrong, f"{len(wrong)} of {len(wanted)}:\n" + "\n".join(wrong[:40])
    # The session they were thrown at works as before.
    assert await peer.ask("echo", {"text": "fine"}) == "fine"


@pytest.mark.one_language("the Python SDKs refuse batches")
async def test_batches_are_refused_as_the_sdk_does(server: Server) -> None:
    peer = await server.peer()
    empty = await peer.post([])
    assert empty.status == 400
    fault = (await empty.json())["error"]
    if server.kind.language == "node":
        # An empty one: this SDK takes the others. Its handler of both eras has another code.
        assert fault["code"] in (-32700, -32600)
        events = await (await peer.post([GOOD, {**GOOD, "id": 2}])).rest()
        assert sorted(event.message["id"] for event in events if event.is_terminal) == [1, 2]
        return
    for batch in ([GOOD], [GOOD, {**GOOD, "id": 2}]):
        reply = await peer.post(batch)
        assert reply.status == 400
        assert "error" in await reply.json()


async def test_body_that_never_ends_blocks_nobody(server: Server) -> None:
    peer = await server.peer()
    wire = await Wire.open(server.port)
    head = {**peer.headers(), "Host": f"127.0.0.1:{server.port}", "Content-Type": "application/json"}
    lines = "".join(f"{name}: {value}\r\n" for name, value in head.items())
    wire.writer.write(f"POST /mcp HTTP/1.1\r\n{lines}Content-Length: 1000\r\n\r\n{{".encode())
    await wire.writer.drain()
    assert await peer.ask("echo", {"text": "fine"}) == "fine"
    wire.close()
    assert await peer.ask("echo", {"text": "still"}) == "still"
