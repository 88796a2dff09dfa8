// Routes the requests of an endpoint to its sessions: makes, finds and ends them, and serves what comes for those of other
// processes.
import { randomUUID } from 'node:crypto';
import type { IncomingMessage, ServerResponse } from 'node:http';
import { invalid } from '../errors.mjs';
import { type Adopted, Refusal } from '../native.mjs';
import { notePinned, type Pinned, runtimeOf } from '../runtime.mjs';
import { runtimeFor } from '../store/event-store.mjs';
import { type AdoptedSession, Adoption } from './adoption.mjs';
import { isText, maxBodyBytes, written } from './body.mjs';
import type { Exchange, Face, FetchOptions } from './exchange.mjs';
import { type FrontDoor, frontDoor } from './front-door.mjs';
import { type Incoming, NodeExchange } from './node-exchange.mjs';
import { answer, guarded, refusalOf, refuse, report, reportFailure } from './refusal.mjs';
import type { Sdk, Server, StockClass, TransportOptions } from './sdk.mjs';
import { checkGiven, optionsOf } from './sdk-options.mjs';
import { isStock } from './seam.mjs';
import { type Served, StoredSessions } from './stored-sessions.mjs';
import { ADOPT, type Ours, SERVE } from './transport.mjs';
import { forbidden } from './transport-options.mjs';
import { WebExchange } from './web-exchange.mjs';

/** What `createSessionRouter` of an SDK line makes; `AuthInfo` is the SDK's. */
export interface RouterOf<S, AuthInfo> {
  /** Serves node:http, express (`app.all('/mcp', router.node)`), fastify; `parsedBody` is what a parser has made. */
  node(req: IncomingMessage & { auth?: AuthInfo }, res: ServerResponse, parsedBody?: unknown): Promise<void>;
  /** Serves the web platform: Hono, and frameworks like it. */
  fetch(request: Request, options?: { authInfo?: AuthInfo; parsedBody?: unknown }): Promise<Response>;
  /** The servers of the sessions that are open here. */
  servers(): S[];
  /** Closes the sessions that are open here. A store that outlives the process keeps them for other processes. */
  close(): Promise<void>;
}

/** What routers take beside the options of the transports. */
export interface AdoptingOptions<S> {
  /**
   * Called, and awaited, when a session whose process is gone goes on here: after its new server was told what the client has
   * told, and before it is given any request. Where it throws, the session is left to other processes.
   * `onsessioninitialized` is called where the client opened the session, and not again.
   */
  onAdopted?: ((session: AdoptedSession<S>) => void | Promise<void>) | undefined;
}

/** The options of the transports, which each of the router's sessions gets. */
export interface RouterOptions<S> extends TransportOptions, AdoptingOptions<S> {
  /** Gets what was refused, and what failed. */
  onerror?: ((error: Error) => void) | undefined;
}

type OursClass = new (options?: TransportOptions) => Ours;

/** Makes the server of a session. */
type MakeServer<S, Context> = (context: Context) => S | Promise<S>;

/** The ways into what serves exchanges. */
export function faces(
  serve: (exchange: Exchange) => Promise<void>,
): Pick<RouterOf<unknown, unknown>, 'fetch' | 'node'> {
  return {
    fetch(request: Request, options?: FetchOptions): Promise<Response> {
      return new WebExchange(request, options).answeredBy(serve);
    },

    // Where express calls this itself, `next` comes third, and what its parser has made is in the request.
    node: (req: Incoming & { body?: unknown }, res: ServerResponse, parsedBody?: unknown) =>
      serve(new NodeExchange(req, res, typeof parsedBody === 'function' ? req.body : parsedBody)),
  };
}

export class SessionRouter<S extends Server, Context> implements Pinned {
  #sdk: Sdk<Context>;
  #makeServer: MakeServer<S, Context>;
  #options: TransportOptions;
  #onerror: RouterOptions<S>['onerror'];
  #onAdopted: RouterOptions<S>['onAdopted'];
  #maxBodyBytes: number;
  #transports: Record<Face, OursClass>;
  /** Say what a transport says to a request that opens no session. */
  #unopened: Record<Face, Ours> | undefined;
  #stored: StoredSessions;
  #sessions = new Map<string | undefined, { transport: Ours; server: S }>();
  /** The sessions whose server is told what their clients have told. */
  #adopting = new Map<string | undefined, Promise<void>>();
  #closed = false;

  /**
   * `transports` has our classes for each kind of exchange.
   */
  constructor(
    sdk: Sdk<Context>,
    makeServer: MakeServer<S, Context>,
    { sessionIdGenerator = randomUUID, onerror, onAdopted, ...options }: RouterOptions<S>,
    transports: Record<Face, StockClass>,
  ) {
    if (onAdopted !== undefined && typeof onAdopted !== 'function') {
      invalid('onAdopted must be a function');
    }
    this.#sdk = sdk;
    this.#makeServer = makeServer;
    this.#options = { ...options, sessionIdGenerator };
    this.#onerror = onerror;
    this.#onAdopted = onAdopted;
    this.#maxBodyBytes = maxBodyBytes(options.maxRequestBodySize);
    this.#transports = transports as Record<Face, OursClass>;
    if (!isStock(sdk)) {
      this.#unopened = { node: this.#make('node'), fetch: this.#make('fetch') };
    }
    this.#stored = this.#makeStored();
    notePinned(this);
  }

  pin(): void {
    this.#options = { ...this.#options, ...{ [runtimeOf]: runtimeFor(this.#options) } };
    this.#stored = this.#makeStored();
  }

  /** From now on sessions are handed over to a front. */
  setFront(front: FrontDoor): void {
    this.#options = { ...this.#options, [frontDoor]: front };
  }

  #makeStored(): StoredSessions {
    const options = { ...this.#options, onerror: this.#onerror };
    return new StoredSessions(this.#sdk, options, (...adopted) => this.#adopt(...adopted));
  }

  /** The servers of the sessions that are open here. */
  servers(): S[] {
    return [...this.#sessions.values()].map(({ server }) => server);
  }

  /** Serves an exchange by `route`. Never rejects. */
  serve(exchange: Exchange, route = () => this.route(exchange)): Promise<void> {
    return guarded(exchange, this.#sdk.major, this.#onerror, route);
  }

  /** Answers by the session that a request names or opens. */
  async route(exchange: Exchange): Promise<void> {
    const sessionId = exchange.header('mcp-session-id');
    const session = this.#sessions.get(sessionId);
    if (session !== undefined) {
      return session.transport[SERVE](exchange);
    }
    if (exchange.method === 'POST' && !(await this.read(exchange))) {
      return undefined;
    }
    if (!this.#closed && this.#opens(exchange.parsedBody)) {
      return this.#open(exchange);
    }
    if (sessionId === undefined) {
      return (this.#unopened?.[exchange.face] ?? this.#make(exchange.face))[SERVE](exchange);
    }
    let served: Served;
    do {
      await this.#adopting.get(sessionId);
      const adopted = this.#sessions.get(sessionId);
      if (adopted !== undefined) {
        return adopted.transport[SERVE](exchange);
      }
      served = await this.#stored.serve(exchange);
    } while (typeof served === 'object' && (this.#adopting.has(sessionId) || this.#sessions.has(sessionId)));
    return served === 'served' ? undefined : answer(exchange, this.#stored.unknown(exchange, sessionId));
  }

  /** Reads the body into the exchange, unless it is there. False when that was the answer. */
  async read(exchange: Exchange): Promise<boolean> {
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
      exchange.parsedBody = isText(text) ? JSON.parse(String(text)) : undefined;
    } catch {
      // A session says what is wrong with it.
    }
    return true;
  }

  #opens(body: unknown): boolean {
    return this.#sdk.isInitializeRequest(Array.isArray(body) && body.length === 1 ? body[0] : body);
  }

  /** Why a request opens no session, as far as that can be told before its server is made. */
  #refusalOf(exchange: Exchange): Refusal | undefined {
    const { major, versions } = this.#sdk;
    const refusal = forbidden(major, exchange, this.#options);
    if (refusal !== null || isStock(this.#sdk)) {
      return refusal ?? undefined;
    }
    const { text = written(exchange.parsedBody) } = exchange;
    const { enableJsonResponse, supportedProtocolVersions = versions } = this.#options;
    // Which revisions are served the server says, where it has an opinion.
    const served = [...supportedProtocolVersions, exchange.header('mcp-protocol-version') ?? ''];
    const { engine } = runtimeFor(this.#options);
    const admission = engine.admit(
      exchange.head(),
      exchange.requester,
      text,
      Boolean(enableJsonResponse),
      major,
      served,
    );
    return admission instanceof Refusal ? admission : undefined;
  }

  async #open(exchange: Exchange): Promise<void> {
    const refusal = this.#refusalOf(exchange);
    if (refusal !== undefined) {
      return this.refuse(exchange, refusal);
    }
    const server = await this.#makeServer(this.#sdk.context(exchange));
    const transport = this.#make(exchange.face, async (sessionId) => {
      this.#sessions.set(sessionId, { transport, server });
      await this.#options.onsessioninitialized?.(sessionId);
    });
    try {
      await server.connect(transport);
      if (this.#closed) {
        return this.#refuse(exchange, 'session_ended');
      }
      await transport[SERVE](exchange);
    } finally {
      if (transport.sessionId === undefined) {
        // It was refused, or could not be connected: nobody will ever name this session.
        await this.#close(server);
      }
    }
  }

  /** Goes on with a session whose process is gone. */
  #adopt(sessionId: string, adopted: Adopted, exchange: Exchange): void {
    const adopting = this.#goOn(sessionId, adopted, exchange).finally(() => this.#adopting.delete(sessionId));
    this.#adopting.set(sessionId, adopting);
  }

  async #goOn(sessionId: string, adopted: Adopted, exchange: Exchange): Promise<void> {
    let made: S | undefined;
    try {
      const server = await this.#makeServer(this.#sdk.context(exchange));
      made = server;
      const transport = this.#make(exchange.face);
      const onReady = async () => {
        await this.#onAdopted?.({ sessionId, server });
        if (this.#closed) {
          throw new Error('the router is closed');
        }
        this.#sessions.set(sessionId, { transport, server });
      };
      await server.connect(transport);
      await transport[ADOPT](new Adoption(sessionId, adopted, exchange, onReady));
    } catch (error) {
      // First: others that wait for the session are told why.
      adopted.refuse('session_unread', error instanceof Error ? error.message : String(error));
      this.#failed(error);
      await this.#close(made);
    }
  }

  #make(face: Face, onsessioninitialized?: TransportOptions['onsessioninitialized']): Ours {
    const transport = new this.#transports[face]({ ...this.#options, onsessioninitialized });
    transport.onerror = (error) => this.report(error);
    transport.onclose = () => {
      if (this.#sessions.get(transport.sessionId)?.transport === transport) {
        this.#sessions.delete(transport.sessionId);
      }
    };
    return transport;
  }

  async close(): Promise<void> {
    this.#closed = true;
    const servers = this.servers();
    this.#sessions.clear();
    await Promise.all([...Object.values(this.#unopened ?? {}), ...servers].map((server) => this.#close(server)));
  }

  /** Whatever its `close` is: it is the host's. */
  async #close(server: Pick<Server, 'close'> | undefined): Promise<void> {
    try {
      await server?.close();
    } catch (error) {
      this.#failed(error);
    }
  }

  #refuse(exchange: Exchange, fault: string, text?: string): void {
    this.refuse(exchange, refusalOf(this.#sdk.major, fault, text));
  }

  refuse(exchange: Exchange, refusal: Refusal): void {
    refuse(exchange, refusal, this.#onerror);
  }

  #failed(error: unknown): void {
    reportFailure(this.#onerror, 'a session failed', error);
  }

  report(error: unknown): void {
    report(this.#onerror, error);
  }
}

/** Refuses options that a router has not. `more` are those that only this place takes. */
export function checkRouterOptions(sdk: Sdk, options: object, of: string, ...more: readonly string[]): void {
  checkGiven(options, optionsOf(sdk.WebStock), of, 'onAdopted', 'onerror', ...more);
}

/** Makes `createSessionRouter` for an SDK line and its classes. */
export function sessionRouter<Context>(sdk: Sdk<Context>, transports: Record<Face, StockClass>) {
  return function createSessionRouter<S extends Server>(
    makeServer: MakeServer<S, Context>,
    options: RouterOptions<S> = {},
  ): RouterOf<S, unknown> {
    if (typeof makeServer !== 'function') {
      invalid('createSessionRouter() takes a function that makes the server of a session');
    }
    checkRouterOptions(sdk, options, 'createSessionRouter()');
    const router = new SessionRouter(sdk, makeServer, options, transports);
    return {
      ...faces((exchange) => router.serve(exchange)),
      servers: () => router.servers(),
      close: () => router.close(),
    };
  };
}
