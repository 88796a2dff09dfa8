"""The same tools on the SDK's lowlevel `Server`: behind the SDK's session manager, or with transports made by hand."""

import inspect
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Any

import anyio
from mcp.server.lowlevel import Server
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from .control import CONTROL
from .flavors import Ops, lifespan, seconds
from .tools import register

LINE = int(version("mcp").split(".")[0])


class LowContext:
    """A lowlevel context with the methods that the tools know from the other ones. `raw` is what a user has."""

    def __init__(self, raw: Any) -> None:
        self.raw = self.request_context = raw
        self.session, self.request_id = raw.session, raw.request_id

    async def report_progress(self, progress: float, total: float | None, message: str | None) -> None:
        meta = self.raw.meta
        token = meta.progressToken if LINE == 1 else meta["progress_token"]
        await self.session.send_progress_notification(token, progress, total, message, self.request_id)

    async def close_sse_stream(self) -> None:
        if self.raw.close_sse_stream is not None:
            await self.raw.close_sse_stream()

    async def close_standalone_sse_stream(self) -> None:
        if self.raw.close_standalone_sse_stream is not None:
            await self.raw.close_standalone_sse_stream()


def make(ops: Ops) -> Any:
    functions: dict[str, Callable[..., Any]] = {}

    def tool() -> Callable[[Any], Any]:
        return lambda function: functions.setdefault(function.__name__, function)

    register(tool, Any, ops)

    async def call(raw: Any, name: str, arguments: dict[str, Any]) -> str:
        function = functions[name]
        if "ctx" in inspect.signature(function).parameters:
            arguments = {**arguments, "ctx": LowContext(raw)}
        return str(await function(**arguments))

    if LINE == 1:
        from mcp import types

        server: Any = Server("lab", lifespan=lifespan)

        @server.list_tools()
        async def list_tools() -> list[Any]:
            return [types.Tool(name=name, inputSchema={"type": "object"}) for name in functions]

        @server.call_tool(validate_input=False)
        async def call_v1(name: str, arguments: dict[str, Any]) -> list[Any]:
            return [types.TextContent(type="text", text=await call(server.request_context, name, arguments))]

        @server.set_logging_level()
        async def level_v1(level: str) -> None:
            CONTROL.mark(f"level {level}")

        @server.subscribe_resource()
        async def subscribe_v1(uri: Any) -> None:
            CONTROL.mark(f"subscribed {uri}")

        @server.unsubscribe_resource()
        async def unsubscribe_v1(uri: Any) -> None:
            CONTROL.mark(f"unsubscribed {uri}")

        return server

    import mcp_types as types_v2

    async def call_v2(ctx: Any, params: Any) -> Any:
        answer = await call(ctx, params.name, params.arguments or {})
        return types_v2.CallToolResult(content=[types_v2.TextContent(type="text", text=answer)])

    async def list_v2(ctx: Any, params: Any) -> Any:
        tools = [types_v2.Tool(name=name, input_schema={"type": "object"}) for name in functions]
        return types_v2.ListToolsResult(tools=tools)

    async def level_v2(ctx: Any, params: Any) -> Any:
        CONTROL.mark(f"level {params.level}")
        return types_v2.EmptyResult()

    async def subscribe_v2(ctx: Any, params: Any) -> Any:
        CONTROL.mark(f"subscribed {params.uri}")
        return types_v2.EmptyResult()

    async def unsubscribe_v2(ctx: Any, params: Any) -> Any:
        CONTROL.mark(f"unsubscribed {params.uri}")
        return types_v2.EmptyResult()

    return Server(
        "lab",
        lifespan=lifespan,
        on_call_tool=call_v2,
        on_list_tools=list_v2,
        on_set_logging_level=level_v2,
        on_subscribe_resource=subscribe_v2,
        on_unsubscribe_resource=unsubscribe_v2,
    )


def managed(options: dict[str, Any], store: Any, retry_ms: int | None, ops: Ops) -> Any:
    """mcp 2.x builds the app itself; with 1.x users put its session manager into their own. The option `manager`
    has the arguments of ours."""
    kwargs = {name: options[name] for name in ("json_response", "max_sessions") if name in options}
    kwargs |= seconds(options, "idle_s")
    server = make(ops)
    if LINE >= 2 and "manager" not in options:
        return server.streamable_http_app(event_store=store, retry_interval=retry_ms, **kwargs)
    if "manager" in options:
        from tailrope.mcp import StreamableHTTPSessionManager as Manager

        kwargs |= options["manager"]
    else:
        from mcp.server.streamable_http_manager import StreamableHTTPSessionManager as Manager
    manager: Any = Manager(app=server, event_store=store, retry_interval=retry_ms, **kwargs)

    class Endpoint:
        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
            await manager.handle_request(scope, receive, send)

    @asynccontextmanager
    async def run(app: Starlette) -> AsyncIterator[None]:
        async with manager.run():
            yield

    return Starlette(routes=[Route("/mcp", endpoint=Endpoint())], lifespan=run)


class ByHand:
    """Transports made from the public class, as a user's own session manager would make them."""

    def __init__(self, options: dict[str, Any], store: Any, retry_ms: int | None, ops: Ops) -> None:
        self.server = make(ops)
        self.options: dict[str, Any] = {
            "event_store": store,
            "retry_interval": retry_ms,
        }
        self.transports: dict[str, Any] = {}
        self.tasks: Any = None

    async def open(self, session_id: str, **more: Any) -> Any:
        from tailrope.mcp import StreamableHTTPServerTransport

        transport = self.transports[session_id] = StreamableHTTPServerTransport(session_id, **self.options, **more)

        async def run(*, task_status: Any) -> None:
            async with transport.connect() as (read, write):
                task_status.started()
                await self.server.run(read, write, self.server.create_initialization_options())

        await self.tasks.start(run)
        return transport

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """/mcp opens sessions as managers do; /new opens the one named `current`, which has /current to itself."""
        if scope["path"] == "/new":
            if (old := self.transports.pop("current", None)) is not None:
                await old.terminate()
            await self.open("current", is_json_response_enabled=b"json_response" in scope["query_string"])
            await PlainTextResponse("")(scope, receive, send)
            return
        if scope["path"] == "/current":
            await self.transports["current"].handle_request(scope, receive, send)
            return
        session_id = next((value.decode() for name, value in scope["headers"] if name == b"mcp-session-id"), None)
        if session_id is None:
            transport = await self.open(uuid.uuid4().hex)
        elif (transport := self.transports.get(session_id)) is None:
            await PlainTextResponse("no such session", 404)(scope, receive, send)
            return
        await transport.handle_request(scope, receive, send)


def by_hand(options: dict[str, Any], store: Any, retry_ms: int | None, ops: Ops) -> Any:
    app = ByHand(options, store, retry_ms, ops)

    @asynccontextmanager
    async def run(host: Starlette) -> AsyncIterator[None]:
        async with anyio.create_task_group() as app.tasks:
            yield
            app.tasks.cancel_scope.cancel()

    return Starlette(routes=[Route(path, endpoint=app) for path in ("/mcp", "/current", "/new")], lifespan=run)
