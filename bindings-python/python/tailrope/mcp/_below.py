"""Below what others have put around the methods of the SDK's transport.

Tracing libraries replace methods of the SDK's class, before Tailrope is there or after it, and each of theirs calls the
SDK's own function in the end. So it is that function which asks whose session it is: it runs what the object has of its
own, or the SDK's code. The methods of our class only call those of the SDK's class.
"""

from __future__ import annotations

import gc
import inspect
import logging
import sys
from contextlib import asynccontextmanager
from functools import partial
from types import FunctionType
from typing import TYPE_CHECKING, Any

from mcp.server.streamable_http import StreamableHTTPServerTransport as StockTransport

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterator

logger = logging.getLogger("tailrope")

OWN = "_tailrope_"
"""What the names of an object's own methods begin with."""
stock: dict[str, Callable[..., Any]] = {}
"""The SDK's code, by the name of its method."""


def below(transport: Any, name: str) -> Callable[..., Any]:
    """What the SDK's method of this name does for this object."""
    own: Callable[..., Any] | None = getattr(transport, OWN + name, None)
    return partial(stock[name], transport) if own is None else own


# The code of these takes the place of the SDK's, with its module around it: so they name nothing of this one.


async def connect(self: Any) -> AsyncGenerator[Any, None]:
    from tailrope.mcp._below import below

    async with below(self, "connect")() as streams:
        yield streams


async def terminate(self: Any) -> None:
    from tailrope.mcp._below import below

    await below(self, "terminate")()


async def _handle_request(self: Any, scope: Any, receive: Any, send: Any) -> None:
    from tailrope.mcp._below import below

    await below(self, "_handle_request")(scope, receive, send)


def close_sse_stream(self: Any, request_id: Any) -> Any:
    from tailrope.mcp._below import below

    return below(self, "close_sse_stream")(request_id)


def close_standalone_sse_stream(self: Any) -> Any:
    from tailrope.mcp._below import below

    return below(self, "close_standalone_sse_stream")()


def is_terminated(self: Any) -> bool:
    from tailrope.mcp._below import below

    return bool(below(self, "is_terminated")())


_OURS: tuple[Any, ...] = (
    connect,
    terminate,
    _handle_request,
    close_sse_stream,
    close_standalone_sse_stream,
    is_terminated,
)


def _put() -> None:
    for ours in _OURS:
        name = ours.__name__
        found = next(_functions(name), None)
        if found is not None and _shape(found) == _shape(ours):
            copy = FunctionType(found.__code__, found.__globals__, name)
            stock[name] = asynccontextmanager(copy) if inspect.isasyncgenfunction(copy) else copy
            found.__code__ = ours.__code__
    if missed := [ours.__name__ for ours in _OURS if ours.__name__ not in stock]:
        # The SDK is compiled, or has other arguments.
        logger.warning("what others have put around %s of the SDK's transport does not run", ", ".join(missed))


def _shape(function: Any) -> Any:
    """What two functions have in common whose code can be exchanged."""
    code = function.__code__
    kind = inspect.iscoroutinefunction(function), inspect.isasyncgenfunction(function)
    return inspect.getargs(code), kind, code.co_freevars, function.__defaults__


def _functions(name: str) -> Iterator[FunctionType]:
    """The SDK's own function of a method, whatever is around it."""
    method: Any = vars(StockTransport).get(name)
    of_class: Any = inspect.unwrap(getattr(method, "fget", method))
    if _is_of_sdk(of_class, name):
        yield of_class
    # Not everything that is around a function says so.
    yield from (it for it in gc.get_objects() if _is_of_sdk(it, name))


def _is_of_sdk(it: Any, name: str) -> bool:
    """Whether this is the function of the SDK, and nothing that only has its name."""
    if type(it) is not FunctionType:
        return False
    code = it.__code__
    of_sdk = sys.modules[StockTransport.__module__].__file__
    return code.co_filename == of_sdk and code.co_qualname == f"{StockTransport.__qualname__}.{name}"


_put()
