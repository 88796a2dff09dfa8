"""The parts of a call that no transport can save, each measured alone; `benches/run` subtracts them.

`parts.py bare --port N`: uvicorn with an ASGI function that answers the bench client as fast as Python can,
without an SDK. `parts.py alone --flavor F`: the SDK with its tools, between two in-memory streams and without HTTP.
"""

import argparse
import asyncio
import json
import time
from typing import Any

import anyio
from server import FLAVORS, serve


class Bare:
    """Answers `initialize` and `echo` of the bench client, each with a priming event and the response."""

    def __init__(self) -> None:
        self.events = 0

    def answer(self, message: Any) -> bytes:
        self.events += 2
        params = message["params"]
        if message["method"] == "initialize":
            result: Any = {"protocolVersion": params["protocolVersion"], "capabilities": {}}
        else:
            result = {"content": [{"type": "text", "text": params["arguments"]["text"]}]}
        data = json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result})
        return f"id: {self.events}\ndata: \n\nid: {self.events + 1}\ndata: {data}\n\n".encode()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        message = json.loads(body)
        headers = [(b"content-type", b"text/event-stream"), (b"mcp-session-id", b"bare")]
        if "id" not in message:
            await send({"type": "http.response.start", "status": 202, "headers": [(b"content-length", b"0")]})
            await send({"type": "http.response.body", "body": b""})
            return
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": self.answer(message), "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


class NullStream:
    """A write stream that drops what it is given, after turning it into JSON if asked to."""

    def __init__(self, encode: bool, wrapped: bool) -> None:
        self.encode = encode
        self.wrapped = wrapped
        self.answered = asyncio.Event()

    async def send(self, item: Any) -> None:
        message = item.message.root if self.wrapped else item.message
        if self.encode:
            message.model_dump_json(by_alias=True, exclude_unset=True)
        if not hasattr(message, "method"):
            self.answered.set()

    async def aclose(self) -> None:
        pass

    async def __aenter__(self) -> "NullStream":
        return self

    async def __aexit__(self, *exc: object) -> None:
        pass


async def sdk_alone(flavor: str, encode: bool, calls: int, events: int) -> tuple[float, float]:
    """Microseconds per `echo` call and per progress event of `emit`."""
    from mcp.shared.message import ServerMessageMetadata, SessionMessage

    if flavor == "mcp1":
        from mcp.types import JSONRPCMessage

        parse = JSONRPCMessage.model_validate
    else:
        from mcp_types import jsonrpc_message_adapter

        parse = jsonrpc_message_adapter.validate_python

    front = FLAVORS[flavor]("none")
    server = getattr(front, "_lowlevel_server", None) or front._mcp_server
    out = NullStream(encode, wrapped=flavor == "mcp1")
    inbound, read = anyio.create_memory_object_stream[Any](0)

    async def post(method: str, params: Any, request_id: int | None) -> None:
        message = {"jsonrpc": "2.0", "method": method, "params": params}
        if request_id is not None:
            message["id"] = request_id
        out.answered.clear()
        await inbound.send(SessionMessage(parse(message), metadata=ServerMessageMetadata()))
        if request_id is not None:
            await out.answered.wait()

    async def tool(name: str, arguments: Any, request_id: int) -> None:
        meta = {"progressToken": request_id}
        await post("tools/call", {"name": name, "arguments": arguments, "_meta": meta}, request_id)

    async with anyio.create_task_group() as group:
        group.start_soon(lambda: server.run(read, out, server.create_initialization_options()))
        info = {"name": "parts", "version": "0"}
        await post("initialize", {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": info}, 1)
        await post("notifications/initialized", {}, None)
        for i in range(100):
            await tool("echo", {"text": "hello"}, 2 + i)
        start = time.process_time()
        for i in range(calls):
            await tool("echo", {"text": "hello"}, 1_000 + i)
        echo_us = (time.process_time() - start) / calls * 1e6
        start = time.process_time()
        await tool("emit", {"n": events, "bytes": 100}, 2)
        emit_us = (time.process_time() - start) / events * 1e6
        group.cancel_scope.cancel()
    return echo_us, emit_us


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("part", choices=["bare", "alone"])
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--flavor", choices=sorted(FLAVORS), default="mcp2")
    args = parser.parse_args()
    if args.part == "bare":
        serve(Bare(), args.port, lifespan="off")
        return
    # The best of a few: these are floors, and a disturbed run only raises them.
    plain = [asyncio.run(sdk_alone(args.flavor, False, 1_000, 10_000)) for _ in range(3)]
    encoded = [asyncio.run(sdk_alone(args.flavor, True, 1, 10_000)) for _ in range(3)]
    costs = {
        "echo_us": min(echo for echo, _ in plain),
        "emit_us": min(emit for _, emit in plain),
        "emit_json_us": min(emit for _, emit in encoded),
    }
    print(json.dumps(costs))


if __name__ == "__main__":
    main()
