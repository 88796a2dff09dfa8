// The test kit for users' own servers: what it starts, what it does to connections, and what it finds.
import assert from 'node:assert/strict';
import { readFileSync, writeFileSync } from 'node:fs';
import http from 'node:http';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';

import express from 'express';

import { NotExactlyOnce, openSession, serve, TailropeError } from 'tailrope/testing';

import { Connection, check, Event } from '../../bindings-node/lib/testing/record.mjs';
import { LabStore } from '../servers/node/stores.mjs';
import { marked, newGate, open, serveFor } from '../servers/node/transports.mjs';
import { folderFor } from './kit/addresses.mjs';
import { make } from './kit/mine.mjs';
import { upTo } from './kit/raw.mjs';
import { LINES, ours, test } from './kit/test.mjs';

const { vectors } = JSON.parse(readFileSync(new URL('../vectors/test_kit.json', import.meta.url), 'utf8'));
const MINE = fileURLToPath(new URL('kit/mine.mjs', import.meta.url));
const COUNTED = [1, 2, 3, 4, 5, 6, 'counted to 6'];

/** The connections of a vector, as a call keeps them. */
function recorded(vector) {
  const at = new Map();
  return vector.connections.map(({ after, again = false, status = 200, gaps = [], events, end, ...unknown }, index) => {
    assert.deepEqual(unknown, {});
    const method = after === undefined ? 'POST' : 'GET';
    const connection = new Connection(index + 1, method, after, status, again, at.get(after));
    for (const [id, message] of events) {
      at.set(id, connection.add(id, whole(message)));
    }
    return Object.assign(connection, { gaps, end });
  });
}

function whole(message) {
  if (typeof message === 'number') {
    const params = { progressToken: 'kit-1', progress: message };
    return { jsonrpc: '2.0', method: 'notifications/progress', params };
  }
  if (typeof message === 'string') {
    return { jsonrpc: '2.0', id: 1, result: { content: [{ type: 'text', text: message }] } };
  }
  return message ?? undefined;
}

function failure(run) {
  try {
    run();
  } catch (error) {
    assert.ok(error instanceof NotExactlyOnce && error instanceof assert.AssertionError, error.stack);
    return error;
  }
  return assert.fail('nothing was found');
}

for (const vector of vectors) {
  test(`verdict: ${vector.name}`, ours, () => {
    const verdict = () => check('call 1 (tool)', recorded(vector), 1, 'kit-1', vector.expected ?? undefined);
    if (vector.finds === null) {
      verdict();
      return;
    }
    const { lost = [], repeated = [], out_of_order: outOfOrder = [], foreign = [], text } = vector.finds;
    const found = failure(verdict);
    const { lost: l, repeated: r, outOfOrder: o, foreign: f } = found;
    assert.deepEqual([l, r, o, f], [lost, repeated, outOfOrder, foreign]);
    if (text !== undefined) {
      assert.deepEqual(found.message.split('\n'), text);
    }
  });
}

test('long lists are shown in part', ours, () => {
  const sent = [...upTo(1000), 'x'.repeat(1000)];
  const vector = { connections: [{ events: [['a', 1]], end: 'cut' }] };
  const { message, lost } = failure(() => check('call 1 (tool)', recorded(vector), 1, 'kit-1', sent));
  const lines = message.split('\n');
  assert.ok(lines[1].includes('... 960 more ...') && lines.every((line) => line.length < 500), message);
  assert.deepEqual(lost, sent.slice(1));
  assert.equal(Event.cursor(undefined), undefined);
});

/** A call whose connection is closed by the server, then cut, and read from an older id. */
async function closedAndCut(session) {
  const call = await session.call('count', { to: 6, close_at: 2 });
  assert.equal(call.connections[0].status, 200);
  assert.deepEqual(await call.untilClosed(), [1, 2]);
  await call.resume();
  await call.cut(2);
  await call.resume(call.ids[1]);
  assert.deepEqual(await call.read(), [2]);
  assert.deepEqual(await call.collect(), COUNTED);
  assert.deepEqual(
    call.connections.map(({ end }) => end),
    ['closed', 'cut', 'closed', 'closed'],
  );
  call.assertExactlyOnce(COUNTED);
  call.assertExactlyOnce();
  return call;
}

const TARGETS = {
  'a file': MINE,
  'a command': [
    process.execPath,
    '-e',
    'process.env.PORT = "{port}"; process.argv[1] = process.env.MINE; import(process.env.MINE)',
  ],
};

for (const [name, target] of Object.entries(TARGETS)) {
  test(`a process is served: ${name}`, ours, async (t) => {
    const server = await serve(target, { env: { MINE } });
    t.after(() => server.close());
    const call = await closedAndCut(await server.session());
    assert.equal(call.report().split('\n')[0], '  connection 1: POST: 200: 1, 2; closed by the server');
    await server.close();
    await assert.rejects(openSession(server.url), { name: 'TailropeError', code: 'no_connection' });
  });
}

const HANDLERS = {
  'a handler': () => make(),
  'an express application': () => express().all('/mcp', make()),
  'a server': () => http.createServer(make()),
};

for (const [name, handler] of Object.entries(HANDLERS)) {
  test(`${name} is served in the test's own process`, ours, async (t) => {
    const server = await serve(handler());
    t.after(() => server.close());
    const { session } = await closedAndCut(await server.session());
    await assert.rejects(server.restart(), { code: 'not_restartable' });
    assert.equal(await session.delete(), 200);
  });
}

test('a killed server goes on with a durable store', ours, async (t) => {
  const server = await serve(MINE, { env: { STORE: `sqlite:${join(folderFor(t), 'events.db')}` } });
  t.after(() => server.close());
  const session = await server.session();
  const done = await session.call('count', { to: 6, close_at: 3 });
  await done.untilClosed();
  await done.resume();
  assert.deepEqual(await done.read(4), [4, 5, 6, 'counted to 6']);
  const running = await session.call('count', { to: 100_000, pause_ms: 1 });
  await running.cut(5);
  const { port } = server;
  await server.restart();
  assert.equal(server.port, port);
  await done.resume(done.ids[2]);
  assert.deepEqual(await done.collect(), COUNTED);
  done.assertExactlyOnce(COUNTED);
  await running.resume();
  const counted = await running.collect();
  // What was stored when the process died, and then an error: nobody works on it any more.
  const end = counted.pop();
  assert.deepEqual(counted, upTo(counted.length));
  assert.ok(end.code < 0);
  running.assertExactlyOnce();
});

test('without a durable store a restart is found to lose', ours, async (t) => {
  const server = await serve(MINE);
  t.after(() => server.close());
  const session = await server.session();
  const call = await session.call('count', { to: 6, pause_ms: 200 });
  await call.cut(2);
  await server.restart();
  await assert.rejects(call.collect(), { code: 'refused', status: 404 });
  assert.deepEqual(failure(() => call.assertExactlyOnce(COUNTED)).lost, COUNTED.slice(2));
});

for (const line of LINES) {
  /** F-10: a tool goes on between the reading of the store and what a stock transport does next. */
  const resumedAmidAReplay = async (t, stock) => {
    const store = new LabStore();
    const { port } = await serveFor(t, line, { eventStore: store, stock });
    const session = await openSession(`http://127.0.0.1:${port}/mcp`);
    const [name, end] = [newGate(), newGate()];
    const steps = ['emit 2', `gate ${name}`, 'emit 5', `mark ${name}`, `gate ${end}`, 'return x'];
    const call = await session.call('script', { steps });
    await call.cut(2);
    const replay = store.replayEventsAfter.bind(store);
    store.replayEventsAfter = async (...args) => {
      const stream = await replay(...args);
      open(name);
      await marked(name);
      return stream;
    };
    await call.resume();
    open(name);
    await marked(name);
    open(end);
    await call.collect({ readAgain: false });
    session.close();
    call.assertExactlyOnce([1, 2, 3, 4, 5, 6, 7, 'x']);
  };

  test(`events that a stock transport loses are named, ${line}`, ours, async (t) => {
    const error = await resumedAmidAReplay(t, true).then(
      () => undefined,
      (found) => found,
    );
    assert.ok(error instanceof NotExactlyOnce, error?.stack);
    assert.deepEqual(error.lost, [3, 4, 5, 6, 7]);
    assert.deepEqual(error.message.split('\n').slice(0, 4), [
      'call 1 (script) did not come exactly once',
      '  lost: 3, 4, 5, 6, 7',
      '  sent:     1, 2, 3, 4, 5, 6, 7, "x"',
      '  received: 1, 2, "x"',
    ]);
    await resumedAmidAReplay(t, false);
  });
}

test('errors name what failed', ours, async (t) => {
  const broken = join(folderFor(t), 'broken.mjs');
  writeFileSync(broken, 'console.error("no database");\nprocess.exit(1);\n');
  await assert.rejects(serve(broken), { code: 'not_started', message: /^it ended with 1\nno database/ });
  // On a busy machine what it prints may come later.
  let said = '';
  for (const startMs of [500, 2_000, 8_000]) {
    await assert.rejects(serve(['sh', '-c', 'echo elsewhere; sleep 60'], { startMs }), (error) => {
      said = error.message;
      return error.code === 'not_started' && /does not listen on port/.test(said);
    });
    if (said.includes('\nelsewhere')) {
      break;
    }
  }
  assert.match(said, /\nelsewhere/);
  await assert.rejects(serve(['/nowhere/at-all']), { code: 'not_started', message: /ENOENT/ });
  await assert.rejects(serve(7), { code: 'invalid_argument', message: /number is no server/ });

  const server = await serve(make());
  t.after(() => server.close());
  const session = await server.session();
  let call = await session.call('count', { to: 2, pause_ms: 2_000 });
  assert.deepEqual(await call.read(), [1]);
  session.waitMs = 200;
  await assert.rejects(call.read(), {
    code: 'timed_out',
    message: /^nothing came for 200 ms on connection 1\n {2}connection 1: POST/,
  });
  assert.deepEqual(call.received, [1]);
  session.waitMs = 20_000;
  await assert.rejects(call.resume('of another call'), { code: 'no_cursor' });
  assert.throws(() => call.assertExactlyOnce(), /name what was sent/);
  call = await session.call('count', { to: 2 });
  await assert.rejects(call.read(4), { code: 'ended_early', message: /ended \(closed\) after 3 of 4 messages/ });
  assert.equal(await session.send({ jsonrpc: '2.0', method: 'notifications/roots/list_changed' }), 202);
  session.id = 'unknown';
  await assert.rejects(session.call('count', { to: 1 }), (error) => {
    assert.ok(error instanceof TailropeError);
    assert.deepEqual([error.code, error.status], ['refused', 404]);
    return true;
  });
});

test('a stock server without ids has nothing to resume', ours, async (t) => {
  const server = await serve(make('stock'));
  t.after(() => server.close());
  const session = await server.session();
  const call = await session.call('count', { to: 3 });
  await call.cut(1);
  await assert.rejects(call.resume(), { code: 'no_cursor' });
  const whole = await session.call('count', { to: 3 });
  assert.deepEqual(await whole.collect(), [1, 2, 3, 'counted to 3']);
  whole.assertExactlyOnce([1, 2, 3, 'counted to 3']);
});
