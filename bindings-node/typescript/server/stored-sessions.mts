// Requests for sessions that no transport of this process has: readers are served from the event store, all else is relayed
// through it to the process that has the session.
import type { IncomingMessage, ServerResponse } from 'node:http';
import { clearInterval, setInterval } from 'node:timers';

import { ours } from '../errors.mjs';
import { type LookUp, Refusal, type Session } from '../native.mjs';
import type { Runtime, Waiter } from '../runtime.mjs';
import { runtimeFor } from '../store/event-store.mjs';
import { look, relaying } from '../telemetry.mjs';
import { type Adopt, offer } from './adoption.mjs';
import { bodyOf, maxBodyBytes } from './body.mjs';
import type { AnswerContext, Exchange, FetchOptions } from './exchange.mjs';
import { ACTION, CALL, LISTEN, RESUME } from './facts.mjs';
import { NodeExchange } from './node-exchange.mjs';
import { guarded, refusalOf, refuse, report } from './refusal.mjs';
import { travellingOf } from './relayed.mjs';
import { identify } from './requester.mjs';
import type { Sdk, TransportOptions } from './sdk.mjs';
import { checkGiven, optionsOf } from './sdk-options.mjs';
import { isStock } from './seam.mjs';
import { forbidden, identityOf, keepAliveOf } from './transport-options.mjs';
import { WebExchange } from './web-exchange.mjs';
import { withResolvers } from './with-resolvers.mjs';

/** What is served, or relayed. */
const METHODS = ['GET', 'POST', 'DELETE'];
/** How often at least it is asked whether a store has told. */
const HOLD_MS = 1_000;

/** Waits until the store has told of a session. */
class Telling implements Waiter {
  scheduled = false;
  #look_up: LookUp;
  #runtime: Runtime;
  #told = withResolvers<Session | false>();
  /** Somebody waits for a promise of ours: it holds the process, as threads of a store do not. */
  #hold = setInterval(() => this.pump(), HOLD_MS);

  constructor(look_up: LookUp, runtime: Runtime) {
    this.#look_up = look_up;
    this.#runtime = runtime;
    runtime.wait(look_up.key, this);
    // A store that does not answer is given up at a tick.
    runtime.armDue();
    // It may have been told before there was anybody to wait for it.
    this.pump();
  }

  get told(): Promise<Session | false> {
    return this.#told.promise;
  }

  pump(): void {
    try {
      const session = this.#look_up.take();
      if (session === null) {
        return;
      }
      this.#told.resolve(session);
    } catch (error) {
      this.#told.reject(ours(error));
    }
    clearInterval(this.#hold);
    this.#runtime.forget(this.#look_up.key);
  }
}

/** The options of the transports: those that count are the ones about requests, not about new sessions. */
export interface StoredOptions extends TransportOptions {
  /** Gets what was refused, and why a store could not tell. */
  onerror?: ((error: Error) => void) | undefined;
}

/**
 * What became of an exchange. `unknown`: it names no session, or one that is not known, or is somebody else's (I7). `here`: this
 * process has its session, by this name, and the owner of the transport serves it.
 */
export type Served = 'served' | 'unknown' | { here: string };

/**
 * Serves requests for sessions that live in another process, or lived in one.
 */
export class StoredSessions {
  #sdk: Sdk;
  #options: StoredOptions;
  #maxBodyBytes: number;
  #adopt: Adopt | undefined;

  /** `adopt` goes on with sessions whose process is gone. Without it their clients are told that they are over. */
  constructor(sdk: Sdk, options: StoredOptions = {}, adopt?: Adopt) {
    this.#sdk = sdk;
    this.#options = options;
    this.#maxBodyBytes = maxBodyBytes(options.maxRequestBodySize);
    this.#adopt = adopt;
  }

  /** Answers an exchange, and resolves when the answer is handed over or the peer is gone; or leaves it unanswered. */
  async serve(exchange: Exchange): Promise<Served> {
    look();
    const sessionId = exchange.header('mcp-session-id');
    if (!METHODS.includes(exchange.method) || sessionId === undefined || isStock(this.#sdk)) {
      return 'unknown';
    }
    const runtime = runtimeFor(this.#options);
    if (!runtime.outlivesProcess) {
      return 'unknown';
    }
    const { major, versions } = this.#sdk;
    // First, as the look-up takes the stream over.
    const refusal = forbidden(major, exchange, this.#options);
    if (refusal !== null) {
      this.#refused(exchange, refusal);
      return 'served';
    }
    identify(exchange, identityOf(runtime, this.#options));
    const served = this.#options.supportedProtocolVersions ?? versions;
    const { server, requester } = exchange;
    const look_up = runtime.engine.lookUpSession(sessionId, exchange.head(), server, requester, major, served);
    if (look_up === null) {
      return 'unknown';
    }
    let session: Session | false;
    try {
      session = await new Telling(look_up, runtime).told;
    } catch (error) {
      // What the store said is for the server (I9).
      refuse(exchange, look_up.refusal, this.#options.onerror, error);
      return 'served';
    }
    if (session === false) {
      return 'unknown';
    }
    if (exchange.method !== 'GET' && !session.isElsewhere) {
      return { here: session.name };
    }
    try {
      await this.#answer(runtime, sessionId, session, exchange);
    } finally {
      session.letGo();
    }
    return 'served';
  }

  /** The refusal of a request that names a session that there is not. */
  unknown(exchange: Exchange, sessionId: string): Refusal {
    const runtime = runtimeFor(this.#options);
    if (exchange.requester === undefined) {
      identify(exchange, identityOf(runtime, this.#options));
    }
    const { server, requester } = exchange;
    return runtime.engine.unknownSession(sessionId, exchange.head(), server, requester, this.#sdk.major);
  }

  async #answer(runtime: Runtime, sessionId: string, session: Session, exchange: Exchange): Promise<void> {
    const { text: body, tooLarge, gone } = await bodyOf(exchange, this.#maxBodyBytes);
    if (gone) {
      return exchange.abandon();
    }
    if (tooLarge) {
      return this.#refused(exchange, refusalOf(this.#sdk.major, 'body_too_large', String(this.#maxBodyBytes)));
    }
    const jsonResponse = Boolean(this.#options.enableJsonResponse);
    const admission = session.admit(exchange.head(), exchange.server, exchange.requester, body, jsonResponse);
    if (admission instanceof Refusal) {
      return this.#refused(exchange, admission);
    }
    if (this.#options.keepAliveMs !== undefined) {
      session.setKeepAliveMs(keepAliveOf(this.#options.keepAliveMs));
    }
    const action = admission.facts & ACTION;
    const isReader = action === LISTEN || action === RESUME;
    if (!isReader && this.#adopt !== undefined) {
      offer(runtime, sessionId, session, exchange, this.#adopt);
    }
    const connection = isReader
      ? session.open(admission, false)
      : session.relay(admission, body, relaying(travellingOf(exchange, runtime.relayedHeaders), body), jsonResponse);
    if (connection instanceof Refusal) {
      return this.#refused(exchange, connection);
    }
    const answers: AnswerContext = {
      runtime,
      // Other answers do not name it, as those of a transport do not.
      sessionId: isReader || action === CALL ? sessionId : undefined,
      open: new Set(),
      onRefused: (body) => report(this.#options.onerror, new Error(JSON.parse(body).error.message)),
      isGuest: true,
    };
    await exchange.stream(connection, answers).done;
  }

  #refused(exchange: Exchange, refusal: Refusal): void {
    refuse(exchange, refusal, this.#options.onerror);
  }
}

/** What hand-written routers call, with an SDK's own types. */
export interface StoredSessionServers<Options, AuthInfo> {
  serveStoredSession(
    req: IncomingMessage & { auth?: AuthInfo },
    res: ServerResponse,
    options?: Options,
    parsedBody?: unknown,
  ): Promise<boolean>;
  fetchStoredSession(
    request: Request,
    options?: Options & { authInfo?: AuthInfo; parsedBody?: unknown },
  ): Promise<Response | undefined>;
}

async function served(sdk: Sdk, exchange: Exchange, options: StoredOptions): Promise<Served> {
  const serve = () => new StoredSessions(sdk, options).serve(exchange);
  return (await guarded(exchange, sdk.major, options.onerror, serve)) ?? 'served';
}

/** What hand-written routers call for an SDK line. */
export function storedSessionServers(sdk: Sdk): StoredSessionServers<StoredOptions, unknown> {
  const check = (options: StoredOptions) =>
    checkGiven(options, optionsOf(sdk.WebStock), 'serveStoredSession() and fetchStoredSession()', 'onerror');
  return {
    /** For node:http, express and what is built on it. Resolves to whether it was answered. */
    async serveStoredSession(req, res, options = {}, parsedBody) {
      check(options);
      return (await served(sdk, new NodeExchange(req, res, parsedBody), options)) === 'served';
    },

    /** For the web platform. Resolves to the response, if there is one. */
    async fetchStoredSession(request, { authInfo, parsedBody, ...options }: StoredOptions & FetchOptions = {}) {
      check(options);
      let isServed = true;
      const exchange = new WebExchange(request, { authInfo, parsedBody });
      const response = await exchange.answeredBy(async () => {
        isServed = (await served(sdk, exchange, options)) === 'served';
      });
      return isServed ? response : undefined;
    },
  };
}
