// Serving and ending on what Node has: event loops, workers, exits.
import assert from 'node:assert/strict';
import v8 from 'node:v8';
import vm from 'node:vm';
import { Worker } from 'node:worker_threads';
import { at, newGate, open, packages, serve } from '../servers/node/transports.mjs';
import { run, runServing } from './kit/program.mjs';
import { Peer, request, results, until, within } from './kit/raw.mjs';
import { onEachLine, ours, test } from './kit/test.mjs';

const kit = new URL('../servers/node/transports.mjs', import.meta.url).href;

onEachLine(
  async () => undefined,
  (line) => {
    test('an idle engine does not hold the process', ours, () => {
      const done = runServing(`
      const server = await serve('${line}');
      const peer = await Peer.open(server.port);
      await peer.ask('emit 1', 'return x');
      // Takes no further connections; the rest is left to the process.
      server.stop();
    `);
      assert.deepEqual([done.status, done.signal], [0, null], done.stderr);
    });

    test('process exit with an open engine is clean', { ...ours, timeout: 120_000 }, () => {
      // A crash there is a matter of timing, so it takes several processes.
      for (let round = 0; round < 4; round++) {
        const done = runServing(`
        const server = await serve('${line}');
        const peer = await Peer.open(server.port);
        await (await peer.listen()).event();
        (await peer.script('until never')).some(5).catch(() => {});
        setTimeout(() => {
          if (${round % 2}) process.exit(0);
          server.close();
          setTimeout(() => process.exit(0), ${round * 5});
        }, ${round * 7});
      `);
        assert.deepEqual([done.status, done.signal], [0, null], done.stderr);
        assert.doesNotMatch(done.stderr, /panicked|FATAL/);
      }
    });

    test('stats and import cost nothing before use', ours, () => {
      const module = line === 'v1' ? 'tailrope/mcp-v1' : 'tailrope/mcp';
      const done = run(`
      import { stats } from '${module}';
      console.log(JSON.stringify(stats()));
    `);
      assert.equal(done.status, 0, done.stderr);
      const { sessions, streams, connections } = JSON.parse(done.stdout);
      assert.deepEqual([sessions, streams, connections], [0, 0, 0]);
    });

    test('several workers serve, and end under load', ours, async () => {
      const source = `
      import { parentPort, workerData } from 'node:worker_threads';
      const { serve } = await import(workerData.kit);
      parentPort.postMessage((await serve(workerData.line)).port);
    `;
      for (let round = 0; round < 2; round++) {
        const code = new URL(`data:text/javascript,${encodeURIComponent(source)}`);
        const workers = [0, 1].map(() => new Worker(code, { workerData: { kit, line } }));
        const started = (worker) => within(new Promise((resolve) => worker.once('message', resolve)), 60_000);
        const ports = await Promise.all(workers.map(started));
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
      // And this thread goes on.
      const server = await serve(line);
      const peer = await Peer.open(server.port);
      const name = newGate();
      const reply = await peer.script(`gate ${name}`, 'return x');
      await at(name);
      open(name);
      assert.deepEqual(results(await reply.rest()), ['x']);
      await server.close();
    });

    test('i11 an engine without sessions is let go', ours, async () => {
      v8.setFlagsFromString('--expose-gc');
      const gc = vm.runInNewContext('gc');
      const { EventStore } = packages[line];
      const use = async () => {
        const store = new EventStore('memory:');
        const server = await serve(line, { eventStore: store });
        const peer = await Peer.open(server.port);
        const stream = await peer.listen();
        await stream.event();
        await peer.delete();
        await stream.ends();
        await server.close();
        return new WeakRef(store);
      };
      const stores = [];
      for (let round = 0; round < 5; round++) {
        stores.push(await use());
      }
      await until(async () => {
        gc();
        return stores.filter((store) => store.deref() !== undefined).length <= 1;
      });
    });
  },
);
