// What a resume sends: the log's suffix after the cursor, once, in order, then the live tail. (F-10 to F-28)
import assert from 'node:assert/strict';

import { openSession } from 'tailrope/testing';

import { connectLine } from './kit/clients.mjs';
import { Peer, counts, ids, lastId, logs, refusal, results, sleep } from './kit/raw.mjs';
import { unknownLike, until, upTo, within } from './kit/raw.mjs';
import { at, marked, newGate, open, packages, serve, serveFor } from '../servers/node/transports.mjs';
import { LabStore } from '../servers/node/stores.mjs';
import { isStock, onEachLine, test } from './kit/test.mjs';

/** Calls a script, reads so many messages and cuts the connection: the cursor that is left. */
async function begun(peer, read, ...steps) {
  const reply = await peer.script(...steps);
  const events = read > 0 ? await reply.some(read) : [await reply.event()];
  reply.drop();
  return lastId(events);
}

/** The first bytes of an SSE answer: an id, a retry and an explicit empty data line. */
async function primed(reply, retryMs = 20) {
  assert.equal(reply.status, 200);
  assert.ok(reply.isStream);
  const first = await reply.block();
  assert.match(first.id ?? '', /^[\x21-\x2b\x2d-\x7e]{1,120}$/);
  assert.deepEqual([first.retry, first.data], [retryMs, '']);
  return first.id;
}

onEachLine(serve, (line, server) => {
  /** A server with a user's own store. */
  async function lab(t) {
    const store = new LabStore();
    return { store, ...(await serveFor(t, line, { eventStore: store })) };
  }

  test('f10 events during a running replay are delivered', async (t) => {
    const { store, port } = await lab(t);
    const peer = await Peer.open(port);
    const [name, end] = [newGate(), newGate()];
    const cursor = await begun(peer, 2, 'emit 2', `gate ${name}`, 'emit 5', `mark ${name}`, `gate ${end}`, 'return x');
    // The tool goes on where the store has been read and the stock transports have not registered the reader yet.
    const replay = store.replayEventsAfter.bind(store);
    store.replayEventsAfter = async (...args) => {
      const stream = await replay(...args);
      open(name);
      await marked(name);
      return stream;
    };
    const reply = await peer.resume(cursor);
    open(name);
    assert.deepEqual(counts(await reply.some(5)), [3, 4, 5, 6, 7]);
    open(end);
    assert.deepEqual(results(await reply.untilTerminal()), ['x']);
  });

  test('f10 resumes of a running emitter lose and repeat nothing', async () => {
    const session = await openSession(`http://127.0.0.1:${server().port}/mcp`);
    const name = newGate();
    const call = await session.call('script', { steps: [`until ${name}`] });
    for (const take of [1, 7, 3, 20, 2, 11]) {
      await call.cut(take);
      await call.resume();
    }
    open(name);
    const result = (await call.collect({ readAgain: false })).at(-1);
    call.assertExactlyOnce([...upTo(Number(result)), result]);
  });

  test('f10 resumes under load lose and repeat nothing', async () => {
    // Twelve calls at once emit as fast as they can, each followed by a reader that is cut again and again.
    const peers = await Promise.all(upTo(3).map(() => Peer.open(server().port)));
    const follow = async (peer) => {
      let reply = await peer.script('emit 400', 'sleep 1', 'emit 400', 'sleep 1', 'emit 400', 'return x');
      const seen = [];
      for (let take = 1; results(seen).length === 0; take = (take * 7) % 97) {
        const events = [];
        while (events.length < take && !events.at(-1)?.isTerminal) {
          const event = await reply.event();
          assert.ok(event !== undefined, `ended after ${counts(seen).length}`);
          events.push(event);
        }
        seen.push(...events);
        reply.drop();
        if (results(seen).length === 0) {
          reply = await peer.resume(lastId(seen));
        }
      }
      assert.deepEqual(counts(seen), upTo(1200));
      const found = ids(seen);
      assert.equal(new Set(found).size, found.length, 'no id comes twice');
    };
    await Promise.all(peers.flatMap((peer) => upTo(4).map(() => follow(peer))));
  });

  test('f12 wire order is emission order whatever the store latency', async (t) => {
    const { store, port, isStock } = await lab(t);
    store.plan({ latencyMs: [40, 0, 20, 1, 10, 0, 5] });
    const peer = await Peer.open(port);
    const events = await (await peer.script('burst 12', 'return x')).untilTerminal();
    assert.deepEqual([counts(events), results(events)], [upTo(12), ['x']]);
    // A user's store sees the appends of one stream one after the other.
    assert.ok(isStock || store.overlaps === 0);
  });

  test('f12 replay repeats the live order', async (t) => {
    const { store, port } = await lab(t);
    store.plan({ latencyMs: [30, 0, 15, 1] });
    const peer = await Peer.open(port);
    const name = newGate();
    const cursor = await begun(peer, 1, 'emit 1', `gate ${name}`, 'burst 8', `return ${name}`);
    open(name);
    await marked(`finished return ${name}`);
    const events = await (await peer.resume(cursor)).untilTerminal();
    assert.deepEqual([counts(events), results(events)], [upTo(9, 2), [name]]);
  });

  test('f16 result produced while away is replayed', async () => {
    const peer = await Peer.open(server().port);
    const name = newGate();
    const cursor = await begun(peer, 1, 'emit 1', `gate ${name}`, 'emit 3', `return ${name}`);
    open(name);
    await marked(`finished return ${name}`);
    const events = await (await peer.resume(cursor)).untilTerminal();
    assert.deepEqual([counts(events), results(events)], [[2, 3, 4], [name]]);
  });

  test('f16 result stays readable from every cursor', async () => {
    const peer = await Peer.open(server().port);
    const events = await (await peer.script('emit 3', 'return x')).untilTerminal();
    for (const [seen, id] of ids(events).slice(0, -1).entries()) {
      const reply = await peer.resume(id);
      const again = await reply.untilTerminal();
      assert.deepEqual([counts(again), results(again)], [[1, 2, 3].slice(seen), ['x']]);
      // On the stock transports it would stay open, and refuse the next: F-23 and F-30, not this.
      reply.drop();
      await sleep(20);
    }
  });

  test('f16 batch whose responses are made while the client is away is resumed whole', async () => {
    const peer = await Peer.open(server().port, '2025-03-26');
    const name = newGate();
    const call = (id, ...steps) => ({
      jsonrpc: '2.0',
      id,
      method: 'tools/call',
      params: { name: 'script', arguments: { steps }, _meta: { progressToken: id } },
    });
    const reply = await peer.post([
      call(1, 'emit 1', `gate ${name}`, 'emit 2', 'return one'),
      call(2, `gate ${name}`, 'emit 1', 'return two'),
      call('3', `gate ${name}`, `return ${name}`),
      { jsonrpc: '2.0', method: 'notifications/x' },
    ]);
    const events = await reply.some(1);
    await at(name, 3);
    reply.drop();
    open(name);
    await marked(`finished return ${name}`);
    const resumed = await peer.resume(lastId(events));
    const rest = [];
    while (results(rest).length < 3) {
      rest.push(await resumed.event());
    }
    assert.deepEqual(results(rest).sort(), ['one', 'two', name].sort());
    const progress = rest.filter(({ message }) => message?.method === 'notifications/progress');
    assert.deepEqual(progress.map(({ message }) => message.params.progress).sort(), [1, 2, 3]);
    if (!isStock) {
      await resumed.ends();
    }
  });

  test('f19 unknown cursor without a request is refused', async () => {
    const peer = await Peer.open(server().port);
    for (const cursor of ['nonsense', '0', `${'a'.repeat(33)}.`, 'a'.repeat(119)]) {
      const [status, code] = await refusal(await peer.resume(cursor));
      assert.deepEqual([status, code < 0], [400, true], cursor);
    }
  });

  test('f19 lost stream fails the request it names', async () => {
    const peer = await Peer.open(server().port);
    for (const id of [5, 'five']) {
      const events = await (await peer.call('script', { steps: ['return x'] }, id)).rest();
      const answer = await peer.resume(unknownLike(events[0].id));
      assert.equal(answer.status, 200);
      const [tombstone, ...more] = await answer.rest();
      assert.deepEqual([tombstone.message.id, tombstone.message.error.code < 0, more], [id, true, []]);
      // A client that comes back with the tombstone is told to stop, cheaply and for good.
      for (let again = 0; again < 2; again++) {
        const after = await peer.resume(tombstone.id);
        assert.deepEqual([after.status, await after.body()], [204, '']);
      }
    }
  });

  test('f19 stock client fails its call when the stream is gone', async (t) => {
    const short = await serveFor(t, line, { retryInterval: 1_000, engine: { retentionMs: 50 } });
    const client = await connectLine(t, line, short.port);
    const name = newGate();
    const before = client.gets;
    const failed = assert.rejects(client.script('close', `return ${name}`));
    await marked(`finished return ${name}`);
    // The client's standalone stream stays.
    await short.lost(1);
    // Long before the client's own patience ends.
    await within(failed, 20_000);
    assert.ok(client.gets - before <= 4, `${client.gets - before} GETs`);
  });

  test('f20 trimmed history is announced', async (t) => {
    const small = await serveFor(t, line, { cap: 10, engine: { maxEventsPerStream: 10 } });
    const peer = await Peer.open(small.port);
    const name = newGate();
    const cursor = await begun(peer, 2, 'emit 2', `gate ${name}`, 'emit 50', `return ${name}`);
    open(name);
    await marked(`finished return ${name}`);
    const reply = await peer.resume(cursor);
    assert.equal(reply.status, 200);
    const blocks = await reply.blocks();
    const gaps = blocks.filter(({ comment }) => comment?.startsWith('gap'));
    assert.equal(gaps.length, 1);
    // Positions count from 1 and every progress notification is one event, so the numbers can be checked.
    const [, first, missing] = /^gap (\d+) (\d+)$/.exec(gaps[0].comment).map(Number);
    assert.equal(first, 3);
    assert.deepEqual([counts(blocks), results(blocks)], [upTo(52, first + missing), [name]]);
    assert.ok(counts(blocks).length > 0, 'what is retained must be sent');
    const before = blocks.slice(0, blocks.indexOf(gaps[0]));
    assert.ok(before.every(({ message }) => message === undefined), 'it comes before what follows the gap');
  });

  test('f22 reader that leaves during replay leaves nothing behind', async (t) => {
    const { stats } = packages[line];
    const deep = await serveFor(t, line, { engine: { maxEventsPerStream: 5_000, maxBytesPerStream: 32 << 20 } });
    const peer = await Peer.open(deep.port);
    const connections = stats().connections;
    const name = newGate();
    let cursor = await begun(peer, 1, 'emit 1', `gate ${name}`, 'emit 2000 1000', `return ${name}`);
    open(name);
    await marked(`finished return ${name}`);
    const got = [1];
    for (let visit = 0; visit < 4; visit++) {
      const reply = await peer.resume(cursor);
      const events = await reply.some(150);
      got.push(...counts(events));
      cursor = lastId(events);
      reply.drop();
    }
    const events = await (await peer.resume(cursor)).untilTerminal();
    got.push(...counts(events));
    assert.deepEqual([got, results(events)], [upTo(2001), [name]]);
    await until(() => stats().connections === connections);
  });

  test('f23 resumed connection ends after the response', async () => {
    const peer = await Peer.open(server().port);
    const name = newGate();
    const cursor = await begun(peer, 1, 'emit 1', `gate ${name}`, `return ${name}`);
    const live = await peer.resume(cursor);
    open(name);
    assert.deepEqual(results(await live.untilTerminal()), [name]);
    await live.ends();
    // The same holds where the response is already in the log.
    const replayed = await peer.resume(cursor);
    assert.deepEqual(results(await replayed.untilTerminal()), [name]);
    await replayed.ends();
  });

  test('f24 post stream starts with an id', async () => {
    const peer = await Peer.open(server().port);
    assert.ok(peer.opening[0].isPriming, 'initialize is primed as well');
    const name = newGate();
    const reply = await peer.script(`gate ${name}`, `return ${name}`);
    await at(name);
    const cursor = await primed(reply);
    reply.drop();
    open(name);
    await marked(`finished return ${name}`);
    assert.deepEqual(results(await (await peer.resume(cursor)).untilTerminal()), [name]);
  });

  test('f25 standalone stream starts with an id', async () => {
    const peer = await Peer.open(server().port);
    const stream = await peer.listen();
    const cursor = await primed(stream);
    stream.drop();
    // Before the first notification: the priming event is all that the client has.
    await peer.ask('standalone while away');
    const again = await peer.resume(cursor);
    await primed(again);
    assert.deepEqual(logs(await again.some(1)), ['while away']);
    again.drop();
  });

  test('f26 resume that delivers nothing gives a new id and retry', async () => {
    const peer = await Peer.open(server().port);
    const name = newGate();
    const call = await peer.script('emit 1', `gate ${name}`, `return ${name}`);
    const used = new Set([await primed(call)]);
    let cursor = lastId(await call.some(1));
    used.add(cursor);
    call.drop();
    for (let visit = 0; visit < 5; visit++) {
      const reply = await peer.resume(cursor);
      cursor = await primed(reply);
      assert.ok(!used.has(cursor), 'an id that did not change is no progress for some clients');
      used.add(cursor);
      reply.drop();
    }
    open(name);
    // Every one of those ids means the same position.
    const events = await (await peer.resume(cursor)).untilTerminal();
    assert.deepEqual([counts(events), results(events)], [[], [name]]);
  });

  // The many events force the user's own replay, which hands back the priming rows too.
  for (const many of [30, 10_100]) {
    test(`f28 control rows never appear as messages, ${many} events`, { timeout: 120_000 }, async (t) => {
      const { store, port } = await lab(t);
      const peer = await Peer.open(port);
      store.plan({ replayPrimings: true });
      const name = newGate();
      const cursor = await begun(peer, 0, `gate ${name}`, `emit ${many}`, `return ${name}`);
      const poll = await peer.resume(cursor);
      await poll.settle(50);
      poll.drop();
      open(name);
      await marked(`finished return ${name}`, 1, 60_000);
      const events = await (await peer.resume(cursor)).untilTerminal();
      const strange = events.filter((event) => !event.isPriming && event.message?.jsonrpc !== '2.0');
      assert.deepEqual(strange, []);
      assert.deepEqual([counts(events), results(events)], [upTo(many), [name]]);
    });
  }

  test('ids in one connection never repeat', async () => {
    const peer = await Peer.open(server().port);
    const found = ids(await (await peer.script('emit 30', 'return x')).untilTerminal());
    assert.deepEqual([found.length, new Set(found).size], [32, 32]);
  });
});
