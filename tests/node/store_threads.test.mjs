// A store that answers on threads of its own: nobody sleeps through its answers, in any thread of JavaScript.
import assert from 'node:assert/strict';
import { readdirSync } from 'node:fs';
import { describe } from 'node:test';
import { Worker } from 'node:worker_threads';
import { logged, newGate, open, serveFor } from '../servers/node/transports.mjs';
import { runServing } from './kit/program.mjs';
import { counts, ids, lastId, logs, Peer, results, until, upTo, within } from './kit/raw.mjs';
import { LINES, ours, test } from './kit/test.mjs';

const STORE = 'test-threaded:?delay_ms=2';
const SECRET = /hunter2|10\.0\.0\.7|redis/;
/** When a store is given up. What it does answer may not take so long, on a busy machine either. */
const STORE_MS = 5_000;
/** Several processes or threads, one after the other, each of which starts and ends. */
const patient = { ...ours, timeout: 120_000 };

async function opened(t, line, engine = {}) {
  const { port } = await serveFor(t, line, { address: STORE, engine });
  return Peer.open(port);
}

for (const line of LINES) {
  describe(line, () => {
    test('i3 closes, polls and cuts lose nothing', ours, async (t) => {
      const peer = await opened(t, line);
      const gate = newGate();
      const steps = ['emit 3', 'close retry=20 hold=0', 'emit 20', `gate ${gate}`, 'emit 2', 'return x'];
      const events = await (await peer.script(...steps)).rest();
      assert.ok(events[0].isPriming);
      for (let polls = 0; results(events).length === 0; polls++) {
        const reply = await peer.resume(lastId(events));
        assert.equal(reply.status, 200);
        events.push(...(await reply.rest()));
        if (polls === 5) {
          open(gate);
        }
      }
      assert.deepEqual(counts(events), upTo(25));
      for (let round = 0; round < 10; round++) {
        const name = newGate();
        const reply = await peer.script(`until ${name}`);
        const got = await reply.some(3);
        reply.drop();
        const resumed = await peer.resume(lastId(got));
        got.push(...(await resumed.some(3)));
        open(name);
        got.push(...(await resumed.rest()));
        const numbers = counts(got);
        assert.deepEqual(numbers, upTo(numbers.length));
        assert.deepEqual(results(got), [String(numbers.length)]);
      }
    });

    test('i2 many senders at once keep their order', ours, async (t) => {
      const peer = await opened(t, line);
      const replies = await Promise.all(Array.from({ length: 8 }, (_, n) => peer.script('burst 50', `return ${n}`)));
      const answered = [];
      for (const reply of replies) {
        const events = await reply.rest();
        assert.deepEqual(counts(events), upTo(50));
        assert.equal(new Set(ids(events)).size, ids(events).length);
        answered.push(...results(events));
      }
      assert.deepEqual(answered.sort(), ['0', '1', '2', '3', '4', '5', '6', '7']);
    });

    test('i4 the standalone stream moves to its newest reader', ours, async (t) => {
      const peer = await opened(t, line);
      const first = await peer.listen();
      await peer.ask('standalone one', 'return x');
      const events = await first.some(1);
      const second = await peer.resume(lastId(events));
      await peer.ask('standalone two', 'return x');
      assert.deepEqual(logs(await second.some(1)), ['two']);
      await first.quiet(200);
    });

    test('f58 f59 a fault harms one event, and says nothing of the store', ours, async (t) => {
      const peer = await opened(t, line);
      // A later message is told, as soon as the store has said it.
      const steps = ['try log one', 'try log store-fails', `try until ${newGate()}`, 'try log two'];
      const events = await (await peer.script(...steps)).rest();
      const outcomes = JSON.parse(results(events)[0]);
      assert.deepEqual([outcomes[0], outcomes[1], outcomes[3]], ['ok', 'ok', 'ok']);
      assert.match(outcomes[2], /^raised/);
      assert.deepEqual(logs(events), ['one', 'two']);
      const lost = await (await peer.script('emit 1', 'return store-fails')).rest();
      assert.deepEqual(results(lost), ['store-fails'], 'its reader gets it once');
      assert.doesNotMatch(JSON.stringify([events, lost]), SECRET);
      assert.equal(await peer.ask('return after'), 'after');
    });

    test('i9 a store that does not answer is asked again in time', ours, async (t) => {
      const peer = await opened(t, line, { storeTimeoutMs: STORE_MS });
      const events = await (await peer.script('try log store-hangs', 'return x')).rest();
      assert.deepEqual([logs(events), results(events).length], [['store-hangs'], 1]);
    });

    for (const fault of ['store-unreadable', 'store-stalls']) {
      test(`i8 a log that cannot be read ends the connection: ${fault}`, ours, async (t) => {
        const peer = await opened(t, line, { storeTimeoutMs: STORE_MS, storeWaitMs: 2_000 });
        // More than a page holds, so that it is read back.
        const events = await (await peer.script(`log ${fault}${'.'.repeat(300_000)}`, 'return x')).rest();
        assert.ok(events[0].isPriming && results(events).length === 0, JSON.stringify(events));
        assert.equal(await peer.ask('return after'), 'after');
      });
    }

    test('an idle engine does not hold the process', ours, () => {
      const done = runServing(`
        const server = await serve('${line}', { address: '${STORE}' });
        const peer = await Peer.open(server.port);
        await peer.ask('emit 1', 'return x');
        server.stop();
      `);
      assert.deepEqual([done.status, done.signal], [0, null], done.stderr);
    });

    test('exit under load is clean', patient, () => {
      for (let round = 0; round < 3; round++) {
        const done = runServing(`
          const { port } = await serve('${line}', { address: 'test-threaded:?delay_ms=1' });
          const peer = await Peer.open(port);
          const replies = await Promise.all(Array.from({ length: 8 }, () => peer.script('emit 100000')));
          await Promise.all(replies.map((reply) => reply.some(2)));
          process.exit();
        `);
        assert.deepEqual([done.status, done.signal], [0, null], done.stderr);
      }
    });
  });
}

test('what the threads of a store log is written on a thread of JavaScript', ours, async (t) => {
  const peer = await opened(t, 'v2');
  await peer.ask('try log store-fails');
  assert.ok(
    logged.some((text) => /^error event not stored.*hunter2/.test(text)),
    logged.join('\n'),
  );
});

const countThreads = () => readdirSync('/proc/self/task').length;
const onlyLinux = process.platform === 'linux' ? patient : { skip: 'threads are counted in /proc' };

test('workers end under load, and leave no thread of their stores', onlyLinux, async () => {
  const source = `
    import { parentPort, workerData } from 'node:worker_threads';
    const { serve } = await import(workerData);
    parentPort.postMessage((await serve('v2', { address: 'test-threaded:?delay_ms=1' })).port);
  `;
  const code = new URL(`data:text/javascript,${encodeURIComponent(source)}`);
  const workerData = new URL('../servers/node/transports.mjs', import.meta.url).href;
  const run = async () => {
    const workers = [0, 1].map(() => new Worker(code, { workerData }));
    const ports = await Promise.all(
      workers.map((worker) => within(new Promise((resolve) => worker.once('message', resolve)), 60_000)),
    );
    const peers = await Promise.all(ports.map((port) => Peer.open(port)));
    const answers = await Promise.all(peers.map((peer, index) => peer.ask('emit 20', `return ${index}`)));
    assert.deepEqual(answers, ['0', '1']);
    // Each of them is woken while its first poll returns, sooner or later.
    const calls = await Promise.all(
      peers.flatMap((peer) => Array.from({ length: 20 }, () => peer.script('emit 20000'))),
    );
    await Promise.all(calls.map((reply) => reply.some(1)));
    await Promise.all(workers.map((worker) => worker.terminate()));
    calls.forEach((reply) => reply.drop());
  };
  await run();
  const before = countThreads();
  for (let round = 0; round < 8; round++) {
    await run();
  }
  await until(() => countThreads() <= before);
});
