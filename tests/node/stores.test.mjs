// Stores that outlive their process: readers on another one, restarts, kills, tenants. (A1, A2, A5; D6, D7)
//
// On SQLite, and on the servers that `TAILROPE_TEST_REDIS` and `TAILROPE_TEST_POSTGRES` name, see kit/addresses.mjs.
// `TAILROPE_KILLS` is how often a server is killed.
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { randomUUID } from 'node:crypto';
import { closeSync, openSync, readFileSync, rmSync, writeFileSync, writeSync } from 'node:fs';
import { join } from 'node:path';
import { describe } from 'node:test';
import { fileURLToPath } from 'node:url';
import { inspect } from 'node:util';

import { EventStore, configure, createResumableMcpHandler, openStore } from 'tailrope/mcp';

import { DURABLE, folderFor } from './kit/addresses.mjs';
import { CLIENTS, connect } from './kit/clients.mjs';
import { spawnServer } from './kit/process.mjs';
import {
  NEWEST,
  OLD,
  Peer,
  counts,
  ids,
  lastId,
  logs,
  request,
  results,
  seen,
  sleep,
  unknownLike,
  until,
  upTo,
} from './kit/raw.mjs';
import { listen, logged, marked, newGate, open, packages, serveFor } from '../servers/node/transports.mjs';
import { buildServer } from '../servers/node/tools.mjs';
import { LINES, ours, test } from './kit/test.mjs';

const KILLS = Number(process.env.TAILROPE_KILLS ?? 10);
/** SQLite is tested under both lines, the ways to other stores under one: TAILROPE_EVERY_STORE=1 takes both. */
const linesOn = (kind) =>
  ['redis', 'postgres'].includes(kind) && !process.env.TAILROPE_EVERY_STORE ? LINES.slice(-1) : LINES;
/** Short for a restart, long for a machine under load. */
const OWNER_LOST_MS = 1_500;
const CLIENT = { v1: CLIENTS[0], v2: CLIENTS[1] };
const NOT_FOUND = [404, '{"jsonrpc":"2.0","error":{"code":-32001,"message":"Session not found"},"id":null}'];

const kit = (name) => new URL(`kit/${name}`, import.meta.url).href;

/** Runs a program in a process of its own. */
function run(code) {
  const cwd = fileURLToPath(new URL('.', import.meta.url));
  return spawnSync(process.execPath, ['--input-type=module', '-e', code], { cwd, encoding: 'utf8', timeout: 20_000 });
}

/** A server in a process of its own, which ends with its test. */
async function spawnFor(t, line, options) {
  const child = await spawnServer(line, options);
  t.after(() => child.close());
  return child;
}

/** The same client, at another process. */
function at(peer, { port }) {
  const moved = new Peer(port, peer.revision, peer.headers);
  moved.sessionId = peer.sessionId;
  return moved;
}

async function plain(reply) {
  return [reply.status, await reply.body()];
}

/** Nothing is missing and nothing came twice from `first` on; how the call ended, if it did. */
function check(events, first, what) {
  const numbers = counts(events);
  assert.deepEqual(numbers, upTo(first + numbers.length - 1, first), what);
  assert.ok(results(events).length <= 1, what);
  return { last: first + numbers.length - 1, end: results(events)[0] };
}

for (const { kind, address } of DURABLE) {
  for (const line of linesOn(kind)) {
    describe(`${kind} ${line}`, () => {
      for (const revision of [NEWEST, OLD[0]]) {
        const name = `i3 reader elsewhere gets all that the owner appends, ${revision}`;
        // Ten thousand commits take their time on a slow disk.
        test(name, { ...ours, timeout: 120_000 }, (t) => readElsewhere(t, revision));
      }

      async function readElsewhere(t, revision) {
        const engine = { maxEventsPerStream: 20_000, maxBytesPerStream: 64 << 20 };
        const options = { address: address(t), engine };
        const [a, b] = await Promise.all([spawnFor(t, line, options), spawnFor(t, line, options)]);
        const peer = await Peer.open(a.port, revision);
        const gate = newGate();
        const first = await peer.script('emit 4000', `gate ${gate}`, 'emit 6000', 'return x');
        const events = await first.some(10);
        first.drop();
        const second = await at(peer, b).resume(lastId(events));
        assert.equal(second.status, 200);
        events.push(...(await second.some(100)));
        await a.ask(`open ${gate}`);
        events.push(...(await second.rest()));
        assert.deepEqual(counts(events), upTo(10_000));
        assert.deepEqual(results(events), ['x'], 'I6: the terminal ends it');
        assert.equal(new Set(ids(events)).size, ids(events).length);
        // Back and forth, now that it is complete.
        for (const server of [a, b]) {
          const rest = await (await at(peer, server).resume(ids(events).at(-3))).rest();
          assert.deepEqual([counts(rest), results(rest)], [[10_000], ['x']]);
          assert.equal((await at(peer, server).resume(lastId(events))).status, 204);
        }
        await until(async () => (await b.ask('state')).stats.sessions === 0);
        assert.deepEqual((await b.ask('state')).errors, []);
      }

      test('i4 newest reader has the stream wherever it is', ours, async (t) => {
        const options = { address: address(t) };
        const servers = await Promise.all([spawnFor(t, line, options), spawnFor(t, line, options)]);
        const peer = await Peer.open(servers[0].port);
        const gate = newGate();
        let reply = await peer.script(`until ${gate}`);
        const [events, fenced] = [[], []];
        for (let round = 1; round <= 8; round++) {
          events.push(...(await reply.some(5)));
          // Nobody waits until it is fenced: who has read from the newer one is behind its claim.
          fenced.push(reply.rest());
          reply = await at(peer, servers[round % 2]).resume(lastId(events));
        }
        await servers[0].ask(`open ${gate}`);
        events.push(...(await reply.rest()));
        const { last, end } = check(events, 1);
        assert.equal(end, String(last));
        for (const left of await Promise.all(fenced)) {
          assert.deepEqual(results(left), [], 'I4: an older reader is fenced, however quickly they follow');
        }
      });

      test('standalone stream is heard elsewhere', ours, async (t) => {
        const options = { address: address(t) };
        const [a, b] = await Promise.all([spawnFor(t, line, options), spawnFor(t, line, options)]);
        const peer = await Peer.open(a.port);
        const elsewhere = await at(peer, b).listen();
        assert.ok((await elsewhere.event()).isPriming);
        await peer.ask('standalone one', 'standalone two');
        const events = await elsewhere.some(2);
        assert.deepEqual(logs(events), ['one', 'two']);
        elsewhere.drop();
        await peer.ask('standalone three');
        const back = await peer.resume(lastId(events));
        assert.deepEqual(logs(await back.some(1)), ['three']);
        back.drop();
      });

      test('restart after a kill keeps every stored event', ours, async (t) => {
        const options = { address: address(t), engine: { ownerLostMs: OWNER_LOST_MS } };
        const before = await spawnServer(line, options);
        const peer = await Peer.open(before.port);
        const done = await peer.script('emit 3', 'return done');
        const finished = await done.rest();
        const running = await peer.script('emit 5', `gate ${newGate()}`, 'return x');
        const events = await running.some(5);
        const listening = await peer.listen();
        await peer.ask('standalone one');
        const heard = await listening.some(1);
        before.kill('SIGKILL');
        assert.equal(await before.exited, 'SIGKILL');
        const after = at(peer, await spawnFor(t, line, options));
        const whole = await (await after.resume(finished[0].id)).rest();
        assert.deepEqual([counts(whole), results(whole)], [[1, 2, 3], ['done']]);
        for (const from of [0, 3]) {
          const rest = await (await after.resume(events[from].id)).rest();
          const want = upTo(5).slice(counts(events.slice(0, from + 1)).length);
          assert.deepEqual(counts(rest), want, 'I3');
          assert.deepEqual(results(rest).map(({ code }) => code), [-32603]);
        }
        const again = await after.resume(lastId(heard));
        assert.equal(again.status, 200);
        again.drop();
        // What takes requests is a session of this process.
        const refused = await plain(await after.script('return x'));
        assert.deepEqual(refused, NOT_FOUND);
      });

      test('i13 reader elsewhere is told when the owner is gone', ours, async (t) => {
        const options = { address: address(t), engine: { ownerLostMs: OWNER_LOST_MS } };
        const [a, b] = await Promise.all([spawnFor(t, line, options), spawnFor(t, line, options)]);
        const peer = await Peer.open(a.port);
        const call = await peer.script('emit 3', `gate ${newGate()}`, 'return x');
        const events = await call.some(2);
        call.drop();
        const resumed = await at(peer, b).resume(lastId(events));
        events.push(...(await resumed.some(1)));
        a.kill('SIGKILL');
        events.push(...(await resumed.rest()));
        assert.deepEqual(counts(events), [1, 2, 3]);
        assert.deepEqual(results(events).map(({ code }) => code), [-32603]);
      });

      for (const signal of ['SIGTERM', 'SIGINT']) {
        test(`f44 graceful exit leaves its sessions readable: ${signal}`, ours, async (t) => {
          // Nobody needs to wait until the owner counts as lost: it said that it goes.
          const options = { address: address(t), engine: { ownerLostMs: 600_000 } };
          const before = await spawnServer(line, options);
          t.after(() => before.close());
          const peer = await Peer.open(before.port);
          const done = await (await peer.script('emit 5', 'return x')).rest();
          const call = await peer.script('emit 3', `gate ${newGate()}`, 'return x');
          const events = await call.some(2);
          before.kill(signal);
          events.push(...(await call.rest()));
          assert.equal(await before.exited, 0, before.log);
          const after = at(peer, await spawnFor(t, line, options));
          const whole = await (await after.resume(done[0].id)).rest();
          assert.deepEqual([counts(whole), results(whole)], [upTo(5), ['x']]);
          const rest = await (await after.resume(ids(events)[1])).rest();
          assert.deepEqual(counts(rest), [2, 3]);
          assert.deepEqual(results(rest).map(({ code }) => code), [-32603]);
        });
      }

      test('what a process was told to store is written when it ends', ours, async (t) => {
        // Of these sessions nothing but their records is stored, which nobody waits for.
        const place = address(t);
        const own = `${randomUUID()}-`;
        const done = run(`
          import { connectServer, packages, webClasses } from ${JSON.stringify(kit('servers.mjs'))};
          const eventStore = new packages.${line}.EventStore(${JSON.stringify(place)}, { durability: 'power' });
          const clientInfo = { name: 'client', version: '1' };
          const params = { protocolVersion: '2025-11-25', capabilities: {}, clientInfo };
          const body = JSON.stringify({ jsonrpc: '2.0', id: 1, method: 'initialize', params });
          const headers = { accept: 'application/json, text/event-stream', 'content-type': 'application/json' };
          for (let number = 0; number < 120; number++) {
            const sessionIdGenerator = () => ${JSON.stringify(own)} + number;
            const transport = new webClasses.${line}({ eventStore, sessionIdGenerator, enableJsonResponse: true });
            await connectServer('${line}', transport);
            const { status } = await transport.handleRequest(new Request('http://x/', { method: 'POST', headers, body }));
            if (status !== 200) throw new Error(String(status));
          }
          // Nothing of the process runs on behind what it does at its exit.
          process.on('exit', () => process.kill(process.pid, 'SIGKILL'));
          process.exit();
        `);
        assert.equal(done.signal, 'SIGKILL', done.stderr);
        const after = await spawnFor(t, line, { address: place });
        const peer = new Peer(after.port);
        for (let number = 60; number < 120; number++) {
          peer.sessionId = `${own}${number}`;
          const reply = await peer.listen();
          assert.equal(reply.status, 200, peer.sessionId);
          reply.drop();
        }
      });

      test('stock client whose gets land elsewhere is served', ours, async (t) => {
        const options = { address: address(t) };
        const [a, b] = await Promise.all([spawnFor(t, line, options), spawnFor(t, line, options)]);
        const client = await connect(CLIENT[line], a.port, '/mcp', (method) => (method === 'GET' ? b : a).port);
        t.after(() => client.close());
        const steps = Array(5).fill(['emit 2', 'close', 'emit 1']).flat();
        assert.equal(await client.script(...steps, 'return x'), 'x');
        assert.deepEqual(client.progress, upTo(15));
        assert.ok((await b.ask('state')).stats.connectionsOpened >= 1);
      });

      test('stock client outlives a kill of its server', { ...ours, timeout: 60_000 }, async (t) => {
        const options = { address: address(t), engine: { ownerLostMs: OWNER_LOST_MS } };
        let up = await spawnServer(line, options);
        const client = await connect(CLIENT[line], up.port, '/mcp', async () => (await up).port);
        t.after(() => client.close());
        const gate = newGate();
        const call = client.script('emit 5', `gate ${gate}`, 'return x');
        call.catch(() => {});
        await until(() => client.progress.length === 5);
        const before = up;
        up = before.exited.then(() => spawnFor(t, line, options));
        before.kill('SIGKILL');
        await assert.rejects(call, /is gone/);
        assert.deepEqual(client.progress, upTo(5));
      });

      test('i7 two tenants with the same names see nothing of each other', ours, async (t) => {
        const options = { address: address(t) };
        const [a, b] = await Promise.all([spawnFor(t, line, options), spawnFor(t, line, options)]);
        const users = ['alice', 'bob'];
        const peers = await Promise.all(users.map((user) => Peer.open(a.port, undefined, { 'x-user': user })));
        const gate = newGate();
        const cursors = [];
        for (const [index, peer] of peers.entries()) {
          const mine = [];
          for (const id of [1, 2]) {
            const words = `secret-of-${users[index]}-${id}`;
            const steps = [`log ${words}`, `gate ${gate}`, `log ${words}`, 'return x'];
            const reply = await peer.call('script', { steps }, id);
            mine.push((await reply.some(1))[0].id);
            reply.drop();
          }
          cursors.push(mine);
        }
        // A cursor of somebody else is answered as one that never was, on the owner and elsewhere.
        for (const server of [a, b]) {
          const alice = at(peers[0], server);
          // Of another process: it may stand still while this one does not.
          const foreign = await seen(await alice.resume(cursors[1][0]), 10_000);
          const unknown = await seen(await alice.resume(unknownLike(cursors[1][0])), 10_000);
          assert.deepEqual(foreign, unknown);
          assert.doesNotMatch(JSON.stringify(foreign), /secret-of-bob/);
          // And a session of somebody else as one that never was.
          const stolen = new Peer(server.port, undefined, { 'x-user': 'alice' });
          stolen.sessionId = peers[1].sessionId;
          const answers = [];
          for (const session of [peers[1].sessionId, '00000000-0000-4000-8000-000000000000']) {
            stolen.sessionId = session;
            answers.push(await plain(await stolen.resume(cursors[1][0])), await plain(await stolen.listen()));
          }
          assert.deepEqual(answers, Array(4).fill(NOT_FOUND));
          const anonymous = new Peer(server.port);
          anonymous.sessionId = peers[1].sessionId;
          assert.deepEqual(await plain(await anonymous.resume(cursors[1][0])), NOT_FOUND);
        }
        const replies = await Promise.all(
          peers.flatMap((peer, index) => cursors[index].map((cursor) => at(peer, b).resume(cursor))),
        );
        await a.ask(`open ${gate}`);
        for (const [index, reply] of replies.entries()) {
          const user = users[index >> 1];
          const events = await reply.rest();
          assert.deepEqual(logs(events), Array(2).fill(`secret-of-${user}-${(index % 2) + 1}`));
          assert.doesNotMatch(reply.raw, new RegExp(`secret-of-${users.find((other) => other !== user)}`));
        }
      });

      const rounds = Math.ceil(KILLS / linesOn(kind).length);
      const limits = { ...ours, timeout: 30_000 + rounds * 10_000 };
      test('a5 kill at any moment loses nothing that was acknowledged', limits, async (t) => {
        const folder = folderFor(t);
        const bounds = { maxEventsPerStream: 100_000, maxBytesPerStream: 256 << 20, maxBytesPerSession: 1 << 30 };
        const options = { address: address(t), engine: { ownerLostMs: OWNER_LOST_MS, ...bounds } };
        let server = await spawnServer(line, options);
        t.after(() => server.close());
        const wait = () => sleep(Math.random() ** 2 * 400);
        for (let round = 0; round < rounds; round++) {
          const peer = await Peer.open(server.port);
          const calls = await Promise.all(
            ['emit 100000', 'emit 100000 2000', 'emit 20'].map(async (steps, index) => {
              const notes = join(folder, `${round}-${index}`);
              writeFileSync(notes, '0');
              return { notes, events: [], reply: await peer.script(`note ${notes}`, steps, 'return x') };
            }),
          );
          // Each client reads until the kill; some lose their connection before.
          const readers = calls.map(async (call) => {
            for (let event; (event = await call.reply.block().catch(() => undefined)) !== undefined; ) {
              call.events.push(event);
            }
          });
          await wait();
          if (round % 2) {
            calls.at(-1).reply.drop();
          }
          await wait();
          server.kill('SIGKILL');
          await server.exited;
          await Promise.all(readers);
          server = await spawnServer(line, options);
          const after = at(peer, server);
          for (const { notes, events, reply } of calls) {
            const what = `round ${round}, ${notes}: ${JSON.stringify(events.slice(-2))}`;
            reply.drop();
            const { last, end } = check(events, 1, what);
            const known = ids(events);
            if (known.length === 0) {
              continue;
            }
            const acknowledged = Number(readFileSync(notes, 'utf8'));
            if (end !== undefined) {
              assert.equal((await after.resume(known.at(-1))).status, 204, what);
            }
            // From the last position that the client has, and from any before.
            const from = [known.length - 1, ...Array.from({ length: 2 }, () => Math.floor(Math.random() * known.length))];
            for (const position of end === undefined ? from : from.slice(1)) {
              const before = counts(events.slice(0, events.findIndex(({ id }) => id === known[position]) + 1)).length;
              const again = await after.resume(known[position]);
              if (again.status === 204) {
                assert.equal(position, known.length - 1, what);
                continue;
              }
              assert.equal(again.status, 200, what);
              const rest = await again.rest();
              const suffix = check(rest, before + 1, what);
              assert.ok(suffix.last >= Math.max(last, acknowledged), `${what}: ${suffix.last} of ${acknowledged}`);
              assert.ok(suffix.end === 'x' || suffix.end.code === -32603, what);
              assert.doesNotMatch(again.raw, /: gap/, what);
            }
            rmSync(notes);
          }
          await after.get().then((listening) => listening.drop());
        }
      });
    });
  }

  test(`${kind}: createResumableMcpHandler serves readers of sessions elsewhere`, ours, async (t) => {
    const place = address(t);
    const serve = async (face) => {
      const eventStore = new EventStore(openStore(place));
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
      assert.equal((await at(peer, other).script('return x')).status, 404);
      assert.equal((await at(peer, other).delete()).status, 404);
      assert.equal(await peer.ask('return still'), 'still');
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
    const store = new EventStore(place);
    const primed = await store.storeEvent('one', {});
    const sent = ['a', 'b', 'c'].map((data) => store.storeEvent('one', message(data)));
    const others = ['x', 'y'].map((data) => store.storeEvent('two', message(data)));
    const [first] = await Promise.all(sent);
    const [other] = await Promise.all(others);
    // Another object on the same address finds it where that outlives the process, and by its ids alone.
    for (const found of kind === 'memory' ? [store] : [store, new EventStore(openStore(place))]) {
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
    const store = new EventStore(address(t));
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

  for (const line of linesOn(kind)) {
    test(`${kind} ${line}: transport of the SDK resumes from our store`, ours, async (t) => {
      const eventStore = new packages[line].EventStore(address(t));
      const server = await serveFor(t, line, { stock: true, eventStore });
      const peer = await Peer.open(server.port);
      const gate = newGate();
      const reply = await peer.script('emit 2', `gate ${gate}`, 'emit 2', `return ${gate}`);
      const events = await reply.some(2);
      reply.drop();
      open(gate);
      await marked(`finished return ${gate}`);
      const rest = await (await peer.resume(ids(events)[1])).untilTerminal();
      assert.deepEqual([counts(rest), results(rest)], [[2, 3, 4], [gate]]);
    });
  }
}

for (const line of LINES) {
  test(`${line}: requests are refused elsewhere as where the session lives`, ours, async (t) => {
    const options = {
      address: `sqlite:${join(folderFor(t), 'events.db')}`,
      enableDnsRebindingProtection: true,
      allowedOrigins: ['http://good.example'],
    };
    const [owner, other] = [await serveFor(t, line, options), await serveFor(t, line, options)];
    const peer = await Peer.open(owner.port);
    const { id } = (await (await peer.script('emit 1', 'return x')).rest())[0];
    const heads = [
      { accept: 'application/json' },
      { 'mcp-protocol-version': '1999-01-01' },
      { origin: 'http://evil.example' },
      { 'last-event-id': 'no such thing' },
      { 'last-event-id': id, origin: 'http://good.example' },
      { 'last-event-id': id, 'mcp-protocol-version': undefined },
    ];
    const statuses = [];
    const { engine } = other.store[Symbol.for('tailrope.runtime')];
    for (const head of heads) {
      const answers = [];
      for (const server of [owner, other]) {
        const reply = await at(peer, server).get(head);
        answers.push(await seen(reply));
      }
      assert.deepEqual(answers[0], answers[1]);
      statuses.push(answers[0][0]);
      // A session that was refused a connection is not held on to (I11).
      await until(() => engine.stats().sessions === 0);
    }
    assert.deepEqual(statuses, [406, 400, 403, 400, 200, 200]);
  });

  test(`${line}: i9 store that cannot tell of a session is no 404`, ours, async (t) => {
    const folder = folderFor(t);
    const file = join(folder, 'hunter2.db');
    const server = await serveFor(t, line, { address: `sqlite:${file}` });
    const peer = await Peer.open(server.port);
    for (const name of [file, `${file}-wal`, `${file}-shm`]) {
      // Not cut short before: a thread of the store reads the mapped file at any time.
      const fd = openSync(name, 'r+');
      writeSync(fd, 'x'.repeat(100_000));
      closeSync(fd);
    }
    const other = new Peer(server.port);
    other.sessionId = `not-${peer.sessionId}`;
    const reply = await other.listen();
    assert.equal(reply.status, 503);
    const { error, id } = await reply.json();
    assert.deepEqual([error.code, id], [-32603, null]);
    assert.doesNotMatch(reply.raw, /sqlite|hunter2|database|malformed/i);
    assert.ok(server.errors.length > 0, 'the server is told');
  });

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
  test('store that cannot be opened is refused at once', ours, () => {
    const secret = /hunter2/;
    const addresses = [
      'sqlite:/no/such/folder/events.db',
      'sqlite:',
      'no-such-kind:somewhere',
      'events.db',
      'redis://me:hunter2@127.0.0.1:1/0',
      'redis://:hunter2@127.0.0.1:1?password=hunter2',
      'postgres://me:hunter2@127.0.0.1:1/db?connect_timeout=1',
      'postgres://me:hunt/hunter2@127.0.0.1:1/db',
      'host=127.0.0.1 port=1 password=hunter2',
    ];
    for (const address of addresses) {
      const attempts = [
        () => openStore(address),
        () => configure({ store: address }),
        () => new EventStore(address),
      ];
      for (const attempt of attempts) {
        assert.throws(attempt, (error) => {
          assert.equal(error.code, 'store_not_opened');
          assert.match(error.message, /cannot be opened/);
          const shown = [inspect(error, { showHidden: true, depth: 9 }), error.stack, JSON.stringify(error)];
          assert.doesNotMatch(shown.join('\n'), secret);
          return true;
        });
      }
    }
    assert.doesNotMatch(logged.join('\n'), secret);
  });

  test('store is named without what is secret', ours, (t) => {
    const place = `sqlite:${join(folderFor(t), 'events.db')}`;
    const store = openStore(place, { durability: 'power', maxBytes: 1 << 20, ownerLostMs: 5_000 });
    assert.equal(store.address, place);
    assert.equal(`${store}`, `Store(${place})`);
    assert.equal(inspect(store), `Store(${place})`);
    assert.equal(JSON.stringify(store), JSON.stringify({ address: place }));
  });

  test('options of a store that is open are refused elsewhere', ours, () => {
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
      const wanted = { code: 'invalid_argument', message: new RegExp(name) };
      assert.throws(() => openStore('memory:', options), wanted);
      assert.throws(
        () => openStore('memory:', options),
        (error) => !/hunter2/.test(inspect(error, { showHidden: true })),
      );
    }
    assert.throws(() => openStore(undefined), { code: 'invalid_argument' });
    const store = openStore('memory:');
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
    configure({ store: openStore(address), retryMs: 20 });
    const other = await serveFor(t, 'v1');
    const resumed = await at(peer, other).resume(lastId(events));
    events.push(...(await resumed.some(1)));
    open(gate);
    events.push(...(await resumed.rest()));
    assert.deepEqual([counts(events), results(events)], [[1, 2, 3], ['x']]);
  });
});
