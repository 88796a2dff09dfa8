"""The settings of an `AsyncClient` that `http_client_factory` makes, as far as they are of its connections."""

from __future__ import annotations

import asyncio
import ssl
from typing import Any

import pytest
import tailrope.client
from tailrope.client._library import library_of

pytestmark = pytest.mark.ours

library = library_of(None)
OF_CONNECTIONS: dict[str, Any] = {
    "verify": ssl.create_default_context(),
    "cert": ("a.pem", "b.pem"),
    "http1": False,
    "http2": True,
    "limits": library.Limits(max_connections=3),
    "trust_env": False,
    "proxy": "http://localhost:1",
}


@pytest.mark.parametrize("name", OF_CONNECTIONS)
async def test_what_is_of_the_connections_reaches_them(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[dict[str, Any]] = []

    class Transport(library.AsyncBaseTransport):  # type: ignore[misc, name-defined]
        def __init__(self, **settings: Any) -> None:
            made.append(settings)

    monkeypatch.setattr(library, "AsyncHTTPTransport", Transport)
    tailrope.client.http_client_factory()(**{name: OF_CONNECTIONS[name]})
    assert made == [{name: OF_CONNECTIONS[name]}]


async def test_they_also_reach_the_connections_through_a_proxy_of_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []

    async def proxy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append((await reader.readline()).decode())
        while await reader.readline() != b"\r\n":
            pass
        writer.write(b"HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(proxy, "127.0.0.1", 0)
    address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    headers = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
    message = {"jsonrpc": "2.0", "method": "notifications/initialized"}

    async def post(**settings: Any) -> int:
        async with tailrope.client.http_client_factory()(headers, **settings) as client:
            status: int = (await client.post("http://there.invalid/mcp", json=message)).status_code
            return status

    assert await post(proxy=address) == 202
    monkeypatch.setenv("http_proxy", address)
    assert await post(verify=False) == 202
    with pytest.raises(library.ConnectError):
        await post(trust_env=False)
    assert asked == ["POST http://there.invalid/mcp HTTP/1.1\r\n"] * 2
    server.close()


async def test_a_transport_takes_their_place() -> None:
    inner = library.MockTransport(lambda _request: library.Response(204))
    async with tailrope.client.http_client_factory()(transport=inner) as client:
        assert (await client.get("http://there.invalid/")).status_code == 204
    with pytest.raises(ValueError, match="http2, verify: settings of connections"):
        tailrope.client.http_client_factory()(transport=inner, verify=False, http2=True)


@pytest.mark.parametrize("options", [{"max_attempts": -1}, {"nonsense": 1}, {"on_gap": 5}])
def test_what_is_wrong_is_told_where_it_is_given(options: Any) -> None:
    with pytest.raises((ValueError, TypeError), match=next(iter(options))):
        tailrope.client.http_client_factory(**options)


def test_nothing_goes_past_the_transport() -> None:
    with pytest.raises(ValueError, match="mounts: requests would go past"):
        tailrope.client.http_client_factory()(mounts={"https://": library.AsyncHTTPTransport()})
