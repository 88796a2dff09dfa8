// Every way into Tailrope: contexts, stores of one server, bounds, counters and the log.
import assert from 'node:assert/strict';

import { OLD, Peer, counts, lastId, logs, results, until, upTo } from './kit/raw.mjs';
import { acting, logged, marked, newGate, open, packages, serve, serveFor } from '../servers/node/transports.mjs';
import { LabStore } from '../servers/node/stores.mjs';
import { onEachLine, ours, test } from './kit/test.mjs';

const STATS = [
  ...['sessions', 'connections', 'streams', 'events', 'bytes'],
  ...['sessionsOpened', 'streamsOpened', 'connectionsOpened', 'connectionsLost'],
  ...['eventsStored', 'eventsUnstored', 'eventsMissed', 'logsLost', 'messagesLate'],
  ...['resumesAccepted', 'resumesComplete', 'resumesLost', 'resumesRefused', 'gaps', 'takeovers', 'takeoversElsewhere'],
  ...['Complete', 'Asked', 'Polled', 'Limit', 'Drain', 'Fault', 'Ended'].map((why) => `closes${why}`),
];

onEachLine(serve, (line, server) => {
  const { EventStore, configure, closeSSEStream, closeStandaloneSSEStream, stats } = packages[line];

  /** A running call that does what the test does with its context. */
  async function act(peer, id) {
    const name = newGate();
    const reply = await peer.call('act', { name }, id);
    return { reply, name, context: await acting(name) };
  }

  async function firstRetry(reply) {
    const { retry, id } = await reply.event();
    return [retry, id];
  }

  for (const id of [0, '0', 7, 'x y/ü']) {
    test(`what belongs to a call is on its stream, ${JSON.stringify(id)}`, ours, async () => {
      const peer = await Peer.open(server().port);
      const stream = await peer.listen();
      const beside = await act(peer, 'beside');
      const reply = await peer.call('script', { steps: ['emit 1', 'log mine', 'changed', 'elicit who'] }, id);
      const events = (await reply.some(3)).filter(({ message }) => message !== undefined);
      assert.deepEqual([counts(events), logs(events)], [[1], ['mine']]);
      const { message: question } = events[2];
      assert.equal(question.method, 'elicitation/create');
      // What is for everybody is not the call's.
      const { message } = (await stream.some(1)).at(-1);
      assert.equal(message.method, 'notifications/tools/list_changed');
      await peer.respond(question.id, { action: 'accept', content: { name: 'me' } });
      const rest = await reply.rest();
      assert.deepEqual([rest.at(-1).message.id, results(rest)], [id, ['me']]);
      open(beside.name);
      assert.deepEqual(results(await beside.reply.rest()), [beside.name]);
      stream.drop();
    });

    test(`close with pacing works on every context, ${JSON.stringify(id)}`, ours, async () => {
      const peer = await Peer.open(server().port);
      const { reply, name, context } = await act(peer, id);
      const stream = await peer.listen();
      const [, standing] = await firstRetry(stream);
      assert.equal(closeStandaloneSSEStream(context.extra, { retryMs: 700, holdMs: 150 }), true);
      const closed = await stream.rest();
      assert.deepEqual(closed.map(({ retry }) => retry).filter((retry) => retry !== undefined), [700]);
      const again = await peer.resume(standing);
      assert.equal((await firstRetry(again))[0], 700);
      await again.rest();

      assert.equal(closeSSEStream(context.extra, { retryMs: 600, holdMs: 0 }), true);
      const events = await reply.rest();
      assert.equal(events.findLast(({ retry }) => retry !== undefined).retry, 600);
      const polled = await peer.resume(lastId(events));
      const [retry, cursor] = await firstRetry(polled);
      assert.deepEqual([retry, await polled.rest()], [600, []]);
      // Nobody is connected: there is nothing to close, and nothing wrong with asking.
      assert.equal(typeof closeSSEStream(context.extra), 'boolean');
      open(name);
      await until(async () => results(await (await peer.resume(cursor)).rest()).length === 1);
    });
  }

  for (const revision of OLD) {
    test(`close is false where nothing may be closed, ${revision}`, ours, async () => {
      const peer = await Peer.open(server().port, revision);
      const { reply, name, context } = await act(peer, 1);
      for (const options of [undefined, { retryMs: 5, holdMs: 0 }]) {
        assert.equal(closeSSEStream(context.extra, options), false);
        assert.equal(closeStandaloneSSEStream(context.extra, options), false);
      }
      open(name);
      assert.deepEqual(results(await reply.rest()), [name]);
    });
  }

  test('a related id may come as text', ours, async () => {
    const peer = await Peer.open(server().port);
    const { reply, name } = await act(peer, 17);
    const transport = server().transports.get(peer.sessionId);
    for (const [relatedRequestId, data] of [
      [17, 'a'],
      ['17', 'b'],
    ]) {
      const message = { jsonrpc: '2.0', method: 'notifications/message', params: { level: 'info', data } };
      await transport.send(message, { relatedRequestId });
    }
    assert.deepEqual(logs(await reply.some(2)), ['a', 'b']);
    open(name);
    await reply.rest();
  });

  test('a store engages its server alone', ours, async (t) => {
    const eventStore = new EventStore('memory:', { retryMs: 44 });
    const engaged = await serveFor(t, line, { eventStore, retryInterval: undefined });
    const other = await serveFor(t, line, { stock: true });
    const { sessions } = stats();
    const [mine, theirs] = [await Peer.open(engaged.port), await Peer.open(other.port)];
    assert.equal(stats().sessions, sessions + 1);
    const events = await (await mine.script('emit 1', 'close', 'emit 1', 'return x')).rest();
    assert.equal(events[0].retry, 44);
    const rest = await (await mine.resume(lastId(events))).rest();
    assert.deepEqual([rest[0].isPriming, counts([...events, ...rest]), results(rest)], [true, [1, 2], ['x']]);
    assert.equal(await theirs.ask('emit 1', 'return x'), 'x');
    assert.equal(stats().sessions, sessions + 1);
  });

  test('two stores have bounds of their own', ours, async (t) => {
    const before = stats().sessions;
    const peers = [];
    for (const [engine, most] of [
      [{ maxSessions: 2, maxEventsPerStream: 3 }, 2],
      [{ maxSessions: 4 }, 4],
    ]) {
      const { port } = await serveFor(t, line, { engine });
      for (let number = 0; number < most + 2; number++) {
        const peer = await Peer.open(port).catch(({ message }) => message);
        if (number < most) {
          peers.push(peer);
        } else {
          assert.match(peer, /503.*Too many open sessions/);
        }
      }
    }
    assert.equal(stats().sessions - before, 6);
    for (const [peer, kept] of [
      [peers[0], [8, 9]],
      [peers[2], upTo(9)],
    ]) {
      const { eventsStored } = stats();
      const reply = await peer.script('close', 'emit 9', 'return x');
      const events = await reply.rest();
      await until(() => stats().eventsStored === eventsStored + 10);
      const rest = await (await peer.resume(lastId(events))).rest();
      assert.deepEqual([counts(rest), results(rest)], [kept, ['x']]);
    }
    // A session that ends makes room, in its own store only.
    await peers[2].delete();
    await assert.rejects(Peer.open(peers[0].port), /503/);
    await Peer.open(peers[2].port);
  });

  test('configure again replaces the options of user stores too', ours, async (t) => {
    t.after(() => configure({}));
    const eventStore = new LabStore();
    for (const [options, retry] of [
      [{ retryMs: 1_111 }, 1_111],
      [{ retryMs: 2_222 }, 2_222],
    ]) {
      configure(options);
      for (const store of [eventStore, undefined]) {
        const { port } = await serveFor(t, line, { eventStore: store, retryInterval: undefined });
        const peer = await Peer.open(port);
        assert.equal(peer.opening[0].retry, retry);
      }
    }
  });

  test('configure with a wrong option changes nothing', ours, async (t) => {
    t.after(() => configure({}));
    configure({ retryMs: 1_234 });
    for (const wrong of [{ retryMs: -1 }, { nonsense: 1 }, { storeTimeoutMs: 0 }, { storeTimeoutMs: '1' }]) {
      assert.throws(() => configure(wrong), new RegExp(Object.keys(wrong)[0]));
    }
    const { port } = await serveFor(t, line, { retryInterval: undefined });
    assert.equal((await Peer.open(port)).opening[0].retry, 1_234);
  });

  test('session over max sessions is 503', ours, async (t) => {
    const few = await serveFor(t, line, { engine: { maxSessions: 2 } });
    const [first] = [await Peer.open(few.port), await Peer.open(few.port)];
    for (let number = 0; number < 5; number++) {
      await assert.rejects(Peer.open(few.port), /503/);
    }
    assert.equal(await first.ask('return still here'), 'still here');
    await first.delete();
    await Peer.open(few.port);
  });

  test('stats and log tell what happened and never what was said', ours, async (t) => {
    const secret = 'do-not-write-this-down';
    const small = await serveFor(t, line, { engine: { maxEventsPerStream: 4 } });
    const peer = await Peer.open(small.port, undefined, { 'x-secret': secret });
    const before = stats();
    assert.deepEqual(Object.keys(before).sort(), [...STATS].sort());
    assert.ok(Object.values(before).every(Number.isInteger));
    const from = logged.length;
    // A takeover, a gap, a complete one, a lost one, a refused one.
    const { reply, name, context } = await act(peer, 1);
    await context.log(secret);
    const cursor = lastId(await reply.some(1));
    const resumed = await peer.resume(cursor);
    assert.equal((await firstRetry(resumed))[0], 20);
    await reply.ends();
    resumed.drop();
    for (let number = 0; number < 8; number++) {
      await context.log(secret);
    }
    open(name);
    await marked(`at ${name}`);
    await until(() => stats().eventsStored >= before.eventsStored + 10);
    const rest = await (await peer.resume(cursor)).rest();
    assert.deepEqual(logs(rest), [secret, secret, secret]);
    assert.equal((await peer.resume(lastId(rest))).status, 204);
    const forge = (id) => id.slice(0, 5) + (id[5] === 'A' ? 'B' : 'A') + id.slice(6);
    const lost = await (await peer.resume(forge(cursor))).rest();
    assert.deepEqual(results(lost).map(({ code }) => code), [-32603]);
    // An id that is too long for the event id to name.
    const other = lastId(await (await peer.call('script', { steps: [`return ${secret}`] }, 'n'.repeat(80))).rest());
    assert.equal((await peer.resume(forge(other))).status, 400);
    // And one that nobody here made.
    assert.equal((await peer.resume('no-such-cursor')).status, 400);
    const after = stats();
    assert.equal(after.resumesRefused - before.resumesRefused, 2);
    const grown = STATS.filter((name) => after[name] > before[name]);
    for (const name of ['resumesAccepted', 'resumesComplete', 'resumesLost', 'gaps', 'takeovers', 'closesComplete']) {
      assert.ok(grown.includes(name), name);
    }
    for (const name of ['eventsStored', 'eventsMissed', 'streamsOpened', 'connectionsOpened']) {
      assert.ok(grown.includes(name), name);
    }
    assert.deepEqual(grown.filter((name) => /Fault|Unstored|Drain/.test(name)), []);
    await peer.delete();
    const lines = logged.slice(from);
    const told = ['resume session=', 'resume refused', 'resume not possible', 'gap', 'why=superseded', 'session ended'];
    for (const words of told) {
      assert.ok(lines.some((line) => line.includes(words) && line.includes(peer.sessionId)), words);
    }
    const all = lines.join('\n');
    assert.ok(!all.includes(secret));
    // Nor is a cursor there: whoever reads logs could not use it anyway, but it is the client's.
    assert.ok(!all.includes(cursor));
  });

  test('work that nobody comes back for is stopped', ours, async (t) => {
    // With the idle time of half an hour, which is the default.
    const brief = await serveFor(t, line, { engine: { maxDetachedMs: 600 } });
    const before = stats();
    const peer = await Peer.open(brief.port);
    const name = newGate();
    const reply = await peer.script('emit 1', `gate ${name}`, `return ${name}`);
    const cursor = lastId(await reply.some(1));
    reply.drop();
    await until(() => brief.transports.size === 0);
    await marked(`cancelled return ${name}`);
    assert.equal((await peer.resume(cursor)).status, 404);
    for (const name of ['sessions', 'streams', 'events', 'bytes', 'connections']) {
      assert.ok(stats()[name] <= before[name], name);
    }
  });
});
