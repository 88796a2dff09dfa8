"""What the tests of the client's half share: a lab of a scripted server and a client, and the usual answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from kit.raw import Decoder
from scripted import Exchange, Handler, Scripted, scripted
from tailrope.client import ResumableTransport
from tailrope.client._library import library_of

LIBRARY = library_of(None)
PRIMING = "id: a\nretry: 5\ndata: \n\n"
GET = {"accept": "text/event-stream"}


def event(message: Any, id: str | None = None) -> str:
    return ("" if id is None else f"id: {id}\n") + f"data: {json.dumps(message)}\n\n"


def result(id: Any = 1, value: Any = "x") -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": id, "result": {"value": value}}


def note(value: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": value}}


def call(*ids: Any) -> Any:
    found = [{"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": {"name": "t"}} for id in ids or (1,)]
    return found if len(found) > 1 else found[0]


@asynccontextmanager
async def lab(
    handler: Handler, inner: Any = None, **options: Any
) -> AsyncIterator[tuple[Scripted, Any, ResumableTransport]]:
    """A scripted server, a client of the installed library, and its transport. Nothing is left of either at the end."""
    options = {"jitter": 0, "initial_delay_ms": 5, **options}
    transport = ResumableTransport(inner, **options)
    async with scripted(handler) as server:
        before = asyncio.all_tasks()
        async with asyncio.timeout(60), LIBRARY.AsyncClient(transport=transport, timeout=60) as client:
            yield server, client, transport
        assert len(transport.streams) == 0
        await server.until(lambda: server.open == 0)
        await server.until(lambda: not [task for task in asyncio.all_tasks() - before if not is_of(task, server)])


def is_of(task: asyncio.Task[Any], server: Scripted) -> bool:
    return "Scripted.serve" in repr(task.get_coro())


async def post(client: Any, url: str, message: Any, **headers: str) -> Any:
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    request = client.build_request("POST", url, json=message, headers=names)
    return await client.send(request, stream=True)


async def get(client: Any, url: str, **headers: str) -> Any:
    names = GET | {name.replace("_", "-"): value for name, value in headers.items()}
    return await client.send(client.build_request("GET", url, headers=names), stream=True)


async def messages(response: Any) -> AsyncIterator[Any]:
    decoder = Decoder()
    async for chunk in response.aiter_bytes():
        for found in decoder.feed(chunk):
            assert found.id is None and found.retry is None
            yield found.message


def cursor_of(token: str | None) -> str | None:
    """The event id that a stream would be continued from."""
    return None if token is None else json.loads(token)["lastEventId"]


async def whole(response: Any) -> list[Any]:
    try:
        return [message async for message in messages(response)]
    finally:
        await response.aclose()


def by_method(on_post: Handler, on_get: Handler) -> Handler:
    async def handler(exchange: Exchange) -> None:
        await (on_post if exchange.method == "POST" else on_get)(exchange)

    return handler


async def primed_and_closed(exchange: Exchange) -> None:
    await exchange.head()
    await exchange.send(PRIMING)
    await exchange.end()


async def primed_and_broken(exchange: Exchange) -> None:
    await exchange.head()
    await exchange.send(PRIMING)
    exchange.drop()


async def answered(exchange: Exchange) -> None:
    await exchange.head()
    await exchange.send(event(result(), "b"))
    await exchange.end()


async def refused(exchange: Exchange) -> None:
    await exchange.answer(404, b"{}", content_type="application/json")


async def to_drop(exchange: Exchange) -> None:
    exchange.drop()
