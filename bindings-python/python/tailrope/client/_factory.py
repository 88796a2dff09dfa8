"""Clients with a resumable transport, for the one line that changes."""

from __future__ import annotations

import functools
from typing import Any, Protocol, Unpack

from tailrope.client._library import default_transport, library_of
from tailrope.client._options import OF_CONNECTIONS, ClientOptions, checked
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
    """A factory for `httpx_client_factory=`: its clients are the SDK's except their transport.

    Settings of an `AsyncClient` that are of its connections, as `verify` and `proxy` are, are those of the connections
    below our transport; `transport` takes their place. With `mounts` requests would go past it: ValueError.
    """
    # What is wrong is told where it is given.
    checked(options)

    def factory(headers: dict[str, str] | None = None, timeout: Any = None, auth: Any = None, **settings: Any) -> Any:
        if settings.get("mounts"):
            msg = "mounts: requests would go past the resumable transport. Give `transport`, or `proxy`"
            raise ValueError(msg)
        library = library_of(None)
        of_connections = {name: settings.pop(name) for name in OF_CONNECTIONS if name in settings}
        inner = settings.pop("transport", None)
        if inner is None:
            inner = default_transport(library, **of_connections)
        elif given := sorted(name for name in of_connections if name != "trust_env"):
            msg = f"{', '.join(given)}: settings of connections, which `transport` makes: give them to that"
            raise ValueError(msg)
        if "trust_env" in of_connections:
            # Also of the client's own: it looks for passwords.
            settings["trust_env"] = of_connections["trust_env"]
        stock_timeout, follow_redirects = stock_settings()
        return library.AsyncClient(
            transport=ResumableTransport(inner, **options),
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
