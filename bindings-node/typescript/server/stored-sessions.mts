// Readers of sessions that no transport of this process has: they are served from the event store.
import type { IncomingMessage, ServerResponse } from 'node:http';
import { clearInterval, setInterval } from 'node:timers';

import { ours } from '../errors.mjs';
import { type Adoption, Refusal, type Session } from '../native.mjs';
import type { Runtime, Waiter } from '../runtime.mjs';
import { runtimeFor } from '../store/event-store.mjs';
import type { AnswerContext, Exchange } from './exchange.mjs';
import { NodeExchange } from './node-exchange.mjs';
import { askerOf, checkPrincipal } from './principal.mjs';
import { writeRefusal } from './refusal.mjs';
import type { Sdk, TransportOptions } from './sdk.mjs';
import { isStock } from './seam.mjs';
import { forbidden, keepAliveOf } from './transport-options.mjs';
import { WebExchange } from './web-exchange.mjs';
import { withResolvers } from './with-resolvers.mjs';

/** How often at least it is asked whether a store has told. */
const HOLD_MS = 1_000;

/** Waits until the store has told of a session. */
class LookUp implements Waiter {
  scheduled = false;
  #adoption: Adoption;
  #runtime: Runtime;
  #told = withResolvers<Session | false>();
  /** Somebody waits for a promise of ours: it holds the process, as threads of a store do not. */
  #hold = setInterval(() => this.pump(), HOLD_MS);

  constructor(adoption: Adoption, runtime: Runtime) {
    this.#adoption = adoption;
    this.#runtime = runtime;
    runtime.wait(adoption.key, this);
    // It may have been told before there was anybody to wait for it.
    this.pump();
  }

  get told(): Promise<Session | false> {
    return this.#told.promise;
  }

  pump(): void {
    try {
      const session = this.#adoption.take();
      if (session === null) {
        return;
      }
      this.#told.resolve(session);
    } catch (error) {
      this.#told.reject(ours(error));
    }
    clearInterval(this.#hold);
    this.#runtime.forget(this.#adoption.key);
  }
}

/** The options of the transports: those that count are the ones about GETs. */
export interface StoredOptions extends TransportOptions {
  /** Gets what was refused, and why a store could not tell. */
  onerror?: ((error: Error) => void) | undefined;
}

/**
 * Serves GETs of sessions that live in another process, or lived in one.
 */
export class StoredSessions {
  #sdk: Sdk;
  #options: StoredOptions;

  constructor(sdk: Sdk, options: StoredOptions = {}) {
    this.#sdk = sdk;
    this.#options = options;
  }

  /**
   * Answers an exchange and resolves to true when the answer is handed over, or the peer is gone. False, and
   * nothing is answered, when this is nothing to be served from a store: no GET, or its session is not known, or
   * is somebody else's (I7).
   */
  async serve(exchange: Exchange): Promise<boolean> {
    const sessionId = exchange.header('mcp-session-id');
    if (exchange.method !== 'GET' || sessionId === undefined || isStock(this.#sdk)) {
      return false;
    }
    const runtime = runtimeFor(this.#options.eventStore);
    if (!runtime.outlivesProcess) {
      return false;
    }
    runtime.guestCame();
    try {
      return await this.#serve(runtime, sessionId, exchange);
    } finally {
      runtime.guestLeft();
    }
  }

  async #serve(runtime: Runtime, sessionId: string, exchange: Exchange): Promise<boolean> {
    const { major, versions } = this.#sdk;
    // First, as the look-up takes the stream over.
    const refusal = forbidden(major, exchange, this.#options);
    if (refusal !== null) {
      this.#refused(exchange, refusal);
      return true;
    }
    exchange.asker = askerOf(exchange, checkPrincipal(this.#options.principal) ?? runtime.principal);
    const served = this.#options.supportedProtocolVersions ?? versions;
    const adoption = runtime.engine.adoptSession(sessionId, exchange.head(), major, served);
    let session: Session | false;
    try {
      session = await new LookUp(adoption, runtime).told;
    } catch (error) {
      // What the store said is for the server (I9).
      this.#report(error);
      writeRefusal(exchange, adoption.refusal);
      return true;
    }
    if (session === false) {
      return false;
    }
    try {
      await this.#answer(runtime, sessionId, session, exchange);
    } finally {
      session.letGo();
    }
    return true;
  }

  async #answer(runtime: Runtime, sessionId: string, session: Session, exchange: Exchange): Promise<void> {
    const admission = session.admit(exchange.head(), '', this.#options.enableJsonResponse === true);
    if (admission instanceof Refusal) {
      return this.#refused(exchange, admission);
    }
    if (this.#options.keepAliveMs !== undefined) {
      session.setKeepAliveMs(keepAliveOf(this.#options.keepAliveMs));
    }
    const connection = session.open(admission, false);
    if (connection instanceof Refusal) {
      return this.#refused(exchange, connection);
    }
    const answers: AnswerContext = {
      runtime,
      sessionId,
      open: new Set(),
      onRefused: (body) => this.#report(new Error(JSON.parse(body).error.message)),
      isGuest: true,
    };
    await exchange.stream(connection, answers, true).done;
  }

  #refused(exchange: Exchange, refusal: Refusal): void {
    this.#report(new Error(refusal.message));
    writeRefusal(exchange, refusal);
  }

  #report(error: unknown): void {
    try {
      this.#options.onerror?.(error as Error);
    } catch {
      // Reporting only.
    }
  }
}

/** What hand-written routers call, with an SDK's own types. */
export interface StoredSessionServers<Options, AuthInfo> {
  serveStoredSession(
    req: IncomingMessage & { auth?: AuthInfo },
    res: ServerResponse,
    options?: Options,
  ): Promise<boolean>;
  fetchStoredSession(request: Request, options?: Options & { authInfo?: AuthInfo }): Promise<Response | undefined>;
}

/** What hand-written routers call for an SDK line. */
export function storedSessionServers(sdk: Sdk): StoredSessionServers<StoredOptions, unknown> {
  return {
    /** For node:http, express and what is built on it. Resolves to whether it was answered. */
    serveStoredSession(req, res, options) {
      return new StoredSessions(sdk, options).serve(new NodeExchange(req, res));
    },

    /** For the web platform. Resolves to the response, if there is one. */
    fetchStoredSession(request, { authInfo, ...options }: StoredOptions & { authInfo?: unknown } = {}) {
      const exchange = new WebExchange(request, { authInfo });
      const served = new StoredSessions(sdk, options).serve(exchange);
      return new Promise((resolve, reject) => {
        exchange.response.then(resolve, reject);
        served.then((isServed) => {
          if (!isServed) {
            resolve(undefined);
          }
        }, reject);
      });
    },
  };
}
