"""What servers and clients do, over the native half alone: python scenario.py LIBRARY ROUNDS [leak].

It loads the library without the package, whose imports would be most of the time under valgrind. Each round makes an
engine and everything that hangs on it, uses it to its end and lets it go; with `leak` it keeps one object too many, to
show that this would be seen.
"""

import contextlib
import ctypes
import gc
import importlib.util
import json
import sys
import tempfile
import threading
from typing import Any

HEADERS = [
    (b"accept", b"application/json, text/event-stream"),
    (b"content-type", b"application/json"),
    (b"mcp-protocol-version", b"2025-11-25"),
    (b"mcp-session-id", b"one"),
]
# What a middleware found out about the user, and the name that the server's own function gave.
WHO = ('{"sub": "ann"}', None, None)
OPENING = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}


class Future:
    def __init__(self) -> None:
        self.woken = threading.Event()

    def done(self) -> bool:
        return self.woken.is_set()

    def set_result(self, value: Any) -> None:
        self.woken.set()


def load(library: str) -> Any:
    spec = importlib.util.spec_from_file_location("tailrope._native", library)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def body(id: int, method: str, params: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).encode()


def read(connection: Any) -> tuple[bytes, str]:
    """What a connection has by now, and the last id in it."""
    whole = b""
    for _ in range(50):
        _, _, _, data, *_ = connection.poll(65536)
        whole += data or b""
        if not data:
            break
    ids = [line[4:].decode() for line in whole.splitlines() if line.startswith(b"id: ")]
    return whole, ids[-1] if ids else ""


def serve(native: Any, store: Any) -> None:
    waiters = native.Waiters(lambda: True)
    signal = waiters.open_signal(False)
    engine = native.Engine(False, store) if store is not None else native.Engine()
    session = engine.open_session("one", "", 2, 5, None, waiters)

    def settle() -> None:
        # A store of threads answers a little later.
        for _ in range(3 if engine.answers_elsewhere() else 0):
            threading.Event().wait(0.01)
            signal.resolve()
            engine.tick()
        session.take_outcomes()

    def admit(method: str, payload: bytes, *more: tuple[bytes, bytes]) -> Any:
        return session.admit(method, [*HEADERS, *more], payload, False, "", *WHO)

    opened = session.open(admit("POST", body(0, "initialize", OPENING)), waiters, False)
    session.respond(0, json.dumps({"jsonrpc": "2.0", "id": 0, "result": OPENING}))
    settle()
    read(opened)
    call = session.open(admit("POST", body(1, "tools/call", {"name": "x"})), waiters, False)
    waiters.park(call.key, Future())
    for number in range(5):
        session.notify(
            1, json.dumps({"jsonrpc": "2.0", "method": "notifications/progress", "params": {"n": number}}), 0
        )
    settle()
    _, cursor = read(call)
    session.close_connection(1, 5, None)
    settle()
    read(call)
    if cursor:
        resumed = session.open(admit("GET", b"", (b"last-event-id", cursor.encode())), waiters, False)
        session.respond(1, json.dumps({"jsonrpc": "2.0", "id": 1, "result": {"x": "y" * 1000}}))
        settle()
        read(resumed)
        resumed.lost()
    session.admit("PATCH", HEADERS, b"", False, "", *WHO)
    with contextlib.suppress(TypeError):
        session.admit("POST", [7], b"", False, "", *WHO)
    log = engine.hook_log()
    stored = log.store(waiters, "scope", "stream", "response", b"{}")
    settle()
    stored.take()
    log.drop_scope("scope")
    engine.look_up_session("elsewhere", "", "GET", HEADERS, *WHO, 2, waiters).take()
    session.end()
    engine.drain(5)
    engine.tick()
    engine.leave()
    signal.close()


def follow(native: Any) -> None:
    options = native.ClientOptions(max_attempts=3)
    stream = native.ClientStream.posted("[1]", options, 0, True)
    stream.start()
    stream.head(200, "text/event-stream", None, 0, 0)
    stream.bytes(b'id: 1\ndata: {"jsonrpc":"2.0","method":"x"}\n\nid: 2\nretry: 5\ndata:\n\n', 1, 0)
    stream.end(2, 0)
    stream.token("one", "2025-11-25")
    stream.tick(10_000, 0)
    stream.broken(10_001, 0)
    stream.cancelled(1, 10_002, 0)
    stream.failure_frames()
    stream.abort(10_003, 0)
    with contextlib.suppress(ValueError):
        native.ClientStream.saved("no token", options, 0, True)


def main(library: str, rounds: int, leak: bool) -> None:
    native = load(library)
    with tempfile.TemporaryDirectory() as folder:
        store = native.open_store(f"sqlite:{folder}/events.db")
        for number in range(rounds):
            serve(native, None)
            follow(native)
            if leak:
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(native.ClientOptions()))
            if number % 5 == 0:
                serve(native, store)
        gc.collect()
    print("done")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), "leak" in sys.argv[3:])
