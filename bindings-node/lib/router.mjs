// Routes the requests of an endpoint to its sessions: makes, finds and ends them, and serves readers of stored ones.
import { randomUUID } from 'node:crypto';

import { NodeExchange } from './node-exchange.mjs';
import { invalid } from './open-store.mjs';
import { refusalOf, writeRefusal } from './refusal.mjs';
import { maxBodyBytes } from './request.mjs';
import { isStock } from './seam.mjs';
import { StoredSessions } from './stored-sessions.mjs';
import { resumableExchange } from './transport.mjs';
import { WebExchange } from './web-exchange.mjs';

/** The ways into what serves exchanges. */
export function faces(serve) {
  return {
    fetch(request, options) {
      const exchange = new WebExchange(request, options);
      serve(exchange).catch((error) => exchange.fail(error));
      return exchange.response;
    },

    // Where express calls this itself, `next` comes third, and what its parser has made is in the request.
    node: (req, res, parsedBody) =>
      serve(new NodeExchange(req, res, typeof parsedBody === 'function' ? req.body : parsedBody)),
  };
}

export class SessionRouter {
  #sdk;
  #makeServer;
  #options;
  #onerror;
  #maxBodyBytes;
  #isStock;
  #transports;
  /** Says what a transport says to a request that opens no session. */
  #unopened;
  #stored;
  #sessions = new Map();
  #closed = false;

  /**
   * `options` are those of the transports, and `onerror`. `transports` has the classes for each kind of exchange, which
   * serve where the SDK's own are in force.
   */
  constructor(sdk, makeServer, { sessionIdGenerator = randomUUID, onerror, ...options } = {}, transports = undefined) {
    this.#sdk = sdk;
    this.#makeServer = makeServer;
    this.#options = { ...options, sessionIdGenerator };
    this.#onerror = onerror;
    this.#maxBodyBytes = maxBodyBytes(options.maxRequestBodySize);
    this.#isStock = isStock(sdk);
    if (this.#isStock) {
      this.#transports = transports;
    } else {
      const Resumable = resumableExchange(sdk.WebStock, sdk);
      this.#transports = { node: Resumable, fetch: Resumable };
      this.#unopened = this.#make('fetch');
    }
    this.#stored = new StoredSessions(sdk, { ...this.#options, onerror });
  }

  /** The servers of the sessions that are open here. */
  servers() {
    return [...this.#sessions.values()].map(({ server }) => server);
  }

  /** Serves an exchange by `route`. What fails in the user's functions is answered, as the SDK does. */
  async serve(exchange, route = () => this.route(exchange)) {
    try {
      return await route();
    } catch (error) {
      this.report(error);
      const { parsedBody } = exchange;
      const body = parsedBody === undefined ? undefined : JSON.stringify(parsedBody);
      return writeRefusal(exchange, refusalOf(this.#sdk.major, 'internal', undefined, body));
    }
  }

  /** Answers by the session that a request names or opens. */
  async route(exchange) {
    const sessionId = exchange.header('mcp-session-id');
    const session = this.#sessions.get(sessionId);
    if (session !== undefined) {
      return this.#hand(exchange, session.transport);
    }
    if (exchange.method === 'POST' && !(await this.read(exchange))) {
      return undefined;
    }
    if (!this.#closed && this.#opens(exchange.parsedBody)) {
      return this.#open(exchange);
    }
    if (await this.#stored.serve(exchange)) {
      return undefined;
    }
    if (sessionId !== undefined) {
      return this.#refuse(exchange, 'session_unknown');
    }
    return this.#hand(exchange, this.#unopened ?? this.#make(exchange.face));
  }

  /** Reads the body into the exchange, unless it is there. False when that was the answer. */
  async read(exchange) {
    if (exchange.parsedBody !== undefined || exchange.text !== undefined) {
      return true;
    }
    const { text, tooLarge, gone } = await exchange.readBody(this.#maxBodyBytes);
    if (gone) {
      exchange.abandon();
      return false;
    }
    if (tooLarge) {
      this.#refuse(exchange, 'body_too_large', String(this.#maxBodyBytes));
      return false;
    }
    exchange.text = text;
    try {
      exchange.parsedBody = typeof text === 'string' ? JSON.parse(text) : undefined;
    } catch {
      // A session says what is wrong with it.
    }
    return true;
  }

  #opens(body) {
    return this.#sdk.isInitializeRequest(Array.isArray(body) && body.length === 1 ? body[0] : body);
  }

  async #open(exchange) {
    const server = await this.#makeServer(this.#sdk.context(exchange));
    const transport = this.#make(exchange.face, async (sessionId) => {
      this.#sessions.set(sessionId, { transport, server });
      await this.#options.onsessioninitialized?.(sessionId);
    });
    transport.onclose = () => {
      if (this.#sessions.get(transport.sessionId)?.transport === transport) {
        this.#sessions.delete(transport.sessionId);
      }
    };
    try {
      await server.connect(transport);
      await this.#hand(exchange, transport);
    } finally {
      if (transport.sessionId === undefined) {
        // It was refused, or could not be connected: nobody will ever name this session.
        await server.close();
      }
    }
  }

  #make(face, onsessioninitialized) {
    const transport = new this.#transports[face]({ ...this.#options, onsessioninitialized });
    transport.onerror = this.#onerror;
    return transport;
  }

  #hand(exchange, transport) {
    const handleRequest = (...args) => transport.handleRequest(...args);
    return this.#isStock ? exchange.handTo({ fetch: handleRequest, node: handleRequest }) : handleRequest(exchange);
  }

  async close() {
    this.#closed = true;
    const servers = this.servers();
    this.#sessions.clear();
    await Promise.all([
      this.#unopened?.close(),
      ...servers.map((server) => server.close().catch((error) => this.report(error))),
    ]);
  }

  #refuse(exchange, fault, text) {
    const refusal = refusalOf(this.#sdk.major, fault, text);
    this.report(new Error(refusal.message));
    writeRefusal(exchange, refusal);
  }

  report(error) {
    try {
      this.#onerror?.(error instanceof Error ? error : new Error(String(error)));
    } catch {
      // Reporting only.
    }
  }
}

/** Makes `createSessionRouter` for an SDK line and its classes. */
export function sessionRouter(sdk, transports) {
  return function createSessionRouter(makeServer, options) {
    if (typeof makeServer !== 'function') {
      invalid('createSessionRouter() takes a function that makes the server of a session');
    }
    const router = new SessionRouter(sdk, makeServer, options, transports);
    return { ...faces((exchange) => router.serve(exchange)), servers: () => router.servers(), close: () => router.close() };
  };
}
