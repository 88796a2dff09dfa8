"""Programs that serve without a socket: what a process, its loops, its forks and its end do with open streams."""

from __future__ import annotations

import os
import subprocess
import tempfile

from conftest import KIND
from kit.servers import spawner

PROGRAM = """
import asyncio, faulthandler, json, os, sys, threading, time
import tailrope
from servers.python.app import build
from servers.python.flavors import installed

FLAVOR = installed()[0]
faulthandler.enable()

class Recorder:
    def __init__(self): self.sent = []
    async def __call__(self, message): self.sent.append(message)

async def call(app, method, body=None, headers=()):
    sent = Recorder()
    payload = json.dumps(body).encode() if body is not None else b""
    waiting = asyncio.Event()
    parts = iter([{"type": "http.request", "body": payload, "more_body": False}])
    async def receive():
        for part in parts: return part
        await waiting.wait()
        return {"type": "http.disconnect"}
    base = [(b"host", b"127.0.0.1:1"), (b"accept", b"application/json, text/event-stream"),
            (b"content-type", b"application/json"), *headers]
    scope = {"type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "scheme": "http",
             "path": "/mcp", "raw_path": b"/mcp", "query_string": b"", "root_path": "", "headers": base,
             "client": ("127.0.0.1", 2), "server": ("127.0.0.1", 1), "state": {}}
    await app(scope, receive, sent)
    return sent.sent

class Life:
    def __init__(self, app): self.app, self.inbox, self.outbox = app, asyncio.Queue(), asyncio.Queue()
    async def __aenter__(self):
        self.task = asyncio.create_task(self.app({"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}},
                                                 self.inbox.get, self.outbox.put))
        await self.inbox.put({"type": "lifespan.startup"})
        assert (await self.outbox.get())["type"] == "lifespan.startup.complete"
    async def __aexit__(self, *_):
        await self.inbox.put({"type": "lifespan.shutdown"})
        assert (await self.outbox.get())["type"] == "lifespan.shutdown.complete"
        await self.task

OPEN = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {"protocolVersion": "2025-11-25",
        "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}}

async def opened(app):
    sent = await call(app, "POST", OPEN)
    session = dict(sent[0]["headers"])[b"mcp-session-id"]
    return [(b"mcp-session-id", session), (b"mcp-protocol-version", b"2025-11-25")]

async def tool(app, keys, name, **arguments):
    params = {"name": name, "arguments": arguments, "_meta": {"progressToken": 1}}
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    sent = await call(app, "POST", body, keys)
    return b"".join(part.get("body", b"") for part in sent[1:])

async def serve(text, options={}):
    app = build(FLAVOR, "tailrope", options)
    async with Life(app):
        keys = await opened(app)
        await call(app, "POST", {"jsonrpc": "2.0", "method": "notifications/initialized"}, keys)
        body = await tool(app, keys, "echo", text=text)
        assert text.encode() in body and b"id: " in body, body

def wait(pid):
    # A child that hangs is a failed test.
    deadline = time.monotonic() + 30
    while not (done := os.waitpid(pid, os.WNOHANG))[0]:
        if time.monotonic() > deadline:
            os.kill(pid, 9)
            raise AssertionError("the child hangs")
        time.sleep(0.005)
    assert done[1] == 0, done

async def in_child(run):
    # On a thread of its own, because this one runs a loop. The parent goes on meanwhile.
    pid = os.fork()
    if pid == 0:
        good = []
        child = threading.Thread(target=lambda: (run(), good.append(1)))
        child.start(); child.join()
        os._exit(0 if good else 1)
    await asyncio.to_thread(wait, pid)
"""


def python(code: str, wait_s: float = 50, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a program in a process of its own, that of a spawner: it need not import everything first."""
    words = ["-c", PROGRAM + code, *arguments]
    with tempfile.TemporaryFile("w+") as errors:
        process = spawner(KIND).start(words, dict(os.environ), errors)
        with process.stdout:
            try:
                status = process.wait(wait_s)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
            printed = process.stdout.read()
        errors.seek(0)
        return subprocess.CompletedProcess(words, status, printed, errors.read())
