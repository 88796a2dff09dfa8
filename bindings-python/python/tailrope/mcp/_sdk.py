"""Where `mcp` 1.x and 2.x differ. No other module looks at the SDK's version."""

from __future__ import annotations

import logging
import sys
from contextvars import Context, ContextVar
from importlib import import_module
from typing import TYPE_CHECKING, Any

from mcp.shared.message import ServerMessageMetadata, SessionMessage
from pydantic import ValidationError

from tailrope import _telemetry
from tailrope._native import is_resumable, unwritable
from tailrope.mcp._seam import VERSION

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from starlette.requests import Request
    from starlette.types import Scope

logger = logging.getLogger("tailrope")

MAJOR = int(VERSION.split(".", 1)[0])

NOTIFICATION, REQUEST, RESPONSE = "notification", "request", "response"
"""The kinds of outgoing message."""


def _unwritable(kind: str, request_id: int | str | None, error: ValueError) -> bytes:
    """What is sent for a response that is no JSON, with a lone surrogate for one: its request needs an end.

    Raises:
        ValueError: it is no response; then its sender is told.
    """
    if kind is not RESPONSE:
        raise error
    logger.error("response to request %r cannot be written: %s", request_id, error)
    return unwritable(request_id)


# Sent for everybody; a handler that sends one of these does not mean its own request's stream.
_FOR_ALL = ("/list_changed", "notifications/resources/updated")

if MAJOR >= 2:
    from mcp_types import (
        JSONRPCError,
        JSONRPCNotification,
        JSONRPCRequest,
        JSONRPCResponse,
        jsonrpc_message_adapter,
    )

    _KINDS: dict[type, str] = {
        JSONRPCNotification: NOTIFICATION,
        JSONRPCRequest: REQUEST,
        JSONRPCResponse: RESPONSE,
        JSONRPCError: RESPONSE,
    }

    def parse(body: bytes) -> Any:
        """The SDK's message of a body.

        Raises:
            ValidationError: the SDK does not take it.
        """
        return jsonrpc_message_adapter.validate_json(body, by_name=False)

    def unwrap(message: Any) -> Any:
        """The message without the envelope that 1.x puts around it."""
        return message

    # The serializer itself skips half of what `model_dump_json` costs, for every event.
    _ENCODERS: dict[type, tuple[str, Any]] = {
        model: (kind, model.__pydantic_serializer__.to_json)  # type: ignore[attr-defined]
        for model, kind in _KINDS.items()
    }

    def _encoder_of(model: type) -> tuple[str, Any]:
        """That of a class which somebody has derived from one of the SDK's."""
        kind = _ENCODERS[next(base for base in model.__mro__ if base in _KINDS)][0]
        return kind, model.__pydantic_serializer__.to_json  # type: ignore[attr-defined]

    def dump(message: Any) -> bytes:
        """The message as the SDK's own transport writes it."""
        return outgoing(message)[2]

    def outgoing(message: Any) -> tuple[str, Any, bytes]:
        """The kind of an outgoing message, the message without its envelope, and how it is written."""
        kind, encode = _ENCODERS.get(type(message)) or _encoder_of(type(message))
        try:
            return kind, message, encode(message, by_alias=True, exclude_unset=True)
        except ValueError as error:
            return kind, message, _unwritable(kind, message.id if kind is RESPONSE else None, error)

    def related_request(item: SessionMessage) -> int | str | None:
        """The request that an outgoing message is related to."""
        metadata = item.metadata
        return metadata.related_request_id if isinstance(metadata, ServerMessageMetadata) else None

else:
    from mcp.server.lowlevel.server import request_ctx  # type: ignore[attr-defined, unused-ignore]
    from mcp.types import (
        JSONRPCError,
        JSONRPCMessage,
        JSONRPCNotification,
        JSONRPCRequest,
        JSONRPCResponse,
    )

    _KINDS = {
        JSONRPCNotification: NOTIFICATION,
        JSONRPCRequest: REQUEST,
        JSONRPCResponse: RESPONSE,
        JSONRPCError: RESPONSE,
    }

    def parse(body: bytes) -> Any:
        return JSONRPCMessage.model_validate_json(body)  # type: ignore[attr-defined, unused-ignore]

    def unwrap(message: Any) -> Any:
        return message.root

    _encode: Any = JSONRPCMessage.__pydantic_serializer__.to_json  # type: ignore[attr-defined, unused-ignore]

    def dump(message: Any) -> bytes:
        encoded: bytes = _encode(message, by_alias=True, exclude_none=True)
        return encoded

    def outgoing(message: Any) -> tuple[str, Any, bytes]:
        root = message.root
        kind = next(_KINDS[base] for base in type(root).__mro__ if base in _KINDS)
        try:
            return kind, root, dump(message)
        except ValueError as error:
            return kind, root, _unwritable(kind, root.id if kind is RESPONSE else None, error)

    def related_request(item: SessionMessage) -> int | str | None:
        metadata = item.metadata
        if isinstance(metadata, ServerMessageMetadata) and metadata.related_request_id is not None:
            return metadata.related_request_id
        # 1.x takes the integer id 0 for none. The handler's own context still knows it.
        context = request_ctx.get(None)
        if context is None or type(context.request_id) is not int or context.request_id != 0:
            return None
        method = getattr(unwrap(item.message), "method", "")
        return None if method.endswith(_FOR_ALL) else 0


class _Traced(ServerMessageMetadata):
    """For 1.x, which runs handlers in the context of the session. It asks for the request in the handler's task, before
    the handler: there the trace of the request goes on."""

    context: Context | None = None
    __repr__ = object.__repr__

    @property
    def request_context(self) -> object:
        if self.context is not None:
            _telemetry.go_on(self.context)
        return self._request

    @request_context.setter
    def request_context(self, request: object) -> None:
        self._request = request


def metadata(
    request: Request,
    *,
    json_response: bool,
    close: Callable[[], Awaitable[None]] | None = None,
    close_standalone: Callable[[], Awaitable[None]] | None = None,
    on_unanswered: Callable[[], Awaitable[None]] | None = None,
    context: Context | None = None,
) -> ServerMessageMetadata:
    """What the SDK's own transport attaches to an inbound message. `context` is that of its handler."""
    if MAJOR >= 2:
        return ServerMessageMetadata(
            request_context=request,
            close_sse_stream=close,
            close_standalone_sse_stream=close_standalone,
            on_request_unanswered=on_unanswered,
            can_send_request=not json_response,
        )
    made = ServerMessageMetadata if context is None or _telemetry.look() is None else _Traced
    found = made(request_context=request, close_sse_stream=close, close_standalone_sse_stream=close_standalone)
    if isinstance(found, _Traced):
        found.context = context
    return found


def spanned() -> Callable[[str], bool]:
    """Whether the SDK makes a span itself for a call of a method, in the session that the running request opens."""
    current = getattr(sys.modules.get("fastmcp.server.http"), "_current_http_request", None)
    if not isinstance(current, ContextVar) or current.get(None) is None:
        return lambda _method: MAJOR >= 2
    if MAJOR < 2:
        return lambda method: method.startswith(("tools/", "resources/", "prompts/"))
    settings = getattr(sys.modules.get("fastmcp"), "settings", None)
    return lambda _method: getattr(settings, "telemetry_mode", "native") == "native"


def settle(scope: Scope) -> None:
    """Lets the headers and the path of a request be read as ASGI has them, and more than once: a host may give any
    iterable, any buffers, and values that nobody can read."""
    if scope["type"] != "http":
        return
    headers = scope["headers"]
    if not isinstance(headers, list | tuple):
        headers = scope["headers"] = list(headers)
    if not all(type(part) is bytes for header in headers for part in header):
        scope["headers"] = [settled for header in headers if (settled := _settled(header)) is not None]
    if isinstance(raw := scope.get("raw_path"), str):
        scope["raw_path"] = raw.encode("utf-8", "surrogatepass")


def _settled(header: Iterable[Any]) -> tuple[bytes, ...] | None:
    try:
        return tuple(bytes(memoryview(part)) for part in header)
    except TypeError:
        return None


def header(scope: Scope, wanted: bytes) -> str | None:
    """A header of a request, as the SDK reads it: the first of its name, which is lower-case."""
    for name, value in scope["headers"]:
        if name == wanted:
            return bytes(value).decode("latin-1")
    return None


def modern_revision(scope: Scope) -> str | None:
    """The revision that a request names, where that has no sessions and the session manager gives it to the SDK's entry
    for 2026-07-28. 1.x has none, and refuses such a request itself."""
    revision = header(scope, b"mcp-protocol-version")
    return None if MAJOR < 2 or revision is None or is_resumable(revision) else revision


def session_versions() -> list[str] | None:
    """The revisions whose requests the session manager gives to sessions; None where it gives them all."""
    if MAJOR < 2:
        return None
    known = import_module("mcp.server.streamable_http_manager")
    # An SDK without this list may decide by anything: then no request that names one passes.
    return [it for it in getattr(known, "HANDSHAKE_PROTOCOL_VERSIONS", ()) if is_resumable(it)]


__all__ = [
    "MAJOR",
    "NOTIFICATION",
    "REQUEST",
    "RESPONSE",
    "VERSION",
    "ValidationError",
    "dump",
    "header",
    "metadata",
    "modern_revision",
    "outgoing",
    "parse",
    "related_request",
    "session_versions",
    "settle",
    "spanned",
    "unwrap",
]
