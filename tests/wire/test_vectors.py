"""Runs tests/vectors/answers.json end to end: what tests/rust/engine/answers.rs asks of the engine, over HTTP.

The messages of the server come from the tool `act`, which does each step when the test orders it. Every field of a
vector is an argument of the method that plays it, so an unknown one is a TypeError.
"""

from __future__ import annotations

import asyncio
import base64
import inspect
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kit.fleet import Fleet, refused_call, servers_of
from kit.peer import NEWEST, Peer, comparable, text
from kit.raw import Event, Reply
from kit.servers import Farm, Kind, Server, gate

# It is about the engine. What an SDK line says in words of its own is tested in the other files.
pytestmark = [pytest.mark.ours, pytest.mark.first]

VECTORS = Path(__file__).parents[1] / "vectors"
ANSWERS: list[dict[str, Any]] = json.loads((VECTORS / "answers.json").read_text())["vectors"]
FIELDS = {"name", "about", "rules", "revision", "limits", "steps"}
RETRY_MS = 3_000
QUIET_S = 0.02
# Longer pauses want a clock that the test controls.
MAX_ADVANCE_MS = 2_000

BATCH = "a batch: neither Python SDK takes one, nor does rmcp"
CLOCK = "a silence of 15 s: test_polling.py has one with a shorter interval"
WITHOUT_BATCHES = {
    "a-foreign-cursor-of-a-batch-is-refused-as-an-unknown-one": BATCH,
    "a-duplicate-id-in-flight-is-refused-and-the-first-call-goes-on, step 2": BATCH,
    "a-batch-ends-with-its-last-response": BATCH,
    "a-batch-with-a-cancelled-request-ends-with-its-last-end": BATCH,
    "an-idle-connection-gets-keep-alives": CLOCK,
}
LEFT_OUT = {
    "python": WITHOUT_BATCHES,
    "rust": WITHOUT_BATCHES,
    "node": {"an-idle-connection-gets-keep-alives": CLOCK},
}
# What several processes on one store do otherwise, for those reasons.
LEFT_OUT_OF_FLEETS = {
    "a-cursor-beyond-the-head-is-unknown": "a reader elsewhere is let in before its log is read",
    "an-expired-stream-ends-its-call-with-an-error-under-a-tombstone": "a store with a server forgets seconds later",
    "a-standalone-stream-starts-with-what-nobody-was-handed": "what another process has handed over is not known",
    "the-newest-standalone-reader-gets-the-events-and-the-old-one-waits": "none waits for one at another process",
}
# What the file says in the words of our Python transport, as each server says it.
WORDS: dict[str, dict[str, tuple[int, str]]] = {
    # Of a session that has ended the SDK's manager knows nothing any more.
    "python": {"Not Found: Session has been terminated": (-32600, "Session not found")},
    "node": {
        "Not Found: Session has been terminated": (-32001, "Session not found"),
        "Bad Request: the stream of this Last-Event-ID cannot be resumed": (-32000, "Invalid event ID format"),
        # That of a batch.
        "Invalid Request: request id 2 is already in flight": (
            -32600,
            "Invalid Request: two requests of the batch have the same id",
        ),
    },
}
WORDS["rust"] = WORDS["node"]


def inexpressible(kind: Kind, step: Any) -> str | None:
    """Why this step cannot be done over HTTP."""
    for called in ("call", "call_refused"):
        if kind.language != "node" and isinstance(step, dict) and len(step.get(called, {}).get("ids", [])) > 1:
            return BATCH
    if isinstance(step, dict) and step.get("advance", {}).get("ms", 0) > MAX_ADVANCE_MS:
        return CLOCK
    return None


def is_skipped(kind: Kind, step: Any) -> bool:
    """A refused request changes nothing, so such a step is left out alone, not with its vector."""
    return isinstance(step, dict) and "call_refused" in step and inexpressible(kind, step) is not None


def left_out(kind: Kind, vector: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for at, step in enumerate(vector["steps"]):
        if (reason := inexpressible(kind, step)) is None:
            continue
        if is_skipped(kind, step):
            yield f"{vector['name']}, step {at}", reason
        else:
            yield vector["name"], reason
            return


def frame(block: Event) -> Any:
    """A block as the vectors write it. What is not of our form fails."""
    if block.comment is not None:
        words = block.comment.split(" ")
        if words[0] == "gap":
            return {"gap": {"first": int(words[1]), "count": int(words[2])}}
        return {"comment": block.comment}
    assert block.name is None, block
    if block.id is None and block.data is not None:
        return {"anonymous": block.message["method"]}
    if block.id is None:
        assert block.data is None and block.retry is not None, block
        return {"retry_ms": block.retry}
    version, position = block.id[0], base64.urlsafe_b64decode(block.id[1:33])
    assert block.data is not None and block.id[33:34] in ("", "."), block
    if version == "z":
        return {"tombstone": short(block.message)}
    assert version == "a", block
    seq = int.from_bytes(position[12:17], "big")
    if block.is_priming:
        return {"priming": seq, "retry_ms": block.retry}
    return {"event": seq, "is": short(block.message)}


def short(message: Any) -> Any:
    if "method" in message:
        assert message["method"] == "notifications/message", message
        return message["params"]["data"]
    if "result" in message:
        text(message)
        return {"result": message["id"]}
    return {"error": message["error"]["code"], "id": message["id"]}


def merged(frames: list[Any]) -> list[Any]:
    """A close that sets a pause rewrites the priming event, or follows it where that was out already."""
    if len(frames) > 1 and "priming" in frames[0] and frames[1].keys() == {"retry_ms"}:
        return [{**frames[0], **frames[1]}, *frames[2:]]
    return frames


class Session:
    def __init__(self, name: str, peer: Peer) -> None:
        self.name, self.peer = name, peer
        # The names of the tools at work, by request id with its type.
        self.actors: dict[str, str] = {}
        self.keeper: str | None = None

    def actor(self, id: Any) -> str:
        """The tool that answers this request; its id may come as text where only one fits."""
        if (exact := self.actors.get(json.dumps(id))) is not None:
            return exact
        (found,) = (name for key, name in self.actors.items() if str(json.loads(key)) == str(id))
        return found


class Play:
    """One vector. Each method is a step; the names of its arguments are those of the file, `as_` for `as`."""

    def __init__(self, server: Server, revision: str, limits: dict[str, Any]) -> None:
        self.server, self.revision, self.limits = server, revision, limits
        self.sessions: dict[str, Session] = {}
        self.current = ""
        self.replies: dict[str, Reply] = {}
        self.ids: dict[str, list[str]] = {}
        self.whole: dict[str, tuple[int, list[str]]] = {}
        self.ends: list[str] = []

    async def run(self, steps: list[Any]) -> None:
        before = await self.server.stats()
        await self.session("s")
        at = 0
        while at < len(steps):
            step, at = steps[at], at + 1
            if is_skipped(self.server.kind, step):
                continue
            at_once: list[str] = []
            if isinstance(step, dict) and len(step.get("call", {}).get("ids", [])) == 1:
                # What the server does right after a call is done before its first bytes leave.
                while at < len(steps) and (order := self.at_once(steps[at], step["call"]["ids"][0])) is not None:
                    at_once.append(order)
                    at += 1
            try:
                await self.step(step, at_once)
            except Exception as fault:
                raise AssertionError(f"step {at - 1}, {json.dumps(step)}: {fault}") from fault
        after = await self.server.stats()
        for end in set(self.ends):
            counter = "takeovers" if end == "superseded" else f"closes_{end}"
            assert after[counter] - before[counter] >= self.ends.count(end), (counter, before, after)

    async def step(self, step: Any, at_once: list[str]) -> None:
        method, arguments = bound(step)
        if at_once:
            arguments["at_once"] = at_once
        await method(self, **arguments)

    def at_once(self, step: Any, id: Any) -> str | None:
        """The order for a step that belongs to this call alone."""
        if not isinstance(step, dict):
            return None
        if "notify" in step and (related := step["notify"].get("related")) is not None:
            exact = type(related) is type(id) or json.dumps(related) not in self.here.actors
            return notifying(**step["notify"]) if exact and str(related) == str(id) else None
        if "close" in step and step["close"]["request"] == id:
            return closing(**step["close"])
        return None

    @property
    def here(self) -> Session:
        return self.sessions[self.current]

    async def order(self, actor: str, step: str) -> Any:
        answer = await self.server.ctl("act", name=actor, step=step)
        assert "outcome" in answer, answer
        return answer["outcome"]

    # Steps

    async def session(self, name: str) -> None:
        if name not in self.sessions:
            self.sessions[name] = Session(name, await self.server.peer(self.revision))
        self.current = name

    async def call(self, ids: list[Any], as_: str, *, at_once: list[str] | None = None) -> None:
        names = {json.dumps(id): gate() for id in ids}
        self.replies[as_] = await self.post(ids, list(names.values()), at_once or [])
        for name in names.values():
            await self.server.mark(f"acting {name}")
        self.here.actors |= names

    async def call_refused(self, ids: list[Any], want: Any) -> None:
        await self.refused(await self.post(ids, ["nobody"] * len(ids), []), **want)

    async def post(self, ids: list[Any], names: list[str], steps: list[str]) -> Reply:
        """Call the tool that acts, once for each id; several in a batch."""
        params = [{"name": "act", "arguments": {"name": name, "steps": steps}} for name in names]
        calls = [
            {"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": what}
            for id, what in zip(ids, params, strict=True)
        ]
        return await self.here.peer.post(calls if len(calls) > 1 else calls[0])

    async def listen(self, as_: str) -> None:
        self.replies[as_] = await self.here.peer.get()

    async def resume(self, cursor: Any, as_: str) -> None:
        self.replies[as_] = await self.here.peer.resume(self.cursor(**cursor))

    async def resume_refused(self, cursor: Any, want: Any) -> None:
        await self.refused(await self.here.peer.resume(self.cursor(**cursor)), **want)

    async def read(self, of: str, frames: list[Any], end: str | None = None) -> None:
        reply = self.replies[of]
        assert (reply.status, reply.is_sse) == (200, True), (reply.status, await reply.body())
        got: list[Any] = []
        while len(merged(got)) < len(frames):
            block = await reply.block()
            assert block is not None, f"the connection ended after {got}"
            got.append(self.note(of, block))
            if self.is_extra(got, frames):
                got.pop()
        if end is None:
            try:
                while (more := await reply.block(QUIET_S)) is not None and more.comment == "keep-alive":
                    pass
            except TimeoutError:
                more = "nothing"  # type: ignore[assignment]
            assert more == "nothing", f"after {got} came {more or 'the end'}"
        else:
            self.ends.append(end)
            got += [self.note(of, block) async for block in reply.blocks()]
        assert merged(got) == frames

    async def answer(self, of: str, want: Any) -> None:
        reply = self.replies[of]
        got = [self.note(of, block) async for block in reply.blocks()] if reply.is_sse else []
        want = {"content_type": None, "frames": [], **want}
        assert want.keys() == {"status", "content_type", "frames"}
        content_type = reply.headers.get("content-type")
        assert (reply.status, content_type, merged(got)) == (want["status"], want["content_type"], want["frames"])
        if not reply.is_sse:
            assert await reply.body() == b""
        lines = bytes(reply.raw).decode().splitlines()
        self.whole[of] = (reply.status, [line for line in lines if not line.startswith("id: ")])

    async def same(self, of: list[str]) -> None:
        one, two = of
        assert self.whole[one] == self.whole[two]
        # The id that is sent back has another visit counter and nonce, never another length.
        assert comparable(self.replies[one]) == comparable(self.replies[two])

    async def lose(self, name: str) -> None:
        before = (await self.server.stats())["connections_lost"]
        self.replies[name].drop()
        await self.server.until_stats(lambda stats: stats["connections_lost"] > before)

    async def notify(self, name: str, related: Any = None) -> None:
        session = self.here
        before = (await self.server.stats())["events_stored"]
        if related is None:
            if session.keeper is None:
                # Some handler has to speak; its own stream is looked at by nobody.
                session.keeper = gate()
                await session.peer.call("act", {"name": session.keeper, "steps": []}, id=f"keeper {session.keeper}")
                await self.server.mark(f"acting {session.keeper}")
            await self.order(session.keeper, f"standalone {name}")
        else:
            await self.order(session.actor(related), notifying(name, related))
        if isinstance(self.server.kind, Fleet) and self.limits:
            # A reader at another process that is faster than the store would see what a bound drops a moment later.
            await self.server.until_stats(lambda stats: stats["events_stored"] > before)

    async def respond(self, id: Any) -> None:
        before = (await self.server.stats())["events_stored"]
        await self.order(self.here.actors.pop(json.dumps(id)), "respond")
        await self.server.until_stats(lambda stats: stats["events_stored"] > before)

    async def cancel(self, id: Any) -> None:
        assert (await self.here.peer.cancel(id)).status == 202

    async def close(self, request: Any, retry_ms: int | None = None, hold_ms: int | None = None) -> None:
        assert await self.order(self.here.actor(request), closing(request, retry_ms, hold_ms)) is True

    async def close_refused(self, request: Any) -> None:
        assert await self.order(self.here.actor(request), "close") is False

    async def advance(self, ms: int) -> None:
        if "retention_ms" in self.limits:
            # What the time is for.
            await self.server.until_stats(lambda stats: stats["streams"] == 0)
        else:
            await asyncio.sleep(ms / 1_000)

    async def end_session(self) -> None:
        assert (await self.here.peer.delete()).status == 200

    # Helpers

    def is_extra(self, got: list[Any], frames: list[Any]) -> bool:
        """Whether the last block is there only because HTTP takes more than 5 ms, or a busy machine more than 15 s, or
        because a real server offers tools: its lists may have changed on a stream that starts again."""
        last = got[-1]
        if last == {"comment": "keep-alive"}:
            return last not in frames
        return (
            bool(self.server.kind.changing)
            and list(last) == ["anonymous"]
            and str(last["anonymous"]).endswith("/list_changed")
        )

    def note(self, of: str, block: Event) -> Any:
        if block.id is not None:
            self.ids.setdefault(of, []).append(block.id)
        return frame(block)

    async def refused(self, reply: Reply, *, status: int, body: Any, content_type: str = "application/json") -> None:
        message = body["error"]["message"]
        if reply.status == 200 and status == 400 and "in flight" in message:
            assert (await refused_call(self.server, reply))["code"] == body["error"]["code"]
            return
        # In the words of the process that was asked.
        bodies = []
        for kind in servers_of(self.server.kind):
            code, words = WORDS[kind.language].get(message, (body["error"]["code"], message))
            # How 1.x writes an error that answers no request. An id in flight is null for everybody.
            id = "server-error" if kind.line == "mcp1" and "in flight" not in message else body["id"]
            bodies.append({**body, "id": id, "error": {"code": code, "message": words}})
        assert (reply.status, reply.headers["content-type"]) == (status, content_type)
        assert await reply.json() in bodies

    def cursor(self, **cursor: Any) -> str:
        ((kind, value),) = cursor.items()
        match kind, value:
            case "text", str():
                return value
            case "event", {"of": of, "at": at, **rest} if not rest:
                return self.ids[of][at]
            case "last", {"of": of, **rest} if not rest:
                return self.ids[of][-1]
            case "forged", {"of": of, "at": at, **rest} if not rest:
                last = self.ids[of][-1]
                return last[:at] + ("B" if last[at] == "A" else "A") + last[at + 1 :]
        raise TypeError(f"unknown cursor {cursor}")


def notifying(name: str, related: Any) -> str:
    return f"related {'n' if isinstance(related, int) else 's'}:{related} {name}"


def closing(request: Any, retry_ms: int | None = None, hold_ms: int | None = None) -> str:
    options = {"retry": retry_ms, "hold": hold_ms}
    return " ".join(["close", *(f"{key}={ms}" for key, ms in options.items() if ms is not None)])


def bound(step: Any) -> tuple[Any, dict[str, Any]]:
    """The method and arguments of a step. Raises where the file says something that they do not know."""
    if isinstance(step, str):
        kind, value = step, None
    else:
        ((kind, value),) = step.items()
    method = getattr(Play, kind)
    signature = inspect.signature(method)
    if isinstance(value, dict):
        assert "at_once" not in value
        given = signature.bind(None, **{"as_" if key == "as" else key: part for key, part in value.items()})
    else:
        given = signature.bind(None, *([] if value is None else [value]))
    return method, {name: part for name, part in given.arguments.items() if name != "self"}


def test_only_what_cannot_be_said_over_http_is_left_out(kind: Kind) -> None:
    assert dict(found for vector in ANSWERS for found in left_out(kind, vector)) == LEFT_OUT[kind.language]
    assert len({vector["name"] for vector in ANSWERS}) == len(ANSWERS) >= 34
    for vector in ANSWERS:
        assert vector.keys() <= FIELDS and vector["rules"] and vector["steps"], vector["name"]
        for step in vector["steps"]:
            bound(step)


@pytest.mark.parametrize("vector", ANSWERS, ids=[vector["name"] for vector in ANSWERS])
async def test_answer(farm: Farm, vector: dict[str, Any]) -> None:
    kinds = servers_of(farm.kind)
    reasons = [LEFT_OUT[kind.language] for kind in kinds]
    reasons += [LEFT_OUT_OF_FLEETS] if isinstance(farm.kind, Fleet) else []
    if (reason := next((each[vector["name"]] for each in reasons if vector["name"] in each), None)) is not None:
        pytest.skip(reason)
    limits = vector.get("limits", {})
    server = farm.get(retry_ms=RETRY_MS, engine=limits)
    await Play(server, vector.get("revision", NEWEST), limits).run(vector["steps"])
