// The bench server: five small tools on raw node:http, behind the stock transport or Tailrope's.
//
// Started by `benches/serve`. Everything but the class of the transport and the event store that
// comes with it is the same on both sides. Progress goes out by the most direct documented call of
// each SDK, so that little of what is timed is neither the transport's nor the server's.
import { randomUUID } from 'node:crypto';
import { once } from 'node:events';
import http from 'node:http';
import { parseArgs } from 'node:util';

import { FLAVORS } from './tools.mjs';

const RETRY_MS = 10;
// Room for every run of the bench: an event trimmed in the middle of a measurement would make the
// run fail, not slow.
const LIMITS = {
  maxEventsPerStream: 50_000,
  maxBytesPerStream: 64 * 2 ** 20,
  maxBytesPerSession: 2 ** 30,
  maxBytes: 4 * 2 ** 30,
  maxSessions: 50_000,
};

const TRANSPORTS = {
  stock: {
    async v2() {
      const { NodeStreamableHTTPServerTransport } = await import('@modelcontextprotocol/node');
      return [NodeStreamableHTTPServerTransport, await plainStore()];
    },
    async v1() {
      const { StreamableHTTPServerTransport } = await import('@modelcontextprotocol/sdk/server/streamableHttp.js');
      return [StreamableHTTPServerTransport, await plainStore()];
    },
  },
  tailrope: {
    async v2() {
      const { EventStore, openStore, NodeStreamableHTTPServerTransport } = await import('tailrope/mcp');
      return [NodeStreamableHTTPServerTransport, await opened(EventStore, openStore)];
    },
    async v1() {
      const { EventStore, openStore, StreamableHTTPServerTransport } = await import('tailrope/mcp-v1');
      return [StreamableHTTPServerTransport, await opened(EventStore, openStore)];
    },
  },
};

async function opened(EventStore, openStore) {
  const { maxSessions, ...bounds } = LIMITS;
  return new EventStore(await openStore(options.store, bounds), { maxSessions });
}

async function plainStore() {
  const { PlainStore } = await import('./plain-store.mjs');
  return new PlainStore();
}

/**
 * The body, read and parsed in front of the transport, as Express does in the SDKs' examples. Left to
 * themselves the stock transports read it through a web `Request`, which costs them a third of a call.
 */
async function bodyOf(req) {
  if (req.method !== 'POST') {
    return undefined;
  }
  let text = '';
  req.setEncoding('utf8');
  req.on('data', (part) => (text += part));
  await once(req, 'end');
  return JSON.parse(text);
}

/** The session map that the SDKs' documentation tells users to write. */
function handler(Transport, eventStore, makeServer) {
  const transports = new Map();
  return async (req, res) => {
    const body = await bodyOf(req);
    const sessionId = req.headers['mcp-session-id'];
    let transport = transports.get(sessionId);
    if (transport === undefined) {
      if (sessionId !== undefined) {
        res.writeHead(404).end();
        return;
      }
      transport = new Transport({
        sessionIdGenerator: () => randomUUID(),
        eventStore,
        retryInterval: RETRY_MS,
        onsessioninitialized: (id) => {
          transports.set(id, transport);
        },
      });
      transport.onclose = () => transports.delete(transport.sessionId);
      await makeServer().connect(transport);
    }
    await transport.handleRequest(req, res, body);
  };
}

/** Relays requests for sessions of another process, which a map of transports does not know. */
async function routerOf(eventStore, makeServer) {
  const { createSessionRouter } = await import(options.flavor === 'v1' ? 'tailrope/mcp-v1' : 'tailrope/mcp');
  return createSessionRouter(makeServer, { retryInterval: RETRY_MS, eventStore });
}

/** Revision 2026-07-28, which has no sessions: with tasks on our side, and as the SDK answers it on the other. */
async function modern(eventStore, makeServer) {
  if (options.transport === 'tailrope') {
    const { createResumableMcpHandler } = await import('tailrope/mcp');
    return createResumableMcpHandler(makeServer, { eventStore }).node;
  }
  const [{ createMcpHandler }, { toNodeHandler }] = await Promise.all([
    import('@modelcontextprotocol/server'),
    import('@modelcontextprotocol/node'),
  ]);
  return toNodeHandler(createMcpHandler(makeServer, { legacy: 'reject' }));
}

const { values: options } = parseArgs({
  options: {
    port: { type: 'string' },
    transport: { type: 'string', default: 'tailrope' },
    flavor: { type: 'string', default: 'v2' },
    store: { type: 'string', default: 'memory:' },
    routed: { type: 'boolean', default: false },
    front: { type: 'boolean', default: false },
  },
});
const chosen = TRANSPORTS[options.transport]?.[options.flavor];
if (chosen === undefined || options.port === undefined) {
  console.error('usage: benches/serve node --port N [--transport stock|tailrope] [--flavor v2|v1] [--store ADDRESS]');
  process.exit(2);
}
const [Transport, eventStore] = await chosen();
const makeServer = await FLAVORS[options.flavor]();

/** What Tailrope puts on a port by itself. */
async function serveFront() {
  const { serve } = await import(options.flavor === 'v1' ? 'tailrope/mcp-v1' : 'tailrope/mcp');
  await serve({ server: makeServer, port: Number(options.port), retryInterval: RETRY_MS, eventStore });
  console.log('READY');
}

async function servePlain() {
  const handle = options.routed
    ? (await routerOf(eventStore, makeServer)).node
    : handler(Transport, eventStore, makeServer);
  const handleModern = options.flavor === 'v2' ? await modern(eventStore, makeServer) : undefined;
  const server = http.createServer((req, res) => {
    const isModern = handleModern !== undefined && req.headers['mcp-protocol-version'] === '2026-07-28';
    (isModern ? bodyOf(req).then((body) => handleModern(req, res, body)) : handle(req, res)).catch((error) => {
      console.error(error);
      res.destroy();
    });
  });
  server.listen(Number(options.port), '127.0.0.1', () => console.log('READY'));
}

// So that memory is read without what is garbage by chance.
process.on('SIGUSR2', () => globalThis.gc());
await (options.front ? serveFront() : servePlain());
