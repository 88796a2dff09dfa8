// Starting, serving and ending a process: signals, workers, exit. (F-44)
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import v8 from 'node:v8';
import vm from 'node:vm';
import { Worker } from 'node:worker_threads';

import { OLD, Peer, lastId, request, results, until, within } from './kit/raw.mjs';
import { spawnServer } from './kit/process.mjs';
import { at, newGate, open, packages, serve } from '../servers/node/transports.mjs';
import { isStock, onEachLine, ours, test } from './kit/test.mjs';

const kit = new URL('kit/servers.mjs', import.meta.url).href;

/** Runs a program in a process of its own. */
function run(code) {
  const cwd = fileURLToPath(new URL('.', import.meta.url));
  return spawnSync(process.execPath, ['--input-type=module', '-e', code], { cwd, encoding: 'utf8', timeout: 20_000 });
}

onEachLine(async () => undefined, (line) => {
  async function spawned(t) {
    const child = await spawnServer(line);
    t.after(() => child.close());
    return child;
  }

  /** A session with three open streams: the standalone one, a running call, and a resumed one. */
  async function busy(port) {
    const peer = await Peer.open(port);
    const listening = await peer.listen();
    const name = newGate();
    const call = await peer.script('emit 2', `gate ${name}`, 'return x');
    await call.some(2);
    const polling = await peer.script('emit 1', 'close', `gate ${name}`, 'return y');
    const resumed = await peer.resume(lastId(await polling.rest()));
    await resumed.settle(100);
    return { peer, replies: [listening, call, resumed] };
  }

  for (const signal of ['SIGTERM', 'SIGINT']) {
    test(`f44 ${signal} with open streams ends the process`, async (t) => {
      const child = await spawned(t);
      const { replies } = await busy(child.port);
      child.kill(signal);
      // Every connection is closed cleanly, after a retry and an id.
      for (const reply of replies) {
        await reply.rest();
        // What is there to come back with, on stock, are F-25 and F-26.
        assert.ok(isStock || /^retry: \d+$/m.test(reply.raw), reply.raw);
        assert.ok(isStock || /^id: .+$/m.test(reply.raw), reply.raw);
      }
      assert.equal(await within(child.exited, 10_000), 0, child.log);
    });
  }

  for (const revision of OLD) {
    test(`f44 calls of old sessions get an error at drain, ${revision}`, async (t) => {
      const child = await spawned(t);
      const peer = await Peer.open(child.port, revision);
      const call = await peer.script('emit 1', `gate ${newGate()}`, 'return x');
      await call.some(1);
      child.kill('SIGTERM');
      // Such a client cannot be asked to come back, so its call fails in words.
      const errors = results(await call.rest());
      assert.deepEqual(errors.map((error) => Object.keys(error).sort()), [['code', 'message']]);
      assert.equal(await within(child.exited, 10_000), 0);
    });
  }

  test('f44 drain on request closes every connection', ours, async (t) => {
    const child = await spawned(t);
    const { peer, replies } = await busy(child.port);
    assert.equal(await child.ask('drain 1234'), true);
    for (const reply of replies) {
      await reply.rest();
      const retries = [...reply.raw.matchAll(/^retry: (\d+)$/gm)].map(([, ms]) => Number(ms));
      // The floor that was asked for, spread so that not all come back at once.
      assert.ok(retries.at(-1) >= 1_234 && retries.at(-1) <= 3 * 1_234, `${retries}`);
    }
    // Later resumes get their priming and end.
    const cursor = [...replies[1].raw.matchAll(/^id: (.+)$/gm)].at(-1)[1];
    const events = await (await peer.resume(cursor)).rest();
    assert.ok(events.length >= 1 && events[0].isPriming);
  });

  test('an idle engine does not hold the process', ours, async (t) => {
    const child = await spawned(t);
    const peer = await Peer.open(child.port);
    await peer.ask('emit 1', 'return x');
    await child.ask('close');
    assert.equal(await within(child.exited, 10_000), 0);
  });

  test('clients that vanish leave nothing behind', async (t) => {
    const child = await spawned(t);
    const peer = await Peer.open(child.port);
    await peer.ask('return warm');
    const before = await child.ask('state');
    for (let round = 0; round < 30; round++) {
      const stream = await peer.listen();
      if (!isStock) {
        await stream.event();
      }
      stream.drop();
      (await peer.script('emit 1', 'return x')).drop();
    }
    const after = await until(async () => {
      const state = await child.ask('state');
      return state.descriptors <= before.descriptors + 3 && state;
    });
    if (!isStock) {
      await until(async () => (await child.ask('state')).stats.connections === 0);
      assert.deepEqual(after.errors, []);
    }
    assert.equal(await peer.ask('return fine'), 'fine');
  });

  test('process exit with an open engine is clean', { ...ours, timeout: 120_000 }, () => {
    // A crash there is a matter of timing, so it takes several processes.
    for (let round = 0; round < 6; round++) {
      const done = run(`
        import { serve } from ${JSON.stringify(kit)};
        import { Peer } from ${JSON.stringify(new URL('raw.mjs', kit).href)};
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
      const started = (worker) => within(new Promise((resolve) => worker.once('message', resolve)), 20_000);
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
});
