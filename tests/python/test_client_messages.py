"""Streams that are continued elsewhere, and streams without an SDK."""

from __future__ import annotations

import asyncio
import json

import pytest
import tailrope.client
from scripted import Exchange
from streams import (
    LIBRARY,
    PRIMING,
    by_method,
    call,
    cursor_of,
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


class Chunks:
    """A server that sends a cursor, and the messages in one piece when it is told to."""

    def __init__(self) -> None:
        self.go = asyncio.Event()

    async def __call__(self, exchange: Exchange) -> None:
        await exchange.head()
        await exchange.send(PRIMING)
        await self.go.wait()
        await exchange.send(event(note(1), "b") + event(note(2), "c") + event(result(), "d"))
        await exchange.end()


async def test_token_is_never_ahead_of_the_reader() -> None:
    serve = Chunks()
    async with lab(serve) as (server, _, _), tailrope.client.stream(server.url, message=call()) as found:
        asking = asyncio.ensure_future(anext(found))
        await server.until(lambda: cursor_of(found.token) == "a")
        serve.go.set()
        assert await asking == note(1) and cursor_of(found.token) == "a"
        assert await anext(found) == note(2) and cursor_of(found.token) == "a"
        # The stream has no more to give, but who says that the response was taken?
        assert await anext(found) == result() and cursor_of(found.token) == "a"
        assert [message async for message in found] == [] and found.token is None


async def test_exported_token_is_never_ahead_of_the_reader() -> None:
    serve = Chunks()
    async with lab(serve) as (server, client, transport):
        response = await post(client, server.url, call())

        def cursors() -> list[str | None]:
            return [cursor_of(token) for token in transport.streams.export()]

        found = messages(response)
        asking = asyncio.ensure_future(anext(found))
        await server.until(lambda: cursors() == ["a"])
        serve.go.set()
        for message in (note(1), note(2), result()):
            assert await asking == message and cursors() == ["a"]
            asking = asyncio.ensure_future(anext(found))
        with pytest.raises(StopAsyncIteration):
            await asking
        assert cursors() == [] and len(transport.streams) == 0
        await response.aclose()


async def test_resumed_stream_has_its_token_before_it_is_read() -> None:
    token = '{"tailrope":1,"lastEventId":"a","requests":[1]}'
    async with lab(refused) as (server, _, transport):
        resumed = transport.resume(token, server.url)
        assert cursor_of(resumed.token) == "a"
        await resumed.aclose()
        assert resumed.token is None and not server.exchanges


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
        # That somebody asks for more says that he has what came.
        asking = asyncio.ensure_future(anext(found))
        await server.until(transport.streams.export)
        (token,) = transport.streams.export()
        asking.cancel()
        await asyncio.wait([asking])
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
        asking = asyncio.ensure_future(anext(messages))
        await server.until(lambda: cursor_of(messages.token) == "a")
        await messages.aclose()
        with pytest.raises(StopAsyncIteration):
            await asking
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


@pytest.mark.parametrize("version", ["2026-07-28", "2027-01-01"])
async def test_revision_without_resumption_is_left_alone(version: str) -> None:
    headers = {"MCP-Protocol-Version": version}
    token = '{"tailrope":1,"lastEventId":"a","requests":[1]}'
    saved = f'{{"tailrope":1,"lastEventId":"a","requests":[1],"protocolVersion":"{version}"}}'

    async with lab(refused) as (server, _, transport):
        for found in (
            tailrope.client.stream(server.url, headers=headers),
            tailrope.client.stream(server.url, message=call(), headers=headers),
            tailrope.client.stream(server.url, token=token, headers=headers),
            tailrope.client.stream(server.url, token=saved),
            tailrope.client.stream(server.url, message=call(), headers=lambda: headers),
            tailrope.client.stream(server.url, headers=lambda: headers),
            transport.resume(token, server.url, headers),
            transport.resume(saved, server.url),
        ):
            async with found:
                with pytest.raises(TailropeError, match=version) as raised:
                    await anext(found)
            assert raised.value.code == "not_resumable"
        assert not server.exchanges
