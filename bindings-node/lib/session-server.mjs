// One transport's session on the engine, for both SDK lines and both kinds of HTTP exchange.
import { setImmediate } from 'node:timers';

import { Part } from './answer.mjs';
import { Engine, Refusal } from './native.mjs';
import { Outcomes } from './outcomes.mjs';
import { refusalOf, writeRefusal } from './refusal.mjs';
import { askerOf, checkPrincipal, forbidden, keepAliveOf, maxBodyBytes } from './request.mjs';
import { runtimeFor } from './store.mjs';
import { UserStore } from './user-store.mjs';

// The facts of an admission, one number.
const ACTION = 7;
const LISTEN = 1;
const RESUME = 2;
const DELETE = 3;
const MESSAGE = 4;
const IS_INITIALIZE = 8;
const CANCELS = 16;
const ANSWERS = 32;

// A handler that sends without a pause lets the connections' writers run after so many events or
// bytes, and at the first event after so long: others have their turn, and the log's bounds are not
// reached before a reader that keeps up had its own. After a pause the first event is written at
// once: a reader gets it before the handler's next pause (F-46), and the handler is not held up.
const YIELD_EVENTS = 128;
const YIELD_BYTES = 64 << 10;
const YIELD_MS = 1;

/** Not under `--frozen-intrinsics`. */
const canLimitStacks = Object.getOwnPropertyDescriptor(Error, 'stackTraceLimit')?.writable === true;

/** One transport's session: opened by its first `initialize`. */
export class SessionServer {
  #transport;
  #sdk;
  #options;
  #runtime;
  #keepAliveMs;
  #maxBodyBytes;
  #versions;
  #scopeChallengeResolver;
  #session;
  #principal;
  #canBePolled = false;
  #outcomes;
  #answers;
  #closed = false;
  #requests = 0;
  #unyieldedEvents = 0;
  #unyieldedBytes = 0;
  #writtenAt = 0;
  #writtenTurn;
  #yieldEvents;
  #yieldBytes;

  sessionId;

  constructor(transport, sdk, options) {
    this.#transport = transport;
    this.#sdk = sdk;
    this.#options = options;
    this.#runtime = runtimeFor(options.eventStore);
    this.#principal = checkPrincipal(options.principal) ?? this.#runtime.principal;
    this.#keepAliveMs = options.keepAliveMs;
    this.#maxBodyBytes = maxBodyBytes(options.maxRequestBodySize);
    this.#versions = options.supportedProtocolVersions ?? sdk.versions;
    const { maxEventsPerStream, maxBytesPerStream } = this.#runtime.options;
    this.#yieldEvents = Math.min(YIELD_EVENTS, Math.max(1, maxEventsPerStream >> 2));
    this.#yieldBytes = Math.min(YIELD_BYTES, maxBytesPerStream / 4);
  }

  setVersions(versions) {
    this.#versions = versions;
  }

  setScopeChallengeResolver(resolver) {
    this.#scopeChallengeResolver = resolver;
  }

  /** Answers an exchange. Resolves when the answer is handed over, or the peer is gone. */
  async serve(exchange) {
    this.#requests += 1;
    try {
      const answer = await this.#admit(exchange);
      // Nothing of the request is held on to while its connection is open, for an hour maybe.
      await answer?.done;
    } finally {
      this.#requests -= 1;
    }
  }

  /** Answers a request that needs no stream; otherwise starts the answer that is to be waited for. */
  async #admit(exchange) {
    if (this.#closed) {
      return this.#refuse(exchange, 'session_ended');
    }
    const forbids = forbidden(exchange, this.#options);
    if (forbids !== undefined) {
      return this.#refuse(exchange, ...forbids);
    }
    exchange.asker = askerOf(exchange, this.#principal);
    const { parsedBody } = exchange;
    let body = exchange.text;
    if (exchange.method !== 'POST') {
      body = '';
    } else if (body === undefined) {
      if (parsedBody !== undefined) {
        body = JSON.stringify(parsedBody) ?? '';
      } else {
        const { text, tooLarge, gone } = await exchange.readBody(this.#maxBodyBytes);
        if (gone) {
          return exchange.abandon();
        }
        if (tooLarge) {
          return this.#refuse(exchange, 'body_too_large', String(this.#maxBodyBytes));
        }
        body = text;
      }
      if (this.#closed) {
        return this.#refuse(exchange, 'session_ended');
      }
    }

    const jsonResponse = this.#options.enableJsonResponse === true;
    const admission =
      this.#session === undefined
        ? this.#runtime.engine.admit(exchange.head(), body, jsonResponse, this.#sdk.major, this.#versions)
        : this.#session.admit(exchange.head(), body, jsonResponse);
    if (admission instanceof Refusal) {
      return this.#refused(exchange, admission, parsedBody ?? body);
    }
    const { facts } = admission;
    const action = facts & ACTION;
    if (action === LISTEN || action === RESUME) {
      const connection = this.#session.open(admission, false);
      if (connection instanceof Refusal) {
        return this.#refused(exchange, connection);
      }
      // These may be silent for long: their clients learn at once that they are served.
      return exchange.stream(connection, this.#answers, true);
    }
    if (action === DELETE) {
      return this.#delete(exchange);
    }
    const messages = this.#parse(parsedBody ?? body);
    if (messages === undefined) {
      return this.#refuse(exchange, 'invalid_message');
    }
    if (action === MESSAGE) {
      return this.#message(admission, facts, messages, exchange);
    }
    return this.#call(admission, facts, messages, exchange, jsonResponse);
  }

  /** By the revision, which does not change once it is negotiated. */
  #canPoll(facts) {
    const canPoll = this.#canBePolled || this.#session.canPoll;
    this.#canBePolled = canPoll && !(facts & IS_INITIALIZE);
    return canPoll;
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

  async #call(admission, facts, messages, exchange, jsonResponse) {
    if (facts & IS_INITIALIZE) {
      if (!this.#sdk.isInitializeRequest(messages[0])) {
        return this.#refuse(exchange, 'not_initialize');
      }
      if (!this.#open(exchange)) {
        return this.#refuse(exchange, 'too_many_sessions');
      }
      try {
        await this.#options.onsessioninitialized?.(this.sessionId);
      } catch (error) {
        this.#transport.onerror?.(error);
        return writeRefusal(exchange, refusalOf(this.#sdk.major, 'not_opened'));
      }
    }
    if (this.#scopeChallengeResolver !== undefined && (await this.#challenged(messages, exchange))) {
      return undefined;
    }
    if (this.#closed) {
      return this.#refuse(exchange, 'session_ended');
    }
    const session = this.#session;
    const several = jsonResponse && messages.filter(isRequest).length > 1;
    const opened = several ? session.openEach(admission) : session.open(admission, jsonResponse);
    if (opened instanceof Refusal) {
      return this.#refused(exchange, opened);
    }
    const answer = several ? this.#joined(opened, exchange) : exchange.stream(opened, this.#answers, false);
    if (facts & ANSWERS) {
      session.received(admission);
    }
    this.#dispatch(messages, exchange, !jsonResponse && this.#canPoll(facts));
    if (facts & CANCELS) {
      session.dispatched(admission);
    }
    return answer;
  }

  #open(exchange) {
    const sessionId = this.#options.sessionIdGenerator();
    const { engine } = this.#runtime;
    const { major } = this.#sdk;
    const { retryInterval } = this.#options;
    try {
      this.#session = engine.openSession(String(sessionId), exchange.asker, major, this.#versions, retryInterval);
    } catch (error) {
      if (error.code !== 'too_many_sessions') {
        throw error;
      }
      return false;
    }
    if (this.#keepAliveMs !== undefined) {
      this.#session.setKeepAliveMs(keepAliveOf(this.#keepAliveMs));
    }
    this.sessionId = sessionId;
    this.#answers = {
      runtime: this.#runtime,
      sessionId,
      open: new Set(),
      onRefused: (body) => this.#transport.onerror?.(new Error(JSON.parse(body).error.message)),
    };
    if (Object.hasOwn(this.#transport, 'sessionId')) {
      // The SDK's class has a field of this name, which hides our accessor.
      this.#transport.sessionId = sessionId;
    }
    if (this.#runtime.hostStore !== undefined) {
      this.#outcomes = new UserStore(this.#runtime, this.#session);
    } else if (this.#runtime.answersElsewhere) {
      this.#outcomes = new Outcomes(this.#runtime, this.#session);
    }
    this.#runtime.opened(this);
    return true;
  }

  async #challenged(messages, exchange) {
    for (const request of messages.filter(isRequest)) {
      let challenge;
      try {
        const authInfo = exchange.auth;
        challenge = await this.#scopeChallengeResolver({ request, ...(authInfo !== undefined && { authInfo }) });
      } catch (error) {
        this.#transport.onerror?.(error);
        this.#refuse(exchange, 'internal');
        return true;
      }
      if (challenge !== undefined) {
        const response = this.#sdk.scopeChallengeResponse(challenge, exchange.auth);
        exchange.whole(response.status, Object.fromEntries(response.headers), await response.text());
        return true;
      }
    }
    return false;
  }

  /** One body for all requests of a batch in JSON mode. */
  #joined(connections, exchange) {
    const parts = connections.map((connection) => new Part(connection, this.#runtime));
    let gone = false;
    exchange.onGone(() => {
      gone = true;
      parts.forEach((part) => part.lost());
    });
    const done = Promise.all(parts.map((part) => part.done)).then((texts) => {
      if (gone) {
        exchange.abandon();
      } else {
        const headers = { 'content-type': 'application/json', 'mcp-session-id': this.sessionId };
        exchange.whole(200, headers, `[${texts.join(',')}]`);
      }
    });
    return { done };
  }

  #message(admission, facts, messages, exchange) {
    this.#session.received(admission);
    exchange.whole(202, {});
    this.#dispatch(messages, exchange, false);
    if (facts & CANCELS) {
      this.#session.dispatched(admission);
    }
    return undefined;
  }

  #dispatch(messages, exchange, canPoll) {
    const transport = this.#transport;
    for (const message of messages) {
      const extra = this.#sdk.extra(exchange);
      if (canPoll && isRequest(message)) {
        extra.closeSSEStream = (options) => this.closeConnection(message.id, options);
        extra.closeStandaloneSSEStream = (options) => this.closeStandalone(options);
      }
      const { stackTraceLimit } = Error;
      try {
        // The SDKs ask of every request whether it is a response, by a schema check that fails with an error: its
        // stack would be a sixth of what a call costs. Handlers start in a later microtask, with their stacks.
        setStackTraceLimit(0);
        transport.onmessage?.(message, extra);
      } catch (error) {
        setStackTraceLimit(stackTraceLimit);
        transport.onerror?.(error);
        if (isRequest(message)) {
          this.#session.cancelled(message.id);
        }
      } finally {
        setStackTraceLimit(stackTraceLimit);
      }
    }
  }

  async #delete(exchange) {
    try {
      await this.#options.onsessionclosed?.(this.sessionId);
      exchange.whole(200, {});
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
      const stored = this.#outcomes.outcome(number);
      // The engine answers the client for a response that was not stored.
      await (isResponse ? stored.catch(() => {}) : stored);
      return;
    }
    if (isResponse) {
      return;
    }
    this.#unyieldedEvents += 1;
    this.#unyieldedBytes += payload.length;
    const runtime = this.#runtime;
    const isLate = performance.now() - this.#writtenAt >= YIELD_MS;
    const hasPaused = runtime.turn !== this.#writtenTurn;
    if (
      this.#unyieldedEvents >= this.#yieldEvents ||
      this.#unyieldedBytes >= this.#yieldBytes ||
      (isLate && !hasPaused)
    ) {
      await new Promise((resolve) => setImmediate(resolve));
      this.#unyieldedEvents = this.#unyieldedBytes = 0;
    } else if (isLate) {
      runtime.flush();
    } else {
      return;
    }
    this.#writtenAt = performance.now();
    this.#writtenTurn = runtime.turn;
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
    for (const answer of [...(this.#answers?.open ?? [])]) {
      answer.finish();
    }
    this.#outcomes?.close();
    this.#runtime.closed(this);
  }

  #refused(exchange, refusal, requestBody) {
    this.#transport.onerror?.(this.#sdk.bodyError?.(refusal, requestBody) ?? new Error(refusal.message));
    writeRefusal(exchange, refusal);
    return undefined;
  }

  #refuse(exchange, fault, text) {
    return this.#refused(exchange, refusalOf(this.#sdk.major, fault, text));
  }
}

/** A response as JSON. One that cannot be written is replaced by an error, or its request would never end. */
function responseText(message) {
  try {
    return JSON.stringify(message);
  } catch {
    return Engine.unwritable(message.id);
  }
}

function setStackTraceLimit(limit) {
  if (canLimitStacks) {
    Error.stackTraceLimit = limit;
  }
}

function isRequest(message) {
  return message.method !== undefined && message.id !== undefined;
}
