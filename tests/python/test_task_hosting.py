"""How Python runs the calls that become tasks: contexts, cancellation, faults, the end of a session manager."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Literal

import pytest
import tailrope
import tailrope.mcp
import uvicorn
from asgi import until
from kit.modern import MODERN, TASKS, UNDECLARED, Modern, text_of
from kit.raw import Reply
from kit.stock import LINE
from starlette.types import ASGIApp, Receive, Scope, Send
from tailrope import _native

if LINE == 1:
    pytest.skip("1.x knows no 2026-07-28", allow_module_level=True)

import mcp_types as types
from mcp.client import Client, ClientExtension, ResultClaim
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.subscriptions import InMemorySubscriptionBus, ToolsListChanged
from mcp.shared.exceptions import MCPError
from mcp.shared.message import ServerMessageMetadata
from pydantic import BaseModel

pytestmark = pytest.mark.ours

trace: ContextVar[str] = ContextVar("trace", default="")


CHATTER = 300


class Name(BaseModel):
    name: str


class Tools:
    """A server whose tools say what they see, and wait for the test."""

    def __init__(self) -> None:
        self.bus = InMemorySubscriptionBus()
        self.server = MCPServer("tasks", subscriptions=self.bus)
        self.seen: list[str] = []
        self.said = 0
        self.arrived, self.go_on = asyncio.Event(), asyncio.Event()
        for tool in (self.wait, self.rounds, self.ask, self.ask_for_a_moment, self.broken, self.quick, self.chatty):
            self.server.tool()(tool)
        self.server.tool()(self.ask_plainly)
        self.server.tool()(self.say_much)

    async def quick(self) -> str:
        return "quick"

    async def chatty(self, ctx: Context) -> str:
        for n in range(CHATTER):
            await ctx.report_progress(n, message=f"{n} " + "x" * 10_000)
            self.said = n + 1
        return "said"

    async def wait(self) -> str:
        self.arrived.set()
        try:
            await self.go_on.wait()
        except asyncio.CancelledError:
            self.seen.append("cancelled")
            raise
        return "waited"

    async def rounds(self, ctx: Context) -> str | types.InputRequiredResult:
        request = ctx.request_context.request
        assert request is not None
        names = ("mcp-method", "mcp-name", "x-trace", "mcp-param-color", "mcp-param-size")
        self.seen.append(" ".join([trace.get(), *(request.headers.get(name, "-") for name in names)]))
        if not ctx.input_responses:
            await asyncio.sleep(0.2)
            question = types.ElicitRequestFormParams(message="?", requested_schema=Name.model_json_schema())
            return types.InputRequiredResult(input_requests={"q": types.ElicitRequest(params=question)})
        return str(ctx.input_responses["q"])

    async def ask(self, ctx: Context) -> str:
        answer = await ctx.elicit("who?", Name)
        return str(getattr(answer, "data", answer))

    async def ask_for_a_moment(self, ctx: Context) -> str:
        """Gives up twice: by itself, and by the SDK's time limit."""
        try:
            async with asyncio.timeout(0.05):
                await ctx.elicit("who?", Name)
        except TimeoutError:
            self.seen.append("gave up")
        question = types.ElicitRequest(
            params=types.ElicitRequestFormParams(message="?", requested_schema=Name.model_json_schema())
        )
        metadata = ServerMessageMetadata(related_request_id=1)
        try:
            await ctx.session.send_request(question, types.ElicitResult, 0.05, metadata)
        except MCPError as error:
            self.seen.append(str(error.error.code))
        return "without an answer"

    async def ask_plainly(self, ctx: Context) -> str:
        """Asks in each way that a session has, without naming the request."""
        form = await ctx.session.elicit("who?", {"type": "object", "properties": {"name": {"type": "string"}}})
        text = types.TextContent(type="text", text="?")
        poem = await ctx.session.create_message([types.SamplingMessage(role="user", content=text)], max_tokens=9)
        roots = await ctx.session.list_roots()
        return f"{form.content} {poem.model} {len(roots.roots)}"

    async def say_much(self, ctx: Context, size: int) -> str:
        await ctx.report_progress(1, message="x" * size)
        return "x" * size

    async def broken(self) -> str:
        await asyncio.sleep(0.2)
        raise MCPError(-32099, "broken", {"x": 1})


@asynccontextmanager
async def serving(app: ASGIApp) -> AsyncIterator[int]:
    """A server on a free port."""
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", ws="none"))
    running = asyncio.create_task(server.serve())
    try:
        while not server.started:
            await asyncio.sleep(0.01)
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        await running


def traced(app: ASGIApp) -> ASGIApp:
    """Middleware that puts a header into a context variable."""

    async def middleware(scope: Scope, receive: Receive, send: Send) -> None:
        trace.set(next((value.decode() for name, value in scope.get("headers", ()) if name == b"x-trace"), ""))
        await app(scope, receive, send)

    return middleware


@asynccontextmanager
async def tools_served(json_response: bool = False, **options: Any) -> AsyncIterator[tuple[Tools, Modern]]:
    tools = Tools()
    app = tools.server.streamable_http_app(json_response=json_response)
    options = {"task_after_ms": 50, "pace": {"quick": tailrope.Pace(task_after_ms=600_000)}, **options}
    async with serving(traced(tailrope.mcp.resumable(app, **options))) as port:
        yield tools, Modern(port)


@pytest.fixture(autouse=True)
def nothing_left(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """No task of asyncio is lost, and nothing is complained of that the test does not expect."""
    yield
    gc.collect()
    wrong = [it.getMessage() for it in caplog.records if it.levelno >= logging.ERROR and it.name != "mcp"]
    assert not [it for it in wrong if "destroyed" in it or "never retrieved" in it], wrong


async def test_a_round_runs_as_the_request_that_brought_the_answer() -> None:
    async with tools_served() as (tools, client):
        client.headers = {"X-Trace": "first", "Mcp-Param-Color": "red"}
        task = await client.begin("rounds")
        client.headers = {"X-Trace": "second", "Mcp-Param-Size": "of another message"}
        ((key, question),) = (await client.asked(task)).items()
        assert question["method"] == "elicitation/create" and key != "q"
        for _ in range(2):
            await client.update(task, **{key: {"action": "accept", "content": {"name": "Ann"}}})
        assert "Ann" in text_of((await client.ended(task))["result"])
        # What repeats the arguments of the call comes from the call.
        assert tools.seen == ["first tools/call rounds first red -", "second tools/call rounds second red -"]


@pytest.mark.parametrize("json_response", [False, True], ids=["sse", "json"])
async def test_a_cancellation_ends_a_handler_in_both_modes_of_the_sdk(json_response: bool) -> None:
    async with tools_served(json_response) as (tools, client):
        task = await client.begin("wait")
        await client.about("cancel", task)
        async with asyncio.timeout(10):
            while not tools.seen:
                await asyncio.sleep(0.01)
        assert (await client.get(task))["status"] == "cancelled"


async def test_a_handler_may_give_up_its_question() -> None:
    async with tools_served() as (tools, client):
        task = await client.begin("ask_for_a_moment")
        assert text_of((await client.ended(task))["result"]) == "without an answer"
        assert tools.seen == ["gave up", str(types.REQUEST_TIMEOUT)]


async def test_handlers_ask_in_every_way_of_a_session() -> None:
    answers: dict[str, Any] = {
        "elicitation/create": {"action": "accept", "content": {"name": "Ann"}},
        "sampling/createMessage": {"role": "assistant", "model": "m", "content": {"type": "text", "text": "a poem"}},
        "roots/list": {"roots": [{"uri": "file:///r"}]},
    }
    async with tools_served() as (_, client):
        client.capabilities["roots"] = {}
        task = await client.begin("ask_plainly")
        for method, answer in answers.items():
            ((key, question),) = (await client.asked(task)).items()
            assert question["method"] == method
            await client.update(task, **{key: answer})
        assert text_of((await client.ended(task))["result"]) == "{'name': 'Ann'} m 1"


async def test_a_client_is_asked_what_it_declared_and_nothing_else() -> None:
    async with tools_served() as (_, client):
        del client.capabilities["elicitation"]
        answer = await (await client.call("ask")).json()
        assert "elicitation" in json.dumps(answer) and "result" not in answer, answer


@pytest.mark.parametrize("token", [None, "mine"])
async def test_a_quick_call_is_answered_whatever_its_size(token: str | None) -> None:
    async with tools_served(max_event_bytes=20_000, task_after_ms=600_000) as (_, client):
        meta = {} if token is None else {"progressToken": token}
        reply = await client.call("say_much", {"size": 40_000}, **meta)
        messages = [event.message for event in await reply.rest()] if token else [await reply.json()]
        assert len(messages) == (2 if token else 1)
        assert text_of(messages[-1]["result"]) == "x" * 40_000


async def test_an_error_of_json_rpc_fails_the_task() -> None:
    async with tools_served() as (_, client):
        told = await client.ended(await client.begin("broken"))
        assert told["status"] == "failed" and told["statusMessage"] == "broken" and "result" not in told
        assert told["error"] == {"code": -32099, "message": "broken", "data": {"x": 1}}


async def test_a_call_that_ends_badly_has_a_record(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "tailrope")
    async with tools_served(log_user=lambda request: request.headers.get("x-trace")) as (_, client):
        client.headers = {"X-Trace": "ann"}
        await client.ended(await client.begin("broken"))
        (record,) = [record for record in caplog.records if record.getMessage().startswith("call ended")]
        told = vars(record)
        assert [told[name] for name in ("tool", "user", "outcome", "sdk")] == ["broken", "ann", "error", "mcp 2.x"]


async def test_a_handler_waits_for_a_client_that_reads_slowly() -> None:
    may_read = asyncio.Event()
    tools = Tools()
    pace = {"chatty": tailrope.Pace(task_after_ms=600_000)}
    app = traced(tailrope.mcp.resumable(tools.server.streamable_http_app(), pace=pace))

    async def slow(scope: Scope, receive: Receive, send: Send) -> None:
        async def slowly(message: Any) -> None:
            if message["type"] == "http.response.body":
                await may_read.wait()
            await send(message)

        await app(scope, receive, slowly)

    async with serving(slow) as port:
        reply = asyncio.create_task(Modern(port).call("chatty", progressToken="t"))
        said, quiet = -1, 0
        async with asyncio.timeout(20):
            while quiet < 500 and tools.said < CHATTER:
                await asyncio.sleep(0)
                quiet = quiet + 1 if said == tools.said and said > 0 else 0
                said = tools.said
        may_read.set()
        assert said < CHATTER / 2, "the others are not sent before there is room"
        body = await (await reply).body()
        assert body.count(b"notifications/progress") == CHATTER and b'"said"' in body


async def test_the_end_of_a_session_manager_ends_what_it_runs() -> None:
    before = asyncio.all_tasks()
    async with tools_served(drain_within_ms=100) as (tools, client):
        await client.begin("wait")
        await client.asked(await client.begin("ask"))
        await client.asked(await client.begin("rounds"))
    assert tools.seen.count("cancelled") == 1
    left = {it for it in asyncio.all_tasks() - before if not it.done()}
    assert not [it for it in left if "tailrope" in repr(it)], left


async def test_a_drain_waits_for_what_runs() -> None:
    tools = Tools()
    app = tailrope.mcp.resumable(tools.server.streamable_http_app(), task_after_ms=50, store="memory:")
    async with serving(app) as port:
        await Modern(port).begin("wait")
        asyncio.get_running_loop().call_later(0.3, tools.go_on.set)
    assert tools.seen == []


async def test_a_server_that_makes_tasks_itself_is_left_alone() -> None:
    tools = Tools()
    tools.server._lowlevel_server.extensions[TASKS] = {}
    async with serving(tailrope.mcp.resumable(tools.server.streamable_http_app(), task_after_ms=0)) as port:
        client = Modern(port)
        # Nobody has asked the server what it makes.
        assert text_of(await client.result("quick")) == "quick"
        answer = await client.about("get", "tailrope-none")
        assert answer["error"]["code"] == types.METHOD_NOT_FOUND


@asynccontextmanager
async def on_store(address: str, **options: Any) -> AsyncIterator[tuple[Tools, Modern]]:
    """A server with an engine of its own on this store: to others it is another process."""
    async with tools_served(store=address, owner_lost_ms=60_000, **options) as (tools, client):
        yield tools, client


async def test_a_round_runs_as_the_request_that_came_to_another_process(tmp_path: Path) -> None:
    address = f"sqlite:{tmp_path / 'events.db'}"
    how: dict[str, Any] = {"relayed_headers": ["x-trace"]}
    async with on_store(address, **how) as (tools, here), on_store(address, **how) as (others, there):
        here.headers = {"X-Trace": "first", "Mcp-Param-Color": "red"}
        task = await here.begin("rounds")
        there.headers = {"X-Trace": "second"}
        ((key, _),) = (await there.asked(task)).items()
        await there.update(task, **{key: {"action": "accept", "content": {"name": "Ann"}}})
        assert "Ann" in text_of((await there.ended(task))["result"])
        assert tools.seen[1].split()[-5:] == ["tools/call", "rounds", "second", "red", "-"]
        assert others.seen == []


async def test_a_task_that_waits_for_its_client_goes_on_in_the_next_process(tmp_path: Path) -> None:
    address = f"sqlite:{tmp_path / 'events.db'}"
    async with on_store(address, drain_within_ms=100) as (_, client):
        client.headers = {"X-Trace": "first", "Mcp-Param-Color": "red"}
        task = await client.begin("rounds")
        ((key, _),) = (await client.asked(task)).items()
    adopted = tailrope.stats()["tasks_adopted"]
    async with on_store(address) as (tools, client):
        assert list(await client.asked(task)) == [key]
        client.headers = {"X-Trace": "second"}
        await client.update(task, **{key: {"action": "accept", "content": {"name": "Ann"}}})
        assert "Ann" in text_of((await client.ended(task))["result"])
        assert tools.seen == ["second tools/call rounds second red -"]
    assert tailrope.stats()["tasks_adopted"] == adopted + 1


@pytest.mark.skipif(not hasattr(_native, "panic_in"), reason="only in builds for tests")
async def test_a_panic_costs_one_call(caplog: pytest.LogCaptureFixture) -> None:
    async with tools_served() as (tools, client):
        tools.go_on.set()
        for calls in range(1, 16):
            _native.panic_in(calls)
            with_panic = asyncio.create_task(client.call("ask"))
            try:
                async with asyncio.timeout(20):
                    await (await with_panic).body()
            finally:
                _native.panic_in(0)
            assert text_of(await client.result("quick")) == "quick", calls


class Created(types.Result):
    result_type: Literal["task"] = "task"
    task_id: str


class Params(types.RequestParams):
    task_id: str


class Get(types.Request[Params, Literal["tasks/get"]]):
    method: Literal["tasks/get"] = "tasks/get"
    params: Params
    name_param = "taskId"


class Told(types.Result):
    status: str
    result: dict[str, Any] | None = None


async def test_the_clients_own_library_follows_a_task() -> None:
    async def follow(created: Created, ctx: Any) -> types.CallToolResult:
        while True:
            told = await ctx.session.send_request(Get(params=Params(task_id=created.task_id)), Told)
            if told.status != "working":
                return types.CallToolResult.model_validate(told.result)
            await asyncio.sleep(0.05)

    class Tasks(ClientExtension):
        identifier = TASKS

        def claims(self) -> Any:
            return [ResultClaim(result_type="task", model=Created, resolve=follow)]

    async with (
        tools_served() as (tools, client),
        Client(f"http://127.0.0.1:{client.port}/mcp", extensions=[Tasks()]) as theirs,
    ):
        assert theirs.protocol_version == MODERN
        running = asyncio.create_task(theirs.call_tool("wait", {}))
        await tools.arrived.wait()
        await asyncio.sleep(0.1)
        tools.go_on.set()
        content = (await running).content[0]
        assert isinstance(content, types.TextContent) and content.text == "waited"
    assert tailrope.stats()["tasks_created"] >= 1


async def test_the_context_of_fastmcp_asks_too() -> None:
    fastmcp = pytest.importorskip("fastmcp")
    server = fastmcp.FastMCP("tasks")

    async def ask(ctx: Any) -> str:
        return str((await ctx.elicit("who?", response_type=str)).data)

    # By the annotation it finds its context.
    ask.__annotations__["ctx"] = fastmcp.Context
    server.tool(ask)

    async with serving(tailrope.mcp.resumable(server.http_app(), prefer_resumable=False)) as port:
        client = Modern(port)
        task = await client.begin("ask")
        ((key, _),) = (await client.asked(task)).items()
        await client.update(task, **{key: {"action": "accept", "content": {"value": "Ann"}}})
        assert text_of((await client.ended(task))["result"]) == "Ann"
        # Outside of a task it refuses, as ever.
        client.declares = False
        assert (await client.result("ask"))["isError"]


# Subscriptions that name tasks. What is sent when is in tests/rust/task/subscriptions.rs.

SUBSCRIPTION = "io.modelcontextprotocol/subscriptionId"


async def listen(client: Modern, *tasks: str, **notifications: Any) -> tuple[Reply, Any]:
    """A subscription, and what was agreed to."""
    reply = await client.post("subscriptions/listen", {"notifications": {**notifications, "taskIds": tasks}})
    (first,) = await reply.some(1)
    assert first.message["method"] == "notifications/subscriptions/acknowledged"
    return reply, first.message["params"]["notifications"]


async def told(reply: Reply) -> Any:
    """What the next message says of a task."""
    (event,) = await reply.some(1)
    assert event.message["method"] == "notifications/tasks", event
    assert event.message["params"]["_meta"][SUBSCRIPTION] is not None
    return event.message["params"]


async def test_what_becomes_of_tasks_comes_between_the_events_of_the_sdk() -> None:
    async with tools_served(principal=lambda request: request.headers.get("x-user")) as (tools, client):
        client.headers = {"X-User": "ann"}
        asking, waiting = await client.begin("ask"), await client.begin("wait")
        bob = Modern(client.port, headers={"X-User": "bob"})
        foreign = await bob.begin("ask")
        ((key, _),) = (await client.asked(asking)).items()
        reply, agreed = await listen(client, foreign, asking, waiting, "none", toolsListChanged=True)
        assert agreed == {"toolsListChanged": True, "taskIds": [asking, waiting]}
        asked = await told(reply)
        assert (asked["taskId"], asked["status"], list(asked["inputRequests"])) == (asking, "input_required", [key])
        await tools.bus.publish(ToolsListChanged())
        assert (await reply.some(1))[0].message["method"] == "notifications/tools/list_changed"
        await bob.about("cancel", foreign)
        await client.update(asking, **{key: {"action": "accept", "content": {"name": "Ann"}}})
        statuses = [await told(reply), await told(reply)]
        assert [it["status"] for it in statuses] == ["working", "completed"]
        tools.go_on.set()
        shown = await told(reply)
        assert shown["result"] == (await client.get(waiting))["result"] and "resultType" not in shown
        # The SDK's stream goes on.
        await tools.bus.publish(ToolsListChanged())
        assert (await reply.some(1))[0].message["method"] == "notifications/tools/list_changed"
        reply.drop()
        await until(lambda: not tools.bus._listeners)


@pytest.mark.parametrize("json_response", [False, True])
async def test_a_subscription_to_tasks_alone_lasts_until_the_server_stops(json_response: bool) -> None:
    async with tools_served(json_response) as (tools, client):
        task = await client.begin("wait")
        tools.go_on.set()
        await client.ended(task)
        reply, agreed = await listen(client, task)
        assert agreed == {"taskIds": [task]}
        assert (await told(reply))["status"] == "completed"
        ending = asyncio.create_task(reply.rest())
        await asyncio.sleep(0)
    # The end of the server does not wait for it, and tells its client.
    assert [it.message["result"]["resultType"] for it in await ending] == ["complete"]


async def test_a_drain_ends_subscriptions_to_tasks() -> None:
    async with tools_served(store="memory:") as (tools, client):
        reply, _ = await listen(client, await client.begin("wait"))
        # The task goes on.
        assert await tailrope.drain(within_ms=0) is False
        assert [it.message["result"]["resultType"] for it in await reply.rest()] == ["complete"]
        tools.go_on.set()


async def test_what_the_sdk_refuses_of_subscriptions_to_tasks_is_refused_as_it_says() -> None:
    async with tools_served() as (_, client):
        refused = await client.post(
            "subscriptions/listen", {"notifications": {"toolsListChanged": 7, "taskIds": ["a"]}}
        )
        assert (refused.status, (await refused.json())["error"]["code"]) == (400, types.INVALID_PARAMS)
        many = await client.post("subscriptions/listen", {"notifications": {"taskIds": [str(it) for it in range(65)]}})
        error = (await many.json())["error"]
        assert (many.status, error["code"]) == (400, types.INVALID_PARAMS) and "64 tasks" in error["message"]
        client.declares = False
        undeclared = await client.post("subscriptions/listen", {"notifications": {"taskIds": ["a"]}})
        assert (await undeclared.json())["error"]["code"] == UNDECLARED


async def test_any_process_tells_what_becomes_of_a_task(tmp_path: Path) -> None:
    address = f"sqlite:{tmp_path / 'events.db'}"
    async with on_store(address) as (tools, here), on_store(address) as (_, there):
        task, asking = await here.begin("wait"), await here.begin("ask")
        reply, agreed = await listen(there, task, asking)
        assert agreed == {"taskIds": [task, asking]}
        assert (await told(reply))["status"] == "input_required"
        tools.go_on.set()
        shown = await told(reply)
        assert (shown["taskId"], text_of(shown["result"])) == (task, "waited")
        await here.about("cancel", asking)
        assert (await told(reply))["status"] == "cancelled"
        reply.drop()
