"""What Tailrope uses of the SDK, and whether it is there. Imports nothing of the SDK before it is asked."""

from __future__ import annotations

import inspect
import re
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from tailrope._errors import TailropeError

if TYPE_CHECKING:
    from collections.abc import Callable

try:
    VERSION = version("mcp")
except PackageNotFoundError:
    VERSION = ""

SUPPORTED = "mcp 1.30 and later 1.x, mcp 2.2 and later 2.x"
_OLDEST = {1: (1, 30), 2: (2, 2)}

# Private names begin with an underscore. What is used only where it is there is not listed: the session manager's
# `_server_instances` and `_task_group`, without which sessions of other processes are not served (_elsewhere.py). Nor
# is `_admit_session`, which explicit ways alone need (_misfit_of_manager), or `_discard_session` (_patch.py). What
# fastmcp wraps event stores in is known by its name, and looked at when a server is made (_engage.check_manager).
_NAMES: dict[str, tuple[str, ...]] = {
    "mcp.server.streamable_http": (
        "EventMessage",
        "EventStore",
        "StreamableHTTPServerTransport.connect",
        "StreamableHTTPServerTransport.handle_request",
        "StreamableHTTPServerTransport._handle_request",
        "StreamableHTTPServerTransport.is_terminated",
        "StreamableHTTPServerTransport.terminate",
        "StreamableHTTPServerTransport.close_sse_stream",
        "StreamableHTTPServerTransport.close_standalone_sse_stream",
    ),
    "mcp.server.streamable_http_manager": (
        "StreamableHTTPServerTransport",
        "StreamableHTTPSessionManager.handle_request",
        "StreamableHTTPSessionManager.run",
    ),
    "mcp.server.transport_security": ("RequestBodyLimitMiddleware", "TransportSecurityMiddleware.validate_request"),
    "mcp.shared.message": ("ServerMessageMetadata", "SessionMessage"),
}
_OF_LINE: dict[int, dict[str, tuple[str, ...]]] = {
    1: {
        "mcp.server.lowlevel.server": ("request_ctx",),
        "mcp.types": (
            "JSONRPCError",
            "JSONRPCMessage",
            "JSONRPCNotification",
            "JSONRPCRequest",
            "JSONRPCResponse",
        ),
    },
    2: {
        "mcp_types": (
            "JSONRPCError",
            "JSONRPCNotification",
            "JSONRPCRequest",
            "JSONRPCResponse",
            "jsonrpc_message_adapter",
        ),
    },
}
_TRANSPORT = (
    "mcp_session_id",
    "is_json_response_enabled",
    "event_store",
    "security_settings",
    "retry_interval",
    "idle_timeout",
)
"""The arguments that the SDK's transport has to take. It may have further ones, with defaults."""

_MANAGER = (
    "app",
    "asgi_app",
    "event_store",
    "json_response",
    "max_request_body_size",
    "retry_interval",
    "security_settings",
    "session_idle_timeout",
    "stateless",
)
"""The attributes that the SDK's session manager has to have."""


def unsupported(difference: str) -> TailropeError:
    """The error for an SDK that Tailrope does not fit under."""
    found = f"mcp {VERSION}" if VERSION else "this environment"
    text = f"Tailrope does not fit under {found} (supported: {SUPPORTED}): {difference}."
    return TailropeError(text, "unsupported_sdk")


def unfit_version() -> str | None:
    """Why no SDK of this version is served under; None where its version is a supported one."""
    if not VERSION:
        return "the package mcp is not installed. Install it"
    if _line() < _OLDEST.get(_line()[0], (1,)):
        return "it is too old, and lacks what sessions are resumed with. Upgrade mcp"
    return None


def difference(*, explicit: bool = False) -> str | None:
    """How the SDK differs from what Tailrope was written for; None where it does not. `explicit` is for session
    managers that make our transports themselves."""
    if (unfit := unfit_version()) is not None:
        return unfit
    names = {**_NAMES, **_OF_LINE.get(_line()[0], {})}
    return _first(_missing, names.items()) or _misfit() or (_misfit_of_manager() if explicit else None)


def check(*, explicit: bool = False) -> None:
    """Raises TailropeError (code `unsupported_sdk`) where the SDK differs."""
    if (found := difference(explicit=explicit)) is not None:
        raise unsupported(found)


def _line() -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", VERSION)[:2])


def _first(ask: Callable[[Any], str | None], items: Any) -> str | None:
    return next((found for item in items if (found := ask(item)) is not None), None)


def _missing(names: tuple[str, tuple[str, ...]]) -> str | None:
    module_name, paths = names
    try:
        module = import_module(module_name)
    except ImportError as error:
        return f"its module {module_name} cannot be imported ({error})"
    for path in paths:
        place: Any = module
        for name in path.split("."):
            place = getattr(place, name, None)
        if place is None:
            return f"it has no {module_name}.{path}"
    return None


def _misfit() -> str | None:
    """What of the transport's class does not fit, although its names are there."""
    transport: Any = import_module("mcp.server.streamable_http")
    manager: Any = import_module("mcp.server.streamable_http_manager")
    stock, used = transport.StreamableHTTPServerTransport, manager.StreamableHTTPServerTransport
    if not inspect.isclass(used) or not issubclass(used, stock):
        return "its session manager makes its transports with something else than the class for them"
    parameters = inspect.signature(stock).parameters
    if missing := [name for name in _TRANSPORT if name not in parameters]:
        return f"its transport takes no {', '.join(missing)}"
    required = [name for name, it in parameters.items() if name not in _TRANSPORT and it.default is it.empty]
    if required := [name for name in required if parameters[name].kind not in _VARIADIC]:
        return f"its transport needs {', '.join(required)}, which Tailrope does not know"
    if not _calls(transport, stock.handle_request, "_handle_request"):
        return "its transport's handle_request does not call _handle_request"
    if not _calls(manager, manager.StreamableHTTPSessionManager.handle_request, "asgi_app"):
        return "its session manager's handle_request does not call asgi_app"
    sdk_manager = manager.StreamableHTTPSessionManager
    if missing := [it for it in _MANAGER if not _is_named_in(manager, sdk_manager, it)]:
        return f"its session manager has no {', '.join(missing)}"
    in_class = vars(sdk_manager)
    if "asgi_app" in in_class and not type(in_class["asgi_app"]).__module__.startswith("tailrope."):
        return "its session manager's class has an asgi_app of its own"
    if not sdk_manager.__dictoffset__:
        return "its session manager has __slots__"
    return None


def _misfit_of_manager() -> str | None:
    module: Any = import_module("mcp.server.streamable_http_manager")
    manager = module.StreamableHTTPSessionManager
    admit = getattr(manager, "_admit_session", None)
    if admit is None or inspect.iscoroutinefunction(admit):
        return "its session manager has no plain method _admit_session"
    if not _is_named_in(module, manager, "_admit_session"):
        return "its session manager does not call _admit_session"
    transport: Any = import_module("mcp.server.streamable_http").StreamableHTTPServerTransport
    return _first(_misfit_of_class, (manager, transport))


def _is_named_in(module: Any, kind: Any, name: str) -> bool:
    """Whether a method of a class that a module defines uses a name."""
    return any(_calls(module, method, name) for method in vars(kind).values() if callable(method))


def _misfit_of_class(theirs: Any) -> str | None:
    """Why objects of a class cannot become those of a class below it."""
    try:
        object.__new__(theirs).__class__ = type(theirs.__name__, (theirs,), {})
    except TypeError as error:
        return f"its {theirs.__name__} cannot be made one of ours ({error})"
    return None


def _calls(module: Any, method: Any, name: str) -> bool:
    """Whether a method that a module defines uses a name. True where somebody else's is around it: nothing is known."""
    code = getattr(inspect.unwrap(method), "__code__", None)
    return code is None or code.co_filename != module.__file__ or name in code.co_names


_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
