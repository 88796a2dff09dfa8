"""Faults around the client's half: callbacks, waits without an end, and closes that come at a bad moment."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import tailrope.client
from scripted import Exchange
from streams import (
    LIBRARY,
    answered,
    by_method,
    call,
    event,
    get,
    lab,
    messages,
    post,
    primed_and_closed,
    result,
    whole,
)
from tailrope.client import Resume


def broken_schedule(delay_ms: int, wake: Any) -> None:
    raise RuntimeError("no timers today")


async def test_schedule_that_raises_fails_its_stream(caplog: pytest.LogCaptureFixture) -> None:
    async with lab(by_method(primed_and_closed, answered), schedule=broken_schedule) as (server, client, transport):
        (error,) = await whole(await post(client, server.url, call()))
        assert error["id"] == 1 and error["error"]["data"] == {"tailrope": "gave_up"}
        assert len(transport.streams) == 0 and not server.gets
    assert "no timers today" in caplog.text


async def test_schedule_that_raises_before_a_stream_is_open_leaves_the_refusal() -> None:
    async def on_get(exchange: Exchange) -> None:
        await exchange.answer(503, b"later")

    async with lab(on_get, schedule=broken_schedule) as (server, client, transport):
        response = await get(client, server.url)
        assert (response.status_code, await response.aread()) == (503, b"later")
        assert len(transport.streams) == 0


async def test_schedule_whose_cancel_raises_harms_no_stream(caplog: pytest.LogCaptureFixture) -> None:
    def schedule(delay_ms: int, wake: Any) -> Any:
        asyncio.get_running_loop().call_later(delay_ms / 1_000, wake)
        # No function.
        return 3

    async with lab(by_method(primed_and_closed, answered), schedule=schedule) as (server, client, _):
        assert await whole(await post(client, server.url, call())) == [result()]
    assert "cancels the schedule" in caplog.text


async def test_wait_without_an_end_is_waited() -> None:
    async def on_post(exchange: Exchange) -> None:
        await exchange.head()
        await exchange.send(f"id: a\nretry: {'9' * 23}\ndata: \n\n")
        await exchange.end()

    async with lab(by_method(on_post, answered), give_up_after_ms=None) as (server, client, transport):
        reading = asyncio.ensure_future(whole(await post(client, server.url, call())))
        await server.until(transport.streams.export)
        done, _ = await asyncio.wait([reading], timeout=0.3)
        assert not done and not server.gets
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading


class SlowToClose(LIBRARY.AsyncByteStream):  # type: ignore[name-defined, misc]
    """A body that takes its time to be let go of."""

    def __init__(self, body: Any, closing: asyncio.Event) -> None:
        self._body, self._closing = body, closing

    def __aiter__(self) -> Any:
        return self._body.__aiter__()

    async def aclose(self) -> None:
        self._closing.set()
        await asyncio.sleep(0.3)
        await self._body.aclose()


async def test_delay_of_a_resume_is_that_which_the_machine_chose() -> None:
    async def on_get(exchange: Exchange) -> None:
        await (exchange.answer(503) if len(server.gets) == 1 else answered(exchange))

    class Inner(LIBRARY.AsyncHTTPTransport):  # type: ignore[name-defined, misc]
        async def handle_async_request(self, request: Any) -> Any:
            response = await super().handle_async_request(request)
            if response.status_code == 503:
                response.stream = SlowToClose(response.stream, closing)
            return response

    async def on_post(exchange: Exchange) -> None:
        await (exchange.answer(202) if b"cancelled" in exchange.body else primed_and_closed(exchange))

    closing = asyncio.Event()
    resumes: list[Resume] = []
    async with lab(by_method(on_post, on_get), Inner(), on_resume=resumes.append) as (server, client, _):
        reading = asyncio.ensure_future(whole(await post(client, server.url, call())))
        await closing.wait()
        await asyncio.sleep(0.15)
        # Another input, while the wait has begun and its connection is not let go of.
        other = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 99}}
        await (await post(client, server.url, other)).aclose()
        assert await reading == [result()]
    assert resumes[0].attempt == 1 and resumes[0].delay_ms >= 5
    assert resumes[1].attempt == 2 and 50 <= resumes[1].delay_ms < 150


async def test_rest_of_a_connection_is_let_go_of_before_anybody_reads_it() -> None:
    async def on_post(exchange: Exchange) -> None:
        await exchange.head()
        await exchange.send(event(result(), "b"))
        await exchange.gone()

    class Inner(LIBRARY.AsyncHTTPTransport):  # type: ignore[name-defined, misc]
        async def handle_async_request(self, request: Any) -> Any:
            responses.append(await super().handle_async_request(request))
            return responses[0]

        async def aclose(self) -> None:
            # The garbage collector would do it too, later.
            assert responses[0].is_closed
            await super().aclose()

    responses: list[Any] = []
    async with lab(on_post, Inner()) as (server, client, _):
        response = await post(client, server.url, call())
        assert await anext(messages(response)) == result()
        await client.aclose()


@pytest.mark.parametrize("is_owned", [True, False])
async def test_stream_that_is_closed_before_its_answer_lets_go_of_it(is_owned: bool) -> None:
    answer = asyncio.Event()

    async def on_post(exchange: Exchange) -> None:
        await answer.wait()
        await primed_and_closed(exchange)
        await exchange.gone()

    async with lab(on_post) as (server, _, _), LIBRARY.AsyncClient() as plain:
        found = tailrope.client.stream(server.url, message=call(), client=None if is_owned else plain)
        reading = asyncio.ensure_future(anext(found))
        await server.until(lambda: server.exchanges)
        await found.aclose()
        with pytest.raises(StopAsyncIteration):
            await asyncio.wait_for(reading, 5)
        answer.set()
        await server.until(lambda: server.open == 0)
        assert not server.gets
