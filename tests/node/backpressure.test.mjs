// Readers that do not read, readers that are killed, and events that are too big or awkward. (F-56, F-57, F-60,
// F-61, I10)
import assert from 'node:assert/strict';

import { connectLine } from './kit/clients.mjs';
import { spawnServer } from './kit/process.mjs';
import { Peer, counts, lastId, results, sleep, until, upTo } from './kit/raw.mjs';
import { marked, newGate, open, serve, serveFor } from '../servers/node/transports.mjs';
import { isStock, onEachLine, ours, test } from './kit/test.mjs';

const MIB = 1 << 20;
const AWKWARD = 'a\u2028b\u2029c\u0085d\re\nf\x00g\ufeffh\u00e9i\u{1f40d}';

onEachLine(serve, (line, server) => {
  test('f56 reader that stalls delays no other call', async () => {
    const peer = await Peer.open(server().port);
    const name = newGate();
    // Twenty megabytes for a reader that never reads: more than the sockets take.
    const stalled = await peer.script('emit 2000 10000', `mark ${name}`, `gate ${name}`, 'return x');
    for (let call = 0; call < 5; call++) {
      const started = performance.now();
      assert.equal(await peer.ask('return quick'), 'quick');
      assert.ok(performance.now() - started < 10_000);
    }
    // Nor does it block the handler that writes to it.
    await marked(name);
    open(name);
    stalled.drop();
  });

  test('f56 stalled standalone reader delays no call', async () => {
    const peer = await Peer.open(server().port);
    const stream = await peer.get();
    for (let call = 0; call < 100; call++) {
      assert.equal(await peer.ask(`standalone ${'y'.repeat(100_000)}`, 'return x'), 'x');
    }
    stream.drop();
  });

  /** A stalled and a killed reader while their tools emit so many events of 10,000 bytes each. */
  async function emitted(t, events) {
    const child = await spawnServer(line, { cap: 50 });
    t.after(() => child.close());
    const peer = await Peer.open(child.port);
    // What the process takes for good.
    await peer.ask('emit 2000 10000');
    const before = (await child.ask('state')).rss;
    const stalled = await peer.script(`emit ${events} 10000`, 'return stalled');
    const killed = await peer.script(`emit ${events} 10000`, 'return killed');
    await killed.some(2);
    killed.drop();
    for (let over = 0; over < 2; ) {
      await sleep(50);
      const { rss, passed, errors } = await child.ask('state');
      assert.ok(isStock || errors.length === 0, errors);
      assert.ok(rss - before < 96 * MIB, `${(rss - before) >> 20} MiB`);
      over = ['stalled', 'killed'].filter((name) => passed.includes(`finished return ${name}`)).length;
    }
    return { peer, stalled };
  }

  const patient = { timeout: 120_000 };
  test('f57 stalled and killed readers cost no memory while a gigabyte is emitted', patient, async (t) => {
    // The whole of it once, a fifth on the other line: the code is the same.
    const { peer, stalled } = await emitted(t, line === 'v2' ? 50_000 : 10_000);
    // The reader that wakes up is told where the hole is and gets the rest.
    let blocks = await stalled.blocks();
    while (results(blocks).length === 0) {
      blocks = blocks.concat(await (await peer.resume(lastId(blocks))).blocks());
    }
    const seen = counts(blocks);
    const holes = seen.filter((count, index) => index > 0 && count !== seen[index - 1] + 1).length;
    const gaps = blocks.filter(({ comment }) => comment?.startsWith('gap')).length;
    assert.deepEqual(results(blocks), ['stalled']);
    assert.ok(holes <= gaps, `${holes} holes, ${gaps} gaps`);
  });

  test('f57 reader that takes nothing is cut off at the age of connections', { ...ours, timeout: 60_000 }, async (t) => {
    const child = await spawnServer(line, { engine: { maxConnectionMs: 2_000, maxBytesPerStream: 64 * MIB } });
    t.after(() => child.close());
    const peer = await Peer.open(child.port);
    // More than the sockets take, for a client that keeps its own.
    const stalled = await peer.script('emit 400 60000', 'return x');
    await until(async () => (await child.ask('state')).stats.connections === 0, 20_000);
    const blocks = [];
    for (let reply = stalled; results(blocks).length === 0; reply = await peer.resume(lastId(blocks))) {
      assert.equal(reply.status, 200);
      try {
        for (let block = await reply.block(); block !== undefined; block = await reply.block()) {
          blocks.push(block);
        }
      } catch (error) {
        // It may end anywhere, even inside an event; so may each that follows, if this process stands still.
        assert.match(error.message, /cut/);
      }
    }
    assert.deepEqual([counts(blocks), results(blocks)], [upTo(400), ['x']]);
  });

  test('f60 event over the limit fails with its size', ours, async (t) => {
    const small = await serveFor(t, line, { engine: { maxEventBytes: 10_000 } });
    const peer = await Peer.open(small.port);
    const events = await (await peer.script('emit 1', 'big 50000')).rest();
    assert.deepEqual(counts(events), [1]);
    const [error] = results(events);
    assert.ok(error.code < 0);
    assert.ok(error.message.split(' ').some((word) => Number(word) >= 50_000), error.message);
    // A notification that is too big is the handler's to hear of; the call goes on.
    const outcomes = JSON.parse(await peer.ask('try emit 1 50000', 'try emit 1 100'));
    assert.match(outcomes[0], /^raised .*5\d{4}/);
    assert.equal(outcomes[1], 'ok');
  });

  test('f60 stock client is told of a result it could not take', async (t) => {
    const small = await serveFor(t, line, { engine: { maxEventBytes: 1_000_000 } });
    const client = await connectLine(t, line, small.port);
    // Without a limit of ours these clients take it whole; the one wrong answer is none.
    const whole = await client.script('big 2000000').catch((error) => error);
    assert.ok(isStock ? whole.length === 2_000_000 : whole.code < 0);
    assert.equal(await client.script('return after'), 'after');
  });

  test('f61 line separators are escaped on the wire', async () => {
    const peer = await Peer.open(server().port);
    const reply = await peer.script(`return ${AWKWARD}`);
    const events = await reply.untilTerminal();
    for (const forbidden of ['\u2028', '\u2029', '\u0085', '\x00']) {
      assert.ok(!reply.raw.includes(forbidden), `${forbidden.charCodeAt(0).toString(16)} is raw on the wire`);
    }
    assert.equal(reply.raw.split('\ndata: ').length - 1, events.length, 'one data line each');
    assert.deepEqual(results(events), [AWKWARD]);
  });

  test('f61 awkward text survives replay and progress', async () => {
    const peer = await Peer.open(server().port);
    const events = await (await peer.script(`log ${AWKWARD}`, `return ${AWKWARD}`)).untilTerminal();
    const again = await (await peer.resume(events[0].id)).untilTerminal();
    for (const found of [events, again]) {
      assert.equal(found.find(({ message }) => message !== undefined).message.params.data, AWKWARD);
      assert.deepEqual(results(found), [AWKWARD]);
    }
    // The same bytes for every reader.
    const sent = (found) => found.filter(({ data }) => data).map(({ id, data }) => [id, data]);
    assert.deepEqual(sent(events), sent(again));
  });

  test('lines end with lf and fields have one blank', ours, async () => {
    const peer = await Peer.open(server().port);
    const reply = await peer.script('emit 2', 'return x');
    await reply.rest();
    assert.ok(!reply.raw.includes('\r'));
    for (const block of reply.raw.split('\n\n').slice(0, -1)) {
      const names = block.split('\n').map((line) => line.slice(0, line.indexOf(': ')));
      assert.match(names.join(' '), /^id (retry )?data$/, block);
    }
  });
});
