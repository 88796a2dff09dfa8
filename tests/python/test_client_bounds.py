"""What the client's half holds, and for how long."""

from __future__ import annotations

import asyncio
import gc

import anyio
import pytest
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
    primed_and_closed,
    result,
    to_drop,
    whole,
)


async def test_answered_connection_is_used_again() -> None:
    async def on_post(exchange: Exchange) -> None:
        await exchange.head()
        await exchange.send(PRIMING + event(result(), "b"))
        await asyncio.sleep(0.05)
        await exchange.send(": the rest\n\n")
        await exchange.end()

    async with lab(on_post) as (server, client, transport):
        for _ in range(5):
            response = await post(client, server.url, call())
            assert await anext(messages(response)) == result()
            await response.aclose()
            assert len(transport.streams) == 0
            await server.until(lambda: not transport._lingering)
        assert server.connections == 1


async def test_answered_connection_that_stays_open_is_let_go_of() -> None:
    async def on_post(exchange: Exchange) -> None:
        await exchange.head()
        await exchange.send(PRIMING + event(result(), "b"))
        await exchange.gone()

    async with lab(on_post) as (server, client, _):
        assert await whole(await post(client, server.url, call())) == [result()]
        await server.until(lambda: server.open == 0, wait_s=4)


async def test_body_is_read_as_the_reader_reads() -> None:
    sent = 0

    async def on_post(exchange: Exchange) -> None:
        nonlocal sent
        await exchange.head()
        await exchange.send(PRIMING)
        for number in range(600):
            await exchange.send(event(note("x" * 50_000), f"e{number}"))
            sent += 1
        await exchange.send(event(result(), "last"))
        await exchange.end()

    async with lab(on_post) as (server, client, _):
        response = await post(client, server.url, call())
        chunks = response.aiter_bytes()
        received = (await anext(chunks)).count(b"data: ")
        while True:
            before = sent
            await asyncio.sleep(0.2)
            if sent == before:
                break
        # What fits into the buffers of two sockets: nothing is read for a reader that does not ask.
        assert sent < 400
        async for chunk in chunks:
            received += chunk.count(b"data: ")
        assert received == 601
        await response.aclose()


@pytest.mark.parametrize("resumes", [400, pytest.param(2_000, marks=pytest.mark.full)])
async def test_thousands_of_resumes_leave_nothing_behind(resumes: int) -> None:
    sizes: list[int] = []
    number = 0

    async def on_get(exchange: Exchange) -> None:
        nonlocal number
        number += 1
        server.exchanges.clear()
        if number in (resumes // 4, resumes):
            gc.collect()
            sizes.append(len(gc.get_objects()))
            assert len(asyncio.all_tasks()) < 10 and server.open <= 2
        await exchange.head()
        if number == resumes:
            await exchange.send(event(result(), "end"))
        else:
            await exchange.send("retry: 0\n" + event(note(number), str(number)))
        # Each fourth breaks.
        await (exchange.end() if number % 4 else to_drop(exchange))

    async with lab(by_method(primed_and_closed, on_get)) as (server, client, _):
        response, received = await post(client, server.url, call()), 0
        async for message in messages(response):
            received, last = received + 1, message
        await response.aclose()
        assert received == number == resumes and last == result()
    assert sizes[1] - sizes[0] < 200, sizes


@pytest.mark.parametrize("how", ["task", "scope"])
async def test_streams_cancelled_at_any_time_leave_nothing_behind(how: str) -> None:
    async def on_post(exchange: Exchange) -> None:
        if b'"last"' in exchange.body:
            await exchange.head()
            await exchange.send(event(result("last")))
            return await exchange.end()
        await asyncio.sleep(0.002)
        await primed_and_closed(exchange)

    async def on_get(exchange: Exchange) -> None:
        number = len(server.exchanges)
        if number % 3 == 0:
            return exchange.drop()
        await asyncio.sleep(0.002)
        await exchange.head()
        await exchange.send(f"id: {number}\nretry: 2\n" + event(note(number)))
        await (exchange.end() if number % 3 == 1 else exchange.gone())

    async def streaming(after_s: float) -> None:
        async def run() -> None:
            await whole(await post(client, server.url, call(), mcp_session_id="s"))

        if how == "scope":
            with anyio.move_on_after(after_s):
                await run()
            return
        task = asyncio.ensure_future(run())
        await asyncio.wait([task], timeout=after_s)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled(), task

    # A place that a cancelled stream kept in the pool would be missing in the end. httpcore 1.0 under httpx keeps the
    # places of requests that are cancelled while they connect, with us or without us.
    keeps_places = LIBRARY.__name__ == "httpx"
    inner = LIBRARY.AsyncHTTPTransport(limits=LIBRARY.Limits(max_connections=None if keeps_places else 8))
    async with lab(by_method(on_post, on_get), inner, growth=1) as (server, client, transport):
        for number in range(0, 96, 8):
            await asyncio.gather(*(streaming((number + more) / 4_000) for more in range(8)))
        assert len(transport.streams) == 0
        await server.until(lambda: keeps_places or server.open <= 8)
        for _ in range(8):
            assert await whole(await post(client, server.url, call("last"))) == [result("last")]
