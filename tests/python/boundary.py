"""Generated calls across the native boundary: python boundary.py MODE SEED SECONDS TRACE.

Whatever is called with whatever, the answer is a value or an exception of the documented kinds. MODE is `values` (wrong
types, huge values, objects that are closed), `threads` (the same objects from several threads), `fork` (they are used
on in a child) or `public` (the package's own functions). Each call is written to the file TRACE before it is made, so
that a crash names it; the same seed makes the same calls, but for threads.
"""

from __future__ import annotations

import asyncio
import copy
import faulthandler
import json
import logging
import math
import os
import pickle
import random
import re
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import tailrope
import tailrope.client
import tailrope.mcp
from tailrope import TailropeError, _native
from tailrope.mcp._transport import StreamableHTTPServerTransport

OWN = (TypeError, ValueError, OverflowError, AttributeError, TailropeError)
"""What the boundary may raise."""

CALL_S = 60
"""No call takes so long, on however busy a machine."""

POOL = 60

INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 0,
    "method": "initialize",
    "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}},
}
HEADERS = [(b"accept", b"application/json, text/event-stream"), (b"content-type", b"application/json")]
VERSION = (b"mcp-protocol-version", b"2025-11-25")

# A signal's wait is for another thread to end; the fork's halves hold a lock between them; the command calls servers.
LEFT_OUT = {"Signal.wait", "before_fork", "command", "forked", "panic_in"}


class Planned(Exception):
    """Raised by what is handed in; it may come out again."""


class Nasty:
    """Every question to it fails."""

    def fail(self, *_: Any) -> Any:
        raise Planned

    __index__ = __int__ = __float__ = __len__ = __iter__ = __str__ = __bool__ = __hash__ = __eq__ = fail  # type: ignore[assignment]


class Text(str):
    """A subclass is a string all the same."""


def failing(*_: Any, **__: Any) -> Any:
    raise Planned


def endless() -> Iterator[Any]:
    yield (b"a", b"b")
    raise Planned


class Future:
    """As much of a future as is asked for."""

    def __init__(self) -> None:
        self.is_done = False

    def done(self) -> bool:
        return self.is_done

    def set_result(self, value: Any) -> None:
        self.is_done = True


INTEGERS = [
    0,
    1,
    2,
    -1,
    7,
    255,
    256,
    65_536,
    2**31,
    2**32 - 1,
    2**32,
    2**53,
    2**63 - 1,
    2**63,
    2**64 - 1,
    2**64,
    -(2**63),
]
FLOATS = [0.0, -0.0, 0.5, -1.5, 1e308, math.nan, math.inf, -math.inf]
TEXTS = [
    "",
    "a",
    "0",
    "1",
    "memory:",
    "é\u2028\U0001f600",
    "a\x00b",
    "\ud800",
    "x" * 70_000,
    "line\r\nline",
    Text("sub"),
]


class Machine:
    """Makes calls, keeps what they give, and calls that."""

    def __init__(self, seed: int, trace: int, folder: Path) -> None:
        self.random = random.Random(seed)
        self.trace, self.folder = trace, folder
        self.pool: dict[str, list[Any]] = {}
        self.calls = 0
        self.raised: dict[str, int] = {}
        self.answered: set[str] = set()
        self.findings: list[str] = []

    # What is handed in.

    def keep(self, value: Any) -> None:
        for each in value if isinstance(value, tuple) else (value,):
            kind = type(each)
            if kind.__module__ in ("tailrope", "tailrope._native") and not isinstance(each, BaseException):
                kept = self.pool.setdefault(kind.__name__, [])
                if len(kept) < POOL:
                    kept.append(each)
                else:
                    kept[self.random.randrange(POOL)] = each

    def one(self, kind: str) -> Any:
        kept = self.pool.get(kind)
        return self.random.choice(kept) if kept else None

    def any_value(self) -> Any:
        pick = self.random.randrange(12)
        choose = self.random.choice
        if pick < 2:
            return choose(INTEGERS) * choose([1, 1, 1, -1, 10**30])
        if pick < 4:
            return choose(TEXTS)
        if pick == 4:
            return choose(FLOATS)
        if pick == 5:
            return choose([None, True, False, ..., NotImplemented, object(), int, Machine, len])
        if pick == 6:
            return choose([b"", b"{", b"\xff\xfe", b"x" * 70_000, bytearray(b"{}"), memoryview(b"{}"), self.body()])
        if pick == 7:
            return choose(
                [[], (), {}, set(), [1, "a", None], {"a": 1}, ((b"a", b"b"),), [(b"a",)], range(9), endless()]
            )
        if pick == 8:
            return choose([Nasty(), failing, Future(), lambda: True, lambda: False, Planned(), iter([])])
        kinds = list(self.pool)
        return self.one(choose(kinds)) if kinds else None

    def body(self) -> bytes:
        choose = self.random.choice
        call = {"jsonrpc": "2.0", "id": choose([1, "1", 2**70, -5]), "method": "tools/call", "params": {"name": "x"}}
        messages: list[Any] = [
            INITIALIZE,
            call,
            {"jsonrpc": "2.0", "method": "notifications/initialized"},
            {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}},
            {"jsonrpc": "2.0", "id": 1, "result": {}},
            [call, call],
            [],
            7,
            None,
        ]
        return json.dumps(choose(messages)).encode()

    def headers(self) -> list[tuple[bytes, bytes]]:
        headers = [*HEADERS, VERSION]
        if self.random.random() < 0.7:
            headers.append((b"mcp-session-id", self.random.choice([b"s1", b"s2", b"s3", b"\xff", b""])))
        if self.random.random() < 0.3:
            headers.append((b"last-event-id", self.random.choice([b"a" * 33, b"zz", b"", b"x" * 9000])))
        return headers

    def fitting(self, name: str) -> Any:
        """A value that a parameter of this name takes, as a rule."""
        choose, number = self.random.choice, self.random.randrange
        given: dict[str, Callable[[], Any]] = {
            "waiters": lambda: self.one("Waiters"),
            "store": lambda: self.one("Store"),
            "admission": lambda: self.one("Admission"),
            "options": lambda: self.one("ClientOptions"),
            "notify": lambda: choose([lambda: True, lambda: False, failing]),
            "future": Future,
            "method": lambda: choose(["POST", "GET", "DELETE", "PUT", ""]),
            "headers": self.headers,
            "body": self.body,
            "bytes": lambda: choose([b"id: 1\ndata: {}\n\n", b"data", b"retry: 5\n\n", self.body()]),
            "payload_json": lambda: choose([self.body(), self.body().decode()]),
            "json_response": lambda: choose([True, False]),
            "texts": lambda: choose([True, False]),
            "watched": lambda: choose([True, False]),
            "host_store": lambda: choose([True, False]),
            "sdk_major": lambda: choose([1, 2]),
            "id": lambda: choose(["s1", "s2", "s3", 1, "1"]),
            "related": lambda: choose([None, 1, "1"]),
            "request": lambda: choose([1, "1", 2**70]),
            "named": lambda: choose([None, "alice", "bob"]),
            "user_json": lambda: choose([None, '"alice"', '{"sub": "bob"}', "{", "[1]"]),
            "status": lambda: choose([200, 202, 204, 400, 401, 404, 500]),
            "content_type": lambda: choose([None, "text/event-stream", "application/json"]),
            "events": lambda: [(choose(["1", None]), choose([b"{}", None]))],
            "number": lambda: number(4),
            "key": lambda: number(6),
            "now": lambda: self.calls,
            "level": lambda: choose([10, 20, 30, 40]),
            "address": lambda: choose(
                ["memory:", f"sqlite:{self.folder / 'fuzz.db'}", "sqlite:", "nothing:", "redis://"]
            ),
            "token": lambda: "t1",
            "kind": lambda: choose(["request", "notification", "response", "priming"]),
            "requests": lambda: choose(["1", "[1]", '["a"]']),
        }
        if name in given:
            return given[name]()
        if name.endswith("_ms") or name in ("jitter", "max_bytes", "retry_after_ms"):
            return choose([None, 0, 1, 50, 1000])
        return choose(TEXTS)

    def arguments(self, call: Callable[..., Any]) -> tuple[list[Any], dict[str, Any]]:
        signature = getattr(call, "__text_signature__", None) or "()"
        names = re.findall(r"[a-z_][a-z_0-9]*", re.sub(r"\*\*\w+|=[^,)]*", "", signature))
        names = [name for name in names if name not in ("self", "type", "cls")]
        wrong = self.random.random() < 0.5
        values = [self.any_value() if wrong and self.random.random() < 0.4 else self.fitting(name) for name in names]
        if wrong and self.random.random() < 0.1:
            values = [self.any_value() for _ in range(self.random.randrange(6))]
        keywords: dict[str, Any] = {}
        if "**" in signature:
            if "host_store" in names:
                values = values[: self.random.randrange(3)]
            for name in self.random.sample(KEYWORDS, self.random.randrange(3)):
                keywords[name] = self.any_value() if wrong else self.random.choice([1, 100, 10_000])
        return values, keywords

    # What is called.

    def targets(self) -> Iterator[tuple[str, Callable[..., Any]]]:
        for name in _native.__all__:
            found = getattr(_native, name, None)
            if callable(found) and name not in LEFT_OUT:
                yield name, found
        for name in ("posted", "standalone", "continued", "saved"):
            yield f"ClientStream.{name}", getattr(_native.ClientStream, name)

    def step(self) -> None:
        kinds = [kind for kind, kept in self.pool.items() if kept]
        if kinds and self.random.random() < 0.8:
            kind = self.random.choice(kinds)
            target = self.one(kind)
            name = self.random.choice([name for name in dir(type(target)) if not name.startswith("__")] + DUNDERS)
            if f"{kind}.{name}" not in LEFT_OUT:
                self.use(kind, target, name)
            return
        name, call = self.random.choice(list(self.targets()))
        values, keywords = self.arguments(call)
        self.make(name, lambda: call(*values, **keywords), (values, keywords))

    def use(self, kind: str, target: Any, name: str) -> None:
        what = f"{kind}.{name}"
        if name in SPECIAL:
            value = self.any_value()
            self.make(what, lambda: SPECIAL[name](target, value), value)
            return
        if not callable(getattr(type(target), name)):
            self.make(what, lambda: getattr(target, name), None)
            return
        call = getattr(target, name)
        values, keywords = self.arguments(call)
        if self.random.random() < 0.03:
            # As a plain function, with something else in the place of its object.
            call, values = getattr(type(target), name), [self.any_value(), *values]
        self.make(what, lambda: call(*values, **keywords), (values, keywords))

    def make(self, what: str, call: Callable[[], Any], given: Any) -> None:
        self.calls += 1
        os.write(self.trace, f"{threading.get_native_id()} {self.calls} {what} {shown(given)}\n".encode())
        if self.calls % 50 == 0:
            faulthandler.dump_traceback_later(CALL_S, exit=True)
        try:
            self.keep(call())
            self.answered.add(what)
        except OWN as fault:
            self.raised[type(fault).__name__] = self.raised.get(type(fault).__name__, 0) + 1
            if isinstance(fault, TailropeError) and not getattr(fault, "code", None):
                self.findings.append(f"{what} {shown(given)}: a TailropeError without a code: {fault}")
        except Planned:
            pass
        except BaseException as fault:
            if type(fault) in EXPECTED.get(what.partition(".")[2], ()) or is_busy(what, fault):
                return
            self.findings.append(f"{what} {shown(given)}: {type(fault).__mro__[:2]}: {fault}")
            if len(self.findings) > 20:
                raise SystemExit(1) from None

    def furnish(self) -> None:
        """Objects in all states to begin with: live, ended, drained."""
        store = _native.open_store(f"sqlite:{self.folder / 'fuzz.db'}")
        waiters = _native.Waiters(lambda: True)
        self.keep((store, _native.open_store("memory:"), waiters, _native.ClientOptions()))
        for engine in (_native.Engine(), _native.Engine(True), _native.Engine(False, store), _native.Engine()):
            self.keep(engine)
            for number in range(3):
                session = engine.open_session(f"s{number + 1}", "", 1 + number % 2, None, None, waiters)
                headers = [*HEADERS, VERSION, (b"mcp-session-id", f"s{number + 1}".encode())]
                self.keep(session)
                for method, message in (
                    ("POST", INITIALIZE),
                    ("POST", {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": {"name": "x"}}),
                    ("GET", None),
                ):
                    body = json.dumps(message).encode() if message else b""
                    admitted = session.admit(method, headers, body, False, "", None, None, None)
                    self.keep(admitted)
                    if isinstance(admitted, _native.Admission):
                        self.keep(session.open(admitted, waiters, False))
                if number == 2:
                    session.end()
            self.keep(
                (engine.hook_log(), engine.look_up_session("elsewhere", "", "GET", headers, None, None, 2, waiters))
            )
        self.relay(store, waiters)
        self.pool["Engine"][-1].drain(5, None)
        self.keep(waiters.open_signal(False))
        for now in range(3):
            self.keep(_native.ClientStream.standalone(self.pool["ClientOptions"][0], now, True))

    def relay(self, store: Any, waiters: Any) -> None:
        """A request that one engine relays to another, at both of them; and sessions that one leaves to the other."""
        here, there = _native.Engine(False, store), _native.Engine(False, _native.open_store(store.address))
        self.keep((here, there))
        session, found = self.known(here, there, "relayed", waiters)
        session.accept_posted()
        for number in range(3):
            self.relayed(found, "relayed", number, waiters)
        posted: list[Any] = []
        until(lambda: posted.extend(session.take_posted()) or len(posted) == 3)
        self.keep(posted)
        self.keep(found.offer_adoption(waiters))
        for name in ("adopted", "refused"):
            session, found = self.known(here, there, name, waiters)
            offer = found.offer_adoption(waiters)
            session.release()
            self.relayed(found, name, 0, waiters)
            adopted = until(lambda: ticked(there) and offer.take(waiters))  # noqa: B023
            self.keep((offer, adopted, adopted.session))
            if name == "refused":
                adopted.refuse("internal", "")

    def known(self, here: Any, there: Any, name: str, waiters: Any) -> tuple[Any, Any]:
        """A session of one engine, and what another one finds of it."""
        session = here.open_session(name, "", 2, None, None, waiters)
        headers = [*HEADERS, (b"mcp-session-id", name.encode())]
        opening = session.admit("POST", headers, json.dumps(INITIALIZE).encode(), False, "", None, None, None)
        assert isinstance(opening, _native.Admission)
        self.keep((session, session.open(opening, waiters, False)))
        result = {"protocolVersion": "2025-11-25", "capabilities": {}, "serverInfo": {"name": "x", "version": "1"}}
        session.respond(INITIALIZE["id"], json.dumps({"jsonrpc": "2.0", "id": INITIALIZE["id"], "result": result}))
        headers.append(VERSION)
        return session, told(lambda: there.look_up_session(name, "", "POST", headers, None, None, 2, waiters))

    def relayed(self, found: Any, name: str, number: int, waiters: Any) -> None:
        headers = [*HEADERS, VERSION, (b"mcp-session-id", name.encode())]
        call = {"jsonrpc": "2.0", "id": f"r{number}", "method": "tools/call", "params": {"name": "x"}}
        body = json.dumps(call).encode()
        admitted = found.admit("POST", headers, body, False, "", None, None, None)
        relayed = found.relay(admitted, "POST", headers, body, ["x-own"], "{}", ["state x"], number == 1, waiters)
        self.keep((found, admitted, relayed))

    def run(self, seconds: float, calls: int = 1 << 60, least: int = 0) -> None:
        """Calls for so long, but no more than `calls`, nor fewer than `least` however slow they are."""
        end, last, least = time.monotonic() + seconds, self.calls + calls, self.calls + least
        while (time.monotonic() < end or self.calls < least) and self.calls < last:
            self.step()


def told(ask: Callable[[], Any]) -> Any:
    """The session, once the store knows of it."""

    def answer() -> Any:
        look_up = ask()
        while not (outcome := look_up.take())[0]:
            time.sleep(0.005)
        return outcome[1]

    return until(answer)


def ticked(engine: Any) -> bool:
    """Lets an engine do what time asks for: it looks once more at an owner whose release came behind the request."""
    engine.tick()
    return True


def until(ask: Callable[[], Any]) -> Any:
    end = time.monotonic() + CALL_S
    while not (found := ask()):
        assert time.monotonic() < end
        time.sleep(0.005)
    return found


KEYWORDS = ["max_bytes", "retention_ms", "retry_ms", "max_sessions", "store_wait_ms", "growth", "jitter", "durability"]
KEYWORDS += ["encryption_keys", "owner_lost_ms", "max_attempts", "max_event_bytes", "unknown", "max_events_per_stream"]

SPECIAL: dict[str, Callable[[Any, Any], Any]] = {
    "__repr__": lambda target, value: repr(target),
    "__eq__": lambda target, value: target is value or target == value,
    "__hash__": lambda target, value: hash(target),
    "__setattr__": lambda target, value: setattr(target, "key", value),
    "__delattr__": lambda target, value: delattr(target, "key"),
    "__copy__": lambda target, value: copy.copy(target),
    "__reduce__": lambda target, value: pickle.dumps(target),
    "__class__": lambda target, value: type(target).__new__(type(target)),
    "__call__": lambda target, value: target(value),
    "__subclass__": lambda target, value: type("Sub", (type(target),), {}),
    "__iter__": lambda target, value: iter(target),
}
DUNDERS = list(SPECIAL)
EXPECTED = {"__reduce__": (pickle.PicklingError,), "__copy__": (pickle.PicklingError,)}


def is_busy(what: str, fault: BaseException) -> bool:
    """A client's stream is for one thread at a time, and says so."""
    return what.startswith("ClientStream.") and isinstance(fault, RuntimeError) and "orrowed" in str(fault)


def shown(value: Any) -> str:
    try:
        text = repr(value)
    except BaseException:
        text = f"<{type(value).__name__}>"
    return text[:300].encode("ascii", "backslashreplace").decode().replace("\n", " ")


def values(machine: Machine, seconds: float) -> None:
    machine.furnish()
    machine.run(seconds, least=3_000)


def threads(machine: Machine, seconds: float) -> None:
    machine.furnish()
    others = [Machine(machine.random.randrange(1 << 30), machine.trace, machine.folder) for _ in range(4)]
    for other in others:
        other.pool = machine.pool
    started = [threading.Thread(target=other.run, args=(seconds, 1 << 60, 300), daemon=True) for other in others]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join(seconds + CALL_S * 2)
        assert not thread.is_alive(), "a thread hangs"
    for other in others:
        machine.calls += other.calls
        machine.findings += other.findings


def fork(machine: Machine, seconds: float) -> None:
    """Forks again and again, with the threads of stores at work, and uses in the child what the parent has."""
    machine.furnish()
    end = time.monotonic() + seconds
    while time.monotonic() < end or machine.calls <= 100:
        machine.run(1, calls=machine.random.randrange(200))
        # Its thread would not be in the child, which would wait for it.
        faulthandler.cancel_dump_traceback_later()
        child = os.fork()
        if child == 0:
            # What the package does for its own engines.
            for engine in machine.pool["Engine"]:
                engine.mark_forked()
            faulthandler.dump_traceback_later(CALL_S, exit=True)
            machine.run(1, calls=100)
            for finding in machine.findings:
                os.write(2, f"in the child: {finding}\n".encode())
            os._exit(len(machine.findings) > 0)
        deadline = time.monotonic() + CALL_S * 2
        while not (ended := os.waitpid(child, os.WNOHANG))[0]:
            if time.monotonic() > deadline:
                os.kill(child, 9)
                os.waitpid(child, 0)
                machine.findings.append("a child hangs")
                return
            time.sleep(0.002)
        if ended[1] != 0:
            machine.findings.append(f"a child ended with {ended[1]}")


def public(machine: Machine, seconds: float) -> None:
    """The package's own functions, with options of wrong names, types and sizes."""
    asyncio.run(_public(machine, seconds))


async def _public(machine: Machine, seconds: float) -> None:
    names = ("retry_ms", "store", "transport", "on_unsupported", "unknown")
    options = [*tailrope._options.StoreOptions.__annotations__, *names]
    client_options = [*tailrope.client.StreamOptions.__annotations__, "unknown", "client", "token", "message"]

    def chosen(names: list[str]) -> dict[str, Any]:
        return {name: machine.any_value() for name in machine.random.sample(names, machine.random.randrange(1, 4))}

    async def awaited(call: Callable[[], Any]) -> None:
        machine.calls += 1
        try:
            async with asyncio.timeout(CALL_S):
                await call()
        except (*OWN, Planned):
            pass
        except Exception as fault:
            machine.findings.append(f"{call}: {type(fault).__mro__[:2]}: {fault}")

    async def messages(given: dict[str, Any]) -> None:
        # A port that nobody listens on: what gets through is given up at once.
        async with tailrope.client.stream("http://127.0.0.1:1/mcp", **{"max_attempts": 1, **given}) as stream:
            async for _ in stream:
                break

    end = time.monotonic() + seconds
    while time.monotonic() < end or machine.calls <= 100:
        pick = machine.random.randrange(10)
        given = chosen(client_options if pick < 3 else options)
        value = machine.any_value()
        calls: list[Callable[[], Any]] = [
            lambda: tailrope.client.http_client_factory(**given),  # noqa: B023
            lambda: tailrope.client.http_client(**given),  # noqa: B023
            lambda: tailrope.client.ResumableTransport(value, **given),  # noqa: B023
            lambda: tailrope.install(**given),  # noqa: B023
            lambda: tailrope.mcp.EventStore(value, **given),  # noqa: B023
            lambda: tailrope.mcp.resumable(value, **given),  # noqa: B023
            lambda: tailrope.open_store(value, **given),  # noqa: B023
            lambda: StreamableHTTPServerTransport(value, **given),  # noqa: B023
            tailrope.stats,
            tailrope.uninstall,
        ]
        machine.make(f"public {pick}", calls[pick], (given, value))
        if machine.random.random() < 0.2:
            await awaited(lambda: tailrope.close_sse_stream(value, **chosen(["retry_ms", "hold_ms"])))  # noqa: B023
            await awaited(lambda: tailrope.close_standalone_sse_stream(value))  # noqa: B023
            await awaited(lambda: tailrope.drain(**chosen(["retry_ms", "spread_ms", "within_ms"])))
    tailrope.uninstall()


def main(mode: str, seed: int, seconds: float, trace: str) -> int:
    logging.disable()
    faulthandler.enable()
    with tempfile.TemporaryDirectory() as folder:
        machine = Machine(seed, os.open(trace, os.O_WRONLY | os.O_CREAT | os.O_APPEND), Path(folder))
        {"values": values, "threads": threads, "fork": fork, "public": public}[mode](machine, seconds)
        faulthandler.cancel_dump_traceback_later()
    told = {"calls": machine.calls, "raised": machine.raised, "answered": sorted(machine.answered)}
    print(json.dumps({**told, "findings": machine.findings}))
    return len(machine.findings) > 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), sys.argv[4]))
