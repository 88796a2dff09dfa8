"""Clients with a resumable transport, for the one line that changes."""

from __future__ import annotations

import functools
from typing import Any, Protocol, Unpack

from tailrope.client._library import library_of
from tailrope.client._options import ClientOptions
from tailrope.client._transport import ResumableTransport


class Factory(Protocol):
    """The signature of the SDK's `create_mcp_http_client`, with more settings of an `AsyncClient`, as fastmcp gives."""

    def __call__(
        self, headers: dict[str, str] | None = None, timeout: Any = None, auth: Any = None, **settings: Any
    ) -> Any: ...


@functools.cache
def stock_settings() -> tuple[Any, bool]:
    """Timeouts and redirects of the clients that the SDK makes by itself."""
    from mcp.shared._httpx_utils import create_mcp_http_client

    stock = create_mcp_http_client()
    return stock.timeout, stock.follow_redirects


def http_client_factory(**options: Unpack[ClientOptions]) -> Factory:
    """A factory for `httpx_client_factory=`: its clients are the SDK's except their transport."""

    def factory(headers: dict[str, str] | None = None, timeout: Any = None, auth: Any = None, **settings: Any) -> Any:
        transport = ResumableTransport(**options)
        stock_timeout, follow_redirects = stock_settings()
        return library_of(None).AsyncClient(
            transport=transport,
            headers=headers,
            timeout=stock_timeout if timeout is None else timeout,
            auth=auth,
            **{"follow_redirects": follow_redirects, **settings},
        )

    return factory


def http_client(**options: Unpack[ClientOptions]) -> Any:
    """An `AsyncClient` of the installed SDK's library, with the SDK's timeouts and redirects, whose streams come back:
    `async with http_client() as client, streamable_http_client(url, http_client=client) as streams`. The caller
    closes it. For headers, timeouts or authentication of all its requests take `http_client_factory`."""
    return http_client_factory(**options)()
