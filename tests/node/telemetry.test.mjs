// Spans and histograms of OpenTelemetry: one trace for a call, over all its connections.
import assert from 'node:assert/strict';
import http from 'node:http';

import { McpServer } from '@modelcontextprotocol/server';
import { context, metrics, propagation, trace } from '@opentelemetry/api';
import { AsyncLocalStorageContextManager } from '@opentelemetry/context-async-hooks';
import {
  AggregationTemporality,
  InMemoryMetricExporter,
  MeterProvider,
  PeriodicExportingMetricReader,
} from '@opentelemetry/sdk-metrics';
import { BasicTracerProvider, InMemorySpanExporter, SimpleSpanProcessor } from '@opentelemetry/sdk-trace-base';
import { configure, createSessionRouter, EventStore, setLog, stats } from 'tailrope/mcp';
import { openSession } from 'tailrope/testing';

import { until } from './kit/raw.mjs';
import { accept, Caller, Desk, makeServer, meta, TOOLS, serve as taskable } from './kit/taskable.mjs';
import { ours, test } from './kit/test.mjs';

const CALL = 'mcp.server.operation.duration';
const PARENT = '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01';

const lines = [];
setLog((level, line) => lines.push({ level, line }), 'warn');
configure({ retryMs: 10 });

const spans = new InMemorySpanExporter();
const measured = new InMemoryMetricExporter(AggregationTemporality.CUMULATIVE);
const reader = new PeriodicExportingMetricReader({ exporter: measured, exportIntervalMillis: 3_600_000 });

const tracers = new BasicTracerProvider({ spanProcessors: [new SimpleSpanProcessor(spans)] });

/** What a program does at its start. */
function setUp() {
  context.setGlobalContextManager(new AsyncLocalStorageContextManager().enable());
  propagation.setGlobalPropagator({
    inject() {},
    fields: () => ['traceparent'],
    extract(within, carrier, { get }) {
      const [, traceId, spanId, flags] = String(get(carrier, 'traceparent')).split('-');
      const place = { traceId, spanId, traceFlags: Number(flags), isRemote: true };
      return spanId === undefined ? within : trace.setSpanContext(within, place);
    },
  });
  trace.setGlobalTracerProvider(tracers);
  metrics.setGlobalMeterProvider(new MeterProvider({ readers: [reader] }));
}

const named = (name) => spans.getFinishedSpans().filter((span) => span.name === name);

async function points(name) {
  await reader.forceFlush();
  const all =
    measured
      .getMetrics()
      .at(-1)
      ?.scopeMetrics.flatMap((scope) => scope.metrics) ?? [];
  return all.filter((metric) => metric.descriptor.name === name).flatMap((metric) => metric.dataPoints);
}

function build() {
  const server = new McpServer({ name: 'telemetry', version: '1' });
  server.registerTool('roams', {}, async ({ http: { closeSSE } }) => {
    const work = trace.getTracer('handler').startSpan('work');
    for (let times = 0; times < 2; times++) {
      const before = stats().resumesAccepted;
      closeSSE();
      await until(() => stats().resumesAccepted > before);
    }
    work.end();
    return { content: [{ type: 'text', text: 'done' }] };
  });
  server.registerTool('works', {}, () => ({ content: [] }));
  return server;
}

async function serving(t) {
  spans.reset();
  const router = createSessionRouter(build, {});
  const server = http.createServer((req, res) => router.node(req, res));
  await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));
  t.after(async () => {
    await router.close();
    server.closeAllConnections();
    server.close();
  });
  return `http://127.0.0.1:${server.address().port}/mcp`;
}

test('nothing is done before the program has set a provider', ours, async (t) => {
  const session = await openSession(await serving(t));
  await (await session.call('works')).collect();
  assert.deepEqual(spans.getFinishedSpans(), []);
  setUp();
});

test('a call over three connections is one trace', ours, async (t) => {
  const session = await openSession(await serving(t));
  await (await session.call('roams')).collect();
  await until(() => named('resume').length >= 2 && named('tools/call roams').length === 1);
  const [call] = named('tools/call roams');
  const [work] = named('work');
  const resumes = named('resume');
  const { traceId, spanId } = call.spanContext();
  for (const span of [work, ...resumes]) {
    assert.equal(span.spanContext().traceId, traceId);
    assert.equal(span.parentSpanContext.spanId, spanId);
  }
  const { 'mcp.session.id': id, 'jsonrpc.request.id': request, ...told } = call.attributes;
  assert.ok(id && request && call.kind === 1);
  assert.deepEqual(told, {
    'mcp.method.name': 'tools/call',
    'gen_ai.tool.name': 'roams',
    'gen_ai.operation.name': 'execute_tool',
    'mcp.protocol.version': '2025-11-25',
    'tailrope.connections': 3,
    'tailrope.resumes': 2,
    'tailrope.gaps': 0,
    'tailrope.outcome': 'result',
  });
  const [point] = (await points(CALL)).filter((one) => one.attributes['gen_ai.tool.name'] === 'roams');
  assert.deepEqual(point.value.buckets.boundaries.slice(0, 2), [0.01, 0.02]);
  assert.equal(point.attributes['error.type'], undefined);
});

test(
  'the trace of a request goes on, and names that clients make up are no attributes of measurements',
  ours,
  async (t) => {
    const session = await openSession(await serving(t));
    const params = { name: 'no-such', arguments: {}, _meta: { traceparent: PARENT } };
    const headers = {
      accept: 'application/json, text/event-stream',
      'content-type': 'application/json',
      'mcp-session-id': session.id,
      'mcp-protocol-version': '2025-11-25',
    };
    const body = JSON.stringify({ jsonrpc: '2.0', id: 77, method: 'tools/call', params });
    await (await fetch(session.url, { method: 'POST', headers, body })).text();
    await until(() => named('tools/call no-such').length === 1);
    const [call] = named('tools/call no-such');
    assert.equal(`${call.parentSpanContext.traceId}-${call.parentSpanContext.spanId}`, PARENT.slice(3, 52));
    assert.equal(call.status.code, 2);
    const tools = (await points(CALL)).map((point) => point.attributes['gen_ai.tool.name']);
    assert.ok(tools.includes('_OTHER') && !tools.includes('no-such'), String(tools));
  },
);

test('a call that becomes a task is one trace, over all its rounds', ours, async (t) => {
  spans.reset();
  /** A tool that asks in two rounds, each in a span of its own. */
  const make = () => {
    const server = makeServer(new Desk());
    server.setRequestHandler('tools/call', async ({ params }, { mcpReq }) => {
      const work = trace.getTracer('handler').startSpan('work');
      try {
        return await TOOLS[params.name]({}, mcpReq, new Desk(), server);
      } finally {
        work.end();
      }
    });
    return server;
  };
  const { port } = await taskable(t, { make, eventStore: new EventStore('memory:', { taskAfterMs: 0 }) });
  const caller = new Caller(port);
  const begin = () => caller.task('ask', {}, { _meta: meta(true, { traceparent: PARENT }) });
  const taskId = await begin();
  const [first] = await caller.questions(taskId);
  await caller.update(taskId, { [first]: accept('Ann') });
  const second = await until(async () => {
    const [key] = await caller.questions(taskId);
    return key !== first && key;
  });
  assert.equal(named('tools/call ask').length, 0);
  await caller.update(taskId, { [second]: accept('Bob') });
  await caller.once(taskId, 'completed');
  const other = await begin();
  await caller.questions(other);
  await caller.cancel(other);
  await until(() => named('tools/call ask').length === 2);
  const [call, cancelled] = named('tools/call ask');
  for (const { parentSpanContext: parent } of [call, cancelled]) {
    assert.equal(`${parent.traceId}-${parent.spanId}`, PARENT.slice(3, 52));
  }
  const { spanId } = call.spanContext();
  assert.equal(named('work').filter(({ parentSpanContext: parent }) => parent.spanId === spanId).length, 3);
  assert.equal(call.attributes['mcp.protocol.version'], '2026-07-28');
  assert.equal(call.attributes['tailrope.outcome'], 'result');
  assert.equal(cancelled.attributes['error.type'], 'cancelled');
  assert.equal(cancelled.status.code, 2);
});

test('a fault of a provider harms no call', ours, async (t) => {
  const session = await openSession(await serving(t));
  const tracer = Object.getPrototypeOf(tracers.getTracer('tailrope'));
  t.mock.method(tracer, 'startSpan', () => {
    throw new Error('the provider is broken');
  });
  for (let times = 0; times < 2; times++) {
    await (await session.call('works')).collect();
  }
  const failed = lines.filter(({ line }) => line.startsWith('OpenTelemetry failed'));
  assert.deepEqual(failed, [
    { level: 'warn', line: 'OpenTelemetry failed, and calls go on without it: Error: the provider is broken' },
  ]);
});
