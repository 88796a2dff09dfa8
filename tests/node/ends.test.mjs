// The end of a process is not the end of its sessions, where a store outlives it.
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';
import { serveFor } from '../servers/node/transports.mjs';
import { folderFor } from './kit/addresses.mjs';
import { runServing } from './kit/program.mjs';
import { counts, lastId, Peer, request, results, within } from './kit/raw.mjs';
import { ours, test } from './kit/test.mjs';

const CLUSTERED = fileURLToPath(new URL('kit/clustered.mjs', import.meta.url));

/** The cluster, once all its workers listen on one port. */
async function clustered(t, workers, address) {
  const child = spawn(process.execPath, [CLUSTERED, workers, address], { stdio: ['ignore', 'pipe', 'inherit'] });
  t.after(() => child.kill('SIGKILL'));
  const exited = once(child, 'exit');
  const lines = createInterface(child.stdout)[Symbol.asyncIterator]();
  let port;
  for (let started = 0; started < workers; started++) {
    port = Number((await within(lines.next())).value);
  }
  return { child, port, exited };
}

test('f44 a cluster that is told to end leaves its sessions to the next one', ours, async (t) => {
  const address = `sqlite:${join(folderFor(t), 'events.db')}`;
  const before = await clustered(t, 1, address);
  const peer = await Peer.open(before.port);
  const call = await peer.script('emit 3', 'gate never', 'return x');
  const events = await call.some(3);
  before.child.kill('SIGTERM');
  // What ends it is a connection that is closed in order, and not the process.
  events.push(...(await call.rest()));
  assert.deepEqual(await within(before.exited), [0, null]);

  const { port, child, exited } = await clustered(t, 2, address);
  peer.port = port;
  for (const cursor of [events[0].id, lastId(events)]) {
    const rest = await (await peer.resume(cursor)).rest();
    assert.deepEqual(counts(rest), cursor === events[0].id ? [1, 2, 3] : []);
    assert.equal(typeof results(rest)[0].code, 'number');
  }
  child.kill('SIGTERM');
  assert.deepEqual(await within(exited), [0, null]);
});

for (const [how, end, isKept] of [
  ['close in a drain', 'await drain(); await server.close();', true],
  ['close without one', 'await server.close();', true],
  ['are ended by their client', 'await peer.delete(); await server.close();', false],
  ['are idle for too long', 'await until(() => stats().sessions === 0);', false],
]) {
  for (const routed of [false, true]) {
    const through = routed ? 'a router' : 'transports';
    test(`f44 of sessions of ${through} that ${how} ${isKept ? 'all' : 'nothing'} stays stored`, ours, async (t) => {
      const address = `sqlite:${join(folderFor(t), 'events.db')}`;
      const options = { address, routed, engine: how.includes('idle') ? { sessionIdleMs: 500 } : {} };
      const done = runServing(`
        import { drain, stats } from 'tailrope/mcp';
        import { until } from './kit/raw.mjs';
        const server = await serve('v2', ${JSON.stringify(options)});
        const peer = await Peer.open(server.port);
        const [primed] = await (await peer.script('emit 1', 'return x')).rest();
        console.log(JSON.stringify([peer.sessionId, primed.id]));
        ${end}
        process.exit(0);
      `);
      assert.equal(done.status, 0, done.stderr);
      const [sessionId, cursor] = JSON.parse(done.stdout);
      const next = await serveFor(t, 'v2', { address });
      const headers = { accept: 'text/event-stream', 'mcp-session-id': sessionId, 'last-event-id': cursor };
      const reply = await request(next.port, 'GET', headers);
      assert.equal(reply.status, isKept ? 200 : 404);
      assert.equal((await reply.body()).includes('"text":"x"'), isKept);
    });
  }
}
