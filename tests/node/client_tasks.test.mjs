// What is asked about a task is sent until it is answered. (2026-07-28)
//
// Which requests these are, and how often they are sent, is in core/src/client/repeats.rs; official clients with broken requests are in
// tests/interop/test_tasks.py.
import assert from 'node:assert/strict';
import http from 'node:http';

import { resumableFetch } from 'tailrope/client';

import { ours, test } from './kit/test.mjs';

/** A server that answers each request as its script says: a status, or `break`, amid the body. It gives what it was sent. */
async function scripted(t, ...script) {
  const sent = [];
  const server = http.createServer(async (req, res) => {
    const body = JSON.parse(Buffer.concat(await req.toArray()));
    sent.push({ ...body, authorization: req.headers.authorization });
    const turn = script[Math.min(sent.length, script.length) - 1];
    if (turn === 'break') {
      res.writeHead(200, { 'content-type': 'application/json', 'content-length': 1_000 }).write('{');
      setImmediate(() => res.destroy());
      return;
    }
    res.writeHead(turn, { 'content-type': 'application/json' }).end(JSON.stringify({ status: turn, id: body.id }));
  });
  await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));
  t.after(() => {
    server.closeAllConnections();
    server.close();
  });
  return { url: `http://127.0.0.1:${server.address().port}/mcp`, sent };
}

const asked = (method, more = {}) => ({
  method: 'POST',
  headers: { 'content-type': 'application/json', 'mcp-protocol-version': '2026-07-28', authorization: 'old' },
  body: JSON.stringify({ jsonrpc: '2.0', id: 1, method, params: { taskId: 't' } }),
  ...more,
});
const quick = { initialDelayMs: 1, jitter: 0 };

test('a request about a task is sent until it is answered', ours, async (t) => {
  for (const method of ['tasks/get', 'tasks/update', 'tasks/cancel']) {
    const { url, sent } = await scripted(t, 'break', 503, 'break', 200);
    const fetch = resumableFetch(undefined, { ...quick, headers: () => ({ authorization: 'new' }) });
    const answer = await fetch(url, asked(method));
    assert.deepEqual([answer.status, answer.url, await answer.json()], [200, url, { status: 200, id: 1 }]);
    assert.deepEqual(
      sent.map((each) => [each.method, each.authorization]),
      ['old', 'new', 'new', 'new'].map((token) => [method, token]),
    );
  }
});

test('a request that is an object can be sent again, too', ours, async (t) => {
  const { url, sent } = await scripted(t, 'break', 200);
  const answer = await resumableFetch(undefined, quick)(new Request(url, asked('tasks/get')));
  assert.deepEqual([answer.status, sent.length], [200, 2]);
});

test('after the last try the caller sees what became of it', ours, async (t) => {
  const fetch = resumableFetch(undefined, { ...quick, maxAttempts: 2 });
  const refusing = await scripted(t, 503);
  assert.equal((await fetch(refusing.url, asked('tasks/get'))).status, 503);
  const breaking = await scripted(t, 'break');
  await assert.rejects(fetch(breaking.url, asked('tasks/get')), TypeError);
  assert.deepEqual([refusing.sent.length, breaking.sent.length], [2, 2]);
});

test('what is not about a task, and what is answered, is sent once', ours, async (t) => {
  const fetch = resumableFetch(undefined, quick);
  const [calling, unknown] = [await scripted(t, 503), await scripted(t, 400)];
  assert.equal((await fetch(calling.url, asked('tools/call'))).status, 503);
  assert.equal((await fetch(unknown.url, asked('tasks/get'))).status, 400);
  assert.deepEqual([calling.sent.length, unknown.sent.length], [1, 1]);
});

test('nobody asks again for a caller that has left', ours, async (t) => {
  const { url, sent } = await scripted(t, 'break');
  const controller = new AbortController();
  const fetch = resumableFetch(undefined, { initialDelayMs: 600_000 });
  const left = fetch(url, asked('tasks/get', { signal: controller.signal }));
  while (sent.length === 0) {
    await new Promise((resolve) => setImmediate(resolve));
  }
  controller.abort(new Error('left'));
  await assert.rejects(left, /left|abort/i);
});
