// The transport that takes the place of the SDKs' classes, for both SDK lines.
import { setImmediate } from 'node:timers';

import { Answer, Part, writeRefusal, writeWhole } from './answer.mjs';
import { UserStore, runtimeFor } from './event-store.mjs';
import { Refusal } from './native.mjs';
import { bodyOf, headOf, maxBodyBytes, principalOf, readBody } from './request.mjs';

const DEFAULT_KEEP_ALIVE_MS = 15_000;

// What the SDKs' transports answer in these words.
const REFUSED = -32000;
const SESSION_NOT_FOUND = -32001;
const PARSE_ERROR = -32700;
const INTERNAL_ERROR = -32603;

// A handler that sends without a pause lets the connections' writers run after so many events or
// bytes, and at the first event after so long: a reader gets an event before the handler's next
// pause (F-46), and the log's bounds are not reached before a reader that keeps up had its turn.
const YIELD_EVENTS = 128;
const YIELD_BYTES = 64 << 10;
const YIELD_MS = 1;

/**
 * Makes a subclass of an SDK's Node transport that serves its sessions on the engine. Without
 * `sessionIdGenerator` (stateless mode) it is the SDK's class: there is nothing to resume.
 *
 * `sdk` is what differs between the SDK lines.
 */
export function resumable(Stock, sdk) {
  return class extends Stock {
    #sessions;

    constructor(options = {}) {
      super(options);
      if (options.sessionIdGenerator !== undefined) {
        this.#sessions = new SessionServer(this, sdk, options);
      }
    }

    get sessionId() {
      return this.#sessions === undefined ? super.sessionId : this.#sessions.sessionId;
    }

    setSupportedProtocolVersions(versions) {
      super.setSupportedProtocolVersions?.(versions);
      this.#sessions?.setVersions(versions);
    }

    setScopeChallengeResolver(resolver) {
      super.setScopeChallengeResolver?.(resolver);
      this.#sessions?.setScopeChallengeResolver(resolver);
    }

    async handleRequest(req, res, parsedBody) {
      if (this.#sessions === undefined) {
        return super.handleRequest(req, res, parsedBody);
      }
      return this.#sessions.handleRequest(req, res, parsedBody);
    }

    async send(message, options) {
      return this.#sessions === undefined ? super.send(message, options) : this.#sessions.send(message, options);
    }

    closeSSEStream(requestId, options) {
      if (this.#sessions === undefined) {
        super.closeSSEStream(requestId);
      } else {
        this.#sessions.closeConnection(requestId, options);
      }
    }

    closeStandaloneSSEStream(options) {
      if (this.#sessions === undefined) {
        super.closeStandaloneSSEStream();
      } else {
        this.#sessions.closeStandalone(options);
      }
    }

    async close() {
      this.#sessions?.close();
      // Also where the engine serves: the SDK's class calls `onclose`, once.
      return super.close();
    }
  };
}

/** One transport's session: opened by its first `initialize`. */
class SessionServer {
  #transport;
  #sdk;
  #options;
  #runtime;
  #keepAliveMs;
  #maxBodyBytes;
  #versions;
  #scopeChallengeResolver;
  #session;
  #userStore;
  #closed = false;
  #requests = 0;
  #unyieldedEvents = 0;
  #unyieldedBytes = 0;
  #yieldedAt = 0;
  #yieldEvents;
  #yieldBytes;

  sessionId;

  constructor(transport, sdk, options) {
    this.#transport = transport;
    this.#sdk = sdk;
    this.#options = options;
    this.#runtime = runtimeFor(options.eventStore);
    this.#keepAliveMs = options.keepAliveMs ?? DEFAULT_KEEP_ALIVE_MS;
    this.#maxBodyBytes = maxBodyBytes(options.maxRequestBodySize);
    this.#versions = options.supportedProtocolVersions ?? sdk.versions;
    const bounds = this.#runtime.engine.options();
    this.#yieldEvents = Math.min(YIELD_EVENTS, Math.max(1, bounds.maxEventsPerStream >> 2));
    this.#yieldBytes = Math.min(YIELD_BYTES, bounds.maxBytesPerStream / 4);
  }

  setVersions(versions) {
    this.#versions = versions;
  }

  setScopeChallengeResolver(resolver) {
    this.#scopeChallengeResolver = resolver;
  }

  async handleRequest(req, res, parsedBody) {
    this.#requests += 1;
    try {
      const answer = await this.#admit(req, res, parsedBody);
      // Nothing of the request is held on to while its connection is open, for an hour maybe.
      await answer?.done;
    } finally {
      this.#requests -= 1;
    }
  }

  /** Answers a request that needs no stream; otherwise starts the answer that is to be waited for. */
  async #admit(req, res, parsedBody) {
    if (this.#closed || this.#session?.belongsTo(principalOf(req.auth)) === false) {
      return this.#refuse(res, 404, SESSION_NOT_FOUND, 'Session not found');
    }
    const forbidden = this.#forbidden(req);
    if (forbidden !== undefined) {
      return this.#refuse(res, 403, REFUSED, forbidden);
    }
    let body = '';
    if (req.method === 'POST') {
      if (parsedBody !== undefined) {
        body = JSON.stringify(parsedBody) ?? '';
      } else {
        const { bytes, tooLarge, gone } = await readBody(req, this.#maxBodyBytes);
        if (gone) {
          return undefined;
        }
        if (tooLarge) {
          res.setHeader('connection', 'close');
          const message = `Payload Too Large: Request body must not exceed ${this.#maxBodyBytes} bytes`;
          return this.#refuse(res, 413, REFUSED, message);
        }
        body = bodyOf(bytes);
      }
      if (this.#closed) {
        return this.#refuse(res, 404, SESSION_NOT_FOUND, 'Session not found');
      }
    }

    const jsonResponse = this.#options.enableJsonResponse === true;
    const admission =
      this.#session === undefined
        ? this.#runtime.engine.admit(headOf(req), body, jsonResponse, this.#sdk.major, this.#versions)
        : this.#session.admit(headOf(req), body, jsonResponse);
    if (admission instanceof Refusal) {
      return this.#refused(res, admission);
    }
    const operation = admission.operation;
    if (operation === 'listen' || operation === 'resume') {
      const connection = this.#session[operation](admission);
      return connection instanceof Refusal ? this.#refused(res, connection) : this.#answer(connection, res);
    }
    if (operation === 'delete') {
      return this.#delete(res);
    }
    const messages = this.#parse(parsedBody ?? body);
    if (messages === undefined) {
      return this.#refuse(res, 400, PARSE_ERROR, 'Parse error: Invalid JSON-RPC message');
    }
    if (operation === 'message') {
      return this.#message(admission, messages, req, res);
    }
    return this.#request(admission, messages, req, res, jsonResponse);
  }

  #forbidden(req) {
    const { enableDnsRebindingProtection, allowedHosts, allowedOrigins } = this.#options;
    if (!enableDnsRebindingProtection) {
      return undefined;
    }
    const { host, origin } = req.headers;
    if (allowedHosts?.length > 0 && !allowedHosts.includes(host)) {
      return `Invalid Host header: ${host ?? null}`;
    }
    if (allowedOrigins?.length > 0 && origin && !allowedOrigins.includes(origin)) {
      return `Invalid Origin header: ${origin}`;
    }
    return undefined;
  }

  /** The messages as the SDK has them; nothing when the SDK does not take one of them. */
  #parse(body) {
    try {
      const value = typeof body === 'string' ? JSON.parse(body) : body;
      return (Array.isArray(value) ? value : [value]).map((message) => this.#sdk.parseMessage(message));
    } catch {
      return undefined;
    }
  }

  async #request(admission, messages, req, res, jsonResponse) {
    if (admission.isInitialize) {
      if (!this.#sdk.isInitializeRequest(messages[0])) {
        return this.#refuse(res, 400, REFUSED, 'Bad Request: Server not initialized');
      }
      if (!this.#open(req)) {
        return this.#refuse(res, 503, INTERNAL_ERROR, 'Too many open sessions');
      }
      await this.#options.onsessioninitialized?.(this.sessionId);
    }
    if (this.#scopeChallengeResolver !== undefined && (await this.#challenged(messages, req, res))) {
      return undefined;
    }
    if (this.#closed) {
      return this.#refuse(res, 404, SESSION_NOT_FOUND, 'Session not found');
    }
    const session = this.#session;
    const several = jsonResponse && messages.filter(isRequest).length > 1;
    const opened = several ? session.callEach(admission) : session.call(admission, jsonResponse);
    if (opened instanceof Refusal) {
      return this.#refused(res, opened);
    }
    const answer = several ? this.#joined(opened, res) : this.#answer(opened, res);
    session.received(admission);
    this.#dispatch(messages, req, session.canPoll && !jsonResponse);
    this.#settle(admission);
    return answer;
  }

  #open(req) {
    const sessionId = this.#options.sessionIdGenerator();
    const { engine } = this.#runtime;
    const { major } = this.#sdk;
    try {
      this.#session = engine.openSession(String(sessionId), major, this.#versions, this.#options.retryInterval);
    } catch (error) {
      if (error.code !== 'too_many_sessions') {
        throw error;
      }
      return false;
    }
    this.sessionId = sessionId;
    this.#session.claim(principalOf(req.auth));
    if (this.#runtime.hostStore !== undefined) {
      this.#userStore = new UserStore(this.#runtime, this.#session);
    }
    this.#runtime.opened(this);
    return true;
  }

  async #challenged(messages, req, res) {
    for (const request of messages.filter(isRequest)) {
      let challenge;
      try {
        const authInfo = req.auth;
        challenge = await this.#scopeChallengeResolver({ request, ...(authInfo !== undefined && { authInfo }) });
      } catch (error) {
        this.#transport.onerror?.(error);
        this.#refuse(res, 500, INTERNAL_ERROR, 'Internal server error');
        return true;
      }
      if (challenge !== undefined) {
        const response = this.#sdk.scopeChallengeResponse(challenge, req.auth);
        writeWhole(res, response.status, Object.fromEntries(response.headers), await response.text());
        return true;
      }
    }
    return false;
  }

  #answer(connection, res) {
    const answer = new Answer(connection, res, {
      runtime: this.#runtime,
      sessionId: this.sessionId,
      keepAliveMs: this.#keepAliveMs,
    });
    answer.start();
    return answer;
  }

  /** One body for all requests of a batch in JSON mode. */
  #joined(connections, res) {
    const parts = connections.map((connection) => new Part(connection, this.#runtime));
    res.on('close', () => parts.forEach((part) => part.lost()));
    const done = Promise.all(parts.map((part) => part.done)).then((texts) => {
      if (!res.destroyed) {
        const headers = { 'content-type': 'application/json', 'mcp-session-id': this.sessionId };
        writeWhole(res, 200, headers, `[${texts.join(',')}]`);
      }
    });
    return { done };
  }

  #message(admission, messages, req, res) {
    this.#session.received(admission);
    writeWhole(res, 202, {});
    this.#dispatch(messages, req, false);
    this.#settle(admission);
    return undefined;
  }

  #dispatch(messages, req, canPoll) {
    const transport = this.#transport;
    for (const message of messages) {
      const extra = this.#sdk.extra(req);
      if (canPoll && isRequest(message)) {
        extra.closeSSEStream = (options) => this.closeConnection(message.id, options);
        extra.closeStandaloneSSEStream = (options) => this.closeStandalone(options);
      }
      try {
        transport.onmessage?.(message, extra);
      } catch (error) {
        transport.onerror?.(error);
        if (isRequest(message)) {
          this.#session.cancelled(message.id);
        }
      }
    }
  }

  /** The SDKs answer nothing to a cancelled request: it gets its terminal here (I13). */
  #settle(admission) {
    for (const id of admission.cancelledRequests) {
      this.#session.cancelled(id);
    }
  }

  async #delete(res) {
    try {
      await this.#options.onsessionclosed?.(this.sessionId);
      writeWhole(res, 200, {});
    } finally {
      await this.#transport.close();
    }
  }

  /** Stores one message on the stream that it belongs to, before anything of it is sent. */
  async send(message, options) {
    const related = options?.relatedRequestId;
    const isResponse = message.method === undefined;
    if (isResponse && message.id === undefined) {
      throw new Error('Cannot send a response on a standalone SSE stream unless resuming a previous client request');
    }
    const session = this.#session;
    if (session === undefined || this.#closed) {
      if (!isResponse && related === undefined) {
        // Nobody listens yet, or any more.
        return;
      }
      throw new Error(`No connection established for request ID: ${String(isResponse ? message.id : related)}`);
    }
    const payload = isResponse ? responseText(message) : JSON.stringify(message);
    let number;
    if (isResponse) {
      number = session.respond(message.id, payload);
    } else if (message.id === undefined) {
      number = session.notify(related, payload);
    } else {
      number = session.ask(message.id, related, payload);
    }
    if (number !== undefined && number !== null) {
      const stored = this.#userStore.outcome(number);
      // The engine answers the client for a response that was not stored.
      await (isResponse ? stored.catch(() => {}) : stored);
      return;
    }
    if (isResponse) {
      return;
    }
    this.#unyieldedEvents += 1;
    this.#unyieldedBytes += payload.length;
    if (
      this.#unyieldedEvents >= this.#yieldEvents ||
      this.#unyieldedBytes >= this.#yieldBytes ||
      performance.now() - this.#yieldedAt >= YIELD_MS
    ) {
      await new Promise((resolve) => setImmediate(resolve));
      this.#unyieldedEvents = this.#unyieldedBytes = 0;
      this.#yieldedAt = performance.now();
    }
  }

  closeConnection(requestId, options) {
    return this.#session?.closeConnection(requestId, options?.retryMs, options?.holdMs) ?? false;
  }

  closeStandalone(options) {
    return this.#session?.closeStandalone(options?.retryMs, options?.holdMs) ?? false;
  }

  /** Milliseconds until the session counts as idle; nothing while something holds it. */
  idleInMs(idleMs) {
    return this.#requests > 0 ? undefined : this.#session.idleInMs(idleMs);
  }

  closeIdle() {
    this.#transport.close().catch((error) => this.#transport.onerror?.(error));
  }

  close() {
    if (this.#closed) {
      return;
    }
    this.#closed = true;
    this.#session?.end();
    this.#userStore?.close();
    this.#runtime.closed(this);
  }

  #refused(res, refusal) {
    this.#transport.onerror?.(new Error(refusal.message));
    writeRefusal(res, refusal);
    return undefined;
  }

  #refuse(res, status, code, message) {
    this.#transport.onerror?.(new Error(message));
    const body = JSON.stringify({ jsonrpc: '2.0', error: { code, message }, id: null });
    writeWhole(res, status, { 'content-type': 'application/json' }, body);
    return undefined;
  }
}

/** A response as JSON. One that cannot be written is replaced by an error, or its request would never end. */
function responseText(message) {
  try {
    return JSON.stringify(message);
  } catch (cause) {
    const error = { code: INTERNAL_ERROR, message: `Response is not JSON: ${cause.message}` };
    return JSON.stringify({ jsonrpc: '2.0', id: message.id, error });
  }
}

function isRequest(message) {
  return message.method !== undefined && message.id !== undefined;
}
