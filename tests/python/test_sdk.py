"""What users have around and beside the stock transport stays as it was: hosts, revisions, an SDK put back."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from kit.raw import request
from kit.servers import Farm, Server
from kit.stock import LINE


async def test_custom_routes_and_lifespan(server: Server) -> None:
    reply = await request(server.port, "GET", "/health")
    assert await reply.json() == {"health": "good"}
    peer = await server.peer()
    assert json.loads(await peer.ask("lifespan")) == {"pool": "ready"}


@pytest.mark.skipif(LINE == 1, reason="1.x knows no 2026-07-28")
async def test_modern_requests_pass_through_untouched(farm: Farm) -> None:
    async def modern(server: Server) -> tuple[Any, ...]:
        version = "2026-07-28"
        meta = {
            "io.modelcontextprotocol/protocolVersion": version,
            "io.modelcontextprotocol/clientCapabilities": {},
            "io.modelcontextprotocol/clientInfo": {"name": "raw", "version": "1"},
        }
        found: list[Any] = []
        for method, params, more in (
            ("server/discover", {}, {}),
            ("tools/call", {"name": "echo", "arguments": {"text": "hi"}}, {"Mcp-Name": "echo"}),
            ("no/such", {}, {}),
        ):
            headers = {
                "Accept": "application/json, text/event-stream",
                "Content-Type": "application/json",
                "Mcp-Protocol-Version": version,
                "Mcp-Method": method,
                "Last-Event-ID": "ignored",
                "Mcp-Session-Id": "ignored",
                **more,
            }
            body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": meta}})
            reply = await request(server.port, "POST", "/mcp", headers, body.encode())
            payload = await reply.body()
            kept = {k: v for k, v in reply.headers.items() if k not in ("date", "content-length")}
            found.append((reply.status, kept, payload))
        get = await request(
            server.port, "GET", "/mcp", {"Mcp-Protocol-Version": version, "Accept": "text/event-stream"}
        )
        return (*found, get.status)

    ours = await modern(farm.get(engine={"prefer_resumable": False}))
    assert ours[0][0] == ours[1][0] == 200, ours
    stock = await modern(farm.get(stock=True))
    assert ours[1:] == stock[1:]
    # But that tasks are announced, whose clients are to know of them before they call.
    (*head, answer), (*stock_head, stock_answer) = ours[0], stock[0]
    told = json.loads(answer)
    extensions = told["result"]["capabilities"]["extensions"]
    assert extensions.pop("io.modelcontextprotocol/tasks") == {}
    if not extensions:
        del told["result"]["capabilities"]["extensions"]
    assert (head, told) == (stock_head, json.loads(stock_answer))


def python(code: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", "-c", code]
    return subprocess.run(command, capture_output=True, text=True, timeout=25, check=False)


@pytest.mark.ours
def test_uninstall_puts_the_sdk_back() -> None:
    done = python("""
import mcp.server.streamable_http as a, mcp.server.streamable_http_manager as b, tailrope
before = (a.StreamableHTTPServerTransport, b.StreamableHTTPServerTransport)
tailrope.install()
tailrope.install()
assert b.StreamableHTTPServerTransport is not before[1]
assert issubclass(b.StreamableHTTPServerTransport, before[1])
tailrope.uninstall()
tailrope.uninstall()
assert (a.StreamableHTTPServerTransport, b.StreamableHTTPServerTransport) == before
""")
    assert done.returncode == 0, done.stderr


@pytest.mark.ours
def test_wrong_options_are_refused_at_once() -> None:
    done = python("""
import tailrope
for options in (
    {"retry_ms": -1},
    {"retry_ms": "soon"},
    {"max_sessions": 0},
    {"store": "floppy:"},
    {"on_unsupported": "shrug"},
    {"no_such_option": 1},
):
    ((name, value),) = options.items()
    try: tailrope.install(**options)
    except (ValueError, TypeError, tailrope.TailropeError) as error: told = str(error)
    else: raise SystemExit(f"{options} are taken")
    assert name in told or str(value) in told, told
""")
    assert done.returncode == 0, done.stderr
