// Transports that hosts make for sessions that they know from before, as the SDKs' users do: by their private fields, or by a
// generator that gives the known id.
import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';

import { getRequestListener } from '@hono/node-server';
import { buildServer } from '../servers/node/tools.mjs';
import { classes, listen, logged, packages, webClasses } from '../servers/node/transports.mjs';
import { folderFor } from './kit/addresses.mjs';
import { counts, ids, Peer, results } from './kit/raw.mjs';
import { LINES, ours, test } from './kit/test.mjs';

/** How a transport is told that it has a session. */
const HOWS = {
  'private fields': (transport, sessionId) => {
    const inner = transport._webStandardTransport ?? transport;
    Object.assign(inner, { _initialized: true, sessionId });
  },
  'fields of its own': (transport, sessionId) => Object.assign(transport, { _initialized: true, sessionId }),
  'a generator that gives the id': () => {},
};

/** A host that makes a transport and a server for each session that it does not know, or for each request. */
async function hostOf(t, line, how, eventStore, { web = false, each = false } = {}) {
  const known = new Map();
  const onerror = [];
  const transportOf = async (sessionId) => {
    const found = each ? undefined : known.get(sessionId);
    if (found !== undefined) {
      return found;
    }
    const transport = new (web ? webClasses : classes)[line]({
      sessionIdGenerator: () => sessionId ?? randomUUID(),
      retryInterval: 20,
      onsessioninitialized: (id) => void known.set(id, transport),
      eventStore,
    });
    transport.onerror = (error) => onerror.push(error.message);
    if (sessionId !== undefined) {
      HOWS[how](transport, sessionId);
      known.set(sessionId, transport);
    }
    await buildServer(line).connect(transport);
    return transport;
  };
  const serveWeb = async (request) => {
    const transport = await transportOf(request.headers.get('mcp-session-id') ?? undefined);
    return transport.handleRequest(request);
  };
  const serveNode = async (req, res) => (await transportOf(req.headers['mcp-session-id'])).handleRequest(req, res);
  const host = await listen(web ? getRequestListener(serveWeb, { overrideGlobalObjects: false }) : serveNode);
  t.after(() => host.close());
  return { port: host.port, onerror };
}

const storeOf = async (line, address) => {
  const { EventStore, openStore } = packages[line];
  return new EventStore(await openStore(address));
};

for (const line of LINES) {
  for (const how of Object.keys(HOWS)) {
    for (const [kind, options] of Object.entries({
      'for each session': {},
      'for each request': { each: true },
      'for each request, on the web': { each: true, web: true },
    })) {
      test(`${line} a transport made ${kind}, told by ${how}, serves by the header`, ours, async (t) => {
        const address = `sqlite:${folderFor(t)}/events.db`;
        const first = await hostOf(t, line, how, await storeOf(line, address), options);
        const second = await hostOf(t, line, how, await storeOf(line, address), options);
        const peer = await Peer.open(first.port);
        const before = await (await peer.script('emit 2', 'close', 'emit 1', 'return x')).rest();
        peer.port = second.port;
        // Its process lives: relayed, and read from the store.
        assert.equal(await peer.ask('return y'), 'y');
        const after = await (await peer.resume(ids(before)[1])).rest();
        assert.deepEqual([counts(after), results(after)], [[2, 3], ['x']]);
        // Its process is gone: it goes on with the transport and the server that the host has made.
        await packages[line].drain();
        const third = await hostOf(t, line, how, await storeOf(line, address), options);
        peer.port = third.port;
        assert.equal(await peer.ask('return z'), 'z');
        assert.equal(await peer.ask('emit 1', 'return again'), 'again');
        const resumed = await (await peer.resume(ids(before)[1])).rest();
        assert.deepEqual([counts(resumed), results(resumed)], [[2, 3], ['x']]);
        const other = await Peer.open(third.port);
        assert.equal(await other.ask('return mine'), 'mine');
        // A session that nobody knows is refused.
        const stranger = new Peer(third.port);
        stranger.sessionId = 'nobody-knows';
        assert.equal((await stranger.script('return x')).status, 400);
      });
    }

    test(`${line} without a store, one told by ${how} says what to do`, ours, async (t) => {
      const lines = logged.length;
      const host = await hostOf(t, line, how, undefined, {});
      const peer = new Peer(host.port);
      peer.sessionId = 'from-before';
      for (const _ of [1, 2]) {
        const reply = await peer.script('return x');
        assert.equal(reply.status, 400);
        await reply.body();
      }
      const told = logged.filter((text) => text.includes('createSessionRouter'));
      assert.equal(told.length, 1, logged.slice(lines).join('\n'));
    });
  }
}
