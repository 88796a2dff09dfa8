// Servers for both SDK lines on Tailrope's transports, or on the SDKs' own.
import { randomUUID } from 'node:crypto';
import http from 'node:http';

import { serve as serveFetch } from '@hono/node-server';
import { NodeStreamableHTTPServerTransport } from '@modelcontextprotocol/node';
import { StreamableHTTPServerTransport } from '@modelcontextprotocol/sdk/server/streamableHttp.js';

import * as v2 from 'tailrope/mcp';
import * as v1 from 'tailrope/mcp-v1';

import { until } from './raw.mjs';
import { LabStore } from './stores.mjs';
import { isStock, isWeb } from './test.mjs';
import { connectServer } from './tools.mjs';

export { LINES } from './test.mjs';
export { at, marked, newGate, open, passed } from './control.mjs';
export { acting, connectServer } from './tools.mjs';

export const packages = { v1, v2 };
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

/** Whatever `handle` does, on a port. */
export async function listen(handle) {
  const server = http.createServer(handle);
  await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));
  return hosted(server);
}

/** Whatever `fetch` makes of a web-standard request, on a port. */
function listenFetch(fetch) {
  return new Promise((resolve) => {
    const server = serveFetch({ fetch, port: 0, hostname: '127.0.0.1' }, () => resolve(hosted(server)));
  });
}

function hosted(server) {
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

/**
 * Starts a server of a line. Users come from the header `x-user`, as `client` or `client/subject`.
 *
 * The options are the transport's, and: `engine` and `address`, options and address of a store of the server's
 * own; `cap`, how many events of a stream the stock transport's store keeps; `stock`, the SDK's own transport
 * whatever is tested.
 */
export async function serve(line, { engine, address, cap, stock = isStock, ...options } = {}) {
  const transports = new Map();
  const requests = { POST: 0, GET: 0, DELETE: 0 };
  const errors = [];
  const web = isWeb && !stock;
  const Transport = (stock ? stockClasses : web ? webClasses : classes)[line];
  let store = options.eventStore;
  if (store === undefined && stock) {
    store = new LabStore({ cap });
  } else if (store === undefined && (engine ?? address) !== undefined) {
    store = new packages[line].EventStore(address, engine);
  }

  async function make() {
    const transport = new Transport({
      sessionIdGenerator: () => randomUUID(),
      retryInterval: 20,
      onsessioninitialized: (id) => transports.set(id, transport),
      onsessionclosed: (id) => transports.delete(id),
      ...options,
      eventStore: store,
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

  /** The transport of a request and who sends it; no transport for a session that is unknown. */
  async function route(method, sessionId, user) {
    requests[method] += 1;
    const transport = transports.get(sessionId) ?? (sessionId === undefined ? await make() : undefined);
    if (user === undefined) {
      return { transport };
    }
    const [clientId, subject] = user.split('/');
    return { transport, auth: { token: user, clientId, scopes: [], ...(subject && { extra: { subject } }) } };
  }

  const stored = { ...options, eventStore: store, onerror: (error) => errors.push(error) };

  async function handle(req, res) {
    const { transport, auth } = await route(req.method, req.headers['mcp-session-id'], req.headers['x-user']);
    req.auth = auth;
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
    const { transport, auth } = await route(request.method, header('mcp-session-id'), header('x-user'));
    if (transport === undefined) {
      const answer = await packages[line].fetchStoredSession(request, { ...stored, authInfo: auth });
      return answer ?? new Response(NOT_FOUND, { status: 404, headers: { 'content-type': 'application/json' } });
    }
    return transport.handleRequest(request, { authInfo: auth });
  }

  const failed = (error) => void errors.push(error);
  const host = web
    ? await listenFetch((request) => handleFetch(request).catch((error) => Promise.reject(failed(error))))
    : await listen((req, res) => handle(req, res).catch((error) => res.destroy(failed(error))));
  return {
    ...host,
    line,
    isStock: stock,
    store,
    transports,
    requests,
    errors,
    /**
     * Waits until this server, which has an engine of its own, has no more than so many streams, or makes the
     * stock transport's store forget all.
     */
    async lost(streams) {
      if (stock) {
        store.plan({ forget: true });
      } else {
        const { engine: own } = store[Symbol.for('tailrope.runtime')];
        await until(() => own.stats().streams <= streams);
      }
    },
    /** Throws away what was noted of requests. */
    forget() {
      errors.length = 0;
    },
    async close() {
      for (const transport of transports.values()) {
        await transport.close();
      }
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
