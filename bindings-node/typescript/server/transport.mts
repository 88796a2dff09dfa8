// The transports that take the place of the SDKs' classes, for both SDK lines.
import type { ServerResponse } from 'node:http';

import type { Adoption } from './adoption.mjs';
import type { CloseOptions } from './close.mjs';
import type { Exchange, FetchOptions, Handlers } from './exchange.mjs';
import { type Incoming, NodeExchange } from './node-exchange.mjs';
import { guarded } from './refusal.mjs';
import type {
  Message,
  RequestId,
  ScopeChallengeResolver,
  Sdk,
  SendOptions,
  StockClass,
  StockTransport,
  TransportOptions,
} from './sdk.mjs';
import { checkGiven, only, optionsOf } from './sdk-options.mjs';
import { isStock } from './seam.mjs';
import { SessionServer } from './session-server.mjs';
import type { OwnOptions } from './transport-options.mjs';
import { WebExchange } from './web-exchange.mjs';
import { canCall, isWrapped, pass, StockView, taken } from './wrappers.mjs';

/** What our transports take beside what the SDKs' take. */
export interface Closing {
  /** Closes the connection of a request's stream without terminating the stream. */
  closeSSEStream(requestId: RequestId, options?: CloseOptions): void;
  /** Closes the connection of the standalone stream without terminating the stream. */
  closeStandaloneSSEStream(options?: CloseOptions): void;
}

/** Any class: under a user's flags an SDK's is not what ours asks of one. */
type AnyClass = new (...args: never[]) => object;

/** An SDK's class on our engine; `Made` is what it makes. */
export type Resumable<Stock extends AnyClass, Made = InstanceType<Stock> & Closing> = new (
  options?: ConstructorParameters<Stock>[0] & OwnOptions,
) => Made;

/** Serves an exchange that is made already. */
export const SERVE = Symbol('tailrope.serve');
/** Goes on with a session of another process. */
export const ADOPT = Symbol('tailrope.adopt');
/** How the connection is closed that is closed next. */
const PAUSES = Symbol('tailrope.pauses');

/** What routers ask of our transports. */
export interface Ours extends StockTransport {
  [SERVE](exchange: Exchange): Promise<void>;
  [ADOPT](adoption: Adoption): Promise<void>;
}

/** What transports of node:http ask of the one inside. */
interface Inner extends Ours {
  [PAUSES]: CloseOptions | undefined;
}

/** What the SDKs keep to themselves. */
interface Hidden {
  validateRequestHeaders?(request: Request): unknown;
  handlePostRequest?(request: Request, options?: FetchOptions): unknown;
}

type InnerClass = new (options?: TransportOptions) => Inner;

/** Hands an exchange to `handleRequest` of a transport, around which others may have put something. */
function handOver(transport: StockTransport, exchange: Exchange, passed: Exchange): Promise<void> {
  const handle = (...args: unknown[]) => transport.handleRequest(...args);
  return pass(passed, transport, () =>
    exchange.handTo({ fetch: handle as Handlers['fetch'], node: handle as Handlers['node'] }),
  );
}

/**
 * Makes a subclass of an SDK's transport for the web platform, whose sessions are served on the engine. Without
 * `sessionIdGenerator` (stateless mode) it is the SDK's class: there is nothing to resume.
 *
 * `sdk` is what differs between the SDK lines.
 */
function resumable(Stock: StockClass, sdk: Sdk): InnerClass {
  const Base = Stock as new (options?: TransportOptions) => StockTransport & Hidden;

  class ResumableTransport extends Base implements Closing, Inner {
    #sessions: SessionServer | undefined;
    #view: StockView | undefined;
    /** Says for a moment that it is a POST. */
    #posted: Request | undefined;
    [PAUSES]: CloseOptions | undefined;

    constructor(options: TransportOptions = {}) {
      checkGiven(options, optionsOf(Stock), 'a transport');
      super(only(options, optionsOf(Stock)));
      if (options.sessionIdGenerator !== undefined && !isStock(sdk)) {
        this.#sessions = new SessionServer(this, sdk, options, options.sessionIdGenerator);
      }
    }

    override async start(): Promise<void> {
      this.#sessions?.connected();
      return super.start();
    }

    override setSupportedProtocolVersions(versions: string[]): void {
      super.setSupportedProtocolVersions?.(versions);
      this.#sessions?.setVersions(versions);
    }

    override setScopeChallengeResolver(resolver: ScopeChallengeResolver): void {
      super.setScopeChallengeResolver?.(resolver);
      this.#sessions?.setScopeChallengeResolver(resolver);
    }

    override async handleRequest(...args: unknown[]): Promise<unknown> {
      const sessions = this.#sessions;
      if (sessions === undefined) {
        return super.handleRequest(...args);
      }
      const [request, options] = args as [Request, FetchOptions?];
      const exchange = this.#taken(request, options);
      // The SDK's own answers at once where the transport is closed. The session may live elsewhere.
      const isPassed = isWrapped(Stock, 'handleRequest') && !sessions.isClosed && canCall(this, Stock);
      return isPassed
        ? pass(exchange, this, () => super.handleRequest(...args), request)
        : this.#answer(sessions, exchange);
    }

    /** What was passed to this transport, as it arrives. */
    #taken(request: Request, options?: FetchOptions): Exchange {
      const passed = taken(this);
      passed?.exchange.handedOn(request, options, passed.request);
      return passed?.exchange ?? new WebExchange(request, options);
    }

    /** The SDK's `handleRequest` asks this first. What it is told beside a request, it tells only what serves a POST. */
    override validateRequestHeaders(request: Request): unknown {
      if (this.#sessions === undefined) {
        return super.validateRequestHeaders?.(request);
      }
      if (request.method === 'POST') {
        return undefined;
      }
      const posted = { value: 'POST', configurable: true };
      if (Object.hasOwn(request, 'method') || !Reflect.defineProperty(request, 'method', posted)) {
        return this.#answer(this.#sessions, taken(this)?.exchange ?? new WebExchange(request));
      }
      this.#posted = request;
      return undefined;
    }

    override handlePostRequest(request: Request, options?: FetchOptions): unknown {
      const sessions = this.#sessions;
      if (sessions === undefined) {
        return super.handlePostRequest?.(request, options);
      }
      if (request === this.#posted) {
        this.#posted = undefined;
        Reflect.deleteProperty(request, 'method');
      }
      return this.#answer(sessions, this.#taken(request, options));
    }

    async #answer(sessions: SessionServer, exchange: Exchange): Promise<Response> {
      if (exchange instanceof WebExchange) {
        return exchange.answeredBy((exchange) => sessions.serve(exchange));
      }
      await sessions.serve(exchange);
      return exchange instanceof NodeExchange ? exchange.sent() : new Response();
    }

    [SERVE](exchange: Exchange): Promise<void> {
      const sessions =
        this.handleRequest === pristine && !isWrapped(Stock, 'handleRequest') ? this.#sessions : undefined;
      return sessions === undefined ? this.#serveWrapped(exchange) : sessions.serve(exchange);
    }

    async #serveWrapped(exchange: Exchange): Promise<void> {
      if (exchange instanceof WebExchange) {
        return handOver(this, exchange, exchange.again());
      }
      // Its session was opened through the other face of its router.
      const { auth: authInfo, parsedBody } = exchange;
      const request = exchange.webRequest();
      await pass(exchange, this, () => this.handleRequest(request, { authInfo, parsedBody }), request);
    }

    async [ADOPT](adoption: Adoption): Promise<void> {
      await this.#sessions?.adopt(adoption);
    }

    override send(message: Message, options?: SendOptions): Promise<void> {
      if (this.#sessions === undefined || this.#viewFor('send') !== undefined) {
        return super.send(message, options);
      }
      return this.#sessions.send(message, options);
    }

    /** For a method of the SDK's class that is called because there is something around it. */
    #viewFor(name: 'send' | 'closeSSEStream' | 'closeStandaloneSSEStream'): StockView | undefined {
      if (this.#sessions !== undefined && isWrapped(Stock, name) && canCall(this, Stock)) {
        this.#view ??= new StockView(this, this.#sessions);
        return this.#view;
      }
      return undefined;
    }

    override closeSSEStream(requestId: RequestId, options = this[PAUSES]): boolean | void {
      const view = this.#viewFor('closeSSEStream');
      if (view !== undefined) {
        return view.closing(options, () => super.closeSSEStream(requestId));
      }
      return this.#sessions?.closeConnection(requestId, options) ?? super.closeSSEStream(requestId);
    }

    override closeStandaloneSSEStream(options = this[PAUSES]): boolean | void {
      const view = this.#viewFor('closeStandaloneSSEStream');
      if (view !== undefined) {
        return view.closing(options, () => super.closeStandaloneSSEStream());
      }
      return this.#sessions?.closeStandalone(options) ?? super.closeStandaloneSSEStream();
    }

    override async close(): Promise<void> {
      this.#sessions?.close();
      // Also where the engine serves: the SDK's class calls `onclose`, once.
      return super.close();
    }
  }
  const pristine = ResumableTransport.prototype.handleRequest;
  return ResumableTransport;
}

/** For the SDKs' web-standard transports. */
export function resumableWeb<Stock extends StockClass>(Stock: Stock, sdk: Sdk): Resumable<Stock> {
  return resumable(Stock, sdk) as unknown as Resumable<Stock>;
}

/** For the SDKs' transports of node:http, which are ones for the web platform with something around them: ours have ours inside. */
export function resumableNode<Stock extends StockClass>(Stock: Stock, sdk: Sdk): Resumable<Stock> {
  const Base: StockClass = Stock;
  const Web = resumable(sdk.WebStock, sdk);

  class ResumableTransport extends Base implements Closing, Ours {
    #web: Inner | undefined;
    declare _webStandardTransport: StockTransport;

    constructor(options: TransportOptions = {}) {
      checkGiven(options, optionsOf(Base), 'a transport');
      super(only(options, optionsOf(Base)));
      if (options.sessionIdGenerator !== undefined && !isStock(sdk)) {
        this.#web = new Web(options);
        this._webStandardTransport = this.#web;
      }
    }

    override get sessionId(): string | undefined {
      return this._webStandardTransport.sessionId;
    }

    override set sessionId(value: string | undefined) {
      this._webStandardTransport.sessionId = value;
    }

    override handleRequest(...args: unknown[]): Promise<void> {
      const [req, res, parsedBody] = args as [Incoming, ServerResponse, unknown?];
      const passed = taken(this)?.exchange;
      const exchange = passed instanceof NodeExchange ? passed : new NodeExchange(req, res, parsedBody);
      if (exchange === passed) {
        exchange.handedOnBy(req, res, parsedBody);
      }
      if (this.#web !== undefined && !isAround()) {
        return this.#web[SERVE](exchange);
      }
      const onerror = (error: Error) => this.onerror?.(error);
      return guarded(exchange, sdk.major, onerror, async () => {
        await pass(exchange, this._webStandardTransport, () => super.handleRequest(...args));
      });
    }

    [SERVE](exchange: Exchange): Promise<void> {
      const isDirect = exchange.face === 'fetch' || (this.handleRequest === pristine && !isAround());
      return this.#web !== undefined && isDirect ? this.#web[SERVE](exchange) : handOver(this, exchange, exchange);
    }

    async [ADOPT](adoption: Adoption): Promise<void> {
      await this.#web?.[ADOPT](adoption);
    }

    override closeSSEStream(requestId: RequestId, options?: CloseOptions): boolean | void {
      return this.#closing('closeSSEStream', options, requestId);
    }

    override closeStandaloneSSEStream(options?: CloseOptions): boolean | void {
      return this.#closing('closeStandaloneSSEStream', options);
    }

    #closing(name: keyof Closing, options: CloseOptions | undefined, ...of: [RequestId?]): boolean | void {
      const web = this.#web;
      const close = () =>
        name === 'closeSSEStream' ? super.closeSSEStream(of[0] ?? 0) : super.closeStandaloneSSEStream();
      if (web === undefined) {
        return close();
      }
      web[PAUSES] = options;
      try {
        return isWrapped(Base, name)
          ? close()
          : name === 'closeSSEStream'
            ? web.closeSSEStream(of[0] ?? 0)
            : web.closeStandaloneSSEStream();
      } finally {
        web[PAUSES] = undefined;
      }
    }
  }
  const pristine = ResumableTransport.prototype.handleRequest;
  const isAround = () => isWrapped(Base, 'handleRequest') || isWrapped(sdk.WebStock, 'handleRequest');
  return ResumableTransport as unknown as Resumable<Stock>;
}
