"""The Python server that the conformance suite asks: python server.py [--transport tailrope|stock] [--front].

Listens on a free port of the loopback, prints `READY PORT`, and ends when its standard input does. What it offers is
in everything.json; here is only what a tool does beyond its fixed result.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
import sys
import warnings
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import mcp_types as types
import uvicorn
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPDeprecationWarning, MCPError

EVERYTHING = json.loads((Path(__file__).parent / "everything.json").read_text())
TOOLS = {entry["tool"]["name"]: entry for entry in EVERYTHING["tools"]}
RESOURCES = {entry["resource"]["uri"]: entry for entry in EVERYTHING["resources"]}
PROMPTS = {entry["prompt"]["name"]: entry for entry in EVERYTHING["prompts"]}
LEVELS = ["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"]
PAUSE_S = 0.05

# Logging and sampling are deprecated with the revision after the one that is asked for here.
warnings.simplefilter("ignore", MCPDeprecationWarning)

# By session; what is below a session's level is not sent.
log_levels: dict[str, str] = {}


def session_of(ctx: Any) -> str:
    return str(ctx.request.headers.get("mcp-session-id"))


async def act(entry: dict[str, Any], arguments: dict[str, Any], ctx: Any) -> str:
    """What the tool's entry orders. Notifications and questions belong to the call, and go where its answer goes."""
    for line in entry.get("logs", []):
        if LEVELS.index("info") >= LEVELS.index(log_levels.get(session_of(ctx), "debug")):
            await ctx.session.send_log_message("info", line, related_request_id=ctx.request_id)
        await asyncio.sleep(PAUSE_S)
    for done in entry.get("progress", []):
        await ctx.session.report_progress(done, 100)
        await asyncio.sleep(PAUSE_S)
    if "closes" in entry:
        if ctx.close_sse_stream is not None:
            await ctx.close_sse_stream()
        await asyncio.sleep(2 * PAUSE_S)
    if "samples" in entry:
        question = types.SamplingMessage(role="user", content=types.TextContent(type="text", text=arguments["prompt"]))
        answer = await ctx.session.create_message([question], max_tokens=100, related_request_id=ctx.request_id)
        return f"LLM response: {answer.content.text}"
    if "elicits" in entry:
        asked = {"message": arguments.get("message"), **entry["elicits"]}
        answer = await ctx.session.elicit_form(asked["message"], asked["requestedSchema"], ctx.request_id)
        return f"User response: action={answer.action}, content={json.dumps(answer.content)}"
    return "done"


async def call_tool(ctx: Any, params: Any) -> Any:
    entry = TOOLS.get(params.name)
    if entry is None:
        raise MCPError(types.INVALID_PARAMS, f"no tool {params.name}")
    if "result" in entry:
        return types.CallToolResult.model_validate(entry["result"])
    text = await act(entry, params.arguments or {}, ctx)
    return types.CallToolResult(content=[types.TextContent(type="text", text=text)])


async def list_tools(ctx: Any, params: Any) -> Any:
    return types.ListToolsResult.model_validate({"tools": [entry["tool"] for entry in TOOLS.values()]})


async def list_resources(ctx: Any, params: Any) -> Any:
    return types.ListResourcesResult.model_validate({"resources": [entry["resource"] for entry in RESOURCES.values()]})


async def list_templates(ctx: Any, params: Any) -> Any:
    return types.ListResourceTemplatesResult.model_validate({"resourceTemplates": EVERYTHING["templates"]})


async def read_resource(ctx: Any, params: Any) -> Any:
    uri = str(params.uri)
    if uri in RESOURCES:
        contents = {"mimeType": RESOURCES[uri]["resource"]["mimeType"], **RESOURCES[uri]["contents"]}
    elif uri.startswith("test://template/") and uri.endswith("/data"):
        name = uri.removeprefix("test://template/").removesuffix("/data")
        data = {"id": name, "templateTest": True, "data": f"Data for ID: {name}"}
        contents = {"mimeType": "application/json", "text": json.dumps(data)}
    else:
        raise MCPError(-32002, f"no resource {uri}")
    return types.ReadResourceResult.model_validate({"contents": [{"uri": uri, **contents}]})


async def empty(ctx: Any, params: Any) -> Any:
    return types.EmptyResult()


async def list_prompts(ctx: Any, params: Any) -> Any:
    return types.ListPromptsResult.model_validate({"prompts": [entry["prompt"] for entry in PROMPTS.values()]})


def filled(value: Any, arguments: dict[str, str]) -> Any:
    if isinstance(value, dict):
        return {key: filled(part, arguments) for key, part in value.items()}
    if isinstance(value, str):
        for name, text in arguments.items():
            value = value.replace(f"{{{name}}}", text)
    return value


async def get_prompt(ctx: Any, params: Any) -> Any:
    entry = PROMPTS.get(params.name)
    if entry is None:
        raise MCPError(types.INVALID_PARAMS, f"no prompt {params.name}")
    messages = [filled(message, params.arguments or {}) for message in entry["messages"]]
    return types.GetPromptResult.model_validate({"messages": messages})


async def complete(ctx: Any, params: Any) -> Any:
    values = [value for value in EVERYTHING["completions"] if value.startswith(params.argument.value)]
    return types.CompleteResult(completion=types.Completion(values=values, total=len(values), has_more=False))


async def set_level(ctx: Any, params: Any) -> Any:
    log_levels[session_of(ctx)] = params.level
    return types.EmptyResult()


def make() -> Any:
    return Server(
        "conformance",
        version="1",
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        on_list_resources=list_resources,
        on_list_resource_templates=list_templates,
        on_read_resource=read_resource,
        on_subscribe_resource=empty,
        on_unsubscribe_resource=empty,
        on_list_prompts=list_prompts,
        on_get_prompt=get_prompt,
        on_completion=complete,
        on_set_logging_level=set_level,
    )


def announced(server: uvicorn.Server, port: int) -> None:
    """Have it say where it listens."""
    stock = server.startup

    async def startup(sockets: list[socket.socket] | None = None) -> None:
        await stock(sockets)
        if server.started:
            print(f"READY {port}", flush=True)

    server.startup = startup  # type: ignore[method-assign]


async def serve(server: uvicorn.Server, sockets: list[socket.socket] | None) -> None:
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)

    async def end() -> None:
        await reader.read()
        server.should_exit = True

    ending = asyncio.create_task(end())
    await server.serve(sockets=sockets)
    ending.cancel()


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--transport", choices=["tailrope", "stock"], default="tailrope")
    parser.add_argument("--front", action="store_true", help="as tailrope.serve does")
    return parser.parse_args()


def main() -> None:
    args = parsed()
    if args.transport == "tailrope":
        import tailrope

        tailrope.install()
    # The SDK protects servers of the loopback from DNS rebinding without being told.
    serve_app(make().streamable_http_app(host="127.0.0.1"), is_fronted=args.front)


def serve_app(app: Any, is_fronted: bool) -> None:
    if is_fronted:
        from tailrope._serving.server import prepared

        server: Any = prepared(app, "127.0.0.1", 0, None, {"log_level": "warning", "ws": "none"}, None, {})
        announced(server, urlsplit(server.urls[0]).port or 0)
        asyncio.run(serve(server, None))
        return
    # asyncio sets TCP_NODELAY only where the protocol is named; without it each answer waits for a delayed ACK.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", 0))
    listener.listen(128)
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", ws="none"))
    announced(server, listener.getsockname()[1])
    asyncio.run(serve(server, [listener]))


if __name__ == "__main__":
    main()
