// What a drain is for: what was made before it. Servers that start later in the same thread, as in a suite of tests, are not
// drained.
import assert from 'node:assert/strict';

import { buildServer } from '../servers/node/tools.mjs';
import { classes, listen, newGate, open, packages } from '../servers/node/transports.mjs';
import { folderFor } from './kit/addresses.mjs';
import { ACCEPT, NEWEST, Peer, request } from './kit/raw.mjs';
import { LINES, ours, test } from './kit/test.mjs';

const HEADERS = { accept: ACCEPT, 'content-type': 'application/json' };
const initialize = JSON.stringify({
  jsonrpc: '2.0',
  id: 0,
  method: 'initialize',
  params: { protocolVersion: NEWEST, capabilities: {}, clientInfo: { name: 'x', version: '1' } },
});

async function opens(port) {
  const reply = await request(port, 'POST', HEADERS, initialize);
  await reply.body();
  return reply.status;
}

/** A handler of node:http for sessions, as people write one by hand. */
function byHand(line, options) {
  const transports = new Map();
  return async (req, res) => {
    let transport = transports.get(req.headers['mcp-session-id']);
    if (transport === undefined) {
      transport = new classes[line]({
        sessionIdGenerator: () => crypto.randomUUID(),
        onsessioninitialized: (id) => void transports.set(id, transport),
        ...options,
      });
      await buildServer(line).connect(transport);
    }
    await transport.handleRequest(req, res);
  };
}

const WAYS = {
  router(line, options) {
    const router = packages[line].createSessionRouter(() => buildServer(line), options);
    return { handle: router.node, close: () => router.close() };
  },
  'by hand': (line, options) => ({ handle: byHand(line, options), async close() {} }),
};

for (const line of LINES) {
  for (const [way, make] of Object.entries(WAYS)) {
    for (const kept of ['no store', 'one EventStore', 'a store of their own']) {
      test(`${line} ${way}: servers that start behind a drain are not drained, with ${kept}`, ours, async () => {
        const { drain, EventStore } = packages[line];
        let events = 0;
        const own = { storeEvent: async (stream) => `${stream}/${++events}`, async replayEventsAfter() {} };
        const options = {
          'no store': {},
          'one EventStore': { eventStore: new EventStore() },
          'a store of their own': { eventStore: own },
        }[kept];
        for (let cycle = 0; cycle < 20; cycle++) {
          const { handle, close } = make(line, options);
          const host = await listen(handle);
          const peer = await Peer.open(host.port);
          const listening = await peer.listen();
          assert.equal(await peer.ask('emit 1', 'return x'), 'x');
          assert.equal(await drain(), true);
          await listening.rest();
          await close();
          await host.close();
        }
      });
    }

    test(`${line} ${way}: a drain takes no session from its beginning on, and what runs goes on`, ours, async (t) => {
      const { drain } = packages[line];
      const { handle, close } = make(line, {});
      const host = await listen(handle);
      t.after(async () => {
        await close();
        await host.close();
      });
      const peer = await Peer.open(host.port);
      const other = await Peer.open(host.port);
      const gate = newGate();
      const call = await peer.script('emit 1', `gate ${gate}`, 'return x');
      const [, first] = await call.some(1);
      const draining = drain();
      assert.equal(await opens(host.port), 503);
      const resumed = await peer.resume(first.id);
      await resumed.rest();
      await draining;
      if (way === 'router') {
        // It was there before the drain.
        assert.equal(await opens(host.port), 503);
      }
      open(gate);
      // Served to their end, as before.
      assert.equal((await other.delete()).status, 200);
      assert.equal((await peer.delete()).status, 200);
    });
  }

  test(`${line} a session that a drain has left goes on in a server that starts behind it`, ours, async (t) => {
    const { drain, EventStore, createSessionRouter, openStore } = packages[line];
    const eventStore = new EventStore(await openStore(`sqlite:${folderFor(t)}/events.db`));
    const start = async () => {
      const router = createSessionRouter(() => buildServer(line), { eventStore });
      return { router, host: await listen(router.node) };
    };
    const before = await start();
    const peer = await Peer.open(before.host.port);
    assert.equal(await peer.ask('return x'), 'x');
    assert.equal(await drain(), true);
    await before.router.close();
    await before.host.close();
    const after = await start();
    t.after(async () => {
      await after.router.close();
      await after.host.close();
    });
    peer.port = after.host.port;
    assert.equal(await peer.ask('return y'), 'y');
    assert.equal(after.router.servers().length, 1);
  });
}
