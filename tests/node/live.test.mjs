// The live page's handler: the page, its snapshots, and that nothing of a payload or credential is in them.
import assert from 'node:assert/strict';
import http from 'node:http';

import { McpServer } from '@modelcontextprotocol/server';
import { configure, createSessionRouter, live, stats } from 'tailrope/mcp';
import { openSession } from 'tailrope/testing';
import * as z from 'zod';

import { until } from './kit/raw.mjs';
import { ours, test } from './kit/test.mjs';

const SECRET = 'what only the payload says';
const TOKEN = 'a-token-that-is-no-name';
const HEADERS = { authorization: `Bearer ${TOKEN}`, 'x-user': 'alice', 'x-log-user': 'Alice of Acme' };

configure({ principal: ({ headers }) => headers['x-user'], logUser: ({ headers }) => headers['x-log-user'] });

async function serving(t) {
  let goOn;
  const goesOn = new Promise((resolve) => {
    goOn = resolve;
  });
  const build = () => {
    const server = new McpServer({ name: 'live', version: '1' });
    server.registerTool('waits', { inputSchema: z.object({ text: z.string() }) }, async ({ text }) => {
      await goesOn;
      return { content: [{ type: 'text', text }] };
    });
    return server;
  };
  const router = createSessionRouter(build, {});
  const server = http.createServer((req, res) =>
    req.url.startsWith('/live') ? live(req, res) : router.node(req, res),
  );
  await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));
  t.after(async () => {
    await router.close();
    server.closeAllConnections();
    server.close();
  });
  return { url: `http://127.0.0.1:${server.address().port}/`, goOn };
}

async function snapshot(answer) {
  assert.equal(answer.headers.get('cache-control'), 'no-store');
  const text = await answer.text();
  for (const hidden of [SECRET, TOKEN, 'arguments']) {
    assert.ok(!text.includes(hidden), text);
  }
  return JSON.parse(text).engines;
}

test('the live page is one file that may load nothing', ours, async (t) => {
  const { url } = await serving(t);
  for (const page of [await fetch(`${url}live`), live(new Request(`${url}any?x=1#snapshot`))]) {
    assert.deepEqual([page.status, page.headers.get('content-type')], [200, 'text/html; charset=utf-8']);
    assert.match(page.headers.get('content-security-policy'), /^default-src 'none'; /);
    assert.match(await page.text(), /^<!doctype html>/);
  }
  assert.equal((await fetch(`${url}live`, { method: 'POST' })).status, 405);
});

test('a snapshot shows a call, its connections and its end', ours, async (t) => {
  const { url, goOn } = await serving(t);
  const session = await openSession(`${url}mcp`, { headers: HEADERS });
  await snapshot(live(new Request(`${url}live?snapshot`)));
  const call = await session.call('waits', { text: SECRET });
  await until(() => stats().callsRunning === 1);
  const [{ calls }] = await snapshot(await fetch(`${url}live?theme=x&snapshot=1`));
  assert.deepEqual(
    calls.map(({ tool, user, state }) => ({ tool, user, state })),
    [{ tool: 'waits', user: 'Alice of Acme', state: 'connected' }],
  );
  goOn();
  await call.collect({ readAgain: false });
  const [{ ended }] = await snapshot(live(new Request(`${url}live?snapshot`)));
  const [row] = ended.filter(({ tool }) => tool === 'waits');
  assert.deepEqual([row.outcome, row.spans.map(([, , why]) => why)], ['result', ['complete']]);
  await session.delete();
});
