"""The HTTP libraries of the SDK lines: httpx under mcp 1.x, httpx2 under mcp 2.x. One is enough to be installed."""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import sys
import time
import urllib.request
from email.utils import parsedate_to_datetime
from typing import Any

from tailrope._errors import ErrorCode, TailropeError
from tailrope._runtime import running_loop

LIBRARIES = ("httpx", "httpx2")


def library_of(thing: Any) -> Any:
    """The library whose transport or client this is, or that of the installed SDK where it is of neither."""
    if thing is not None:
        for base in type(thing).__mro__:
            name = base.__module__.partition(".")[0]
            if name in LIBRARIES:
                return sys.modules[name]
    return importlib.import_module("httpx" if sdk_line() == 1 else "httpx2")


@functools.cache
def sdk_line() -> int:
    """The major version of the `mcp` package."""
    return int(importlib.metadata.version("mcp").split(".")[0])


@functools.cache
def body_class(library: Any) -> Any:
    """A response body of this library that another object gives out. It is its own iterator, not a generator: one that
    is dropped half read leaves nothing behind for the event loop to finish."""

    class Body(library.AsyncByteStream):  # type: ignore[misc]
        def __init__(self, source: Any) -> None:
            self._source = source

        def __aiter__(self) -> Any:
            return self

        async def __anext__(self) -> bytes:
            chunk: bytes | None = await self._source.read()
            if chunk is None:
                raise StopAsyncIteration
            return chunk

        async def aclose(self) -> None:
            await self._source.aclose()

    return Body


@functools.cache
def _error_class(library: Any) -> Any:
    # Readers of a body expect this library's errors, and so does the SDK.
    return type("StreamError", (TailropeError, library.ReadError), {"__module__": "tailrope.client"})


def stream_error(library: Any, text: str, code: ErrorCode) -> TailropeError:
    """A failure as an exception of both sides."""
    error: TailropeError = _error_class(library)(text, code)
    return error


class NotTaken(TailropeError):
    """What is asked for has no resumption (W-069): nothing of it is tried, nor tried again."""

    def __init__(self, revision: str) -> None:
        super().__init__(f"revision {revision} of the protocol has no resumption", "not_resumable")


def retry_after_ms(headers: Any) -> int | None:
    """`Retry-After`, which is a number of seconds or a date, in milliseconds from now."""
    text = headers.get("retry-after", "").strip()
    if text.isascii() and text.isdigit():
        return min(int(text[:15]) * 1_000, 2**62)
    try:
        until = parsedate_to_datetime(text).timestamp()
        now = parsedate_to_datetime(headers["date"]).timestamp() if "date" in headers else time.time()
    except (TypeError, ValueError):
        return None
    return max(0, int((until - now) * 1_000))


def default_transport(library: Any, **settings: Any) -> Any:
    """What a client of this library with these settings connects with by itself: straight, through the proxy that it is
    given, or through those that the environment names. A client that is given a transport looks at none of these."""
    proxies = {}
    if settings.get("proxy") is None and settings.get("trust_env", True):
        proxies = {name: url for name, url in urllib.request.getproxies().items() if name in ("http", "https", "all")}
    if not proxies:
        return library.AsyncHTTPTransport(**settings)

    class Proxied(library.AsyncBaseTransport):  # type: ignore[misc]
        def __init__(self) -> None:
            self._transports: dict[str | None, Any] = {}

        async def handle_async_request(self, request: Any) -> Any:
            url = request.url
            proxy = proxies.get(url.scheme, proxies.get("all"))
            if proxy is not None and urllib.request.proxy_bypass(url.host):
                proxy = None
            if proxy is not None and "://" not in proxy:
                proxy = f"http://{proxy}"
            transport = self._transports.get(proxy)
            if transport is None:
                transport = self._transports[proxy] = library.AsyncHTTPTransport(**{**settings, "proxy": proxy})
            return await transport.handle_async_request(request)

        async def aclose(self) -> None:
            while self._transports:
                _, transport = self._transports.popitem()
                await transport.aclose()

    return Proxied()


def need_asyncio() -> None:
    running_loop("tailrope.client needs asyncio: no asyncio event loop is running here")
