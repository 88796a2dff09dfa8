// Who reads what: takeovers, sessions, principals. (F-01 to F-03, F-30 to F-32, I4, I7)
import assert from 'node:assert/strict';
import { after, before, describe, test } from 'node:test';

import { Peer, counts, lastId, logs, results } from './kit/raw.mjs';
import { LINES, marked, newGate, open, packages, serve } from './kit/servers.mjs';

for (const line of LINES) {
  describe(line, () => {
    let server;
    before(async () => {
      server = await serve(line);
    });
    after(() => server.close());

    test('f30 second standalone get takes over without 409', async () => {
      const peer = await Peer.open(server.port);
      const first = await peer.listen();
      await first.event();
      const second = await peer.listen();
      assert.ok((await second.event()).isPriming);
      await peer.ask('standalone hello');
      assert.deepEqual(logs(await second.some(1)), ['hello']);
      await first.quiet(30);
      // The one before is parked, and promoted when the newest dies.
      second.drop();
      await new Promise((resolve) => setTimeout(resolve, 20));
      await peer.ask('standalone again');
      assert.deepEqual(logs(await first.some(2)), ['hello', 'again'], 'what it has not had itself');
      first.drop();
    });

    test('f31 second resume of a live stream takes it over', async () => {
      const peer = await Peer.open(server.port);
      const gate = newGate();
      const reply = await peer.script('emit 2', `gate ${gate}`, 'emit 2', 'return x');
      const events = await reply.some(2);
      const resumed = await peer.resume(lastId(events));
      assert.deepEqual(await reply.rest(), [], 'ended cleanly, with nothing more');
      assert.ok(!reply.broken);
      open(gate);
      const rest = await resumed.rest();
      assert.deepEqual([counts(rest), results(rest)], [[3, 4], ['x']]);
    });

    test('f31 hundred takeovers lose nothing', async () => {
      const peer = await Peer.open(server.port);
      const gate = newGate();
      let reply = await peer.script(`until ${gate}`);
      let cursor;
      const got = [];
      for (let takeover = 0; takeover < 100; takeover++) {
        const events = await reply.some(1);
        got.push(...counts(events));
        cursor = lastId(events);
        reply = await peer.resume(cursor);
      }
      open(gate);
      got.push(...counts(await reply.rest()));
      assert.deepEqual(got, got.map((_, index) => index + 1));
    });

    test('f01 other sessions result is never replayed', async () => {
      const [one, two] = [await Peer.open(server.port), await Peer.open(server.port)];
      const events = await (await one.script('emit 2', 'return secret')).rest();
      for (const { id } of events) {
        assert.ok(!JSON.stringify(await (await two.resume(id)).blocks()).includes('secret'));
      }
    });

    test('f03 foreign cursor of a running call is an unknown one', async () => {
      const [one, two] = [await Peer.open(server.port), await Peer.open(server.port)];
      const gate = newGate();
      const running = await one.script('emit 1', `gate ${gate}`, 'return x');
      const cursor = lastId(await running.some(1));
      // The same form with another nonce: nobody's.
      const unknown = `${cursor[0]}${'A'.repeat(16)}${cursor.slice(17)}`;
      const answers = [];
      for (const id of [cursor, unknown]) {
        const reply = await two.resume(id);
        const { date, ...headers } = reply.headers;
        const blocks = await reply.blocks();
        answers.push([reply.status, headers, blocks.map(({ message }) => message)]);
      }
      assert.deepEqual(answers[0], answers[1]);
      open(gate);
      assert.deepEqual(results(await running.rest()), ['x'], 'and the owner notices nothing');
    });

    test('f03 foreign standalone cursor gives the callers own stream', async () => {
      const [one, two] = [await Peer.open(server.port), await Peer.open(server.port)];
      const stream = await one.listen();
      await one.ask('standalone mine');
      const cursor = lastId(await stream.some(1));
      await two.ask('standalone yours');
      const resumed = await two.resume(cursor);
      const seen = [];
      while (logs(seen).length === 0) {
        // `list_changed` comes first: what the client knows of the server may be old.
        seen.push(await resumed.event());
      }
      assert.deepEqual(logs(seen), ['yours']);
      resumed.drop();
      stream.drop();
    });

    test('auth binds the session', async () => {
      const alice = await Peer.open(server.port, undefined, { 'x-user': 'alice' });
      const events = await (await alice.script('emit 1', 'return x')).rest();
      for (const headers of [{ 'x-user': 'mallory' }, {}]) {
        const thief = new Peer(server.port, undefined, headers);
        thief.sessionId = alice.sessionId;
        for (const reply of [await thief.resume(events[0].id), await thief.script('return y'), await thief.delete()]) {
          assert.equal(reply.status, 404);
        }
      }
      assert.equal(await alice.ask('return z'), 'z');
    });

    test('two sessions with one id stay apart', async () => {
      const same = await serve(line, { sessionIdGenerator: () => 'same' });
      const one = await Peer.open(same.port);
      const first = same.transports.get('same');
      same.transports.delete('same');
      const two = await Peer.open(same.port);
      const second = same.transports.get('same');
      const events = await (await two.script('return two')).rest();
      same.transports.set('same', first);
      assert.equal(await one.ask('return one'), 'one');
      const stolen = await (await one.resume(events[0].id)).blocks();
      assert.ok(!JSON.stringify(stolen).includes('two'));
      await second.close();
      await same.close();
    });

    test('f54 deleting a session frees its log', async () => {
      const { stats } = packages[line];
      const before = stats();
      const peer = await Peer.open(server.port);
      await peer.ask('emit 100');
      assert.ok(stats().events >= before.events + 100);
      await peer.delete();
      assert.deepEqual([stats().events, stats().sessions], [before.events, before.sessions]);
    });

    test('lost connection cancels nothing', async () => {
      const peer = await Peer.open(server.port);
      const gate = newGate();
      const reply = await peer.script('emit 1', `gate ${gate}`, `mark over ${gate}`, 'return x');
      const events = await reply.some(1);
      reply.drop();
      open(gate);
      await marked(`over ${gate}`);
      assert.deepEqual(results(await (await peer.resume(lastId(events))).rest()), ['x']);
    });
  });
}
