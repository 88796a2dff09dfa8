// Servers whose sessions may go on in another process. As a program: node adoptable.mjs LINE ENTRY STORE OWNER_LOST_MS; its
// first line is its port.
import http from 'node:http';
import { fileURLToPath } from 'node:url';

import { getRequestListener } from '@hono/node-server';
import { SetLevelRequestSchema, SubscribeRequestSchema } from '@modelcontextprotocol/sdk/types.js';
import { drain } from 'tailrope/mcp';

import { buildServer } from '../../servers/node/tools.mjs';
import { packages } from '../../servers/node/transports.mjs';

/** What each server was told that lasts. */
export const told = new WeakMap();

/** A server with the tools, which notes what it was told. */
export function makeServer(line) {
  const made = buildServer(line);
  const { server } = made;
  const noted = { level: undefined, subscriptions: [] };
  told.set(made, noted);
  server.registerCapabilities({ resources: { subscribe: true } });
  const [level, subscribe] =
    line === 'v1' ? [SetLevelRequestSchema, SubscribeRequestSchema] : ['logging/setLevel', 'resources/subscribe'];
  server.setRequestHandler(level, ({ params }) => {
    noted.level = params.level;
    return {};
  });
  server.setRequestHandler(subscribe, ({ params }) => {
    noted.subscriptions.push(params.uri);
    return {};
  });
  return made;
}

const handler = (make, options) => packages.v2.createResumableMcpHandler(make, options);

/** The ways into what adopts: each makes it, and the listener of node:http before it. */
const ENTRIES = {
  node: (line, make, options) => packages[line].createSessionRouter(make, options),
  fetch: (line, make, options) => packages[line].createSessionRouter(make, options),
  'handler node': (_, make, options) => handler(make, options),
  'handler fetch': (_, make, options) => handler(make, options),
};

/** Each SDK line with the ways into it. */
export const entriesOf = (line) =>
  Object.keys(ENTRIES).filter((entry) => line === 'v2' || !entry.startsWith('handler'));

export function serverOf(line, entry, eventStore, options = {}, make = () => makeServer(line)) {
  const made = ENTRIES[entry](line, make, { eventStore, retryInterval: 20, ...options });
  const listener = entry.endsWith('fetch') ? getRequestListener((request) => made.fetch(request)) : made.node;
  return { made, listener };
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const [line, entry, address, ownerLostMs] = process.argv.slice(2);
  const { openStore, EventStore } = packages[line];
  const store = await openStore(address, { ownerLostMs: Number(ownerLostMs) });
  const { listener } = serverOf(line, entry, new EventStore(store));
  const server = http.createServer(listener).listen(0, '127.0.0.1', () => console.log(server.address().port));
  process.once('SIGTERM', async () => {
    await drain();
    process.exit(0);
  });
}
