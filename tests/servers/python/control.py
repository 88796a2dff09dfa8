"""Gates, marks and counters that tests reach over HTTP beside the MCP endpoint.

A tool waits at a gate, a test opens it; a tool sets a mark, a test waits for it. So tests order events exactly,
where a sleep would only make the wanted order likely.
"""

from __future__ import annotations

import asyncio
import atexit
import gc
import json
import os
import resource
import signal
from collections import Counter
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import parse_qsl

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

MARK_WAIT_S = 5.0


class Control:
    """The process-wide board of gates, marks and counters."""

    def __init__(self) -> None:
        self.opened: set[str] = set()
        self.marks: Counter[str] = Counter()
        self.requests: Counter[str] = Counter()
        self.store: Any = None
        # Calls of the tool `act` that wait for orders, by the name that their test gave them.
        self.actors: dict[str, asyncio.Queue[tuple[str, asyncio.Future[Any]]]] = {}
        self._changed: list[asyncio.Future[None]] = []
        # By gate: thousands may wait, and each mark would wake them all.
        self._at_gates: dict[str, list[asyncio.Future[None]]] = {}

    def change(self) -> None:
        waiting, self._changed = self._changed, []
        for name in [name for name in self._at_gates if name in self.opened]:
            waiting += self._at_gates.pop(name)
        for future in waiting:
            if not future.done():
                future.set_result(None)

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            future = asyncio.get_running_loop().create_future()
            self._changed.append(future)
            await future

    async def gate(self, name: str) -> None:
        self.mark(f"at {name}")
        if name not in self.opened:
            future = asyncio.get_running_loop().create_future()
            self._at_gates.setdefault(name, []).append(future)
            await future

    def is_open(self, name: str) -> bool:
        return name in self.opened

    def mark(self, name: str) -> None:
        self.marks[name] += 1
        self.change()


CONTROL = Control()


def rejected(fault: Exception) -> dict[str, str]:
    return {"raised": f"{type(fault).__name__}: {fault}"}


def rss_bytes() -> int:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * resource.getpagesize()


def held() -> dict[str, Any]:
    """What the process holds of ours once nobody needs it any more: objects by type, tasks, memory."""
    CONTROL.requests.clear()
    CONTROL.marks.clear()
    gc.collect()
    types = Counter(type(thing).__qualname__ for thing in gc.get_objects() if is_ours(type(thing)))
    return {"objects": types, "tasks": len(asyncio.all_tasks()), "rss": rss_bytes()}


def is_ours(kind: type) -> bool:
    return str(getattr(kind, "__module__", "")).startswith("tailrope")


async def answer(path: str, query: dict[str, str], body: bytes) -> Any:
    if path == "/ctl/open":
        CONTROL.opened.update(query["gate"].split(","))
        CONTROL.change()
        return {}
    if path == "/ctl/mark":
        wanted = int(query.get("count", "1"))
        try:
            async with asyncio.timeout(MARK_WAIT_S):
                await CONTROL.until(lambda: CONTROL.marks[query["name"]] >= wanted)
        except TimeoutError:
            return {"missing": query["name"], "marks": dict(CONTROL.marks)}
        return {}
    if path == "/ctl/state":
        tasks = len(asyncio.all_tasks())
        state = {"marks": CONTROL.marks, "requests": {"GET": 0, **CONTROL.requests}, "rss": rss_bytes(), "tasks": tasks}
        state |= {"descriptors": len(os.listdir("/proc/self/fd")), "pid": os.getpid()}
        if CONTROL.store is not None:
            state["store"] = CONTROL.store.state()
        return state
    if path == "/ctl/act":
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        CONTROL.actors[query["name"]].put_nowait((query["step"], done))
        return await done
    if path == "/ctl/held":
        return held()
    if path == "/ctl/store":
        CONTROL.store.plan(**json.loads(body))
        return CONTROL.store.state()
    if path == "/ctl/exit":
        # At once what an interpreter does at its exit, and no more.
        atexit._run_exitfuncs()
        os.kill(os.getpid(), signal.SIGKILL)
    if path == "/ctl/stats":
        import tailrope

        return tailrope.stats()
    if path == "/ctl/status":
        import tailrope

        return tailrope.status()
    if path == "/ctl/drain":
        import tailrope

        await tailrope.drain(**json.loads(body or b"{}"))
        return {}
    raise KeyError(path)


def controlled(app: App) -> App:
    """Wrap an ASGI app: /ctl/ is answered here, everything else is counted and passed on untouched.

    A request with the header `x-slow-auth` waits at the gate of this name, as one does whose auth asks elsewhere.
    """

    async def wrapped(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not scope["path"].startswith("/ctl/"):
            if scope["type"] == "http":
                CONTROL.requests[scope["method"]] += 1
                for name, value in scope["headers"]:
                    if name == b"mcp-session-id":
                        CONTROL.requests[f"{scope['method']} {value.decode('latin-1')}"] += 1
                CONTROL.change()
                slow_auth = dict(scope["headers"]).get(b"x-slow-auth")
                if slow_auth is not None:
                    await CONTROL.gate(slow_auth.decode())
            await app(scope, receive, send)
            return
        if scope["path"] == "/ctl/metrics":
            import tailrope

            await tailrope.metrics_endpoint(scope, receive, send)
            return
        body = b""
        while True:
            part = await receive()
            body += part.get("body", b"")
            if not part.get("more_body"):
                break
        query = dict(parse_qsl(scope["query_string"].decode()))
        payload = json.dumps(await answer(scope["path"], query, body), default=str).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(payload)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": payload})

    return wrapped
