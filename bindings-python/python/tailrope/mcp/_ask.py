"""Handlers of 2026-07-28 that ask their client: the SDK has no way for them, and a task has one."""

from __future__ import annotations

import asyncio
import sys
from functools import wraps
from inspect import iscoroutinefunction
from typing import Any

from tailrope.mcp._runs import CALL

_MODULE = "mcp.server._streamable_http_modern"
_OF_SDK = "_SingleExchangeDispatchContext"
_METHOD = "send_raw_request"
_stock: Any = None
_ours: Any = None


def patch() -> None:
    """Lets handlers of calls that may become tasks ask. Not public: an SDK that has it no more refuses as before."""
    global _stock, _ours
    place = getattr(sys.modules.get(_MODULE), _OF_SDK, None)
    stock = getattr(place, _METHOD, None)
    if _ours is None and stock is not None and iscoroutinefunction(stock):
        _stock, _ours = stock, _asking(stock)
        setattr(place, _METHOD, _ours)


def unpatch() -> None:
    global _stock, _ours
    place = getattr(sys.modules.get(_MODULE), _OF_SDK, None)
    if _ours is not None and getattr(place, _METHOD, None) is _ours:
        setattr(place, _METHOD, _stock)
        _stock = _ours = None


def _asking(stock: Any) -> Any:
    @wraps(stock)
    async def send_raw_request(self: Any, method: str, params: Any, opts: Any = None) -> Any:
        request = getattr(getattr(self, "message_metadata", None), "request_context", None)
        call = getattr(request, "scope", {}).get(CALL)
        answer = None
        if call is not None:
            timeout_s = (opts or {}).get("timeout")
            limit = asyncio.timeout(timeout_s)
            try:
                async with limit:
                    answer = await call.ask(method, params)
            except TimeoutError:
                if limit.expired():
                    raise _timed_out(method) from None
                raise
        return await stock(self, method, params, opts) if answer is None else answer

    return send_raw_request


def _timed_out(method: str) -> Exception:
    """What the SDK raises for a question that has no answer in time."""
    from mcp.shared.exceptions import MCPError  # type: ignore[attr-defined, unused-ignore]
    from mcp_types import REQUEST_TIMEOUT

    return MCPError(code=REQUEST_TIMEOUT, message=f"Request {method!r} timed out")
