"""Runs tests/vectors/client.json: on the native class, and over sockets with one connection for each of a trace.

Over sockets time is what it is: a GET has to come not before its wait, and nothing else is asked of it.
"""

from __future__ import annotations

import asyncio
import json
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from kit.raw import Decoder
from scripted import Exchange, Scripted, scripted
from tailrope._native import ClientOptions, ClientStream
from tailrope.client import Gap, ResumableTransport, TailropeError
from tailrope.client._library import library_of, stream_error

FILE = Path(__file__).parents[1] / "vectors" / "client.json"
VECTORS: list[dict[str, Any]] = json.loads(FILE.read_text())["vectors"]
NAMES = [vector["name"] for vector in VECTORS]
LONGEST_MS = 4_000

# What cannot be played over sockets, and why.
LEFT_OUT = {
    "a-retry-beyond-the-bound-of-back-off-is-waited-all-the-same": "nothing comes of it",
    "the-longest-wait-that-a-server-can-ask-for-is-an-hour": "waits for hours",
    "jitter-is-above-the-retry-never-below": "jitter is not the test's",
    "time-without-progress-comes-to-an-end": "its time is counted with the time that connections take",
    "a-silent-connection-that-can-be-resumed-is-given-up": "waits for minutes",
    "a-silent-connection-that-cannot-be-resumed-fails-its-requests": "waits for minutes",
    "a-head-that-does-not-come-is-silence": "an order of the host: test_client.py has it",
    "a-connection-that-was-kept-long-is-progress": "waits for minutes",
    "the-time-that-connections-are-open-is-not-spent-on-tries": "waits for half a minute",
    "cancelled-while-connecting-lets-go-of-the-connection": "an order of the host: test_client.py has it",
    "abort-ends-a-wait-at-once": "an order of the host: test_client.py has it",
    "abort-lets-go-of-the-connection": "an order of the host: test_client.py has it",
    "nobody-comes-back-for-a-cancelled-request": "an order of the host: test_client.py has it",
}


def made(vector: dict[str, Any], texts: bool) -> ClientStream:
    spec, options = vector["stream"], ClientOptions(**vector.get("options", {}))
    if spec == "standalone":
        return ClientStream.standalone(options, 0, texts)
    ((kind, value),) = spec.items()
    if kind == "requests":
        return ClientStream.posted(json.dumps(value), options, 0, texts)
    return (ClientStream.continued if kind == "cursor" else ClientStream.saved)(value, options, 0, texts)


def written(step: tuple[Any, ...]) -> Any:
    match step:
        case ("deliver", data, None):
            return {"deliver": data}
        case ("deliver", data, event):
            return {"deliver": data, "event": event}
        case ("connect", last_event_id):
            return {"connect": last_event_id}
        case ("gap", first, count):
            return {"gap": [first, count]}
        case ("failed", kind, text):
            assert text
            return {"failed": kind}
    (word,) = step
    return word


def given(stream: ClientStream, step: dict[str, Any], chunk: int) -> tuple[bytes, list[Any]]:
    """What comes of one step."""
    moment = step["at"], step.get("jitter", 0)
    order = step["in"]
    if order == "start":
        return stream.start()
    if isinstance(order, str):
        return getattr(stream, order)(*moment)
    ((kind, value),) = order.items()
    if kind == "head":
        content_type = value.get("content_type", "text/event-stream")
        return stream.head(value["status"], content_type, value.get("retry_after_ms"), *moment)
    if kind == "cancelled":
        return stream.cancelled(value, *moment)
    data = value.encode()
    frames, steps = b"", []
    for at in range(0, len(data), chunk):
        more = stream.bytes(data[at : at + chunk], *moment)
        frames, steps = frames + more[0], steps + more[1]
    return frames, steps


@pytest.mark.parametrize("chunk", [1 << 20, 7, 1])
@pytest.mark.parametrize("vector", VECTORS, ids=NAMES)
def test_trace_on_the_native_class(vector: dict[str, Any], chunk: int) -> None:
    stream, frames_stream = made(vector, True), made(vector, False)
    for at, step in enumerate(vector["steps"]):
        frames, steps = given(stream, step, chunk)
        assert frames == b"" and [written(found) for found in steps] == step["out"], f"step {at}"
        frames, steps = given(frames_stream, step, chunk)
        others = [found for found in step["out"] if not isinstance(found, dict) or "deliver" not in found]
        assert [written(found) for found in steps] == others, f"step {at}"
        assert delivered(frames) == [found for found in step["out"] if found not in others], f"step {at}"
        for name in ("deadline", "cursor", "attempts"):
            if name in step:
                assert getattr(stream, name) == step[name], f"step {at}, {name}"
        if "requests" in step:
            assert list(stream.requests) == step["requests"], f"step {at}"


def delivered(frames: bytes) -> list[Any]:
    events = Decoder().feed(frames)
    assert all(event.id is None and event.retry is None and event.data is not None for event in events)
    return [
        {"deliver": event.data} if event.name is None else {"deliver": event.data, "event": event.name}
        for event in events
    ]


def test_options_are_checked_by_their_names() -> None:
    for options, name in [
        ({"growth": 0.5}, "growth"),
        ({"jitter": -0.1}, "jitter"),
        ({"max_event_bytes": 0}, "max_event_bytes"),
        ({"max_silence_ms": 0}, "max_silence_ms"),
        ({"initial_delay_ms": -1}, "initial_delay_ms"),
        ({"max_delay_ms": 0.5}, "max_delay_ms"),
        ({"max_attempts": "3"}, "max_attempts"),
        ({"headers": 3}, "headers"),
        ({"on_gap": {}}, "on_gap"),
        ({"retry": 1}, "retry"),
    ]:
        with pytest.raises(ValueError, match=name):
            ResumableTransport(**options)  # type: ignore[misc]
    ResumableTransport(give_up_after_ms=None, max_attempts=None, max_silence_ms=None, headers={}, on_gap=None)


def test_a_text_that_is_no_token_is_refused() -> None:
    for text in ("", "t", "{}", '{"tailrope":2,"lastEventId":"a","requests":[]}'):
        with pytest.raises(ValueError, match="token"):
            ResumableTransport().resume(text, "http://127.0.0.1:9/mcp")


@dataclass
class Connection:
    """What one connection of a trace carries, and what comes before it."""

    last_event_id: str | None
    wait_ms: int = 0
    head: dict[str, Any] | None = None
    texts: list[str] = field(default_factory=list)
    end: str | None = None


def connections(vector: dict[str, Any]) -> list[Connection]:
    posted = isinstance(vector["stream"], dict) and "requests" in vector["stream"]
    found = [Connection(None, head={"status": 200})] if posted else []
    ended_at = 0
    for step in vector["steps"]:
        order = step["in"]
        if isinstance(order, dict) and "text" in order:
            found[-1].texts.append(order["text"])
        elif isinstance(order, dict) and "head" in order:
            found[-1].head = order["head"]
            ended_at = step["at"]
        elif order in ("end", "broken"):
            found[-1].end, ended_at = found[-1].end or order, step["at"]
        for out in step["out"]:
            if isinstance(out, dict) and "connect" in out:
                found.append(Connection(out["connect"], step["at"] - ended_at))
    return found


class Play:
    """The server's side of a trace."""

    def __init__(self, script: list[Connection]) -> None:
        self.script = script
        self.at = 0
        self.ended_ms: float | None = None
        self.faults: list[str] = []

    async def __call__(self, exchange: Exchange) -> None:
        if self.at == len(self.script):
            self.faults.append(f"a {exchange.method} too many, with {exchange.last_event_id!r}")
            return exchange.drop()
        number, connection = self.at, self.script[self.at]
        self.at += 1
        if exchange.last_event_id != connection.last_event_id:
            self.faults.append(f"connection {number} came with {exchange.last_event_id!r}")
        if self.ended_ms is not None and exchange.at_ms - self.ended_ms < connection.wait_ms:
            self.faults.append(f"connection {number} came after {exchange.at_ms - self.ended_ms} ms")
        if (head := connection.head) is not None:
            content_type = head.get("content_type", "text/event-stream")
            headers = {} if content_type is None else {"content-type": content_type}
            if "retry_after_ms" in head:
                headers["retry-after"] = str(head["retry_after_ms"] // 1_000)
            self.ended_ms = exchange.at_ms
            await exchange.head(head["status"], headers)
        for text in connection.texts:
            await exchange.send(text)
        if connection.end == "end":
            await exchange.end()
        elif connection.end == "broken":
            exchange.drop()
        elif exchange.is_chunked:
            await exchange.gone()
        self.ended_ms = exchange.ended_ms or self.ended_ms


async def events_of(chunks: Any) -> Any:
    decoder = Decoder()
    async for chunk in chunks:
        for event in decoder.feed(chunk):
            assert event.id is None and event.retry is None
            found = {"deliver": event.data}
            yield found if event.name is None else {**found, "event": event.name}


class Expected:
    """What a trace says of the reader's side, beside the transport that it is played on."""

    def __init__(self, vector: dict[str, Any]) -> None:
        out = [found for step in vector["steps"] for found in step["out"]]
        parts = [found for found in out if isinstance(found, dict)]
        self.delivered = [found for found in parts if "deliver" in found]
        self.failed: str | None = next((found["failed"] for found in parts if "failed" in found), None)
        self.is_finished = "finished" in out
        self.told = [found["gap"] for found in parts if "gap" in found] + [[None, None]] * out.count("cursor_lost")
        self.gaps: list[Gap] = []
        self.transport = ResumableTransport(jitter=0, on_gap=self.gaps.append, **vector.get("options", {}))


async def played(vector: dict[str, Any]) -> None:
    play, expected = Play(connections(vector)), Expected(vector)
    client_class = library_of(expected.transport).AsyncClient
    client = client_class(transport=expected.transport, timeout=60)
    async with asyncio.timeout(60), scripted(play) as server, client:
        got = await read(vector, expected, client, server)
        await server.until(lambda: play.at == len(play.script))
    assert not play.faults, play.faults
    assert got == expected.delivered
    assert [[gap.first, gap.count] for gap in expected.gaps] == expected.told


async def read(vector: dict[str, Any], expected: Expected, client: Any, server: Scripted) -> list[Any]:
    """What the client's side gets; the end is checked here."""
    want, failed = expected.delivered, expected.failed
    spec = vector["stream"]
    if isinstance(spec, dict) and "saved" in spec:
        saved: list[Any] = []
        async with expected.transport.resume(spec["saved"], server.url) as messages:
            reading = asyncio.ensure_future(collect(messages, saved))
            if not expected.is_finished and failed is None:
                await server.until(lambda: len(server.exchanges) >= len(connections(vector)))
                await server.until(lambda: len(expected.gaps) >= len(expected.told))
                reading.cancel()
            await asyncio.wait([reading])
        fault = None if reading.cancelled() else reading.exception()
        assert (None if fault is None else getattr(fault, "code", fault)) == failed
        return [{"deliver": json.dumps(message, separators=(",", ":"))} for message in saved]
    if isinstance(spec, dict) and "requests" in spec:
        body = [{"jsonrpc": "2.0", "id": id, "method": "m"} for id in spec["requests"]]
        request = client.build_request("POST", server.url, json=body)
    else:
        headers = {"accept": "text/event-stream"}
        if spec != "standalone":
            headers["last-event-id"] = spec["cursor"]
        request = client.build_request("GET", server.url, headers=headers)
    response = await client.send(request, stream=True)
    if "requests" not in spec and not any("opened" in step["out"] for step in vector["steps"]):
        # The server's own refusal.
        assert response.status_code == vector["steps"][-1]["in"]["head"]["status"]
        await response.aclose()
        return []
    assert response.status_code == 200 and response.headers["content-type"].lower().startswith("text/event-stream")
    got: list[Any] = []
    events = events_of(response.aiter_bytes())
    if failed is not None:
        got = [event async for event in events]
        got, errors = got[: len(want)], [json.loads(event["deliver"]) for event in got[len(want) :]]
        assert [error["id"] for error in errors] == spec["requests"]
        assert all(error["error"]["code"] == -32000 for error in errors)
        assert all(error["error"]["data"] == {"tailrope": failed} for error in errors)
    elif expected.is_finished:
        got = [event async for event in events]
    else:
        # The trace ends before the stream does: read on until the server has seen all of it.
        reading = asyncio.ensure_future(collect(events, got))
        await server.until(lambda: len(got) >= len(want) and len(expected.gaps) >= len(expected.told))
        await server.until(lambda: len(server.exchanges) >= len(connections(vector)))
        reading.cancel()
        await asyncio.wait([reading])
    await response.aclose()
    return got


async def collect(events: Any, into: list[Any]) -> None:
    async for event in events:
        into.append(event)


async def test_traces_over_sockets() -> None:
    """All at once: most of their time is waiting."""
    playable = [vector for vector in VECTORS if vector["name"] not in LEFT_OUT]
    waits = {vector["name"]: sum(connection.wait_ms for connection in connections(vector)) for vector in playable}
    assert max(waits.values()) <= LONGEST_MS, waits
    outcomes = await asyncio.gather(*map(played, playable), return_exceptions=True)
    faults = {vector["name"]: fault for vector, fault in zip(playable, outcomes, strict=True) if fault is not None}
    for name, fault in faults.items():
        print(name)
        traceback.print_exception(fault)
    assert not faults, list(faults)


def test_what_is_left_out_is_there() -> None:
    assert set(NAMES) >= set(LEFT_OUT)


def test_failures_are_errors_of_both_sides() -> None:
    library = library_of(None)
    error = stream_error(library, "text", "gave_up")
    assert isinstance(error, TailropeError) and isinstance(error, library.ReadError) and error.code == "gave_up"
