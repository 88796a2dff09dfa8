// The record of each call in the log, with its fields; counters; and health, with the answer for load balancers.
import assert from 'node:assert/strict';
import { once } from 'node:events';
import http from 'node:http';
import { setTimeout as sleep } from 'node:timers/promises';
import { Worker } from 'node:worker_threads';

import { McpServer } from '@modelcontextprotocol/server';
import {
  configure,
  createSessionRouter,
  drain,
  health,
  metrics,
  metricsEndpoint,
  readyz,
  setLog,
  stats,
} from 'tailrope/mcp';
import { openSession } from 'tailrope/testing';
import * as z from 'zod';

import { until } from './kit/raw.mjs';
import { ours, test } from './kit/test.mjs';

const SECRET = 'what only the payload says';
const TOKEN = 'a-token-that-is-no-name';
const HEADERS = { authorization: `Bearer ${TOKEN}`, 'x-user': 'alice' };

configure({
  logCalls: true,
  logUser: ({ headers }) => headers['x-log-user'],
  maxRequestsPerSession: 1,
  principal: ({ headers }) => headers['x-user'],
});

const lines = [];
setLog((level, line, fields) => lines.push({ level, line, fields }), 'info');
const calls = () => lines.filter(({ fields }) => fields.outcome !== undefined);

function build() {
  const server = new McpServer({ name: 'records', version: '1' });
  const inputSchema = z.object({ text: z.string() });
  const content = (text) => ({ content: [{ type: 'text', text }] });
  server.registerTool('works', { inputSchema }, ({ text }) => content(text));
  server.registerTool('fails', { inputSchema }, ({ text }) => {
    throw new Error(text);
  });
  server.registerTool('waits', { inputSchema }, async ({ text }, { mcpReq: { signal } }) => {
    await sleep(3_600_000, undefined, { signal });
    return content(text);
  });
  return server;
}

async function serving(t) {
  lines.length = 0;
  const router = createSessionRouter(build, {});
  const server = http.createServer((req, res) => (req.url === '/readyz' ? readyz(req, res) : router.node(req, res)));
  await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));
  t.after(async () => {
    await router.close();
    server.closeAllConnections();
    server.close();
  });
  return `http://127.0.0.1:${server.address().port}/mcp`;
}

test('each call has a record with its user, its tool and how it ended', ours, async (t) => {
  const url = await serving(t);
  const before = stats();
  const session = await openSession(url, { headers: HEADERS });
  for (const tool of ['works', 'fails']) {
    const call = await session.call(tool, { text: SECRET });
    await call.collect({ readAgain: false });
  }
  const call = await session.call('waits', { text: SECRET });
  await until(() => stats().callsRunning === 1);
  const params = { name: 'works', arguments: { text: SECRET } };
  const refused = await fetch(url, {
    method: 'POST',
    headers: {
      ...HEADERS,
      accept: 'application/json, text/event-stream',
      'content-type': 'application/json',
      'mcp-session-id': session.id,
      'mcp-protocol-version': session.revision,
    },
    body: JSON.stringify({ jsonrpc: '2.0', id: 77, method: 'tools/call', params }),
  });
  assert.equal(refused.status, 429);
  await refused.text();
  await session.send({
    jsonrpc: '2.0',
    method: 'notifications/cancelled',
    params: { requestId: call.requestId, reason: SECRET },
  });
  await until(() => calls().length === 5);
  const found = calls().filter(({ fields }) => fields.tool !== undefined);
  assert.deepEqual(
    found.map(({ level, fields: { outcome, tool, user, method } }) => [level, outcome, tool, user, method]),
    [
      ['info', 'result', 'works', 'alice', 'tools/call'],
      ['info', 'tool_error', 'fails', 'alice', 'tools/call'],
      ['warn', 'refused', 'works', 'alice', 'tools/call'],
      ['info', 'cancelled', 'waits', 'alice', 'tools/call'],
    ],
  );
  const { line, fields } = found[3];
  assert.match(line, /^call ended .* tool=waits user=alice /);
  assert.deepEqual(
    [fields.connections, fields.resumes, fields.gaps, fields.sdk, typeof fields.durationMs],
    [1, 0, 0, '@modelcontextprotocol/server 2.x', 'number'],
  );
  const told = JSON.stringify(lines);
  assert.ok(!told.includes(SECRET) && !told.includes(TOKEN));
  const now = stats();
  const since = ['callsBegun', 'callsResult', 'callsToolError', 'callsCancelled', 'refusedTooManyRequests'];
  assert.deepEqual(
    since.map((name) => now[name] - before[name]),
    [4, 2, 1, 1, 1],
  );
});

test('a user is named as the operator says, and never by a credential', ours, async (t) => {
  const url = await serving(t);
  for (const [name, user] of [
    ['Alice of Acme', 'Alice of Acme'],
    [TOKEN, undefined],
  ]) {
    lines.length = 0;
    const session = await openSession(url, { headers: { ...HEADERS, 'x-log-user': name } });
    await session.call('waits', { text: SECRET });
    await until(() => stats().callsRunning === 1);
    await session.delete();
    await until(() => calls().some(({ fields }) => fields.outcome === 'session_ended'));
    const { line, fields } = calls().find(({ fields }) => fields.outcome === 'session_ended');
    assert.equal(fields.user, user);
    assert.ok(!line.includes(TOKEN));
  }
});

test('health is an object, and an answer for load balancers', ours, async (t) => {
  const url = await serving(t);
  await openSession(url, { headers: HEADERS });
  const ok = {
    status: 'ok',
    store: { status: 'ok', awayMs: 0, refusedMs: 0, refusing: false },
    drain: { status: 'ok', draining: false },
    waiting: { status: 'ok', bytes: 0 },
  };
  assert.deepEqual(health(), ok);
  const asked = await fetch(url.replace('mcp', 'readyz'));
  const told = { ...ok, store: { status: 'ok', away_ms: 0, refused_ms: 0, refusing: false } };
  assert.deepEqual([asked.status, await asked.json()], [200, told]);
  assert.equal(readyz().status, 200);
  const draining = drain({ withinMs: 1_000 });
  const answer = readyz(new Request(url));
  assert.deepEqual([answer.status, (await answer.json()).drain], [503, { status: 'unavailable', draining: true }]);
  await draining;
  const { line, fields } = lines.find((each) => each.line.startsWith('draining '));
  assert.match(line, /^draining retry_ms=\d+ spread_ms=\d+$/, 'fields have one spelling in texts');
  assert.deepEqual(Object.keys(fields).sort(), ['retryMs', 'spreadMs']);
  stats();
  assert.equal(health().status, 'unavailable', 'nothing has begun since');
  await openSession(await serving(t), { headers: HEADERS });
  assert.equal(health().status, 'ok', 'what begins after a drain is not drained');
});

test('metrics are a text, and an answer for Prometheus', ours, async (t) => {
  await openSession(await serving(t), { headers: HEADERS });
  const answer = metricsEndpoint(new Request('http://localhost/metrics'));
  assert.equal(answer.headers.get('content-type'), 'text/plain; version=0.0.4; charset=utf-8');
  const sample = new RegExp(`^tailrope_sessions{process="${process.pid}"} [1-9]`, 'm');
  for (const text of [await answer.text(), metrics()]) {
    assert.match(text, sample);
  }
  const script = `import('tailrope').then(({ metrics }) => require('node:worker_threads').parentPort.postMessage(metrics()))`;
  const [text] = await once(new Worker(script, { eval: true }), 'message');
  assert.match(text, new RegExp(`^tailrope_store_up{process="${process.pid}\\.\\d+"} 1$`, 'm'));
});

test('wrong options are refused', ours, () => {
  for (const wrong of [{ logCalls: 1 }, { logUser: 'x' }]) {
    assert.throws(() => configure(wrong), { code: 'invalid_argument', message: new RegExp(Object.keys(wrong)[0]) });
  }
});
