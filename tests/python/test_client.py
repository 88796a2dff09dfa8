"""The client's half: what an SDK, or a program without one, sees of streams whose connections end. (F-70 to F-80)"""

from __future__ import annotations

import asyncio
import gzip
import json
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from scripted import Exchange, Handler, scripted
from streams import (
    GET,
    LIBRARY,
    PRIMING,
    answered,
    by_method,
    call,
    event,
    get,
    lab,
    messages,
    note,
    post,
    primed_and_broken,
    primed_and_closed,
    refused,
    result,
    to_drop,
    whole,
)
from tailrope.client import Gap, ResumableTransport, Resume, TailropeError
from tailrope.client._library import retry_after_ms


@pytest.mark.parametrize("first", [primed_and_closed, primed_and_broken])
async def test_call_whose_connection_breaks_is_answered(first: Handler) -> None:
    resumes: list[Resume] = []
    async with lab(by_method(first, answered), on_resume=resumes.append) as (server, client, _):
        assert await whole(await post(client, server.url, call())) == [result()]
        assert [exchange.last_event_id for exchange in server.gets] == ["a"]
        assert server.gets[0].headers["accept"] == "text/event-stream"
        assert not [name for name in server.gets[0].headers if name.startswith("content-")]
    (resume,) = resumes
    assert (resume.last_event_id, resume.attempt, resume.requests) == ("a", 1, (1,)) and resume.delay_ms == 5


async def test_ids_do_not_reach_the_sdk() -> None:
    async def on_post(exchange: Exchange) -> None:
        await exchange.head(x_other="kept", mcp_session_id="s")
        await exchange.send(PRIMING + ": a comment\n\n" + event(note(1), "b") + "event: other\ndata: 1\ndata: 2\n\n")
        await exchange.send(event(result(), "c"))
        await exchange.end()

    async with lab(on_post) as (server, client, _):
        response = await post(client, server.url, call())
        assert response.headers["x-other"] == "kept" and response.headers["mcp-session-id"] == "s"
        body = await response.aread()
        want = event(note(1)) + "event: other\ndata: 1\ndata: 2\n\n" + event(result())
        assert body.decode().replace(" ", "") == want.replace(" ", "")


async def test_standalone_stream_comes_back() -> None:
    async def on_get(exchange: Exchange) -> None:
        number = len(server.gets)
        await exchange.head()
        await exchange.send(f"id: {number}\nretry: 5\n" + event(note(number)))
        if number < 5:
            await (exchange.end() if number % 2 else to_drop(exchange))
        else:
            await exchange.gone()

    async with lab(on_get) as (server, client, transport):
        response = await get(client, server.url)
        found = messages(response)
        assert [(await anext(found))["params"]["data"] for _ in range(5)] == [1, 2, 3, 4, 5]
        assert [exchange.last_event_id for exchange in server.gets] == [None, "1", "2", "3", "4"]
        assert len(transport.streams) == 1
        await response.aclose()


async def test_first_get_is_tried_again() -> None:
    async def on_get(exchange: Exchange) -> None:
        number = len(server.gets)
        if number == 1:
            exchange.drop()
        elif number < 4:
            await exchange.answer((503, 409)[number - 2])
        else:
            await exchange.head()
            await exchange.send(event(note("x")))
            await exchange.gone()

    async with lab(on_get) as (server, client, _):
        response = await get(client, server.url)
        assert response.status_code == 200 and len(server.gets) == 4
        assert await anext(messages(response)) == note("x")
        await response.aclose()


@pytest.mark.parametrize("status", [400, 401, 404, 405, 307])
async def test_refusal_of_a_first_get_reaches_the_sdk(status: int) -> None:
    async def on_get(exchange: Exchange) -> None:
        await exchange.answer(status, b"why", x_why="because", location="/other")

    async with lab(on_get) as (server, client, _):
        response = await get(client, server.url)
        assert (response.status_code, response.headers["x-why"], await response.aread()) == (status, "because", b"why")
        assert len(server.gets) == 1


async def test_first_get_without_a_server_is_the_networks_error() -> None:
    async with lab(refused, max_attempts=2) as (_, client, _):
        with pytest.raises(LIBRARY.ConnectError):
            await get(client, "http://127.0.0.1:9/mcp")


async def test_first_get_that_is_refused_for_too_long_gets_the_last_refusal() -> None:
    async def on_get(exchange: Exchange) -> None:
        await exchange.answer(503, str(len(server.gets)).encode())

    async with lab(on_get, max_attempts=2) as (server, client, _):
        response = await get(client, server.url)
        assert (response.status_code, await response.aread()) == (503, b"2")


async def test_failed_stream_answers_its_requests() -> None:
    async def on_post(exchange: Exchange) -> None:
        await exchange.head()
        await exchange.send(PRIMING + event(result("1"), "b"))
        exchange.drop()

    async with lab(by_method(on_post, refused)) as (server, client, _):
        first, *errors = await whole(await post(client, server.url, call(1, "1")))
        assert first == result("1")
        (error,) = errors
        assert error["id"] == 1 and error["error"]["data"] == {"tailrope": "session_lost"}


async def test_failed_standalone_stream_is_an_error_of_the_body() -> None:
    async def on_get(exchange: Exchange) -> None:
        if len(server.gets) == 1:
            await primed_and_closed(exchange)
        else:
            await exchange.answer(405)

    async with lab(on_get) as (server, client, _):
        response = await get(client, server.url)
        with pytest.raises(LIBRARY.ReadError) as raised:
            await whole(response)
        assert isinstance(raised.value, TailropeError) and raised.value.code == "no_stream"


@pytest.mark.parametrize("how", ["cancel", "close", "client"])
async def test_abort_in_a_wait_is_at_once(how: str) -> None:
    async def on_post(exchange: Exchange) -> None:
        await exchange.head()
        await exchange.send("id: a\nretry: 3600000\ndata: \n\n")
        await exchange.end()

    async with lab(by_method(on_post, answered)) as (server, client, transport):
        response = await post(client, server.url, call())
        reading = asyncio.ensure_future(whole(response))
        await server.until(lambda: server.exchanges and server.exchanges[0].ended_ms)
        await asyncio.sleep(0.05)
        began = time.monotonic()
        if how == "cancel":
            reading.cancel()
        elif how == "close":
            await response.aclose()
        else:
            await client.aclose()
        await asyncio.wait([reading])
        assert time.monotonic() - began < 5
        assert len(transport.streams) == 0 and not server.gets
        if how == "client":
            assert isinstance(reading.exception(), LIBRARY.ReadError)


@pytest.mark.parametrize("where", ["read", "connect"])
async def test_abort_lets_go_of_the_connection(where: str) -> None:
    async def silent(exchange: Exchange) -> None:
        await exchange.gone()

    async def primed(exchange: Exchange) -> None:
        await exchange.head()
        await exchange.send(PRIMING)
        await (exchange.gone() if where == "read" else exchange.end())

    async with lab(by_method(primed, silent)) as (server, client, transport):
        reading = asyncio.ensure_future(whole(await post(client, server.url, call())))
        await server.until(lambda: len(server.exchanges) == (1 if where == "read" else 2))
        await asyncio.sleep(0.05)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        assert len(transport.streams) == 0
        await server.until(lambda: server.open == 0)


@pytest.mark.parametrize("where", ["wait", "read", "unanswered", "connecting"])
async def test_cancelled_request_is_not_resumed(where: str) -> None:
    told = asyncio.Event()

    async def on_post(exchange: Exchange) -> None:
        if b"cancelled" in exchange.body:
            return await exchange.answer(202)
        if where == "unanswered":
            await told.wait()
        await exchange.head()
        await exchange.send(f"id: a\nretry: {10_000 if where == 'wait' else 5}\ndata: \n\n")
        await (exchange.end() if where in ("wait", "connecting") else exchange.gone())

    async def on_get(exchange: Exchange) -> None:
        assert where == "connecting"
        await exchange.gone()

    async with lab(by_method(on_post, on_get)) as (server, client, transport):

        async def calling() -> list[Any]:
            return await whole(await post(client, server.url, call(7), mcp_session_id="s"))

        reading = asyncio.ensure_future(calling())
        await server.until(lambda: len(server.exchanges) == (2 if where == "connecting" else 1))
        await server.until(lambda: len(transport.streams) == (where != "unanswered"))
        await asyncio.sleep(0.1)
        cancel = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 7}}
        # Another session's request of that id is another request.
        other = await post(client, server.url, cancel, mcp_session_id="other")
        await other.aclose()
        assert len(transport.streams) == (where != "unanswered")
        response = await post(client, server.url, cancel, mcp_session_id="s")
        told.set()
        assert response.status_code == 202
        await response.aclose()
        assert await reading == []
        await asyncio.sleep(0.4)
        assert len(server.gets) == (where == "connecting")


async def test_resumes_carry_the_newest_headers() -> None:
    async def on_post(exchange: Exchange) -> None:
        if exchange.headers.get("authorization") == "Bearer 2":
            return await exchange.answer(202)
        await exchange.head()
        await exchange.send("id: a\nretry: 200\ndata: \n\n")
        await exchange.end()

    async with lab(by_method(on_post, answered)) as (server, client, _):
        own = {"authorization": "Bearer 1", "mcp_session_id": "s", "mcp_protocol_version": "2025-11-25"}
        response = await post(client, server.url, call(), x_own="kept", **own)
        newer = await post(client, server.url, note(1), authorization="Bearer 2", mcp_session_id="s")
        await newer.aclose()
        assert await whole(response) == [result()]
        headers = server.gets[0].headers
        assert headers["authorization"] == "Bearer 2" and headers["x-own"] == "kept"
        assert headers["mcp-session-id"] == "s" and headers["mcp-protocol-version"] == "2025-11-25"


async def test_session_of_an_initialize_is_that_of_its_answer() -> None:
    async def on_post(exchange: Exchange) -> None:
        await exchange.head(mcp_session_id="fresh")
        await exchange.send(PRIMING)
        exchange.drop()

    async with lab(by_method(on_post, answered)) as (server, client, _):
        assert await whole(await post(client, server.url, call())) == [result()]
        assert server.gets[0].headers["mcp-session-id"] == "fresh"


async def test_headers_option_is_asked_before_each_resume() -> None:
    asked = 0

    async def headers() -> dict[str, str]:
        nonlocal asked
        asked += 1
        if asked == 2:
            raise RuntimeError("no token now")
        return {"Authorization": f"Bearer {asked}"}

    async def on_get(exchange: Exchange) -> None:
        await (primed_and_closed if len(server.gets) < 2 else answered)(exchange)

    async with lab(by_method(primed_and_closed, on_get), headers=headers) as (server, client, _):
        assert await whole(await post(client, server.url, call(), authorization="Bearer 0")) == [result()]
        told = [exchange.headers["authorization"] for exchange in server.exchanges]
        assert told == ["Bearer 0", "Bearer 1", "Bearer 3"]


async def test_two_sessions_share_no_headers() -> None:
    async with lab(by_method(primed_and_closed, answered)) as (server, client, _):
        first = await post(client, server.url, call(), authorization="Bearer 1", mcp_session_id="one")
        second = await post(client, server.url, call(), authorization="Bearer 2", mcp_session_id="two")
        assert [await whole(first), await whole(second)] == [[result()], [result()]]
        told = [(get.headers["mcp-session-id"], get.headers["authorization"]) for get in server.gets]
        assert told == [("one", "Bearer 1"), ("two", "Bearer 2")]


async def test_clients_without_a_session_share_no_headers() -> None:
    async with lab(by_method(primed_and_closed, answered)) as (server, client, _):
        first = await post(client, server.url, call(), authorization="Bearer 1")
        second = await post(client, server.url, call(), authorization="Bearer 2", mcp_protocol_version="2025-06-18")
        assert [await whole(first), await whole(second)] == [[result()], [result()]]
        told = [(get.headers["authorization"], get.headers.get("mcp-protocol-version")) for get in server.gets]
        assert told == [("Bearer 1", None), ("Bearer 2", "2025-06-18")]


async def test_redirects_of_resumes_stay_on_the_origin() -> None:
    async def elsewhere(exchange: Exchange) -> None:
        await answered(exchange)

    async def on_get(exchange: Exchange) -> None:
        if exchange.target == "/moved":
            await exchange.answer(302, location=f"{other.url}?x")
        else:
            await exchange.answer(307, location="/moved")

    async with scripted(elsewhere) as other, lab(by_method(primed_and_closed, on_get)) as (server, client, _):
        (error,) = await whole(await post(client, server.url, call(), authorization="Bearer 1"))
        assert error["error"]["data"] == {"tailrope": "unexpected_answer"}
        assert [exchange.target for exchange in server.gets] == ["/mcp", "/moved"]
        assert server.gets[1].headers["authorization"] == "Bearer 1" and server.gets[1].last_event_id == "a"
        assert not other.exchanges


@pytest.mark.parametrize("version", ["2026-07-28", "2027-01-01"])
async def test_revision_without_resumption_passes(version: str) -> None:
    async with lab(by_method(primed_and_closed, answered)) as (server, client, _):
        response = await post(client, server.url, call(), mcp_protocol_version=version)
        assert (await response.aread()).decode() == PRIMING
        assert not server.gets


async def test_other_exchanges_pass() -> None:
    async def on_request(exchange: Exchange) -> None:
        if exchange.method == "POST":
            await exchange.answer(200, b'{"a":1}', content_type="application/json")
        else:
            await exchange.answer(204 if exchange.method == "DELETE" else 503)

    async with lab(on_request) as (server, client, transport):
        assert (await client.post(server.url, json=call())).json() == {"a": 1}
        assert (await client.delete(server.url)).status_code == 204
        # No stream is wanted, so nothing is tried again.
        assert (await client.get(server.url, headers={"accept": "application/json"})).status_code == 503

        async def body() -> AsyncIterator[bytes]:
            yield json.dumps(call()).encode()

        size = {"content-length": str(len(json.dumps(call())))}
        assert (await client.post(server.url, content=body(), headers=size)).json() == {"a": 1}
        assert len(server.exchanges) == 4 and len(transport.streams) == 0


async def test_everything_passes_when_it_is_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAILROPE_DISABLE", "1")
    async with lab(by_method(primed_and_closed, answered)) as (server, client, _):
        response = await post(client, server.url, call())
        assert (await response.aread()).decode() == PRIMING
        assert not server.gets


async def test_gaps_are_told() -> None:
    async def on_get(exchange: Exchange) -> None:
        if len(server.gets) == 2:
            return await exchange.answer(400)
        await exchange.head()
        await exchange.send("id: a\nretry: 5\ndata: \n\n: gap 3 4\n\n")
        await (exchange.end() if len(server.gets) == 1 else exchange.gone())

    gaps: list[Gap] = []
    async with lab(on_get, on_gap=gaps.append) as (server, client, _):
        response = await get(client, server.url)
        reading = asyncio.ensure_future(whole(response))
        await server.until(lambda: len(gaps) == 3)
        assert gaps == [Gap(3, 4), Gap(None, None), Gap(3, 4)]
        assert [exchange.last_event_id for exchange in server.gets] == [None, "a", None]
        reading.cancel()
        await asyncio.wait([reading])


async def test_callback_that_raises_harms_no_stream(caplog: pytest.LogCaptureFixture) -> None:
    def on_resume(resume: Resume) -> None:
        raise RuntimeError("a watcher's own fault")

    async with lab(by_method(primed_and_closed, answered), on_resume=on_resume) as (server, client, _):
        assert await whole(await post(client, server.url, call())) == [result()]
    assert "a watcher's own fault" in caplog.text


async def test_proxies_of_the_environment_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "no_proxy", "NO_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    async with scripted(by_method(primed_and_closed, answered)) as proxy:
        monkeypatch.setenv("http_proxy", proxy.url.removesuffix("/mcp"))
        monkeypatch.setenv("no_proxy", "localhost")
        async with lab(by_method(primed_and_closed, answered)) as (server, client, _):
            assert await whole(await post(client, "http://mcp.example/mcp", call())) == [result()]
            assert [exchange.target for exchange in proxy.exchanges] == ["http://mcp.example/mcp"] * 2
            assert await whole(await post(client, server.url.replace("127.0.0.1", "localhost"), call())) == [result()]
            assert len(server.exchanges) == 2 and len(proxy.exchanges) == 2


async def test_schedule_is_the_hosts() -> None:
    waits: list[int] = []
    cancelled: list[int] = []

    def schedule(delay_ms: int, wake: Any) -> Any:
        waits.append(delay_ms)
        timer = asyncio.get_running_loop().call_later(delay_ms / 1_000, wake)
        return lambda: (cancelled.append(delay_ms), timer.cancel())

    async with lab(by_method(primed_and_closed, answered), schedule=schedule) as (server, client, _):
        assert await whole(await post(client, server.url, call())) == [result()]
        assert len(waits) == len(cancelled) == 1 and 0 < waits[0] <= 6


async def test_compressed_stream_is_read() -> None:
    async def on_post(exchange: Exchange) -> None:
        await exchange.head(content_encoding="gzip")
        await exchange.send(gzip.compress((PRIMING + event(result(), "b")).encode()))
        await exchange.end()

    async with lab(on_post) as (server, client, _):
        assert await whole(await post(client, server.url, call())) == [result()]


async def test_connection_that_is_silent_is_given_up() -> None:
    async def on_post(exchange: Exchange) -> None:
        await exchange.head()
        await exchange.send(PRIMING)
        await exchange.gone()

    async with lab(by_method(on_post, answered), max_silence_ms=100) as (server, client, _):
        response = await post(client, server.url, call())
        assert await whole(response) == [result()]


async def test_connection_without_an_answer_is_given_up() -> None:
    async def on_get(exchange: Exchange) -> None:
        await (exchange.gone if len(server.gets) == 1 else lambda: answered(exchange))()

    # Whoever connects waits for ever here: it is the stream that gives up.
    options: dict[str, Any] = {"max_silence_ms": 1_000}
    async with lab(by_method(primed_and_closed, on_get), **options) as (server, client, _):
        request = client.build_request("POST", server.url, json=call(), timeout=None)
        assert await whole(await client.send(request, stream=True)) == [result()]
        # Where this process stood still, an answer may have come too late.
        asked = [exchange.last_event_id for exchange in server.gets]
        assert len(asked) >= 2 and set(asked) == {"a"}


async def test_first_get_without_an_answer_is_given_up() -> None:
    async def on_get(exchange: Exchange) -> None:
        await exchange.gone()

    async with lab(on_get, max_silence_ms=500, max_attempts=2) as (server, client, _):
        with pytest.raises(LIBRARY.ReadTimeout):
            await client.send(client.build_request("GET", server.url, headers=GET, timeout=None), stream=True)
        assert len(server.gets) == 2


def test_without_an_asyncio_loop_it_says_so() -> None:
    request = LIBRARY.Request("POST", "http://127.0.0.1:9/mcp", json=call())
    with pytest.raises(TailropeError, match="asyncio"):
        ResumableTransport().handle_async_request(request).send(None)


def test_retry_after_is_seconds_or_a_date() -> None:
    date = "Wed, 21 Oct 2026 07:28:00 GMT"
    for headers, want in [
        ({"retry-after": "3"}, 3_000),
        ({"retry-after": "Wed, 21 Oct 2026 07:28:09 GMT", "date": date}, 9_000),
        ({"retry-after": "Wed, 21 Oct 2026 07:27:09 GMT", "date": date}, 0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "-3"}, None),
        ({}, None),
    ]:
        assert retry_after_ms(headers) == want, headers
    assert retry_after_ms({"retry-after": "9" * 400}) is not None
