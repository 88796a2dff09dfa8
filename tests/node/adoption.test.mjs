// Sessions whose process is gone, and that go on in another one. (I5, I7, I13)
//
// What adoption is in the engine tests/rust/engine/adoption.rs says. Here one process has a session, and ends; the tests' own
// goes on with it.
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import http from 'node:http';
import { createInterface } from 'node:readline';
import { describe } from 'node:test';
import { fileURLToPath } from 'node:url';
import v8 from 'node:v8';
import vm from 'node:vm';

import { InitializeRequestSchema } from '@modelcontextprotocol/sdk/types.js';

import { marks, gate as pass } from '../servers/node/control.mjs';
import { at as atGate, listen, logged, newGate, open, packages } from '../servers/node/transports.mjs';
import { DURABLE } from './kit/addresses.mjs';
import { entriesOf, makeServer, serverOf, told } from './kit/adoptable.mjs';
import { ACCEPT, counts, OLD, Peer, results, turns, until, upTo, within } from './kit/raw.mjs';
import { isFull, LINES, ours, test } from './kit/test.mjs';

const PROGRAM = fileURLToPath(new URL('kit/adoptable.mjs', import.meta.url));
/** Where a process that stands still holds no lock. */
const [, UNLOCKED = DURABLE[0]] = DURABLE;
const LOST_MS = 4_000;
/** For owners that say that they end: that nobody waits for a time. */
const NEVER_LOST_MS = 600_000;

/** A process that has sessions. */
async function ownerOf(t, line, address, { entry = 'node', ownerLostMs = NEVER_LOST_MS } = {}) {
  const args = [PROGRAM, line, entry, address, ownerLostMs];
  const child = spawn(process.execPath, args, { stdio: ['ignore', 'pipe', 'inherit'] });
  t.after(() => child.kill('SIGKILL'));
  const exited = once(child, 'exit');
  const lines = createInterface(child.stdout)[Symbol.asyncIterator]();
  const port = Number((await within(lines.next())).value);
  return {
    port,
    signal: (signal) => child.kill(signal),
    /** Ends by this signal. */
    async end(signal) {
      child.kill(signal);
      await within(exited);
    },
  };
}

/** A server of this process that adopts. */
async function adopterOf(
  t,
  line,
  address,
  { entry = 'node', ownerLostMs = NEVER_LOST_MS, engine = {}, make, ...options } = {},
) {
  const { openStore, EventStore } = packages[line];
  const adopted = [];
  const errors = [];
  const all = {
    onAdopted: (session) => void adopted.push(session),
    onerror: (error) => errors.push(error.message),
    ...options,
  };
  const eventStore = new EventStore(await openStore(address, { ownerLostMs }), engine);
  const { made, listener } = serverOf(line, entry, eventStore, all, make);
  const requests = [];
  const host = await listen((req, res) => {
    requests.push(new WeakRef(req));
    return listener(req, res);
  });
  t.after(async () => {
    await made.close();
    await host.close();
  });
  return { port: host.port, made, adopted, errors, requests };
}

/** The same client, at another server. */
function at(peer, { port }) {
  const moved = new Peer(port, peer.revision, peer.headers);
  moved.sessionId = peer.sessionId;
  return moved;
}

/** A client's session, of which the store knows. */
async function opened({ port }, revision) {
  const peer = await Peer.open(port, revision);
  assert.equal(await peer.ask('return first'), 'first');
  return peer;
}

/** The question that a call asks. */
const asked = async (call) => (await call.some(1)).at(-1).message;

/** What a client answers. */
const named = (name) => ({ action: 'accept', content: { name } });

const adoptedCount = () => packages.v2.stats().sessionsAdopted;

/** The ways in which a process ends, and how soon that is known. */
const ENDS = [
  ['SIGTERM', NEVER_LOST_MS],
  ['SIGKILL', LOST_MS],
];

for (const line of LINES) {
  for (const [entry, { kind, address }] of [
    ...entriesOf(line).map((entry) => [entry, DURABLE[0]]),
    ...DURABLE.slice(1)
      // What a store does is the engine's: every run asks each line of another one.
      .filter((_, number) => isFull || number === LINES.indexOf(line))
      .map((place) => ['node', place]),
  ]) {
    for (const [signal, ownerLostMs] of ENDS) {
      test(`${kind} ${line} ${entry}: after ${signal} a session goes on at the next process`, ours, async (t) => {
        const place = address(t);
        const initialized = [];
        const owner = await ownerOf(t, line, place, { entry, ownerLostMs });
        const adopter = await adopterOf(t, line, place, {
          entry,
          ownerLostMs,
          onsessioninitialized: (id) => void initialized.push(id),
        });
        const before = adoptedCount();
        const peer = await opened(owner);
        const running = await peer.script('emit 2', 'gate never', 'return never');
        const events = await running.some(2);
        await owner.end(signal);

        const moved = at(peer, adopter);
        assert.equal(await moved.ask('emit 1', 'return second'), 'second');
        assert.equal(await moved.ask('return third'), 'third');
        const [{ sessionId, server }, ...others] = adopter.adopted;
        assert.deepEqual([sessionId, others, adoptedCount() - before], [peer.sessionId, [], 1]);
        assert.equal(told.has(server), true);
        assert.equal(server.server.getClientVersion().name, 'peer');
        // It was initialized once.
        assert.deepEqual(initialized, []);

        // What ran at the process before has one end, an error.
        const rest = await (await moved.resume(events[1].id)).rest();
        assert.deepEqual([counts(rest), results(rest).map(({ code }) => typeof code)], [[2], ['number']]);

        assert.equal((await moved.delete()).status, 200);
        assert.equal((await moved.script('return late')).status, 404);
        assert.deepEqual(adopter.errors.slice(0, -1), []);
      });
    }
  }

  describe(line, () => {
    /** A session whose owner has ended, its client at another process, and that process. */
    async function left(t, { tell, revision, ...options } = {}) {
      const address = DURABLE[0].address(t);
      const owner = await ownerOf(t, line, address);
      const peer = await opened(owner, revision);
      await tell?.(peer);
      await owner.end('SIGTERM');
      const adopter = await adopterOf(t, line, address, options);
      return { address, adopter, moved: at(peer, adopter) };
    }

    test('a server is told what its client has told, in order', ours, async (t) => {
      const request = (id, method, params) => ({ jsonrpc: '2.0', id, method, params });
      const { adopter, moved } = await left(t, {
        async tell(peer) {
          for (const message of [
            request('level', 'logging/setLevel', { level: 'warning' }),
            request(101, 'resources/subscribe', { uri: 'test://a' }),
            request(102, 'resources/subscribe', { uri: 'test://b' }),
          ]) {
            await (await peer.post(message)).untilTerminal();
          }
        },
        // They are there before any request is.
        onAdopted({ server }) {
          seen.push(structuredClone(told.get(server)), server.server.getClientCapabilities());
        },
      });
      const seen = [];
      assert.equal(await moved.ask('return x'), 'x');
      const want = { level: 'warning', subscriptions: ['test://a', 'test://b'] };
      assert.deepEqual(seen, [want, { elicitation: { form: {} }, sampling: {} }]);
      assert.deepEqual(adopter.errors, []);
    });

    test('an adopted session asks its client, and ends calls that are cancelled', ours, async (t) => {
      const { moved } = await left(t);
      const asking = await moved.script('elicit name?');
      const { id } = await asked(asking);
      assert.equal((await moved.respond(id, named('yes'))).status, 202);
      assert.deepEqual(results(await asking.untilTerminal()), ['{"name":"yes"}']);

      const gate = newGate();
      const waiting = await moved.call('script', { steps: ['emit 1', `gate ${gate}`] }, 77);
      await atGate(gate);
      assert.equal((await moved.cancel(77)).status, 202);
      assert.equal(results(await waiting.untilTerminal()).length, 1);
    });

    for (const [way, revision] of [
      ['', undefined],
      ['in a batch, ', OLD[0]],
    ]) {
      test(`o6 ${way}an answer to a question of the process before is for nobody`, ours, async (t) => {
        let before;
        const { address, adopter, moved } = await left(t, {
          revision,
          async tell(peer) {
            before = await asked(await peer.script('elicit name?'));
          },
        });
        const relayer = await adopterOf(t, line, address);
        const asking = await moved.script('elicit name?');
        const question = await asked(asking);
        // The SDK numbers the questions of both servers alike.
        assert.notEqual(question.id, before.id);
        const sofar = packages[line].stats().answersUnasked;
        const answers = (...all) => {
          const messages = all.map(([id, name]) => ({ jsonrpc: '2.0', id, result: named(name) }));
          return JSON.stringify(way ? messages : messages[0]);
        };
        for (const host of [adopter, relayer]) {
          assert.equal((await at(moved, host).post(answers([before.id, 'late']))).status, 202);
        }
        // What is relayed is answered before it is taken.
        await until(() => packages[line].stats().answersUnasked === sofar + 2);
        if (way) {
          const call = { jsonrpc: '2.0', id: 'called', method: 'tools/call' };
          const params = { name: 'script', arguments: { steps: ['return called'] } };
          const late = JSON.parse(answers([before.id, 'late']));
          for (const host of [adopter, relayer]) {
            const reply = await at(moved, host).post(JSON.stringify([...late, { ...call, params }]));
            assert.deepEqual(results(await reply.untilTerminal()), ['called']);
          }
        }
        const both = way ? [[before.id, 'late']] : [];
        assert.equal((await at(moved, relayer).post(answers(...both, [question.id, 'asked']))).status, 202);
        assert.deepEqual(results(await asking.untilTerminal()), ['{"name":"asked"}']);
        // The SDK reports an answer that it has not asked for.
        assert.deepEqual([adopter.errors, relayer.errors, relayer.adopted], [[], [], []]);
      });
    }

    test('i12 a session goes on without the client that asked for it', ours, async (t) => {
      const gate = newGate();
      const { adopter, moved } = await left(t, { onAdopted: () => pass(gate) });
      const word = `ran for ${moved.sessionId}`;
      const headers = {
        accept: ACCEPT,
        'content-type': 'application/json',
        'mcp-session-id': moved.sessionId,
        'mcp-protocol-version': moved.revision,
      };
      const asker = http.request({ port: adopter.port, path: '/mcp', method: 'POST', headers, agent: false });
      asker.on('error', () => {});
      const params = { name: 'script', arguments: { steps: [`mark ${word}`, 'return x'] } };
      asker.end(JSON.stringify({ jsonrpc: '2.0', id: 'asked', method: 'tools/call', params }));
      await atGate(gate);
      asker.destroy();
      const other = moved.ask('return other');
      await turns();
      assert.equal(marks()[word], undefined);
      open(gate);
      assert.equal(await other, 'other');
      await until(() => marks()[word] === 1);
    });

    for (const entry of ['node', 'fetch']) {
      test(`i11 ${entry}: nothing is left of requests that were relayed`, ours, async (t) => {
        v8.setFlagsFromString('--expose-gc');
        const gc = vm.runInNewContext('gc');
        const address = DURABLE[0].address(t);
        const peer = await opened(await ownerOf(t, line, address));
        const adopter = await adopterOf(t, line, address, { entry });
        const moved = at(peer, adopter);
        // An engine tells of what was let go of when it is asked next.
        await until(async () => {
          assert.equal(await moved.ask('return x'), 'x');
          gc();
          const left = adopter.requests.filter((request) => request.deref() !== undefined);
          return adopter.requests.length > 10 && left.length <= 2;
        });
      });
    }

    test('i11 a session that does not fit is left to others', ours, async (t) => {
      const { adopter, moved } = await left(t, { engine: { maxSessions: 1 } });
      const other = await opened(adopter);
      const gate = newGate();
      const running = await other.script('emit 1', `gate ${gate}`, 'return x');
      await atGate(gate);
      const refused = await moved.script('return x');
      assert.deepEqual([refused.status, adopter.adopted], [503, []]);
      open(gate);
      assert.deepEqual(results(await running.untilTerminal()), ['x']);
      assert.equal((await other.delete()).status, 200);
      assert.equal(await moved.ask('return again'), 'again');
    });

    test('i5 what comes at once is served once, by one server', ours, async (t) => {
      let made = 0;
      const { adopter, moved } = await left(t, {
        make() {
          made += 1;
          return makeServer(line);
        },
      });
      const words = upTo(6).map((number) => `${number} of ${moved.sessionId}`);
      assert.deepEqual(await Promise.all(words.map((word) => moved.ask(`mark ${word}`, `return ${word}`))), words);
      assert.deepEqual([made, adopter.adopted.length, adopter.made.servers?.().length ?? 1], [1, 1, 1]);
      for (const word of words) {
        assert.equal(marks()[word], 1);
      }
    });

    test('requests that come while the hook runs wait for it', ours, async (t) => {
      const gate = newGate();
      const { moved } = await left(t, { onAdopted: () => pass(gate) });
      const first = moved.ask('return first');
      await atGate(gate);
      const others = [moved.ask('return second'), moved.notify('notifications/initialized'), moved.get()];
      await turns();
      open(gate);
      assert.equal(await first, 'first');
      const [second, { status }, listening] = await Promise.all(others);
      assert.deepEqual([second, status, listening.status], ['second', 202, 200]);
    });

    for (const [what, options] of [
      ['the hook throws', (fail) => ({ onAdopted: fail })],
      ['the hook rejects', (fail) => ({ onAdopted: async () => fail() })],
      [
        'the factory throws',
        (fail) => ({
          make() {
            fail();
            return makeServer(line);
          },
        }),
      ],
      [
        'the server does not take the client',
        (fail) => ({
          make() {
            const made = makeServer(line);
            try {
              fail();
            } catch {
              made.server.setRequestHandler(line === 'v1' ? InitializeRequestSchema : 'initialize', () => {
                throw new Error('no longer');
              });
            }
            return made;
          },
        }),
      ],
    ]) {
      test(`where ${what} the session goes on with the next try`, ours, async (t) => {
        let tries = 0;
        const fail = () => {
          tries += 1;
          if (tries === 1) {
            throw new Error('no database');
          }
        };
        const { adopter, moved } = await left(t, options(fail));
        const noted = logged.length;
        const refused = await moved.script('mark once', 'return x');
        assert.deepEqual([refused.status, refused.headers['retry-after']], [503, '1']);
        assert.equal(adopter.errors.length, 2, adopter.errors.join());
        assert.ok(logged.slice(noted).some((text) => /^error .*session not adopted/.test(text)));
        assert.equal(await moved.ask('return again'), 'again');
        assert.equal(tries, 2);
      });
    }

    test('o15 what a server asks its client when it is initialized is answered', ours, async (t) => {
      const place = DURABLE[0].address(t);
      const owner = await ownerOf(t, line, place);
      let roots;
      const make = () => {
        const made = makeServer(line);
        made.server.oninitialized = () => {
          roots = made.server.listRoots();
        };
        return made;
      };
      const adopter = await adopterOf(t, line, place, { make });
      const peer = at(await opened(owner), adopter);
      await owner.end('SIGTERM');
      assert.equal(await peer.ask('return x'), 'x');
      const { method, id } = await asked(await peer.listen());
      assert.equal(method, 'roots/list');
      assert.equal((await peer.respond(id, { roots: [{ uri: 'file:///a' }] })).status, 202);
      assert.deepEqual((await within(roots)).roots, [{ uri: 'file:///a' }]);
    });

    test('o7 a session that negotiates another revision is over', ours, async (t) => {
      const { moved } = await left(t, {
        make() {
          const made = makeServer(line);
          made.server.setRequestHandler(line === 'v1' ? InitializeRequestSchema : 'initialize', () => ({
            protocolVersion: '2025-03-26',
            capabilities: {},
            serverInfo: { name: 'old', version: '1' },
          }));
          return made;
        },
      });
      // What made it go on here is told so, too: nobody has begun it.
      assert.equal((await moved.script('return x')).status, 404);
      assert.equal((await moved.script('return x')).status, 404);
    });

    test('a process that only stood still has the session no more', ours, async (t) => {
      const address = UNLOCKED.address(t);
      // The one that stood still takes nothing back from the other one, which may be slow.
      const owner = await ownerOf(t, line, address);
      const peer = await opened(owner);
      owner.signal('SIGSTOP');
      const adopter = await adopterOf(t, line, address, { ownerLostMs: LOST_MS });
      const moved = at(peer, adopter);
      assert.equal(await moved.ask(`mark ${peer.sessionId}`, 'return there'), 'there');
      owner.signal('SIGCONT');
      // It relays to the process that has the session, once it knows. Until then a call ends with an error.
      const answer = await until(async () => {
        const reply = await peer.script(`mark ${peer.sessionId}`, 'return here');
        assert.ok([200, 503].includes(reply.status), String(reply.status));
        const answer = reply.status === 200 && results(await reply.untilTerminal())[0];
        return typeof answer === 'string' && answer;
      });
      assert.deepEqual([answer, marks()[peer.sessionId], adopter.adopted.length], ['here', 2, 1]);
    });

    test('a session goes on with one process after the other', ours, async (t) => {
      const address = DURABLE[0].address(t);
      const first = await ownerOf(t, line, address);
      const second = await ownerOf(t, line, address);
      const peer = await opened(first);
      await first.end('SIGTERM');
      assert.equal(await at(peer, second).ask('return second'), 'second');
      const third = await adopterOf(t, line, address);
      // As long as the second has it, it is relayed to that one.
      assert.equal(await at(peer, third).ask('return relayed'), 'relayed');
      assert.deepEqual(third.adopted, []);
      await second.end('SIGTERM');
      assert.equal(await at(peer, third).ask('return third'), 'third');
      assert.equal(third.adopted.length, 1);
    });

    test('with enableJsonResponse the answer is JSON', ours, async (t) => {
      const { moved } = await left(t, { enableJsonResponse: true });
      const reply = await moved.script('return x');
      assert.deepEqual([reply.status, reply.headers['content-type']], [200, 'application/json']);
      assert.equal((await reply.json()).result.content[0].text, 'x');
    });

    test('a DELETE may be what comes first', ours, async (t) => {
      const { moved } = await left(t);
      assert.equal((await moved.delete()).status, 200);
      assert.equal((await moved.script('return x')).status, 404);
    });

    test('i7 nobody adopts a session of somebody else', ours, async (t) => {
      const { adopter, moved } = await left(t);
      moved.headers = { authorization: 'Bearer other' };
      assert.equal((await moved.script('return x')).status, 404);
      assert.deepEqual(adopter.adopted, []);
    });

    test('a router that is closed adopts nothing, and ends nothing', ours, async (t) => {
      const { adopter, moved } = await left(t);
      await adopter.made.close();
      assert.equal((await moved.script('return x')).status, 503);
    });

    test('routers of a user that ask serveStoredSession adopt nothing', ours, async (t) => {
      const address = DURABLE[0].address(t);
      const owner = await ownerOf(t, line, address);
      const peer = await opened(owner);
      await owner.end('SIGTERM');
      const { EventStore, openStore, serveStoredSession } = packages[line];
      const eventStore = new EventStore(await openStore(address));
      const host = await listen(async (req, res) => {
        assert.equal(await serveStoredSession(req, res, { eventStore }), true);
      });
      t.after(() => host.close());
      assert.equal((await at(peer, host).script('return x')).status, 404);
    });
  });
}

test('onAdopted is a function', ours, () => {
  const wrong = { code: 'invalid_argument' };
  for (const line of LINES) {
    assert.throws(() => packages[line].createSessionRouter(() => makeServer(line), { onAdopted: 'x' }), wrong);
  }
});
