// Opening a store, what may be said of it, and what hosts do with it themselves. (A1, A2; D6, D7)
//
// On SQLite, and on the servers that `TAILROPE_TEST_REDIS` and `TAILROPE_TEST_POSTGRES` name, see kit/addresses.mjs.
import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import { once } from 'node:events';
import net from 'node:net';
import { join } from 'node:path';
import { describe } from 'node:test';
import { inspect } from 'node:util';

import { TailropeError } from 'tailrope';
import { configure, createResumableMcpHandler, EventStore, openStore } from 'tailrope/mcp';
import { buildServer } from '../servers/node/tools.mjs';
import { listen, logged, newGate, open, packages, serveFor } from '../servers/node/transports.mjs';
import { DURABLE, folderFor } from './kit/addresses.mjs';
import { run } from './kit/program.mjs';
import { counts, lastId, Peer, request, results, unknownLike, until, upTo } from './kit/raw.mjs';
import { LINES, ours, test } from './kit/test.mjs';

/** The same client, at another process. */
function at(peer, { port }) {
  const moved = new Peer(port, peer.revision, peer.headers);
  moved.sessionId = peer.sessionId;
  return moved;
}

for (const { kind, address } of DURABLE) {
  test(`${kind}: createResumableMcpHandler serves readers of sessions elsewhere`, ours, async (t) => {
    const place = address(t);
    const serve = async (face) => {
      const eventStore = new EventStore(await openStore(place));
      const handler = createResumableMcpHandler(() => buildServer('v2'), { eventStore, retryInterval: 20 });
      const host = await listen(async (req, res) => {
        if (face === 'node' || req.method !== 'GET') {
          return handler.node(req, res);
        }
        const answer = await handler.fetch(new Request(`http://127.0.0.1${req.url}`, { headers: req.headers }));
        res.writeHead(answer.status, Object.fromEntries(answer.headers));
        for await (const chunk of answer.body ?? []) {
          res.write(chunk);
        }
        return res.end();
      });
      t.after(async () => {
        await handler.close();
        await host.close();
      });
      return host;
    };
    const owner = await serve('node');
    for (const face of ['node', 'fetch']) {
      const other = await serve(face);
      const peer = await Peer.open(owner.port);
      const gate = newGate();
      const reply = await peer.script('emit 2', `gate ${gate}`, 'emit 2', 'return x');
      const events = await reply.some(1);
      reply.drop();
      const resumed = await at(peer, other).resume(lastId(events));
      events.push(...(await resumed.some(1)));
      open(gate);
      events.push(...(await resumed.rest()));
      assert.deepEqual([counts(events), results(events)], [upTo(4), ['x']]);
      const nobody = at(peer, other);
      nobody.sessionId = 'nobody';
      assert.equal((await nobody.resume(lastId(events))).status, 404);
      assert.equal((await nobody.script('return x')).status, 404);
      assert.equal((await nobody.delete()).status, 404);
    }
  });
}

/** What a store tells of an id: the stream, and what came after. */
async function replayed(store, id) {
  const events = [];
  const send = async (eventId, { params }) => events.push([eventId, params.data]);
  const stream = await store.replayEventsAfter(id, { send });
  assert.equal(await store.getStreamIdForEventId(id), stream);
  return [stream, events.map(([, data]) => data)];
}

const message = (data) => ({ jsonrpc: '2.0', method: 'notifications/message', params: { level: 'info', data } });

for (const { kind, address } of [{ kind: 'memory', address: () => 'memory:' }, ...DURABLE]) {
  test(`${kind}: event store behind the transport of the SDK keeps its events`, ours, async (t) => {
    const place = address(t);
    const store = new EventStore(await openStore(place));
    const primed = await store.storeEvent('one', {});
    const sent = ['a', 'b', 'c'].map((data) => store.storeEvent('one', message(data)));
    const others = ['x', 'y'].map((data) => store.storeEvent('two', message(data)));
    const [first] = await Promise.all(sent);
    const [other] = await Promise.all(others);
    // Another object on the same address finds it where that outlives the process, and by its ids alone.
    for (const found of kind === 'memory' ? [store] : [store, new EventStore(await openStore(place))]) {
      assert.deepEqual(await replayed(found, primed), ['one', ['a', 'b', 'c']]);
      assert.deepEqual(await replayed(found, first), ['one', ['b', 'c']]);
      assert.deepEqual(await replayed(found, other), ['two', ['y']]);
      for (const unknown of ['', 'no such id', unknownLike(first)]) {
        assert.equal(await found.getStreamIdForEventId(unknown), undefined);
        await assert.rejects(found.replayEventsAfter(unknown, { send: assert.fail }), /Event not found/);
      }
    }
  });

  test(`${kind}: i7 an id means nothing in the part of another session`, ours, async (t) => {
    const store = new EventStore(await openStore(address(t)));
    const sessions = [randomUUID(), randomUUID()].map((id) => store.scoped(id));
    const [alices, bobs] = await Promise.all(sessions.map((part) => part.storeEvent('1', message('before'))));
    await Promise.all(sessions.map((part, index) => part.storeEvent('1', message(['alice', 'bob'][index]))));
    const [alice, bob] = sessions;
    assert.deepEqual(await replayed(alice, alices), ['1', ['alice']]);
    assert.deepEqual(await replayed(bob, bobs), ['1', ['bob']]);
    for (const other of [alice, store]) {
      assert.equal(await other.getStreamIdForEventId(bobs), undefined);
    }
    bob.drop();
    await until(async () => (await bob.getStreamIdForEventId(bobs)) === undefined);
    assert.deepEqual(await replayed(alice, alices), ['1', ['alice']]);
    assert.throws(() => store.scoped(''), { code: 'invalid_argument' });
  });
}

for (const line of LINES) {
  test(`${line}: routers get no answer for what is in no store`, ours, async (t) => {
    const { fetchStoredSession, serveStoredSession } = packages[line];
    const url = 'http://127.0.0.1/mcp';
    const headers = { accept: 'text/event-stream', 'mcp-session-id': 'nobody' };
    const eventStore = new EventStore(`sqlite:${join(folderFor(t), 'events.db')}`);
    for (const store of [undefined, eventStore]) {
      for (const init of [{ headers }, { headers: {} }, { headers, method: 'POST', body: '{}' }]) {
        assert.equal(await fetchStoredSession(new Request(url, init), { eventStore: store }), undefined);
      }
    }
    const host = await listen(async (req, res) => {
      res.writeHead((await serveStoredSession(req, res, { eventStore })) ? 500 : 418).end();
    });
    t.after(() => host.close());
    assert.equal((await request(host.port, 'GET', headers)).status, 418);
    assert.equal((await request(host.port, 'DELETE', headers)).status, 418);
  });
}

test('a look-up holds a process that has nothing else', ours, (t) => {
  const place = `sqlite:${join(folderFor(t), 'events.db')}`;
  const done = run(`
    import { EventStore, fetchStoredSession } from 'tailrope/mcp';
    const headers = { accept: 'text/event-stream', 'mcp-session-id': 'nobody' };
    const eventStore = new EventStore(${JSON.stringify(place)});
    // Some are answered before the process would end.
    let answered;
    for (let times = 0; times < 200; times++) {
      answered = await fetchStoredSession(new Request('http://x/', { headers }), { eventStore });
    }
    console.log(answered);
  `);
  assert.deepEqual([done.status, done.stdout], [0, 'undefined\n'], done.stderr);
});

describe('opening', () => {
  const secret = /hunter2/;
  const isSilent = (error) => {
    const shown = [inspect(error, { showHidden: true, depth: 9 }), error.stack, JSON.stringify(error)];
    assert.doesNotMatch(shown.join('\n'), secret);
    return true;
  };

  test('store that cannot be opened is refused', ours, async () => {
    const wanted = (error) => {
      assert.ok(error instanceof TailropeError);
      assert.equal(error.code, 'store_not_opened');
      assert.match(error.message, /cannot be opened/);
      return isSilent(error);
    };
    const addresses = [
      'sqlite:/no/such/folder/events.db',
      'sqlite:',
      'no-such-kind:somewhere',
      'events.db',
      'host=127.0.0.1 port=1 password=hunter2',
    ];
    for (const address of addresses) {
      await assert.rejects(openStore(address), wanted);
      assert.throws(() => configure({ store: address }), wanted);
      assert.throws(() => new EventStore(address), wanted);
    }
    const remote = [
      'redis://me:hunter2@127.0.0.1:1/0',
      'redis://:hunter2@127.0.0.1:1?password=hunter2',
      'postgres://me:hunter2@127.0.0.1:1/db?connect_timeout=1',
      'postgres://me:hunt/hunter2@127.0.0.1:1/db',
    ];
    await Promise.all(remote.map((address) => assert.rejects(openStore(address), wanted)));
    assert.doesNotMatch(logged.join('\n'), secret);
  });

  test('store on the network is opened without holding up other work', ours, async (t) => {
    const seen = [];
    const server = net.createServer((socket) => {
      seen.push('connected');
      socket.on('error', () => {});
      socket.on('data', () => socket.write('-ERR not today\r\n'));
    });
    await once(server.listen(0, '127.0.0.1'), 'listening');
    t.after(() => server.close());
    const address = `redis://:hunter2@127.0.0.1:${server.address().port}`;
    await assert.rejects(openStore(address), { code: 'store_not_opened', message: /refused/ });
    // Nobody but this thread lets it connect.
    assert.equal(seen[0], 'connected');
    for (const attempt of [() => configure({ store: address }), () => new EventStore(address)]) {
      const wanted = { code: 'invalid_argument', message: /await openStore/ };
      assert.throws(attempt, wanted);
      assert.throws(attempt, isSilent);
    }
  });

  test('store is named without what is secret', ours, async (t) => {
    const place = `sqlite:${join(folderFor(t), 'events.db')}`;
    const store = await openStore(place, { durability: 'power', maxBytes: 1 << 20, ownerLostMs: 5_000 });
    assert.equal(store.address, place);
    assert.equal(`${store}`, `Store(${place})`);
    assert.equal(inspect(store), `Store(${place})`);
    assert.equal(JSON.stringify(store), JSON.stringify({ address: place }));
  });

  test('options of a store that is open are refused elsewhere', ours, async () => {
    for (const options of [
      { maxByte: 1 },
      { maxBytes: 0 },
      { maxBytes: 1.5 },
      { maxBytes: '1' },
      { ownerLostMs: -1 },
      { durability: 'perhaps' },
      { durability: 1 },
      { encryptionKeys: 'hunter2' },
      { encryptionKeys: ['hunter2'] },
      { encryptionKeys: [] },
      { retryMs: 1_000 },
    ]) {
      const [name] = Object.keys(options);
      const wanted = { name: 'TailropeError', code: 'invalid_argument', message: new RegExp(name) };
      await assert.rejects(openStore('memory:', options), wanted);
      await assert.rejects(openStore('memory:', options), isSilent);
    }
    await assert.rejects(openStore(undefined), { code: 'invalid_argument' });
    const store = await openStore('memory:');
    for (const options of [{ maxBytes: 1 << 20 }, { ownerLostMs: 5_000 }, { durability: 'power' }]) {
      const wanted = { code: 'invalid_argument', message: /openStore/ };
      assert.throws(() => new EventStore(store, options), wanted);
      assert.throws(() => configure({ store, ...options }), wanted);
    }
    for (const eventStore of ['memory:', store]) {
      const { StreamableHTTPServerTransport: Transport } = packages.v1;
      const options = { sessionIdGenerator: () => 'one', eventStore };
      assert.throws(() => new Transport(options), { message: /new EventStore/ });
    }
  });

  test('configure names a store for every transport that names none', ours, async (t) => {
    t.after(() => configure({}));
    const address = `sqlite:${join(folderFor(t), 'events.db')}`;
    configure({ store: address, durability: 'power', ownerLostMs: 5_000, maxBytes: 64 << 20, retryMs: 20 });
    const owner = await serveFor(t, 'v2');
    const peer = await Peer.open(owner.port);
    const gate = newGate();
    const reply = await peer.script('emit 2', `gate ${gate}`, 'emit 1', 'return x');
    const events = await reply.some(1);
    reply.drop();
    configure({ store: await openStore(address), retryMs: 20 });
    const other = await serveFor(t, 'v1');
    const resumed = await at(peer, other).resume(lastId(events));
    events.push(...(await resumed.some(1)));
    open(gate);
    events.push(...(await resumed.rest()));
    assert.deepEqual([counts(events), results(events)], [[1, 2, 3], ['x']]);
  });
});
