"""Streams that are continued elsewhere, and streams without an SDK."""

from __future__ import annotations

import json

import pytest
import tailrope.client
from scripted import Exchange
from streams import (
    LIBRARY,
    PRIMING,
    by_method,
    call,
    event,
    lab,
    messages,
    note,
    post,
    primed_and_broken,
    refused,
    result,
)
from tailrope.client import ResumableTransport, TailropeError


async def test_exported_stream_is_resumed_elsewhere() -> None:
    async def on_post(exchange: Exchange) -> None:
        await exchange.head()
        await exchange.send(PRIMING + event(note(1), "b"))
        await exchange.gone()

    async def on_get(exchange: Exchange) -> None:
        await exchange.head()
        await exchange.send(event(note(2), "c") + event(result(), "d"))
        await exchange.end()

    async with lab(by_method(on_post, on_get)) as (server, client, transport):
        response = await post(client, server.url, call(), mcp_session_id="s", mcp_protocol_version="2025-11-25")
        found = messages(response)
        assert await anext(found) == note(1)
        (token,) = transport.streams.export()
        await response.aclose()
        assert transport.streams.export() == []
        other = ResumableTransport()
        async with other.resume(token, server.url, {"authorization": "Bearer x"}) as resumed:
            assert [message async for message in resumed] == [note(2), result()]
            assert resumed.token is None and resumed.session_id == "s"
        await other.aclose()
        headers = server.gets[0].headers
        assert (headers["last-event-id"], headers["mcp-session-id"]) == ("b", "s")
        assert (headers["mcp-protocol-version"], headers["authorization"]) == ("2025-11-25", "Bearer x")


@pytest.mark.parametrize("given", ["own", "client", "resumable"])
async def test_stream_without_sdk(given: str) -> None:
    async def on_get(exchange: Exchange) -> None:
        await exchange.head()
        await exchange.send(event([note(1), result()], "c"))
        await exchange.end()

    async with lab(by_method(primed_and_broken, on_get)) as (server, resumable, _):
        async with LIBRARY.AsyncClient() as plain:
            client = {"own": None, "client": plain, "resumable": resumable}[given]
            found = tailrope.client.stream(server.url, message=call(), headers={"x-own": "1"}, client=client)
            async with found as messages:
                assert [message async for message in messages] == [note(1), result()]
        assert [exchange.headers["x-own"] for exchange in server.exchanges] == ["1", "1"]


async def test_stream_that_nobody_reads_on_is_let_go_of() -> None:
    async def on_get(exchange: Exchange) -> None:
        await exchange.head()
        await exchange.send(event(note(1), "a"))
        await exchange.gone()

    async with lab(on_get) as (server, _, _):
        messages = tailrope.client.stream(server.url)
        assert messages.token is None
        assert await anext(messages) == note(1)
        assert messages.token is not None and json.loads(messages.token)["lastEventId"] == "a"
        await messages.aclose()
        assert messages.token is None and [message async for message in messages] == []
        await server.until(lambda: server.open == 0)


async def test_stream_failure_has_its_code() -> None:
    async def on_post(exchange: Exchange) -> None:
        if b'"id": 2' in exchange.body or b'"id":2' in exchange.body:
            return await exchange.answer(401)
        if b'"id":3' in exchange.body or b'"id": 3' in exchange.body:
            return await exchange.answer(200, json.dumps(result(3)).encode(), content_type="application/json")
        await primed_and_broken(exchange)

    async with lab(by_method(on_post, refused)) as (server, _, _):
        for id, code in ((1, "session_lost"), (2, "unauthorized")):
            async with tailrope.client.stream(server.url, message=call(id), initial_delay_ms=1) as messages:
                with pytest.raises(TailropeError) as raised:
                    await anext(messages)
            assert raised.value.code == code
        async with tailrope.client.stream(server.url, message=call(3)) as messages:
            assert [message async for message in messages] == [result(3)]
        with pytest.raises(ValueError, match="both"):
            tailrope.client.stream(server.url, message=call(), token="{}")
