// A user's own EventStore under our transport: slow, failing, returning nonsense. (I9, F-58, F-59)
import assert from 'node:assert/strict';

import { configure } from 'tailrope/mcp';

import { JsonLinesEventStore } from '../../examples/node/own-event-store.mjs';
import { folderFor } from './kit/addresses.mjs';
import { connectLine } from './kit/clients.mjs';
import { Peer, counts, ids, lastId, refusal, results, upTo, within } from './kit/raw.mjs';
import { acting, at, marked, newGate, open, serveFor } from '../servers/node/transports.mjs';
import { BAD_IDS, LabStore, fullDisk } from '../servers/node/stores.mjs';
import { isStock, onEachLine, ours, test } from './kit/test.mjs';

const USERS = {
  lab: {
    make: (t, cap) => new LabStore({ cap }),
    faulty: (store, isFaulty) => store.plan(isFaulty ? { fail: 'notification', times: 99 } : {}),
  },
  example: {
    make: (t, cap) => new JsonLinesEventStore(folderFor(t), cap),
    faulty: (store, isFaulty) => fullDisk(isFaulty),
  },
};

/** How long thousands of events may take on a busy machine. */
const MANY_MS = 60_000;

const told = (events) => events.filter(({ isPriming }) => !isPriming).map(({ id, message }) => ({ id, message }));

/** No detail of the store reaches a client. The stock transports hand it on, which is no fault of the table's. */
function clean(reply) {
  if (isStock) {
    return;
  }
  for (const secret of ['hunter2', '10.0.0.7', 'redis', 'the disk', ' at ']) {
    assert.ok(!reply.raw.includes(secret), reply.raw);
  }
}

async function works(peer) {
  assert.equal(await peer.ask('emit 2', 'return fine'), 'fine');
}

onEachLine(async () => undefined, (line) => {
  async function lab(t, store = new LabStore(), options = {}) {
    const server = await serveFor(t, line, { eventStore: store, ...options });
    return { store, server, peer: await Peer.open(server.port) };
  }

  test('f58 failed notification raises in the handler and harms nothing else', async (t) => {
    const { store, peer } = await lab(t);
    store.plan({ fail: 'notification' });
    const reply = await peer.script('try emit 1', 'try emit 1', 'try emit 1');
    const events = await reply.untilTerminal();
    const outcomes = JSON.parse(results(events)[0]);
    assert.match(outcomes[0], /^raised/);
    assert.deepEqual([outcomes.slice(1), counts(events)], [['ok', 'ok'], [2, 3]]);
    clean(reply);
    await works(peer);
  });

  test('f58 uncaught store fault fails that call only', async (t) => {
    const { store, peer } = await lab(t);
    store.plan({ fail: 'notification' });
    const reply = await peer.script('emit 1', 'return x');
    const { message } = (await reply.untilTerminal()).at(-1);
    assert.ok(message.error !== undefined || message.result.isError);
    // The SDKs put a tool's exception into the result, so what we raise must not quote the store.
    clean(reply);
    await works(peer);
  });

  test('f58 failing standalone notification leaves the stream working', async (t) => {
    const { store, peer } = await lab(t);
    const stream = await peer.listen();
    store.plan({ fail: 'notification' });
    const outcomes = JSON.parse(await peer.ask('try standalone one', 'try standalone two'));
    assert.match(outcomes[0], /^raised/);
    assert.equal((await stream.some(1)).at(-1).message.params.data, 'two');
    await works(peer);
    stream.drop();
  });

  test('f58 failed question fails in the handler', async (t) => {
    const { store, peer } = await lab(t);
    store.plan({ fail: 'request' });
    const reply = await peer.script('try elicit name', 'return after');
    assert.deepEqual(results(await reply.untilTerminal()), ['after']);
    await works(peer);
  });

  test('f59 failed response is answered with an error', async (t) => {
    const { store, peer } = await lab(t);
    store.plan({ fail: 'terminal', times: 1_000 });
    const reply = await peer.call('script', { steps: ['emit 1', 'return x'] }, 9);
    const events = await reply.rest();
    store.plan();
    assert.deepEqual(counts(events), [1]);
    const { id, error } = events.at(-1).message;
    assert.ok(id === 9 && error.code < 0);
    clean(reply);
    await works(peer);
  });

  test('f59 failed response of a detached call is answered on resume', async (t) => {
    const { store, peer } = await lab(t);
    const name = newGate();
    const reply = await peer.call('script', { steps: ['emit 1', `gate ${name}`, `return ${name}`] }, 9);
    const cursor = lastId(await reply.some(1));
    reply.drop();
    await at(name);
    store.plan({ fail: 'terminal' });
    open(name);
    await marked(`finished return ${name}`);
    const resumed = await peer.resume(cursor);
    const { message } = (await resumed.untilTerminal()).at(-1);
    assert.ok(message.id === 9 && message.error !== undefined);
    clean(resumed);
  });

  test('f59 stock client gets an error and goes on', async (t) => {
    const { store, server } = await lab(t);
    const client = await connectLine(t, line, server.port);
    store.plan({ fail: 'terminal' });
    // Before the client's own patience ends, which is an error, too.
    await assert.rejects(within(client.script('return x'), 20_000), (error) => error.code < 0);
    assert.equal(await client.script('return after'), 'after');
  });

  test('failed priming is refused or served but never silent', async (t) => {
    const { store, peer } = await lab(t);
    store.plan({ fail: 'priming' });
    const reply = await peer.script('return x');
    if (reply.isStream) {
      await reply.untilTerminal();
    } else {
      assert.ok(reply.status >= 400);
      await reply.json();
    }
    clean(reply);
    store.plan();
    await works(peer);
  });

  for (const badId of Object.keys(BAD_IDS)) {
    test(`bad id of a notification is a store fault, ${badId}`, async (t) => {
      const { store, peer } = await lab(t);
      store.plan({ badId });
      const events = await (await peer.script('try emit 1', 'try emit 1')).untilTerminal();
      const outcomes = JSON.parse(results(events)[0]);
      assert.match(outcomes[0], /^raised/);
      assert.deepEqual([outcomes[1], counts(events)], ['ok', [2]]);
      assert.ok(ids(events).every((id) => /^[\x21-\x7e]{1,512}$/.test(id)));
      await works(peer);
    });

    test(`bad id of a response is a store fault, ${badId}`, async (t) => {
      const { store, peer } = await lab(t);
      store.plan({ badId, badOn: 'terminal' });
      const { message } = (await (await peer.call('script', { steps: ['emit 1'] }, 4)).rest()).at(-1);
      assert.ok(message.id === 4 && message.error !== undefined);
      await works(peer);
    });
  }

  test('the stores ids go on the wire', ours, async (t) => {
    const { peer } = await lab(t);
    const events = await (await peer.script('emit 3', 'return x')).untilTerminal();
    assert.ok(events.filter(({ data }) => data).every(({ id }) => /^\d+$/.test(id)));
  });

  test('stream names are safe and apart', ours, async (t) => {
    const { store, server, peer } = await lab(t);
    for (const each of [peer, await Peer.open(server.port)]) {
      await each.ask('return x');
      await each.ask('return y');
    }
    // Two initialize streams and four calls, each a stream of its own.
    assert.equal(store.names.size, 6);
    for (const name of store.names) {
      // Example stores split at `_`; sessions and nonces are hex, joined by something else.
      assert.match(name, /^([0-9a-f]{16,}[^0-9a-zA-Z_]?[0-9a-f]{16,}|[0-9a-f]{32,})$/);
    }
  });

  // Over each event store that a user wrote, with a window of five events in the engine.
  for (const [kind, { make, faulty }] of Object.entries(USERS)) {
    async function users(t, cap) {
      configure({ maxEventsPerStream: 5 });
      t.after(() => configure({}));
      return lab(t, make(t, cap));
    }

    test(`i2 i3 every cursor into a users store gets its exact suffix, ${kind}`, ours, async (t) => {
      const { peer, cursors, name } = await outside(t, await users(t));
      const events = await (await peer.resume(cursors[0])).rest();
      assert.deepEqual([counts(events), results(events)], [upTo(41), [name]]);
      const whole = told(events);
      // Those before the last five are the store's to replay, the others are in the window.
      for (const index of [0, 1, 20, 35, 36, 37, 39, 40]) {
        const rest = told(await (await peer.resume(whole[index].id)).rest());
        assert.deepEqual(rest, whole.slice(index + 1), String(index));
      }
      assert.equal((await peer.resume(whole.at(-1).id)).status, 204);
    });

    test(`cursor outside the window is answered by the users replay, ${kind}`, ours, async (t) => {
      const { store, peer, cursors, name } = await outside(t, await users(t));
      const events = await (await peer.resume(cursors[1])).rest();
      assert.equal(store.replays ?? 1, 1);
      assert.deepEqual([counts(events), results(events)], [upTo(41, 2), [name]]);
    });

    test(`users replay is checked for ownership, ${kind}`, ours, async (t) => {
      const { server, peer, cursors, name } = await outside(t, await users(t));
      const stranger = await Peer.open(server.port);
      const found = ids(await (await peer.resume(cursors[0])).rest());
      // Outside the window and in it.
      for (const cursor of [...cursors, ...found.slice(-2)]) {
        const reply = await stranger.resume(cursor);
        const unknown = await stranger.resume('999999999');
        assert.deepEqual(await refusal(reply), await refusal(unknown));
        assert.equal(reply.status, 400);
        assert.ok(!reply.raw.includes(name));
      }
    });

    test(`i8 what a users store dropped is told and never a part, ${kind}`, ours, async (t) => {
      const { peer, cursors, name } = await outside(t, await users(t, 20), 'emit 80');
      const unknown = await peer.resume('999999999');
      const refused = await refusal(unknown);
      for (const cursor of cursors) {
        assert.deepEqual(await refusal(await peer.resume(cursor)), refused);
      }
      assert.equal(unknown.status, 400);
      // What is left of it is whole; the session works.
      assert.equal(await peer.ask('return after'), 'after');
      const whole = told(await (await peer.script('emit 10', `return ${name}`)).rest());
      assert.deepEqual(told(await (await peer.resume(whole[0].id)).rest()), whole.slice(1));
    });

    test(`i9 users store that fails for a while harms the events of that while, ${kind}`, ours, async (t) => {
      const { store, peer } = await users(t);
      const [before, after] = [newGate(), newGate()];
      const twice = ['try emit 1', 'try emit 1'];
      const reply = await peer.script('try emit 2', `gate ${before}`, ...twice, `gate ${after}`, ...twice);
      await at(before);
      t.after(() => faulty(store, false));
      await faulty(store, true);
      open(before);
      await at(after);
      await faulty(store, false);
      open(after);
      const events = await reply.untilTerminal();
      const outcomes = JSON.parse(results(events)[0]).map((outcome) => outcome.replace(/^raised.*/s, 'raised'));
      assert.deepEqual(outcomes, ['ok', 'raised', 'raised', 'ok', 'ok']);
      assert.deepEqual(counts(events), [1, 2, 5, 6]);
      clean(reply);
      const whole = told(events);
      for (const [index, { id }] of whole.slice(0, -1).entries()) {
        assert.deepEqual(told(await (await peer.resume(id)).rest()), whole.slice(index + 1), String(index));
      }
    });
  }

  /** A finished call whose first cursors, that of its priming event and the next, are not in the engine's window. */
  async function outside(t, found, steps = 'emit 40') {
    const name = newGate();
    const reply = await found.peer.script('emit 1', `gate ${name}`, steps, `return ${name}`);
    const first = await reply.event();
    assert.ok(first.isPriming);
    const cursors = [first.id, lastId(await reply.some(1))];
    reply.drop();
    open(name);
    await marked(`finished return ${name}`, 1, MANY_MS);
    return { ...found, cursors, name };
  }

  const patient = { ...ours, timeout: MANY_MS + 60_000 };
  test('store that fails during a resume gets comments then a clean end', patient, async (t) => {
    const { store, peer, cursors } = await outside(t, await lab(t), 'emit 10100');
    store.plan({ replayFails: true });
    const reply = await peer.resume(cursors[1]);
    assert.equal(reply.status, 200);
    // The engine asks the store again for ten seconds.
    const blocks = [];
    for (let block; (block = await reply.block(20_000)) !== undefined; ) {
      blocks.push(block);
    }
    clean(reply);
    assert.deepEqual(blocks.filter(({ comment, isPriming }) => comment === undefined && !isPriming), []);
    // The next try, with the store back, is as if nothing had been.
    store.plan();
    const events = await (await peer.resume(ids(blocks)[0] ?? cursors[1])).rest();
    assert.deepEqual(counts(events), upTo(10_101, 2));
  });

  test('slow store loses nothing on live resumes', async (t) => {
    const { store, peer } = await lab(t);
    store.plan({ latencyMs: [5, 1, 0, 9] });
    const name = newGate();
    let reply = await peer.script(`until ${name}`);
    const got = [];
    for (let visit = 0; visit < 5; visit++) {
      const events = await reply.some(4);
      got.push(...counts(events));
      reply = await peer.resume(lastId(events));
    }
    open(name);
    const events = await reply.untilTerminal();
    got.push(...counts(events));
    assert.deepEqual([got, results(events)], [upTo(got.length), [String(got.length)]]);
  });

  test('store that hangs on one stream delays no other', async (t) => {
    const { store, peer } = await lab(t);
    const name = newGate();
    store.plan({ gate: name });
    const hanging = await peer.script('emit 1', 'return x');
    await at(name);
    assert.equal(await peer.ask('return y'), 'y');
    open(name);
    assert.deepEqual(results(await hanging.untilTerminal()), ['x']);
  });

  const settles = {
    'throws what is no error': () => Promise.reject(7),
    'throws nothing': () => Promise.reject(),
    'throws at once': () => {
      throw new Error('now');
    },
    'gives a lone surrogate': async () => '\udc80',
    'gives an id without a promise': () => 12,
  };
  for (const [what, answer] of Object.entries(settles)) {
    test(`i9 whatever a store does its event is settled, ${what}`, ours, async (t) => {
      const store = new LabStore();
      const storeEvent = store.storeEvent.bind(store);
      let faults = 1;
      store.storeEvent = (stream, message) => {
        const isFault = message.method === 'notifications/progress' && faults-- > 0;
        return isFault ? answer() : storeEvent(stream, message);
      };
      const { peer } = await lab(t, store);
      const events = await (await peer.script('try emit 1', 'try emit 1')).untilTerminal();
      const outcomes = JSON.parse(results(events)[0]);
      assert.match(outcomes[0], /^raised/);
      assert.equal(outcomes[1], 'ok');
      await works(peer);
    });
  }

  for (const bad of [7, '\udc80', {}]) {
    test(`i9 a replay of nonsense is a store fault, ${JSON.stringify(bad)}`, ours, async (t) => {
      const { store, peer } = await lab(t);
      store.replayEventsAfter = async (_, { send }) => {
        await send(bad, { jsonrpc: '2.0', method: 'notifications/x' });
        return bad;
      };
      const reply = await peer.resume('999');
      assert.ok([200, 400].includes(reply.status));
      await within(reply.body(), 20_000);
      await works(peer);
    });
  }

  test('a send that waits for the store when its session ends is told', ours, async (t) => {
    const { store, peer } = await lab(t);
    const [name, hang] = [newGate(), newGate()];
    const reply = await peer.call('act', { name });
    const context = await acting(name);
    store.plan({ gate: hang });
    const sent = context.log('x').then(
      () => 'stored',
      () => 'told',
    );
    await at(hang);
    await peer.delete();
    assert.equal(await within(sent), 'told');
    assert.ok(results(await reply.rest())[0].code < 0);
  });
});
