// What lives how long: sessions, their logs, and work in flight. (F-50, F-51, F-54, I6, I11)
import assert from 'node:assert/strict';

import { Peer, lastId, logs, results, sleep, until, upTo } from './kit/raw.mjs';
import { at, marked, newGate, open, packages, serve, serveFor } from '../servers/node/transports.mjs';
import { onEachLine, ours, test } from './kit/test.mjs';

// Longer than a busy machine takes between two requests of a session.
const IDLE_MS = 4_000;

onEachLine(serve, (line, server) => {
  const { stats } = packages[line];
  const idling = (t, engine) => serveFor(t, line, { engine: { sessionIdleMs: IDLE_MS, ...engine } });

  test('f50 sessions without delete reach a plateau', async (t) => {
    const before = stats();
    // Long enough for a busy machine to open and use each in one go.
    const idle = await idling(t, { sessionIdleMs: 8_000 });
    const peers = await Promise.all(
      upTo(20).map(async () => {
        const peer = await Peer.open(idle.port);
        assert.equal(await peer.ask('return x'), 'x');
        return peer;
      }),
    );
    await until(() => idle.transports.size === 0, 20_000);
    for (const peer of peers) {
      // Not even a call brings such a session back.
      assert.equal((await peer.script('return x')).status, 404);
    }
    for (const name of ['sessions', 'streams', 'bytes']) {
      assert.ok(stats()[name] <= before[name], name);
    }
  });

  test('f50 sessions are bounded in number', ours, async (t) => {
    const few = await serveFor(t, line, { engine: { maxSessions: 8 } });
    const before = stats().sessions;
    let refused = 0;
    for (let number = 0; number < 30; number++) {
      await Peer.open(few.port).catch(() => (refused += 1));
      assert.ok(stats().sessions - before <= 8);
    }
    assert.equal(refused, 22);
  });

  test('f51 session with a running tool is not idle', async (t) => {
    const idle = await idling(t);
    const peer = await Peer.open(idle.port);
    const name = newGate();
    const reply = await peer.script('emit 1', `gate ${name}`, `return ${name}`);
    const cursor = lastId(await reply.some(1));
    reply.drop();
    await sleep(IDLE_MS + 500);
    open(name);
    await marked(`finished return ${name}`);
    const resumed = await peer.resume(cursor);
    assert.equal(resumed.status, 200);
    assert.deepEqual(results(await resumed.untilTerminal()), [name]);
  });

  test('f51 session with a pending poll is not idle', async (t) => {
    const idle = await idling(t);
    const peer = await Peer.open(idle.port);
    const name = newGate();
    // The tool has ended, nobody is connected, but the client was promised a next poll.
    const events = await (await peer.script('emit 1', 'close', `return ${name}`)).rest();
    await marked(`finished return ${name}`);
    await sleep(IDLE_MS + 500);
    const resumed = await peer.resume(lastId(events));
    assert.equal(resumed.status, 200);
    assert.deepEqual(results(await resumed.untilTerminal()), [name]);
  });

  test('f51 session with an open standalone stream is not idle', async (t) => {
    const idle = await idling(t);
    const peer = await Peer.open(idle.port);
    const stream = await peer.listen();
    await sleep(IDLE_MS + 500);
    await peer.ask('standalone x');
    assert.deepEqual(logs(await stream.some(1)), ['x']);
    stream.drop();
  });

  test('detached work ends with an error after max detached ms', ours, async (t) => {
    const idle = await idling(t, { maxDetachedMs: 1_000 });
    const peer = await Peer.open(idle.port);
    const name = newGate();
    const reply = await peer.script('emit 1', `gate ${name}`, `return ${name}`);
    const cursor = lastId(await reply.some(1));
    reply.drop();
    await until(() => idle.transports.size === 0);
    await marked(`cancelled return ${name}`);
    assert.equal((await peer.resume(cursor)).status, 404);
  });

  test('f54 deleting a session frees its log', async (t) => {
    const deep = await serveFor(t, line, { engine: { retentionMs: 600_000 } });
    const before = stats();
    const stored = () => (deep.isStock ? deep.store.rows : stats().events - before.events);
    const peer = await Peer.open(deep.port);
    for (let round = 0; round < 5; round++) {
      await peer.ask('emit 100 1000');
    }
    assert.ok(stored() > 400);
    assert.equal((await peer.delete()).status, 200);
    assert.equal(stored(), 0);
    assert.ok(stats().bytes <= before.bytes);
    assert.equal((await peer.script('return x')).status, 404);
  });

  test('f54 age and size bounds hold without any call', ours, async (t) => {
    const brief = await serveFor(t, line, { engine: { retentionMs: 6_000 } });
    const before = stats().bytes;
    const peer = await Peer.open(brief.port);
    const events = await (await peer.script('emit 50 1000', 'return x')).rest();
    assert.ok(stats().bytes > before + 40_000);
    // Nothing is asked of the session meanwhile, only of the counters.
    await until(() => stats().bytes <= before, 20_000);
    const lost = await peer.resume(events[0].id);
    assert.equal(lost.status, 200);
    assert.deepEqual(results(await lost.rest()).map((error) => Object.keys(error).sort()), [['code', 'message']]);
  });

  for (const limit of ['maxBytesPerStream', 'maxBytesPerSession', 'maxBytes']) {
    test(`f54 bytes are bounded, ${limit}`, ours, async (t) => {
      const most = 60_000;
      const small = await serveFor(t, line, { engine: { [limit]: most } });
      const before = stats().bytes;
      const peer = await Peer.open(small.port);
      const name = newGate();
      let events;
      for (let round = 0; round < 3; round++) {
        events = await (await peer.script('emit 100 1000', `return ${name}`)).untilTerminal();
        assert.deepEqual(results(events), [name]);
        const room = limit === 'maxBytesPerStream' ? most * 3 : most;
        // The terminals are kept beyond the bound; they are small here.
        assert.ok(stats().bytes - before <= room + 5_000, `${stats().bytes - before}`);
      }
      // The call's own end is what yields last: the newest terminal is still there.
      const again = await peer.resume(events.at(-2).id);
      assert.deepEqual(results(await again.untilTerminal()), [name]);
    });
  }

  test('ending a session ends its connections', async () => {
    const peer = await Peer.open(server().port);
    const name = newGate();
    const stream = await peer.listen();
    const call = await peer.script(`gate ${name}`, 'return x');
    await at(name);
    assert.equal((await peer.delete()).status, 200);
    // Both end.
    await stream.rest();
    const events = await call.rest();
    open(name);
    // The call is told why, it does not just stop.
    assert.deepEqual(results(events).map((error) => Object.keys(error).sort()), [['code', 'message']]);
  });

  test('deleted session is 404 for every method', ours, async () => {
    const peer = await Peer.open(server().port);
    const transport = server().transports.get(peer.sessionId);
    const events = await (await peer.script('return x')).rest();
    assert.equal((await peer.delete()).status, 200);
    // Also by the transport itself, where a host has not forgotten it.
    for (const known of [false, true]) {
      if (known) {
        server().transports.set(peer.sessionId, transport);
      }
      const cursor = lastId(events);
      const replies = [await peer.get(), await peer.resume(cursor), await peer.script('x'), await peer.delete()];
      for (const reply of replies) {
        assert.equal(reply.status, 404);
        assert.ok((await reply.body()).includes('"code":-32001,"message":"Session not found"'));
      }
    }
    server().transports.delete(peer.sessionId);
  });
});
