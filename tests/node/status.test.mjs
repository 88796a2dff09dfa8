// What is in force, and what a handler does with requests of a revision without resumption.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';

import {
  configure,
  createResumableMcpHandler,
  createSessionRouter,
  EventStore,
  NodeStreamableHTTPServerTransport,
  openStore,
  setLog,
  stats,
  status,
  WebStandardStreamableHTTPServerTransport,
} from 'tailrope/mcp';

import { buildServer } from '../servers/node/tools.mjs';
import { ours, test } from './kit/test.mjs';

const root = new URL('../../', import.meta.url);
const lines = [];
setLog((level, line) => lines.push([level, line]));

function modernRequest() {
  const meta = {
    'io.modelcontextprotocol/protocolVersion': '2026-07-28',
    'io.modelcontextprotocol/clientCapabilities': {},
    'io.modelcontextprotocol/clientInfo': { name: 'raw', version: '1' },
  };
  return new Request('http://localhost/mcp', {
    method: 'POST',
    headers: {
      accept: 'application/json, text/event-stream',
      'content-type': 'application/json',
      'mcp-protocol-version': '2026-07-28',
      'mcp-method': 'server/discover',
    },
    body: JSON.stringify({ jsonrpc: '2.0', id: 7, method: 'server/discover', params: { _meta: meta } }),
  });
}

function handlerOf(t, options) {
  const handler = createResumableMcpHandler(() => buildServer('v2'), options);
  t.after(() => handler.close());
  return handler;
}

test('a request of 2026-07-28 is counted, and the first is a warning', ours, async (t) => {
  const handler = handlerOf(t, { preferResumable: false });
  const before = stats();
  for (const _ of [1, 2]) {
    assert.equal((await handler.fetch(modernRequest())).status, 200);
  }
  const { requestsUnresumable, requestsSteered } = stats();
  assert.equal(requestsUnresumable, before.requestsUnresumable + 2);
  assert.equal(requestsSteered, before.requestsSteered);
  const warnings = lines.filter(([level, line]) => level === 'warn' && line.includes('preferResumable'));
  assert.equal(warnings.length, 1, JSON.stringify(lines));
});

test('steering names the revisions that can resume', ours, async (t) => {
  const errors = [];
  const handler = handlerOf(t, { onerror: (error) => errors.push(error.message) });
  const before = stats();
  const answer = await handler.fetch(modernRequest());
  assert.equal(answer.status, 400);
  const { id, error } = await answer.json();
  assert.deepEqual([id, error.code], [7, -32022]);
  assert.deepEqual(error.data, {
    supported: ['2024-11-05', '2025-03-26', '2025-06-18', '2025-11-25'],
    requested: '2026-07-28',
  });
  // It is the client's affair, and counted.
  assert.deepEqual(errors, []);
  assert.equal(stats().requestsSteered, before.requestsSteered + 1);
  assert.equal(stats().requestsUnresumable, before.requestsUnresumable);
});

test('status tells what is in force and what is unusual', ours, async (t) => {
  const { version } = JSON.parse(readFileSync(new URL('node_modules/@modelcontextprotocol/server/package.json', root)));
  const [, own] = /^version = "(.*)"$/m.exec(readFileSync(new URL('Cargo.toml', root), 'utf8'));
  const started = status();
  assert.deepEqual(started, {
    version: own,
    sdk: [`@modelcontextprotocol/server ${version}`],
    isDisabled: false,
    transport: 'tailrope',
    store: 'memory:',
    preferResumable: null,
    servers: [],
    notices: [],
  });
  const steering = handlerOf(t, {});
  assert.equal(status().preferResumable, true);
  const passing = handlerOf(t, { preferResumable: false });
  assert.equal(status().preferResumable, false);
  await Promise.all([steering.close(), passing.close()]);
  assert.equal(status().preferResumable, null);
  const store = new EventStore('memory:');
  configure({ store: await openStore('memory:') });
  configure({});
  const { servers, notices } = status();
  assert.deepEqual(servers, [{ store: 'memory:' }]);
  assert.equal(notices.length, 2);
  assert.match(notices[0], /^configure\(\) was called 2 times: /);
  assert.match(notices[1], /^1 EventStore beside configure\(\): /);
  const [level, line] = lines.at(-1);
  assert.equal(level, 'info');
  assert.ok(
    [own, version, 'store=memory:', ...notices].every((told) => line.includes(told)),
    line,
  );
  assert.ok(store);
});

test('a wrong option says what was meant', ours, () => {
  for (const [wrong, told] of [
    [{ preferResumable: true }, /preferResumable is an option of createResumableMcpHandler\(\)/],
    [{ eventStore: 'memory:' }, /eventStore is an option of a transport/],
    [{ retry_ms: 1 }, /did you mean retryMs\?/],
    [{ nonsense: 'x' }, /unknown option nonsense of configure\(\): docs\/reference\/options.md has all of them/],
    [{ heartbeatMs: 1 }, /heartbeatMs is an option of a pace/],
    [{ onAdopted: () => {} }, /onAdopted is an option of createSessionRouter\(\)/],
    [{ store: null }, /not null/],
    [{ maxConnectionMs: 'never' }, /maxConnectionMs must be a number that is not negative/],
    [{ keepAliveMs: 'auto' }, /keepAliveMs must be a whole number that is not negative/],
    [{ paces: {} }, /unknown option paces of configure\(\); did you mean pace\?/],
    [{ pace: 5 }, /pace must be an object that gives names of tools their paces/],
    [{ pace: { a: 5 } }, /pace must be an object that gives names of tools their paces/],
    [{ pace: { a: { retry_ms: 1 } } }, /unknown option retry_ms of the pace 'a'; did you mean retryMs\?/],
    [{ pace: { a: { keepAliveMs: 1 } } }, /keepAliveMs is an option of configure\(\): give it there/],
    [{ pace: { a: { retryMs: '1' } } }, /retryMs of the pace 'a' must be a whole number that is not negative/],
    [{ pace: { a: { retryMs: true } } }, /retryMs of the pace 'a' must be a whole number that is not negative/],
    [{ pace: { a: { requiresTask: 'yes' } } }, /requiresTask of the pace 'a' must be true or false/],
    [{ pace: { a: { requiresTask: 1 } } }, /requiresTask of the pace 'a' must be true or false/],
    [{ pace: { a: { holdMs: 1.5 } } }, /holdMs of the pace 'a' must be a whole number/],
    [{ pace: { a: { retentionMs: 0 } } }, /retentionMs of the pace 'a' must be at least 1/],
    [{ pace: { 'a*b': {} } }, /a \* at the end, not 'a\*b'/],
  ]) {
    assert.throws(() => configure(wrong), { code: 'invalid_argument', message: told });
  }
  for (const [wrong, told] of [
    [{ maxSessions: 1 }, /maxSessions is an option of configure\(\)/],
    [{ max_sessions: 1 }, /did you mean maxSessions, which is an option of configure\(\)\?/],
    [{ server_name: 'a' }, /did you mean serverName\?/],
  ]) {
    const make = () => buildServer('v2');
    for (const give of [
      () => createSessionRouter(make, wrong),
      () => createResumableMcpHandler(make, wrong),
      () => new NodeStreamableHTTPServerTransport(wrong),
      () => new WebStandardStreamableHTTPServerTransport(wrong),
    ]) {
      assert.throws(give, { code: 'invalid_argument', message: told });
    }
  }
  const given = { preferResumable: 1 };
  assert.throws(() => createResumableMcpHandler(() => buildServer('v2'), given), { code: 'invalid_argument' });
});

test('the reference of status and of the counters is true', ours, () => {
  const page = (name) => readFileSync(new URL(`docs/${name}.md`, root), 'utf8');
  const [, part] = page('operate/watching').match(/## What is in force(.*)## The log/s);
  const counters = page('reference/counters');
  const named = (text) => [...text.matchAll(/^\| `\w+` \| `(\w+)` \|/gm)].map(([, name]) => name);
  assert.deepEqual(named(part), Object.keys(status()));
  assert.deepEqual(named(counters), Object.keys(stats()));
});
