// What requests cost: calls into the native half, and writes to their sockets. Each bound is what there is to do.
import assert from 'node:assert/strict';
import http from 'node:http';
import { createRequire } from 'node:module';

import { makeServer, newGate, open } from '../servers/node/transports.mjs';
import { counts, lastId, Peer, results } from './kit/raw.mjs';
import { Caller, never, serve } from './kit/taskable.mjs';
import { LINES, ours, test } from './kit/test.mjs';

const { loaded: native } = createRequire(import.meta.url)('../../bindings-node/lib/native.cjs');
const CLASSES = ['Admission', 'Connection', 'Engine', 'Refusal', 'Session', 'TaskCall'];

const crossed = [];
/** Counts all that is called, or read, of the native classes. */
for (const name of CLASSES) {
  const { prototype } = native[name];
  for (const [member, { value, get }] of Object.entries(Object.getOwnPropertyDescriptors(prototype))) {
    if (member === 'constructor') {
      continue;
    }
    const counted = (native) =>
      function (...args) {
        crossed.push(`${name}.${member}`);
        return Reflect.apply(native, this, args);
      };
    const counting = get === undefined ? { value: counted(value) } : { get: counted(get) };
    Object.defineProperty(prototype, member, counting);
  }
}

let writes = 0;
/** Counts what a socket is given to write: each is a system call. */
function watch(socket) {
  for (const name of ['_write', '_writev']) {
    const write = socket[name];
    socket[name] = function (...args) {
      writes += 1;
      return Reflect.apply(write, this, args);
    };
  }
}

/** What `ask` costs the server: the least of several times, since a tick of the engine may come in between. */
async function costOf(ask) {
  const costs = [];
  for (let time = 0; time < 5; time++) {
    crossed.length = 0;
    writes = 0;
    costs.push({ value: await ask(), crossings: [...crossed], writes });
  }
  return costs.reduce((least, cost) => (cost.crossings.length < least.crossings.length ? cost : least));
}

function within({ crossings, writes }, bounds) {
  assert.ok(crossings.length <= bounds.crossings, `${crossings.length} crossings: ${crossings.join(', ')}`);
  assert.ok(writes <= bounds.writes, `${writes} writes to the socket`);
}

test('a call of 2026-07-28 that is answered at once crosses eight times and is one write', ours, async (t) => {
  const { handler } = await serve(t, { eventStore: never() });
  const server = http.createServer((req, res) => handler.node(req, res)).on('connection', watch);
  await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));
  t.after(() => {
    server.closeAllConnections();
    server.close();
  });
  const caller = new Caller(server.address().port);
  const call = await costOf(() => caller.call('quick'));
  assert.equal(call.value.result.content[0].text, 'quick');
  within(call, { crossings: 8, writes: 1 });
});

for (const line of LINES) {
  const opened = async (t) => {
    // No comment is due, and no tick for one.
    const made = makeServer(line, { keepAliveMs: 0 });
    const server = http.createServer(made.listener).on('connection', watch);
    await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));
    t.after(async () => {
      await made.closeTransports();
      server.closeAllConnections();
      server.close();
    });
    const peer = await Peer.open(server.address().port);
    // What is asked once in a session.
    await peer.ask('return first');
    return peer;
  };

  test(`${line} a call that is answered at once crosses three times and is one write`, ours, async (t) => {
    const peer = await opened(t);
    const call = await costOf(() => peer.ask('return x'));
    assert.equal(call.value, 'x');
    within(call, { crossings: 3, writes: 1 });
  });

  test(
    `${line} a call that closes its connection behind an event crosses five times and is one write`,
    ours,
    async (t) => {
      const peer = await opened(t);
      const call = await costOf(async () => (await peer.script('emit 1', 'close', 'return x')).rest());
      assert.deepEqual([counts(call.value), results(call.value)], [[1], []]);
      within(call, { crossings: 5, writes: 1 });
    },
  );

  test(`${line} a message crosses three times and is one write`, ours, async (t) => {
    const peer = await opened(t);
    within(await costOf(() => peer.notify('notifications/roots/list_changed')), { crossings: 3, writes: 1 });
  });

  test(`${line} a resume of what has ended crosses twice and is one write`, ours, async (t) => {
    const peer = await opened(t);
    const events = await (await peer.script('emit 1', 'close', 'return x')).rest();
    const resume = await costOf(async () => (await peer.resume(lastId(events))).rest());
    assert.deepEqual(results(resume.value), ['x']);
    within(resume, { crossings: 2, writes: 1 });
  });

  test(`${line} a resume that waits crosses at most eight times and is two writes`, ours, async (t) => {
    const peer = await opened(t);
    const gate = newGate();
    const calls = [];
    for (let time = 0; time < 5; time++) {
      calls.push(await (await peer.script('emit 1', 'close', `gate ${gate}-${time}`, 'return x')).rest());
    }
    let time = 0;
    const resume = await costOf(async () => {
      const reply = await peer.resume(lastId(calls[time]));
      assert.ok((await reply.event()).isPriming);
      open(`${gate}-${time++}`);
      return reply.rest();
    });
    assert.deepEqual(results(resume.value), ['x']);
    // One of them is what the handler sends, and some a tick.
    within(resume, { crossings: 8, writes: 2 });
  });
}
