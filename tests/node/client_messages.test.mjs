// Streams without an SDK: those that another process left, and `stream`. (W-113, F-71)
import assert from 'node:assert/strict';

import { resumableFetch, stream, TailropeError } from 'tailrope/client';

import { until, within } from './kit/raw.mjs';
import { event, note, primed, result, ScriptedServer } from './kit/scripted.mjs';
import { called, parse, QUICK, withoutSlack } from './kit/streams.mjs';
import { test } from './kit/test.mjs';

test('exported stream is resumed elsewhere', async (t) => {
  const begun = { 'mcp-session-id': 's', 'mcp-protocol-version': '2025-11-25', authorization: 'secret' };
  const { server, fetch, stop, exchange, response } = await called(t, {}, begun);
  exchange.text(primed('a') + event('b', note(1)));
  const reader = response.body.getReader();
  await within(reader.read());
  const end = assert.rejects(reader.read(), { name: 'AbortError' });
  const [token] = fetch.streams.export();
  assert.match(token, /"b"/);
  assert.doesNotMatch(token, /secret|\n/);
  stop.abort();
  await within(end);
  const messages = [];
  const read = (async () => {
    const where = { url: server.url, headers: { authorization: 'other' } };
    for await (const message of withoutSlack().resume(token, where)) {
      messages.push(message);
    }
  })();
  const resumed = await server.next();
  assert.equal(resumed.lastEventId, 'b');
  assert.equal(resumed.headers['mcp-session-id'], 's');
  assert.equal(resumed.headers['mcp-protocol-version'], '2025-11-25');
  assert.equal(resumed.headers.authorization, 'other');
  resumed
    .head()
    .text(event('c', note(2)))
    .end();
  (await server.next()).head().end(event('d', result(1)));
  await within(read);
  assert.deepEqual(messages, [note(2), result(1)]);
  await assert.rejects(fetch.resume('no token', { url: server.url }).next(), { code: 'invalid_argument' });
});

const cursorOf = (token) => token && JSON.parse(token).lastEventId;

test('token of a response is not ahead of its reader', async (t) => {
  const { server, fetch, exchange, response } = await called(t);
  const cursor = () => cursorOf(fetch.streams.export()[0]);
  const reader = response.body.getReader();
  const read = async () => parse(new TextDecoder().decode((await within(reader.read())).value));
  exchange.text(primed('a'));
  await until(() => cursor() === 'a');
  exchange.text(event('b', note(1)) + event('c', note(2)));
  assert.deepEqual(await read(), [note(1), note(2)]);
  assert.equal(cursor(), 'a');
  const next = read();
  assert.equal(cursor(), 'c');
  exchange.text(event('d', note(3)));
  assert.deepEqual(await next, [note(3)]);
  // The response comes, and nobody takes it for now.
  exchange.end(event('e', result(1)));
  await until(() => fetch.streams.size === 0);
  await within(exchange.closed);
  assert.equal(cursor(), 'c');
  const [token] = fetch.streams.export();
  assert.deepEqual(JSON.parse(token).requests, [1]);
  assert.deepEqual(await read(), [result(1)]);
  assert.deepEqual(fetch.streams.export(), []);
  assert.equal((await within(reader.read())).done, true);
  assert.equal(server.waiting, 0);
});

test('token of messages is not ahead of them', async (t) => {
  const server = await ScriptedServer.open(t);
  const messages = stream(server.url, { message: { jsonrpc: '2.0', id: 1, method: 'work' }, ...QUICK });
  const first = messages.next();
  const exchange = (await server.next()).head().text(primed('a'));
  await until(() => cursorOf(messages.token) === 'a');
  exchange.text(event('b', [note(1), note(2)]) + event('c', note(3)) + event('d', result(1)));
  assert.deepEqual((await within(first)).value, note(1));
  for (const message of [note(2), note(3), result(1)]) {
    assert.equal(cursorOf(messages.token), 'a');
    assert.deepEqual((await within(messages.next())).value, message);
  }
  assert.equal(cursorOf(messages.token), 'a');
  assert.equal((await within(messages.next())).done, true);
  assert.equal(messages.token, undefined);
});

test('token of messages moves on with them', async (t) => {
  const server = await ScriptedServer.open(t);
  const messages = stream(server.url, QUICK);
  const first = messages.next();
  const exchange = (await server.next()).head().text(event('a', note(1)));
  assert.deepEqual((await within(first)).value, note(1));
  assert.equal(messages.token, undefined);
  const second = messages.next();
  await until(() => cursorOf(messages.token) === 'a');
  exchange.text(event('b', note(2)));
  assert.deepEqual((await within(second)).value, note(2));
  assert.equal(cursorOf(messages.token), 'a');
  await within(messages.return());
});

for (const given of ['none', 'own', 'resumable']) {
  test(`stream without sdk: ${given}`, async (t) => {
    const server = await ScriptedServer.open(t);
    const message = { jsonrpc: '2.0', id: 1, method: 'work' };
    const own = (...args) => fetch(...args);
    const options = { none: {}, own: { fetch: own }, resumable: { fetch: resumableFetch(own, QUICK) } }[given];
    const all = async (messages) => {
      const texts = [];
      for await (const each of messages) {
        texts.push(each);
      }
      return texts;
    };
    const read = all(stream(server.url, { message, headers: { 'x-own': 'o' }, ...QUICK, ...options }));
    const first = await server.next();
    assert.deepEqual(JSON.parse(first.body), message);
    assert.equal(first.headers['x-own'], 'o');
    assert.match(first.headers.accept, /application\/json.*text\/event-stream/);
    first
      .head()
      .text(primed('a') + event('b', [note(1), note(2)]))
      .end();
    const next = await server.next();
    assert.deepEqual([next.lastEventId, next.headers['x-own']], ['b', 'o']);
    next.head().end(event('c', result(1)));
    assert.deepEqual(await within(read), [note(1), note(2), result(1)]);

    const whole = all(stream(server.url, { message, ...options }));
    (await server.next()).json(200, result(1));
    assert.deepEqual(await within(whole), [result(1)]);
    const accepted = all(stream(server.url, { message: '{"jsonrpc":"2.0","method":"n"}', ...options }));
    (await server.next()).head(202, {}).end();
    assert.deepEqual(await within(accepted), []);
  });
}

test('headers of a resumed stream are asked before each connection', async (t) => {
  const server = await ScriptedServer.open(t);
  const token = JSON.stringify({ tailrope: 1, lastEventId: 'a', requests: [1], sessionId: 's' });
  let asked = 0;
  const headers = async () => {
    asked += 1;
    return { authorization: `Bearer ${asked}` };
  };
  const messages = withoutSlack().resume(token, { url: server.url, headers });
  assert.equal(messages.token, token);
  assert.equal(asked, 0);
  const first = messages.next();
  for (const authorization of ['Bearer 1', 'Bearer 2']) {
    const exchange = await server.next();
    assert.deepEqual([exchange.headers.authorization, exchange.headers['mcp-session-id']], [authorization, 's']);
    exchange.head().end();
  }
  const last = await server.next();
  assert.equal(last.headers.authorization, 'Bearer 3');
  last.head().end(event('b', result(1)));
  assert.deepEqual((await within(first)).value, result(1));
  assert.equal((await within(messages.next())).done, true);
});

for (const where of ['post', 'read', 'wait', 'json']) {
  test(`leaving a stream that waits aborts it: ${where}`, async (t) => {
    const server = await ScriptedServer.open(t);
    const messages = stream(server.url, { message: { jsonrpc: '2.0', id: 1, method: 'work' }, ...QUICK });
    const next = messages.next();
    const exchange = await server.next();
    if (where === 'json') {
      exchange.head(200, { 'content-type': 'application/json' }).text('{');
    } else if (where !== 'post') {
      exchange.head().text(primed('a', 60_000));
      await until(() => messages.token !== undefined);
    }
    if (where === 'wait') {
      exchange.end();
      await within(exchange.closed);
    }
    assert.deepEqual(await within(messages.return('left')), { done: true, value: 'left' });
    assert.deepEqual(await within(next), { done: true, value: undefined });
    assert.deepEqual(await within(messages.next()), { done: true, value: undefined });
    assert.equal(messages.token, undefined);
    await within(exchange.closed);
    assert.equal(server.waiting, 0);
  });
}

test('message without requests has no answer', async (t) => {
  const server = await ScriptedServer.open(t);
  const all = async () => {
    const found = [];
    for await (const each of stream(server.url, { message: { jsonrpc: '2.0', method: 'n' }, ...QUICK })) {
      found.push(each);
    }
    return found;
  };
  const ended = all();
  (await server.next()).head().end(event('a', note(1)));
  assert.deepEqual(await within(ended), []);
  // One that goes on is let go of, and nobody comes back for it.
  const open = all();
  const exchange = (await server.next()).head().text(event('a', note(1)));
  assert.deepEqual(await within(open), []);
  await within(exchange.closed);
  const empty = all();
  (await server.next()).head(204, {}).end();
  assert.deepEqual(await within(empty), []);
  assert.equal(server.waiting, 0);
});

test('stream that nobody reads on is let go of', async (t) => {
  const server = await ScriptedServer.open(t);
  const messages = stream(server.url, QUICK);
  assert.equal(messages.token, undefined);
  const first = messages.next();
  const exchange = await server.next();
  assert.equal(exchange.method, 'GET');
  exchange.head().text(event('a', note(1)));
  assert.deepEqual((await within(first)).value, note(1));
  await within(messages.return());
  assert.equal(messages.token, undefined);
  await within(exchange.closed);
});

test('stream failure has its code', async (t) => {
  const server = await ScriptedServer.open(t);
  const message = { jsonrpc: '2.0', id: 1, method: 'work' };
  const refused = stream(server.url, { message }).next();
  (await server.next()).json(401, {});
  await assert.rejects(within(refused), { name: 'TailropeError', code: 'unauthorized', status: 401 });
  for (const each of [message, { jsonrpc: '2.0', method: 'n' }]) {
    const html = stream(server.url, { message: each }).next();
    (await server.next()).head(200, { 'content-type': 'text/html' }).end('<p>sign in</p>');
    await assert.rejects(within(html), { name: 'TailropeError', code: 'unexpected_answer', status: 200 });
  }
  const lost = stream(server.url, { message, ...QUICK }).next();
  (await server.next()).head().text(primed('a')).end();
  (await server.next()).json(400, {});
  await assert.rejects(within(lost), (error) => error instanceof TailropeError && error.code === 'stream_lost');
  const modern = stream(server.url, { message, headers: { 'mcp-protocol-version': '2026-07-28' } }).next();
  await assert.rejects(within(modern), { code: 'not_resumable' });
  const gone = stream(server.url, { message, ...QUICK, maxAttempts: 1 }).next();
  (await server.next()).head().text(primed('a')).end();
  (await server.next()).break();
  await assert.rejects(within(gone), ({ code, cause }) => code === 'gave_up' && cause instanceof TypeError);
});
