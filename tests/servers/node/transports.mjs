// Servers for both SDK lines on Tailrope's transports, or on the SDKs' own.
import { randomUUID } from 'node:crypto';
import http from 'node:http';

import { getRequestListener } from '@hono/node-server';
import { NodeStreamableHTTPServerTransport } from '@modelcontextprotocol/node';
import { StreamableHTTPServerTransport } from '@modelcontextprotocol/sdk/server/streamableHttp.js';
import { WebStandardStreamableHTTPServerTransport as WebV1 } from '@modelcontextprotocol/sdk/server/webStandardStreamableHttp.js';
import { WebStandardStreamableHTTPServerTransport as WebV2 } from '@modelcontextprotocol/server';

import * as v2 from 'tailrope/mcp';
import * as v1 from 'tailrope/mcp-v1';

import { LabStore } from './stores.mjs';
import { buildServer, connectServer } from './tools.mjs';

export { at, marked, newGate, open } from './control.mjs';
export { acting, connectServer } from './tools.mjs';

export const packages = { v1, v2 };
export const isStock = process.env.TAILROPE_TEST_TRANSPORT === 'stock';
const stockWebClasses = { v1: WebV1, v2: WebV2 };
export const stockClasses = { v1: StreamableHTTPServerTransport, v2: NodeStreamableHTTPServerTransport };
export const classes = { v1: v1.StreamableHTTPServerTransport, v2: v2.NodeStreamableHTTPServerTransport };
export const webClasses = {
  v1: v1.WebStandardStreamableHTTPServerTransport,
  v2: v2.WebStandardStreamableHTTPServerTransport,
};

/** What the engines logged, `LEVEL LINE`: faults are provoked here, so nobody has to read it as it comes. */
export const logged = [];
v1.setLog((level, line) => logged.push(`${level} ${line}`), 'debug');

const NOT_FOUND = '{"jsonrpc":"2.0","error":{"code":-32001,"message":"Session not found"},"id":null}';

/** Whatever `handle` does, on a port. A worker of a cluster shares it with the others, unless it is `exclusive`. */
export async function listen(handle, port = 0, exclusive = false) {
  const server = http.createServer(handle);
  await new Promise((resolve) => server.listen({ port, host: '127.0.0.1', exclusive }, resolve));
  return {
    port: server.address().port,
    /** Takes no further connections. */
    stop: () => server.close(),
    async close() {
      server.closeAllConnections();
      await new Promise((resolve) => server.close(resolve));
    },
  };
}

/** Who may come where bearer tokens are asked for; the Python servers have the same. */
const TOKENS = {
  'alice-token': ['alice', 'alice'],
  'alice-second-token': ['alice', 'alice'],
  'bob-token': ['bob', 'bob'],
};

/**
 * The user of a request: as `x-test-user` says it in JSON, behind `Bearer`, or in the header `x-user` as `client` or
 * `client/subject`.
 */
export function userOf(header) {
  const stated = header('x-test-user');
  if (stated !== undefined) {
    return JSON.parse(stated);
  }
  const token = header('authorization')?.replace('Bearer ', '');
  const [clientId, subject] = token === undefined ? (header('x-user')?.split('/') ?? []) : (TOKENS[token] ?? []);
  if (clientId === undefined) {
    return undefined;
  }
  return { token: token ?? header('x-user'), clientId, scopes: ['use'], ...(subject && { extra: { subject } }) };
}

/**
 * A server of a line, which nobody has put on a port yet.
 *
 * The options are the transport's, and: `address` and `engine`, a store of the server's own and the options of its engine; `cap`,
 * how many events of a stream the stock transport's store keeps; `stock`, the SDK's own transport; `web`, the web-standard
 * classes; `stateless`, a transport for each request; `auth`, only users with a token; `routed`, sessions by
 * `createSessionRouter`, and not by a map of transports that tests can reach; `bothEras`, a handler for sessions and for
 * revision 2026-07-28.
 */
export function makeServer(
  line,
  { engine, address, cap, stock = isStock, web, stateless, auth, routed, bothEras, ...options } = {},
) {
  const transports = new Map();
  const requests = { POST: 0, GET: 0, DELETE: 0 };
  const errors = [];
  const Transport = (stock ? (web ? stockWebClasses : stockClasses) : web ? webClasses : classes)[line];
  let store = options.eventStore;
  if (store === undefined && stock) {
    store = new LabStore({ cap });
  } else if (store === undefined && (engine ?? address) !== undefined) {
    store = new packages[line].EventStore(address, engine);
  }

  async function make() {
    const id = randomUUID();
    const transport = new Transport({
      sessionIdGenerator: stateless ? undefined : () => id,
      retryInterval: 20,
      onsessioninitialized: (id) => transports.set(id, transport),
      onsessionclosed: (id) => transports.delete(id),
      ...options,
      // Behind the SDK's transports each session has a part of our store.
      eventStore: stateless ? undefined : stock && store.scoped ? store.scoped(id) : store,
    });
    transport.onerror = (error) => errors.push(error);
    // A session that its transport has ended is unknown from then on.
    transport.onclose = () => {
      if (transports.get(transport.sessionId) === transport) {
        transports.delete(transport.sessionId);
      }
    };
    await connectServer(line, transport);
    return transport;
  }

  function count(method, sessionId) {
    requests[method] = (requests[method] ?? 0) + 1;
    const ofSession = `${method} ${sessionId}`;
    requests[ofSession] = (requests[ofSession] ?? 0) + 1;
  }

  /** The transport of a request; none for a session that is unknown. */
  function route(sessionId) {
    return transports.get(sessionId) ?? (sessionId === undefined || stateless ? make() : undefined);
  }

  const stored = { ...options, eventStore: store, onerror: (error) => errors.push(error) };

  const handler = bothEras ? packages[line].createResumableMcpHandler(() => buildServer(line), stored) : undefined;

  const router = routed
    ? packages[line].createSessionRouter(() => buildServer(line), { retryInterval: 20, ...stored })
    : undefined;

  // The one transport of `/current`, made anew by `renew`: as users make one by hand.
  let current;

  async function handle(req, res) {
    req.auth = userOf((name) => req.headers[name]);
    if (auth && req.auth === undefined) {
      res.writeHead(401).end();
      return;
    }
    const isAlone = req.url === '/current';
    const sessionId = req.headers['mcp-session-id'];
    count(req.method, sessionId);
    if (handler !== undefined) {
      await handler.node(req, res);
      return;
    }
    if (router !== undefined && !isAlone) {
      await router.node(req, res);
      return;
    }
    const transport = isAlone ? current : await route(sessionId);
    if (transport === undefined) {
      if (!stock && (await packages[line].serveStoredSession(req, res, stored))) {
        return;
      }
      const headers = { 'content-type': 'application/json', 'content-length': NOT_FOUND.length };
      res.writeHead(404, headers).end(NOT_FOUND);
      return;
    }
    await transport.handleRequest(req, res);
  }

  async function handleFetch(request) {
    const header = (name) => request.headers.get(name) ?? undefined;
    const authInfo = userOf(header);
    if (auth && authInfo === undefined) {
      return new Response(null, { status: 401 });
    }
    const isAlone = new URL(request.url).pathname === '/current';
    const sessionId = header('mcp-session-id');
    count(request.method, sessionId);
    if (router !== undefined && !isAlone) {
      return router.fetch(request, { authInfo });
    }
    const transport = isAlone ? current : await route(sessionId);
    if (transport === undefined) {
      const answer = stock ? undefined : await packages[line].fetchStoredSession(request, { ...stored, authInfo });
      return answer ?? new Response(NOT_FOUND, { status: 404, headers: { 'content-type': 'application/json' } });
    }
    return transport.handleRequest(request, { authInfo });
  }

  const failed = (error) => void errors.push(error);
  const listener = web
    ? getRequestListener((request) => handleFetch(request).catch((error) => Promise.reject(failed(error))))
    : (req, res) => handle(req, res).catch((error) => res.destroy(failed(error)));
  return {
    listener,
    line,
    isStock: stock,
    store,
    transports,
    /** How many sessions the server has. */
    get size() {
      return router?.servers().length ?? transports.size;
    },
    requests,
    errors,
    /** Makes the transport of `/current`, whose session is named `current`. */
    async renew(enableJsonResponse) {
      await current?.close();
      current = new Transport({ sessionIdGenerator: () => 'current', enableJsonResponse });
      await connectServer(line, current);
    },
    /** Throws away what was noted of requests. */
    forget() {
      errors.length = 0;
      for (const name of Object.keys(requests)) {
        delete requests[name];
      }
    },
    /** Ends all sessions, as the SDKs' own servers do. */
    async closeTransports() {
      await handler?.close();
      await router?.close();
      for (const transport of transports.values()) {
        await transport.close();
      }
    },
  };
}

/** Starts a server of a line in this process. */
export async function serve(line, options) {
  const made = makeServer(line, options);
  const host = await listen(made.listener);
  return {
    ...made,
    ...host,
    async close() {
      await made.closeTransports();
      await host.close();
    },
  };
}

/** A server that ends with its test. */
export async function serveFor(t, line, options) {
  const server = await serve(line, options);
  t.after(() => server.close());
  return server;
}
