// One handler for both eras of the protocol, for users of the SDK's createMcpHandler.
import { randomUUID } from 'node:crypto';

import { NodeExchange } from './node-exchange.mjs';
import { invalid } from './open-store.mjs';
import { INTERNAL_ERROR, REFUSED, SESSION_NOT_FOUND, answerError, tooLargeMessage } from './refusal.mjs';
import { maxBodyBytes } from './request.mjs';
import { isStock } from './seam.mjs';
import { noteHandler } from './status.mjs';
import { runtimeFor } from './store.mjs';
import { StoredSessions } from './stored-sessions.mjs';
import { resumableExchange } from './transport.mjs';
import { WebExchange } from './web-exchange.mjs';

const LIST_CHANGES = {
  tools_list_changed: { capability: 'tools', send: 'sendToolListChanged' },
  prompts_list_changed: { capability: 'prompts', send: 'sendPromptListChanged' },
  resources_list_changed: { capability: 'resources', send: 'sendResourceListChanged' },
};

/** Makes `createResumableMcpHandler` for an SDK that has `createMcpHandler`. */
export function resumableHandler(sdk) {
  const ExchangeTransport = resumableExchange(sdk.WebStock, sdk);
  return function createResumableMcpHandler(factory, options = {}) {
    if (isStock(sdk)) {
      const stock = sdk.createMcpHandler(factory, options);
      return { ...stock, node: sdk.nodeHandler(stock) };
    }
    return new Handler(factory, options, ExchangeTransport, sdk).faces();
  };
}

class Handler {
  #factory;
  #sessions = new Map();
  #transportOptions;
  #ExchangeTransport;
  #sdk;
  #modern;
  #modernNode;
  #unopened;
  #stored;
  #onerror;
  #maxBodyBytes;
  #preferResumable;
  #runtime;
  #unsubscribe;
  #forget;
  #closed = false;

  constructor(factory, options, ExchangeTransport, sdk) {
    const {
      preferResumable = false,
      sessionIdGenerator = randomUUID,
      eventStore,
      retryInterval,
      enableJsonResponse,
      onsessioninitialized,
      onsessionclosed,
      principal,
      legacy,
      ...shared
    } = options;
    if (legacy !== undefined) {
      throw new TypeError('createResumableMcpHandler serves the older revisions itself: it has no option `legacy`');
    }
    const { keepAliveMs, maxRequestBodySize } = shared;
    if (typeof preferResumable !== 'boolean') {
      invalid('preferResumable must be true or false');
    }
    this.#factory = factory;
    this.#ExchangeTransport = ExchangeTransport;
    this.#sdk = sdk;
    this.#onerror = shared.onerror;
    this.#preferResumable = preferResumable;
    this.#maxBodyBytes = maxBodyBytes(maxRequestBodySize);
    this.#transportOptions = {
      sessionIdGenerator,
      eventStore,
      retryInterval,
      enableJsonResponse,
      onsessioninitialized,
      onsessionclosed,
      principal,
      keepAliveMs,
      maxRequestBodySize,
    };
    this.#modern = sdk.createMcpHandler(factory, { ...shared, legacy: 'reject' });
    this.#modernNode = sdk.nodeHandler(this.#modern, { onerror: shared.onerror, maxRequestBodySize });
    // Says what a transport says to a request that opens no session.
    this.#unopened = new ExchangeTransport(this.#transportOptions);
    this.#stored = new StoredSessions(sdk, { ...this.#transportOptions, onerror: shared.onerror });
    this.#runtime = runtimeFor(eventStore);
    this.#unsubscribe = this.#modern.bus.subscribe((event) => this.#listChanged(event));
    this.#forget = noteHandler(preferResumable);
  }

  faces() {
    return {
      fetch: (request, requestOptions) => this.#fetch(request, requestOptions),
      node: (req, res, parsedBody) => this.#node(req, res, parsedBody),
      notify: this.#modern.notify,
      bus: this.#modern.bus,
      close: () => this.#close(),
    };
  }

  async #fetch(request, requestOptions) {
    if (this.#closed) {
      return this.#modern.fetch(request, requestOptions);
    }
    const exchange = new WebExchange(request, requestOptions);
    const modern = (parsedBody) =>
      this.#modern.fetch(request, { ...requestOptions, ...(parsedBody !== undefined && { parsedBody }) });
    // An exchange that the engine serves has a response before it is over.
    return new Promise((resolve, reject) => {
      exchange.response.then(resolve, reject);
      this.#serve(exchange, async (parsedBody) => resolve(await modern(parsedBody))).catch(reject);
    });
  }

  async #node(req, res, parsedBody) {
    // Where express calls the handler itself, `next` comes third.
    const given = typeof parsedBody === 'function' ? undefined : parsedBody;
    if (this.#closed) {
      return this.#modernNode(req, res, given);
    }
    const exchange = new NodeExchange(req, res, given);
    return this.#serve(exchange, (parsed) => this.#modernNode(req, res, parsed));
  }

  /** Serves an exchange. What fails in the factory or in a callback of the user's is answered, as the SDK does. */
  async #serve(exchange, modern) {
    try {
      return await this.#route(exchange, modern);
    } catch (error) {
      this.#report(error);
      const { method, id } = Object(exchange.parsedBody);
      const answered = typeof method === 'string' && ['string', 'number'].includes(typeof id) ? id : null;
      return answerError(exchange, 500, { code: INTERNAL_ERROR, message: 'Internal server error' }, answered);
    }
  }

  /** Answers with a session of ours, or leaves the request to the SDK: what is of 2026-07-28 is the SDK's. */
  async #route(exchange, modern) {
    if (exchange.method === 'POST') {
      if (!this.#sdk.isJsonContentType(exchange.header('content-type'))) {
        return modern(exchange.parsedBody);
      }
      if (exchange.parsedBody === undefined && !(await this.#read(exchange))) {
        return undefined;
      }
      const { parsedBody } = exchange;
      if (parsedBody !== undefined) {
        const route = this.#classify(exchange);
        if (route.kind === 'modern') {
          const revision = route.classification.revision ?? 'unknown';
          if (this.#preferResumable) {
            return this.#steer(exchange, revision);
          }
          this.#runtime.engine.leftToSdk(revision);
        }
        if (route.kind !== 'legacy') {
          return modern(parsedBody);
        }
      }
    }
    return this.#serveSession(exchange);
  }

  /** Reads the body into the exchange. False when that was the answer. */
  async #read(exchange) {
    const { text, tooLarge, gone } = await exchange.readBody(this.#maxBodyBytes);
    if (gone) {
      exchange.abandon();
      return false;
    }
    if (tooLarge) {
      this.#refuse(exchange, 413, REFUSED, tooLargeMessage(this.#maxBodyBytes));
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

  #classify(exchange) {
    return this.#sdk.classifyInboundRequest({
      httpMethod: exchange.method,
      protocolVersionHeader: exchange.header('mcp-protocol-version'),
      mcpMethodHeader: exchange.header('mcp-method'),
      mcpNameHeader: exchange.header('mcp-name'),
      body: exchange.parsedBody,
    });
  }

  /** Names the revisions that can resume, so that a client of both eras falls back to `initialize`. */
  #steer(exchange, revision) {
    const refusal = this.#runtime.engine.steer(exchange.text ?? JSON.stringify(exchange.parsedBody), revision);
    this.#report(new Error(refusal.message));
    exchange.whole(refusal.status, { 'content-type': 'application/json' }, refusal.body);
  }

  async #serveSession(exchange) {
    const sessionId = exchange.header('mcp-session-id');
    const session = this.#sessions.get(sessionId);
    if (session !== undefined) {
      return session.transport.serve(exchange);
    }
    if (this.#opens(exchange.parsedBody)) {
      return this.#open(exchange);
    }
    if (await this.#stored.serve(exchange)) {
      return undefined;
    }
    if (sessionId !== undefined) {
      return this.#refuse(exchange, 404, SESSION_NOT_FOUND, 'Session not found');
    }
    return this.#unopened.serve(exchange);
  }

  #opens(body) {
    return this.#sdk.isInitializeRequest(Array.isArray(body) && body.length === 1 ? body[0] : body);
  }

  async #open(exchange) {
    const authInfo = exchange.auth;
    const product = await this.#factory({
      era: 'legacy',
      ...(authInfo !== undefined && { authInfo }),
      requestInfo: exchange.webRequest(),
    });
    const transport = new this.#ExchangeTransport({
      ...this.#transportOptions,
      onsessioninitialized: async (sessionId) => {
        this.#sessions.set(sessionId, { transport, product });
        await this.#transportOptions.onsessioninitialized?.(sessionId);
      },
    });
    transport.onclose = () => {
      if (this.#sessions.get(transport.sessionId)?.transport === transport) {
        this.#sessions.delete(transport.sessionId);
      }
    };
    transport.onerror = this.#onerror;
    try {
      await product.connect(transport);
      await transport.serve(exchange);
    } finally {
      if (transport.sessionId === undefined) {
        // It was refused, or could not be connected: nobody will ever name this session.
        await product.close();
      }
    }
  }

  /** What `notify` publishes reaches the clients of sessions too. */
  #listChanged({ kind }) {
    const change = LIST_CHANGES[kind];
    if (change === undefined) {
      return;
    }
    for (const { product } of this.#sessions.values()) {
      const server = product.server ?? product;
      if (server.getCapabilities?.()[change.capability]?.listChanged) {
        server[change.send]().catch((error) => this.#report(error));
      }
    }
  }

  async #close() {
    this.#closed = true;
    this.#unsubscribe();
    this.#forget();
    const open = [...this.#sessions.values()];
    this.#sessions.clear();
    await Promise.all([
      this.#modern.close(),
      this.#unopened.close(),
      ...open.map(({ product }) => product.close().catch((error) => this.#report(error))),
    ]);
  }

  #refuse(exchange, status, code, message, { data, id = null } = {}) {
    this.#report(new Error(message));
    answerError(exchange, status, { code, message, ...(data !== undefined && { data }) }, id);
  }

  #report(error) {
    try {
      this.#onerror?.(error instanceof Error ? error : new Error(String(error)));
    } catch {
      // Reporting only.
    }
  }
}
