"""Handlers of 2026-07-28 that ask their client: the SDK has no way for them, and a task has one.

Nothing of what is used here is public. An SDK that has it no more refuses as before.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from contextvars import ContextVar
from functools import wraps
from typing import TYPE_CHECKING, Any

from tailrope.mcp import _hosts
from tailrope.mcp._runs import CALL
from tailrope.mcp._seam import VERSION

if TYPE_CHECKING:
    from tailrope.mcp._hosts import Hook

logger = logging.getLogger("tailrope")

_is_warned = False
_imported = 0
"""How many modules there were when the hooks were put in."""
_is_asking: ContextVar[bool] = ContextVar("tailrope_is_asking", default=False)
"""A handler of fastmcp asks: fastmcp refuses that by the revision, before the SDK can."""


def patch() -> None:
    """Lets handlers of calls that may become tasks ask. To be called again: libraries may be imported later."""
    global _is_warned, _imported
    imported = len(sys.modules)
    if imported == _imported:
        return
    _imported = imported
    _hosts.put(_HOOKS)
    if not _is_warned and not _hosts.has(_HOOKS[0]):
        _is_warned = True
        logger.warning("mcp %s has no place where handlers could ask their clients in tasks: it refuses", VERSION)


def unpatch() -> None:
    global _imported
    _imported = 0
    _hosts.take(_HOOKS)


def _request_of(outbound: Any) -> Any:
    """The request whose answer a channel of the SDK's writes."""
    return getattr(getattr(outbound, "message_metadata", None), "request_context", None)


def _call_of(request: Any) -> Any:
    """The call whose run a request is."""
    return (getattr(request, "scope", None) or {}).get(CALL)


def _sdk_send(stock: Any) -> Any:
    @wraps(stock)
    async def send_raw_request(self: Any, method: str, params: Any, opts: Any = None) -> Any:
        call = _call_of(_request_of(self))
        answer = None
        if call is not None:
            limit = asyncio.timeout((opts or {}).get("timeout"))
            try:
                async with limit:
                    answer = await call.ask(method, params)
            except TimeoutError:
                if limit.expired():
                    raise _timed_out(method) from None
                raise
        return await stock(self, method, params, opts) if answer is None else answer

    return send_raw_request


def _sdk_send_request(stock: Any) -> Any:
    @wraps(stock)
    async def send_request(
        self: Any,
        request: Any,
        result_type: Any,
        request_read_timeout_seconds: float | None = None,
        metadata: Any = None,
        progress_callback: Any = None,
    ) -> Any:
        # A request that names none goes to the session's own stream. There is none, and the call that runs asks.
        own: Any = getattr(self, "_request_outbound", None)
        if getattr(metadata, "related_request_id", None) is None and _call_of(_request_of(own)) is not None:
            from mcp.shared.message import ServerMessageMetadata

            metadata = ServerMessageMetadata(related_request_id=own.request_id)
        return await stock(self, request, result_type, request_read_timeout_seconds, metadata, progress_callback)

    return send_request


def _timed_out(method: str) -> Exception:
    """What the SDK raises for a question that has no answer in time."""
    from mcp.shared.exceptions import MCPError  # type: ignore[attr-defined, unused-ignore]
    from mcp_types import REQUEST_TIMEOUT

    return MCPError(code=REQUEST_TIMEOUT, message=f"Request {method!r} timed out")


def _fastmcp_elicit(stock: Any) -> Any:
    @wraps(stock)
    async def elicit(self: Any, *args: Any, **kwargs: Any) -> Any:
        token = _is_asking.set(True)
        try:
            return await stock(self, *args, **kwargs)
        finally:
            _is_asking.reset(token)

    return elicit


def _fastmcp_is_modern(stock: Any) -> Any:
    @wraps(stock)
    def _is_modern_protocol(self: Any) -> Any:
        if _is_asking.get() and _call_of(getattr(self.request_context, "request", None)) is not None:
            return False
        return stock(self)

    return _is_modern_protocol


_HOOKS: tuple[Hook, ...] = (
    ("mcp.server._streamable_http_modern", "_SingleExchangeDispatchContext.send_raw_request", _sdk_send),
    ("mcp.server.session", "ServerSession.send_request", _sdk_send_request),
    ("fastmcp.server.context", "Context.elicit", _fastmcp_elicit),
    ("fastmcp.server.context", "Context._is_modern_protocol", _fastmcp_is_modern),
)
