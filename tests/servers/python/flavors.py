"""One builder per server library: the same tools, the same options, whatever names the library gives them."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from importlib.metadata import version
from typing import Any

from .tools import register

TOKENS = {
    "alice-token": {"client_id": "alice", "scopes": ["use"], "subject": "alice"},
    "alice-second-token": {"client_id": "alice", "scopes": ["use"], "subject": "alice"},
    "bob-token": {"client_id": "bob", "scopes": ["use"], "subject": "bob"},
}
LIFESPAN = {"pool": "ready"}


class Ops:
    """What the tools need and the libraries spell differently."""

    def __init__(self, tailrope: bool) -> None:
        self.tailrope = tailrope

    async def close(self, ctx: Any, retry_ms: int | None, hold_ms: int | None) -> None:
        if self.tailrope and (retry_ms is not None or hold_ms is not None):
            import tailrope

            await tailrope.close_sse_stream(ctx, retry_ms=retry_ms, hold_ms=hold_ms)
        else:
            await ctx.close_sse_stream()

    async def close_standalone(self, ctx: Any) -> None:
        if hasattr(ctx, "close_standalone_sse_stream"):
            await ctx.close_standalone_sse_stream()
            return
        # fastmcp's context only has the other one; the SDK's own context underneath has both.
        inner = getattr(ctx.request_context, "_srctx", ctx.request_context)
        if inner.close_standalone_sse_stream is not None:
            await inner.close_standalone_sse_stream()

    async def sample(self, ctx: Any, text: str) -> Any:
        try:
            from mcp_types import SamplingMessage, TextContent
        except ImportError:
            from mcp.types import SamplingMessage, TextContent
        message = SamplingMessage(role="user", content=TextContent(type="text", text=text))
        return await ctx.session.create_message([message], max_tokens=9, related_request_id=ctx.request_id)

    def access_token(self) -> Any:
        from mcp.server.auth.middleware.auth_context import get_access_token

        return get_access_token()

    def lifespan(self, ctx: Any) -> Any:
        return ctx.request_context.lifespan_context


class FastOps(Ops):
    def access_token(self) -> Any:
        from fastmcp.server.dependencies import get_access_token

        return get_access_token()


@asynccontextmanager
async def lifespan(server: Any) -> AsyncIterator[dict[str, str]]:
    yield LIFESPAN


class Verifier:
    """Fixed tokens; the SDK's protocol asks for this one method."""

    async def verify_token(self, token: str) -> Any:
        from mcp.server.auth.provider import AccessToken

        if token not in TOKENS:
            return None
        fields = {name: value for name, value in TOKENS[token].items() if name in AccessToken.model_fields}
        return AccessToken(token=token, expires_at=None, **fields)


def auth_settings() -> Any:
    from mcp.server.auth.settings import AuthSettings

    return AuthSettings.model_validate(
        {"issuer_url": "http://127.0.0.1:1/", "resource_server_url": "http://127.0.0.1:1/", "required_scopes": ["use"]}
    )


def seconds(options: dict[str, Any], name: str) -> dict[str, Any]:
    return {"session_idle_timeout": options[name]} if name in options else {}


def mcp_v1(options: dict[str, Any], store: Any, retry_ms: int | None, ops: Ops) -> Any:
    from mcp.server.fastmcp import Context, FastMCP

    kwargs: dict[str, Any] = seconds(options, "idle_s")
    if options.get("auth"):
        kwargs |= {"auth": auth_settings(), "token_verifier": Verifier()}
    for name in ("json_response", "stateless_http", "max_request_body_size", "max_sessions"):
        if name in options:
            kwargs[name] = options[name]
    server = FastMCP("lab", lifespan=lifespan, event_store=store, retry_interval=retry_ms, **kwargs)
    register(server.tool, Context, ops)
    add_route(server)
    return server.streamable_http_app()


def shared_seal() -> Any:
    """Processes that share a store open what each of them has sealed."""
    from mcp.server.request_state import RequestStateSecurity

    return RequestStateSecurity(keys=[b"k" * 32])


def mcp_v2(options: dict[str, Any], store: Any, retry_ms: int | None, ops: Ops) -> Any:
    from mcp.server.mcpserver import Context, MCPServer

    from .tasked import register_tasked

    made: dict[str, Any] = {"request_state_security": shared_seal()}
    if options.get("auth"):
        made |= {"auth": auth_settings(), "token_verifier": Verifier()}
    server = MCPServer("lab", lifespan=lifespan, log_level="WARNING", **made)
    register(server.tool, Context, ops)
    register_tasked(server.tool, Context)
    add_route(server)
    kwargs: dict[str, Any] = seconds(options, "idle_s")
    for name in ("json_response", "stateless_http", "max_request_body_size", "max_sessions"):
        if name in options:
            kwargs[name] = options[name]
    return server.streamable_http_app(event_store=store, retry_interval=retry_ms, **kwargs)


def fastmcp(options: dict[str, Any], store: Any, retry_ms: int | None, ops: Ops) -> Any:
    from fastmcp import Context, FastMCP
    from fastmcp.server import http

    made: dict[str, Any] = {}
    if options.get("auth"):
        from fastmcp.server.auth.providers.jwt import StaticTokenVerifier

        tokens = {
            token: {"client_id": of["client_id"], "scopes": of["scopes"], "sub": of["subject"]}
            for token, of in TOKENS.items()
        }
        made["auth"] = StaticTokenVerifier(tokens=tokens, required_scopes=["use"])
    if "idle_s" in options:
        # fastmcp has no option for it, but its manager reads the SDK's attribute.
        original = http.FastMCPStreamableHTTPSessionManager.__init__

        def patched(self: Any, *args: Any, **kwargs: Any) -> None:
            original(self, *args, **kwargs)
            self.session_idle_timeout = options["idle_s"]

        http.FastMCPStreamableHTTPSessionManager.__init__ = patched  # type: ignore[method-assign]
    has_tasks = version("mcp").startswith("2.")
    if has_tasks:
        made["request_state_security"] = shared_seal()
    server = FastMCP("lab", lifespan=lifespan, **made)
    register(server.tool, Context, FastOps(ops.tailrope))
    if has_tasks:
        from .tasked import register_tasked

        register_tasked(server.tool, Context)
    add_route(server)
    kwargs = {name: options[name] for name in ("json_response", "stateless_http") if name in options}
    return server.http_app(event_store=store, retry_interval=retry_ms, **kwargs)


def add_route(server: Any) -> None:
    from starlette.requests import Request
    from starlette.responses import JSONResponse

    @server.custom_route("/health", methods=["GET"])
    async def health(request: Request) -> JSONResponse:
        return JSONResponse({"health": "good"})


BUILDERS = {"mcp1": mcp_v1, "mcp2": mcp_v2, "fastmcp3": fastmcp, "fastmcp4": fastmcp}


def installed() -> list[str]:
    """The flavours that this interpreter can run."""
    line = version("mcp").split(".")[0]
    flavors = [f"mcp{line}"]
    with suppress(ModuleNotFoundError):
        flavors.append(f"fastmcp{version('fastmcp').split('.')[0]}")
    return [flavor for flavor in flavors if flavor in BUILDERS]


if __name__ == "__main__":
    print(json.dumps(installed()))
