// Ends of processes and threads. (F-44)
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { Worker } from 'node:worker_threads';

import { Peer, request, results, within } from './kit/raw.mjs';
import { spawnServer } from './kit/process.mjs';
import { LINES, marked, newGate, open, serve } from './kit/servers.mjs';

for (const line of LINES) {
  describe(line, () => {
    test('f44 drain on request closes every connection', async (t) => {
      const child = await spawnServer(line);
      t.after(() => child.close());
      const peer = await Peer.open(child.port);
      const reply = await peer.script('emit 1', 'sleep 5000', 'return x');
      const events = await reply.some(1);
      const stream = await peer.listen();
      await stream.event();
      assert.equal(await child.ask('drain 1234'), true);
      events.push(...(await reply.rest()));
      // Never less than what was asked for; more spreads the clients.
      assert.ok(events.findLast(({ retry }) => retry).retry >= 1_234, JSON.stringify(events));
      await stream.rest();
      const resumed = await peer.resume(events.findLast(({ id }) => id).id);
      assert.ok((await resumed.rest()).every((event) => event.message === undefined));
    });

    test('f44 calls of old sessions get an error at drain', async (t) => {
      const child = await spawnServer(line);
      t.after(() => child.close());
      const peer = await Peer.open(child.port, '2025-06-18');
      const reply = await peer.script('emit 1', 'sleep 5000', 'return x');
      await reply.some(1);
      assert.equal(await child.ask('drain 1000'), true);
      assert.ok(results(await reply.rest())[0].code < 0);
    });

    test('an idle engine does not hold the process', async (t) => {
      const child = await spawnServer(line);
      t.after(() => child.close());
      const peer = await Peer.open(child.port);
      await peer.ask('emit 1', 'return x');
      await child.ask('close');
      assert.equal(await within(child.exited, 5_000), 0);
    });
  });
}

test('clients that vanish leave nothing behind', async (t) => {
  const child = await spawnServer('v2');
  t.after(() => child.close());
  const peer = await Peer.open(child.port);
  for (let round = 0; round < 20; round++) {
    const reply = await peer.script('emit 1', 'return x');
    reply.drop();
    (await peer.listen()).drop();
  }
  await peer.ask('return x');
  for (let wait = 0; (await child.ask('state')).stats.connections > 0; wait++) {
    assert.ok(wait < 100);
  }
  assert.deepEqual((await child.ask('state')).errors, []);
});

test('several workers serve, and end under load', async () => {
  const source = `
    import { parentPort, workerData } from 'node:worker_threads';
    const { serve } = await import(workerData);
    parentPort.postMessage((await serve('v2')).port);
  `;
  const kit = new URL('kit/servers.mjs', import.meta.url).href;
  for (let round = 0; round < 3; round++) {
    const workers = [0, 1].map(() => {
      const code = `data:text/javascript,${encodeURIComponent(source)}`;
      return new Worker(new URL(code), { workerData: kit });
    });
    const ports = await Promise.all(
      workers.map((worker) => within(new Promise((resolve) => worker.once('message', resolve)), 10_000)),
    );
    const peers = await Promise.all(ports.map((port) => Peer.open(port)));
    const answers = await Promise.all(peers.map((peer, index) => peer.ask('emit 20', `return ${index}`)));
    assert.deepEqual(answers, ['0', '1']);
    const calls = peers.flatMap((peer) => Array.from({ length: 20 }, () => peer.script('emit 2000', 'return x')));
    const settled = Promise.allSettled(calls);
    await Promise.all(workers.map((worker) => worker.terminate()));
    for (const { value } of await settled) {
      value?.drop();
    }
    await assert.rejects(request(ports[0], 'GET', {}), 'the port is free');
  }
});

test('this thread goes on when workers ended', async () => {
  const server = await serve('v1');
  const peer = await Peer.open(server.port);
  const gate = newGate();
  const reply = await peer.script(`gate ${gate}`, 'return x');
  await marked(`at ${gate}`);
  open(gate);
  assert.deepEqual(results(await reply.rest()), ['x']);
  await server.close();
});
