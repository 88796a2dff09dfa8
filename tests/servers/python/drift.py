"""Other versions of the SDK, made from the sources of the installed one while they are imported.

`TAILROPE_TEST_DRIFT` in the environment says which. Imported before anything of the SDK.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType
from typing import Any

TRANSPORT = "mcp.server.streamable_http"
MANAGER = "mcp.server.streamable_http_manager"
SECURITY = "mcp.server.transport_security"
BEARER = "mcp.server.auth.middleware.bearer_auth"

WRAPPED = """
import sys
_handle_request_of_the_sdk = StreamableHTTPServerTransport.handle_request

async def _traced(self, scope, receive, send):
    print("traced", file=sys.stderr, flush=True)
    await _handle_request_of_the_sdk(self, scope, receive, send)

StreamableHTTPServerTransport.handle_request = _traced
"""
COUNTED = """
import inspect, sys

def _counted(name, method):
    if inspect.iscoroutinefunction(method):
        async def counted(self, *args, **kwargs):
            print(f"counted {name}", file=sys.stderr, flush=True)
            return await method(self, *args, **kwargs)
    else:
        def counted(self, *args, **kwargs):
            print(f"counted {name}", file=sys.stderr, flush=True)
            return method(self, *args, **kwargs)
    return counted

for _name, _method in list(vars(StreamableHTTPServerTransport).items()):
    if _name.startswith("_") and _name != "_handle_request":
        continue
    if isinstance(_method, property):
        setattr(StreamableHTTPServerTransport, _name, property(_counted(_name, _method.fget)))
    elif inspect.isfunction(_method):
        setattr(StreamableHTTPServerTransport, _name, _counted(_name, _method))
"""
DERIVED = """
import sys

class TracedTransport(StreamableHTTPServerTransport):
    async def handle_request(self, scope, receive, send):
        print("traced", file=sys.stderr, flush=True)
        await super().handle_request(scope, receive, send)

StreamableHTTPServerTransport = TracedTransport
"""

APP = "        self.asgi_app = RequestBodyLimitMiddleware(self._handle_request, max_request_body_size)\n"
SLOTS = """__slots__ = (
        "app", "event_store", "json_response", "stateless", "security_settings", "retry_interval", "asgi_app",
        "session_idle_timeout", "max_request_body_size", "max_sessions", "_session_creation_lock", "_server_instances",
        "_session_owners", "_task_group", "_lifespan_state", "_run_lock", "_has_started", "__weakref__",
    )
"""

# By module: what of its source is replaced by what, everywhere. An empty text stands for the end.
DRIFTS: dict[str, dict[str, list[tuple[str, str]]]] = {
    "an argument more": {
        TRANSPORT: [("idle_timeout: float | None = None,", "idle_timeout: float | None = None, another: int = 7,")],
        MANAGER: [("idle_timeout=self.session_idle_timeout,", "idle_timeout=self.session_idle_timeout, another=5,")],
    },
    "an argument that is needed": {
        TRANSPORT: [
            ("is_json_response_enabled: bool = False,", "another: int, is_json_response_enabled: bool = False,")
        ],
        MANAGER: [("idle_timeout=self.session_idle_timeout,", "idle_timeout=self.session_idle_timeout, another=5,")],
    },
    "an attribute of another name": {TRANSPORT: [("_requests_in_flight", "_open_requests")]},
    "a method of another name": {TRANSPORT: [("_handle_request(", "_serve_request(")]},
    "another way to admit": {MANAGER: [("_admit_session", "_open_session")]},
    "a function of another name": {
        module: [("authorization_context", "whose")] for module in (BEARER, MANAGER, "mcp.server.sse")
    },
    "a class of another name": {
        module: [("TransportSecurityMiddleware", "SecurityMiddleware")]
        for module in (SECURITY, TRANSPORT, "mcp.server.sse", "mcp.server._streamable_http_modern")
    },
    "an argument more of a method": {
        TRANSPORT: [
            ("def close_sse_stream(self, request_id: RequestId)", "def close_sse_stream(self, request_id, retry=0)")
        ]
    },
    "the app before the store": {MANAGER: [(APP, ""), ("        self.app = app\n", f"        self.app = app\n{APP}")]},
    "an attribute of the manager of another name": {MANAGER: [("self.retry_interval", "self.retry_every")]},
    "an app in the class": {
        MANAGER: [("    async def handle_request(", "    asgi_app = None\n\n    async def handle_request(")]
    },
    "a manager with slots": {
        MANAGER: [("class StreamableHTTPSessionManager:\n", f"class StreamableHTTPSessionManager:\n    {SLOTS}\n")]
    },
    "a wrapped method": {TRANSPORT: [("", WRAPPED)]},
    "every method wrapped": {TRANSPORT: [("", COUNTED)]},
    "a derived class": {MANAGER: [("", DERIVED)]},
}


class Changed(SourceFileLoader):
    """Loads a module whose source is changed first."""

    changes: list[tuple[str, str]]

    def get_code(self, fullname: str) -> CodeType:
        source = self.get_data(self.path).decode()
        for old, new in self.changes:
            assert old in source, f"{fullname} has no {old!r}"
            # As a library of its own would do it.
            added = f"\nexec(compile({new!r}, 'tracing.py', 'exec'))\n"
            source = source.replace(old, new) if old else source + added
        code: CodeType = compile(source, self.path, "exec", dont_inherit=True)
        return code


class Finder:
    """Finds the modules that the drift changes."""

    def __init__(self, drift: dict[str, list[tuple[str, str]]]) -> None:
        self.drift = drift

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name not in self.drift:
            return None
        spec = PathFinder.find_spec(name, path, target)
        assert spec is not None and spec.origin is not None
        loader = spec.loader = Changed(name, spec.origin)
        loader.changes = self.drift[name]
        return spec


if wanted := os.environ.get("TAILROPE_TEST_DRIFT"):
    assert TRANSPORT not in sys.modules
    sys.meta_path.insert(0, Finder(DRIFTS[wanted]))  # type: ignore[arg-type]
