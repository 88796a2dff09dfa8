"""Spans and histograms of OpenTelemetry: one trace for a call, over all its connections and processes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any

import httpx
import pytest
import tailrope
import tailrope.mcp
from asgi import until
from fastmcp import Context as FastContext
from fastmcp import FastMCP
from kit.modern import Modern, text_of
from kit.stock import LINE, stock_client
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from tailrope import _telemetry
from tailrope.testing import open_session, serve

if LINE == 1:
    from mcp.server.fastmcp import Context
    from mcp.server.fastmcp import FastMCP as Server
else:
    from mcp.server.mcpserver import Context  # type: ignore[assignment]
    from mcp.server.mcpserver import MCPServer as Server

pytestmark = [pytest.mark.ours, pytest.mark.usefixtures("uninstalled", "alone")]

CLIENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
CALL, SESSION = "mcp.server.operation.duration", "mcp.server.session.duration"


class Seen:
    """What the providers of this process were given."""

    def __init__(self) -> None:
        self.spans, self.reader = InMemorySpanExporter(), InMemoryMetricReader()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self.spans))
        trace.set_tracer_provider(provider)
        metrics.set_meter_provider(MeterProvider([self.reader]))

    def named(self, *names: str) -> list[ReadableSpan]:
        return [span for span in self.spans.get_finished_spans() if span.name in names]

    def points(self, instrument: str, **attributes: str) -> list[Any]:
        data = self.reader.get_metrics_data()
        scopes = [scope for of in (data.resource_metrics if data else []) for scope in of.scope_metrics]
        found = [metric for scope in scopes for metric in scope.metrics if metric.name == instrument]
        points: list[Any] = [point for metric in found for point in metric.data.data_points]
        wanted = {name.replace("__", "."): value for name, value in attributes.items()}.items()
        return [point for point in points if wanted <= dict(point.attributes).items()]


@pytest.fixture(scope="module")
def providers() -> Seen:
    # A process has them once.
    return Seen()


@pytest.fixture
def seen(providers: Seen) -> Iterator[Seen]:
    providers.spans.clear()
    yield providers
    providers.spans.clear()


def of_call(tool: str, *, is_spanned: bool) -> str:
    """The name of our span, where the SDK makes one itself and where not."""
    return f"deliver tools/call {tool}" if is_spanned else f"tools/call {tool}"


async def resumed(ctx: Any, times: int) -> None:
    """Closes the call's connection so often, each time until its client is back."""
    for _ in range(times):
        before = tailrope.stats()["resumes_accepted"]
        await ctx.close_sse_stream()
        await until(lambda before=before: tailrope.stats()["resumes_accepted"] > before)


def add_tools(server: Any, context: type) -> None:
    async def roams(ctx: Any) -> str:
        with trace.get_tracer("handler").start_as_current_span("work"):
            await resumed(ctx, 2)
        return "done"

    async def fails() -> str:
        raise ValueError("no")

    roams.__annotations__["ctx"] = context
    server.tool()(roams)
    server.tool()(fails)


@asynccontextmanager
async def serving(*, is_fast: bool = False, **options: Any) -> AsyncIterator[int]:
    server: Any = FastMCP("telemetry") if is_fast else Server("telemetry", log_level="WARNING")
    add_tools(server, FastContext if is_fast else Context)
    tailrope.install(retry_ms=10, **options)
    async with serve(server.http_app() if is_fast else server.streamable_http_app()) as served:
        yield served.port


@pytest.mark.parametrize("is_fast", [False, True], ids=["sdk", "fastmcp"])
async def test_a_call_over_three_connections_is_one_trace(seen: Seen, is_fast: bool) -> None:
    is_spanned = is_fast or LINE >= 2
    name = of_call("roams", is_spanned=is_spanned)
    async with serving(is_fast=is_fast) as port, stock_client(port) as client:
        assert await client.ask("roams") == "done"
        await until(lambda: seen.named(name) and len(seen.named("resume")) == 2)
        await until(lambda: seen.points(CALL, gen_ai__tool__name="roams"))
    [call], [work] = seen.named(name), seen.named("work")
    assert call.context is not None and call.attributes is not None
    resumes = seen.named("resume")
    assert {span.parent.span_id for span in resumes if span.parent} == {call.context.span_id}
    of_all = {span.context.trace_id for span in [call, work, *resumes] if span.context}
    assert of_all == {call.context.trace_id}
    assert call.kind is (trace.SpanKind.INTERNAL if is_spanned else trace.SpanKind.SERVER)
    servers = [span for span in seen.named("tools/call roams") if span.kind is trace.SpanKind.SERVER]
    assert len(servers) == 1 and servers[0].context and servers[0].context.trace_id == call.context.trace_id
    told = {name: call.attributes[name] for name in call.attributes if not name.endswith("id")}
    assert told == {
        "mcp.method.name": "tools/call",
        "gen_ai.tool.name": "roams",
        "gen_ai.operation.name": "execute_tool",
        "mcp.protocol.version": "2025-11-25",
        "tailrope.connections": 3,
        "tailrope.resumes": 2,
        "tailrope.gaps": 0,
        "tailrope.outcome": "result",
    }
    assert call.status.is_unset and call.attributes["jsonrpc.request.id"]
    for span in resumes:
        assert span.start_time and call.start_time and span.start_time >= call.start_time - 5_000_000
        assert span.attributes and span.attributes["mcp.session.id"] == call.attributes["mcp.session.id"]
    [point] = seen.points(CALL, gen_ai__tool__name="roams", mcp__method__name="tools/call")[-1:]
    assert point.explicit_bounds[:2] == (0.01, 0.02) and "error.type" not in point.attributes


async def test_the_trace_of_a_request_goes_on(seen: Seen) -> None:
    """`_meta` says where, and otherwise what an instrumentation around the server has made of the headers."""
    async with serving() as port:
        session = await open_session(f"http://127.0.0.1:{port}/mcp")
        params = {"name": "fails", "arguments": {}, "_meta": {"traceparent": CLIENT}}
        answer = await session._post({"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": params})
        name = of_call("fails", is_spanned=LINE >= 2)
        await until(lambda: seen.named(name))
        answer.close()
    [call] = seen.named(name)
    assert call.parent and f"{call.parent.trace_id:032x}-{call.parent.span_id:016x}" == CLIENT[3:52]
    assert call.attributes and call.attributes["error.type"] == "tool_error"
    assert call.status.status_code is trace.StatusCode.ERROR


async def test_names_that_clients_make_up_are_no_attributes_of_measurements(seen: Seen) -> None:
    async with serving() as port:
        session = await open_session(f"http://127.0.0.1:{port}/mcp")
        for at in range(3):
            await (await session.call(f"no-such-{at}")).collect(read_again=False)
        await session.delete()
        await until(lambda: seen.points(SESSION) and seen.points(CALL, gen_ai__tool__name="_OTHER"))
    names = {point.attributes.get("gen_ai.tool.name") for point in seen.points(CALL)}
    assert not {f"no-such-{at}" for at in range(3)} & names
    assert all(set(point.attributes) <= {"mcp.protocol.version", "error.type"} for point in seen.points(SESSION))


@pytest.mark.parametrize("is_relayed", [False, True], ids=["resumed", "relayed"])
async def test_another_process_finds_the_trace_in_the_log(seen: Seen, tmp_path: Path, is_relayed: bool) -> None:
    """Two servers of one process have an engine each, so for the store they are two processes."""
    from starlette.applications import Starlette
    from starlette.routing import Mount

    apps = {}
    for place in ("one", "two"):
        server: Any = Server(place, log_level="WARNING")
        add_tools(server, Context)
        store = f"sqlite:{tmp_path / 'events.db'}"
        apps[place] = tailrope.mcp.resumable(server.streamable_http_app(), store=store, server_name="lab", retry_ms=10)

    @asynccontextmanager
    async def lifespan(_app: Any) -> AsyncIterator[None]:
        async with (
            apps["one"].router.lifespan_context(apps["one"]),
            apps["two"].router.lifespan_context(apps["two"]),
        ):
            yield

    around = Starlette(routes=[Mount(f"/{name}", app) for name, app in apps.items()], lifespan=lifespan)
    name = of_call("roams", is_spanned=LINE >= 2)
    async with serve(around) as served, httpx.AsyncClient(timeout=30) as http:
        urls = [f"http://127.0.0.1:{served.port}/{place}/mcp" for place in apps]
        session = await open_session(urls[0])
        headers = {
            "accept": "application/json, text/event-stream",
            "mcp-session-id": str(session.id),
            "mcp-protocol-version": "2025-11-25",
        }
        message = {"jsonrpc": "2.0", "id": 9, "method": "tools/call", "params": {"name": "roams", "arguments": {}}}
        text = (await http.post(urls[is_relayed], json=message, headers=headers)).text
        while '"result"' not in text:
            cursor = [line[3:].strip() for line in text.splitlines() if line.startswith("id:")][-1]
            text = (await http.get(urls[1], headers={**headers, "last-event-id": cursor})).text
        await until(lambda: seen.named(name) and len(seen.named("resume")) == 2)
    [call], resumes = seen.named(name), seen.named("resume")
    # Where the call was relayed, the process of its reader knows the place from which it went on.
    [parent] = seen.named("relay") if is_relayed else [call]
    assert parent.context and {span.parent.span_id for span in resumes if span.parent} == {parent.context.span_id}
    assert {span.context.trace_id for span in [call, *resumes] if span.context} == {parent.context.trace_id}
    assert not is_relayed or (call.parent and call.parent.span_id == parent.context.span_id)


needs_tasks = pytest.mark.skipif(LINE == 1, reason="1.x knows no 2026-07-28")


def add_rounds(server: Any) -> None:
    from mcp_types import ElicitRequest, ElicitRequestFormParams, InputRequiredResult

    async def asks(ctx: Any) -> Any:
        with trace.get_tracer("handler").start_as_current_span("work"):
            if ctx.input_responses:
                return "done"
            question = ElicitRequestFormParams(message="?", requested_schema={"type": "object", "properties": {}})
            return InputRequiredResult(input_requests={"q": ElicitRequest(params=question)})

    asks.__annotations__["ctx"] = Context
    server.tool()(asks)


@needs_tasks
async def test_a_call_that_becomes_a_task_is_one_trace(seen: Seen) -> None:
    server: Any = Server("telemetry", log_level="WARNING")
    add_rounds(server)
    app = tailrope.mcp.resumable(server.streamable_http_app(), task_after_ms=0)
    async with serve(app) as served:
        client = Modern(served.port)
        task = await client.begin("asks", traceparent=CLIENT)
        ((key, _),) = (await client.asked(task)).items()
        await client.update(task, **{key: {"action": "accept", "content": {}}})
        assert text_of((await client.ended(task))["result"]) == "done"
        gone = await client.begin("asks")
        await client.asked(gone)
        await client.about("cancel", gone)
        await until(lambda: len(seen.named("deliver tools/call asks")) == 2)
    call, cancelled = seen.named("deliver tools/call asks")
    assert call.parent and f"{call.parent.trace_id:032x}-{call.parent.span_id:016x}" == CLIENT[3:52]
    works = [span for span in seen.named("work") if span.context.trace_id == call.context.trace_id]
    assert len(works) == 2, "both rounds are in the trace"
    assert call.attributes and call.status.is_unset
    assert call.attributes["tailrope.outcome"] == "result"
    assert call.attributes["mcp.protocol.version"] == "2026-07-28"
    assert cancelled.attributes and cancelled.attributes["error.type"] == "cancelled"
    assert cancelled.status.status_code is trace.StatusCode.ERROR
    assert seen.points(CALL, gen_ai__tool__name="asks", mcp__protocol__version="2026-07-28")


@needs_tasks
async def test_a_process_that_leaves_a_task_to_others_ends_its_span(seen: Seen, tmp_path: Path) -> None:
    def app() -> Any:
        server: Any = Server("telemetry", log_level="WARNING")
        add_rounds(server)
        store = f"sqlite:{tmp_path / 'events.db'}"
        return tailrope.mcp.resumable(
            server.streamable_http_app(), store=store, server_name="lab", task_after_ms=0, owner_lost_ms=400
        )

    async with serve(app()) as served:
        client = Modern(served.port)
        task = await client.begin("asks", traceparent=CLIENT)
        ((key, _),) = (await client.asked(task)).items()
        assert not seen.named("deliver tools/call asks")
    await until(lambda: seen.named("deliver tools/call asks"))
    async with serve(app()) as served:
        client = Modern(served.port)
        await client.update(task, **{key: {"action": "accept", "content": {}}})
        assert text_of((await client.ended(task))["result"]) == "done"
        await until(lambda: len(seen.named("deliver tools/call asks")) == 2)
    calls = seen.named("deliver tools/call asks")
    assert {span.context.trace_id for span in [*calls, *seen.named("work")]} == {int(CLIENT[3:35], 16)}
    assert [dict(span.attributes or {}).get("tailrope.outcome") for span in calls] == [None, "result"]
    assert {span.parent.span_id for span in calls if span.parent} == {int(CLIENT[36:52], 16)}


async def test_a_fault_of_a_provider_harms_no_call(
    seen: Seen, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_args: Any, **_options: Any) -> None:
        raise RuntimeError("the exporter is broken")

    async with serving() as port, stock_client(port) as client:
        telemetry = _telemetry.look()
        assert telemetry is not None
        monkeypatch.setattr(_telemetry, "_has_failed", False)
        with caplog.at_level(logging.WARNING, "tailrope"):
            for broken in ("begin", "end", "begun", "measure"):
                with monkeypatch.context() as patch:
                    patch.setattr(telemetry, broken, fails)
                    assert await client.ask("roams") == "done"
        assert [line.getMessage() for line in caplog.records].count(
            "OpenTelemetry failed, and calls go on without it: RuntimeError('the exporter is broken')"
        ) == 1


async def test_open_spans_are_bounded(seen: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_telemetry, "MAX_OPEN", 1)
    async with serving() as port, stock_client(port) as client, stock_client(port) as other:
        assert await asyncio.gather(client.ask("roams"), other.ask("roams")) == ["done", "done"]
        telemetry = _telemetry.look()
        assert telemetry is not None
        await until(lambda: not telemetry.open)
    assert len(seen.named(of_call("roams", is_spanned=LINE >= 2))) == 2


def test_nothing_is_done_before_the_program_has_set_a_provider(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_telemetry, "_instance", None)
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", None)
    monkeypatch.setattr(metrics._internal, "_METER_PROVIDER", None)
    assert _telemetry.look() is None
    # A provider that the environment names and that is not there.
    with monkeypatch.context() as patch:
        patch.setattr(_telemetry, "_has_failed", True)
        patch.setenv("OTEL_PYTHON_TRACER_PROVIDER", "nobody_has_it")
        assert _telemetry.look() is None
    headers = [(b"traceparent", b"x")]
    assert _telemetry.relaying(headers, b"{}") is headers
    with nullcontext():
        assert _telemetry.begin(None, 1, None, bool, None) is None  # type: ignore[arg-type]
