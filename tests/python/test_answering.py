"""How a connection is written to an ASGI server, and what others do around that: middleware, tracing libraries."""

from __future__ import annotations

import asyncio
import gc
import json
from typing import Any

import pytest
from asgi import Asgi, Part, note, outgoing, request, transport, until
from mcp.server.streamable_http import StreamableHTTPServerTransport as StockTransport

pytestmark = [pytest.mark.ours, pytest.mark.one_line]

RESULT = {"jsonrpc": "2.0", "id": 1, "result": {"content": []}}


@pytest.mark.parametrize("version", ["1.1", "2", "3"])
@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_no_version_of_http_gets_a_header_of_the_connection(method: str, version: str) -> None:
    async with transport() as (made, _, outbox):
        asked = Asgi(made, method, request(1) if method == "POST" else None, version=version)
        if method == "POST":
            await outbox.send(outgoing(RESULT))
        await asked.got.wait()
        names = {name for name, _ in asked.sent[0]["headers"]}
        assert not names & {b"connection", b"keep-alive", b"transfer-encoding", b"upgrade", b"content-length"}
        asked.left.set()
        await asked.task


@pytest.mark.parametrize("error", [RuntimeError("in front"), OSError("in front"), ValueError("in front")], ids=repr)
async def test_an_answer_is_finished_although_receive_raises(error: Exception, caplog: Any) -> None:
    unheard: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: unheard.append(context))
    async with transport() as (made, inbox, outbox):
        asked = Asgi(made, "POST", request(1), raises=error)
        await inbox.receive()
        await outbox.send(outgoing(note(1), related=1))
        await until(lambda: "http.disconnect" in asked.received)
        for number in range(2, 6):
            await outbox.send(outgoing(note(number), related=1))
            await asyncio.sleep(0)
        await outbox.send(outgoing(RESULT))
        await asked.task
    assert [message.get("id") for message in messages(asked.sent)] == [None] * 5 + [1]
    assert asked.sent[-1]["more_body"] is False
    gc.collect()
    await asyncio.sleep(0)
    assert not unheard
    assert [record.exc_info[1] for record in caplog.records if record.exc_info] == [error]


async def test_a_receive_that_says_that_the_connection_is_broken_is_one_whose_peer_left(caplog: Any) -> None:
    async with transport() as (made, inbox, outbox):
        asked = Asgi(made, "POST", request(1), raises=ConnectionResetError())
        await inbox.receive()
        await outbox.send(outgoing(note(1), related=1))
        await asked.task
    assert len(messages(asked.sent)) == 1 and not caplog.records


def messages(sent: list[Part]) -> list[Any]:
    lines = b"".join(part.get("body", b"") for part in sent).decode().splitlines()
    return [json.loads(line[6:]) for line in lines if line.startswith("data: {")]


async def test_what_is_put_around_a_method_later_runs_too(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []

    def around(name: str, method: Any) -> Any:
        def counted(self: Any, *args: Any, **kwargs: Any) -> Any:
            ran.append(name)
            return method(self, *args, **kwargs)

        return counted

    for name in ("connect", "terminate", "_handle_request", "close_sse_stream", "close_standalone_sse_stream"):
        monkeypatch.setattr(StockTransport, name, around(name, vars(StockTransport)[name]))
    async with transport() as (made, inbox, _):
        assert ran == ["connect", "_handle_request"]
        asked = Asgi(made, "POST", request(1))
        item = await inbox.receive()
        await item.metadata.close_sse_stream()
        await item.metadata.close_standalone_sse_stream()
        await asked.task
        # What the SDK knows nothing of goes past it.
        await item.metadata.close_sse_stream(retry_ms=5)
        await Asgi(made, "DELETE").task
    assert ran[2:] == [
        "_handle_request",
        "close_sse_stream",
        "close_standalone_sse_stream",
        "_handle_request",
        "terminate",
    ]
