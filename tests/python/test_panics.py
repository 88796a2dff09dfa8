"""A panic in the engine harms the call that it comes from, and nothing besides. No sockets."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import tailrope
from asgi import OPEN, Asgi
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from servers.python.flavors import BUILDERS, Ops, installed
from tailrope._native import panic_in

pytestmark = [pytest.mark.ours, pytest.mark.one_line, pytest.mark.usefixtures("uninstalled")]

READY = {"jsonrpc": "2.0", "method": "notifications/initialized"}


def echo(id: int) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": {"name": "echo", "arguments": {"text": "x"}}}


class Client:
    """A session of a manager."""

    def __init__(self, manager: Any) -> None:
        self._manager = manager
        self._headers = [
            (b"accept", b"application/json, text/event-stream"),
            (b"content-type", b"application/json"),
            (b"mcp-protocol-version", b"2025-11-25"),
            (b"host", b"localhost:1"),
        ]

    async def ask(self, method: str, body: Any = None) -> Asgi:
        asked = Asgi(self._manager, method, body, headers=list(self._headers))
        async with asyncio.timeout(10):
            # What it raises is for its host to answer.
            await asyncio.gather(asked.task, return_exceptions=True)
        return asked

    async def open(self) -> None:
        opening = await self.ask("POST", OPEN)
        opening.task.result()
        self._headers += [item for item in opening.sent[0]["headers"] if item[0] == b"mcp-session-id"]
        await self.ask("POST", READY)

    async def is_served(self) -> bool:
        return b'"text":"x"' in (await self.ask("POST", echo(1))).body


async def test_a_panic_anywhere_in_a_session_harms_no_other() -> None:
    tailrope.install()
    app = BUILDERS[installed()[0]]({}, None, None, Ops(tailrope=True))
    manager = next(route.endpoint.session_manager for route in app.routes if hasattr(route, "endpoint"))
    assert isinstance(manager, StreamableHTTPSessionManager)
    harmed = 0
    async with manager.run():
        other = Client(manager)
        await other.open()
        for calls in range(1, 40):
            panic_in(calls)
            one = Client(manager)
            try:
                await one.open()
                harmed += not await one.is_served()
                await one.ask("DELETE")
            except (IndexError, RuntimeError):
                harmed += 1
            finally:
                panic_in(0)
            assert await other.is_served(), f"call {calls} of the core"
        new = Client(manager)
        await new.open()
        assert await new.is_served()
    assert harmed > 3
