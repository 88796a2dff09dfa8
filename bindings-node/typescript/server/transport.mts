// The transports that take the place of the SDKs' classes, for both SDK lines.
import type { IncomingMessage, ServerResponse } from 'node:http';
import { setImmediate } from 'node:timers';
import { callHost } from '../host.mjs';
import { Adoption } from './adoption.mjs';
import type { CloseOptions } from './close.mjs';
import type { Exchange, FetchOptions } from './exchange.mjs';
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
  WebSdk,
} from './sdk.mjs';
import { checkGiven, only, optionsOf } from './sdk-options.mjs';
import { isStock } from './seam.mjs';
import { SessionServer } from './session-server.mjs';
import type { OwnOptions } from './transport-options.mjs';
import { WebExchange } from './web-exchange.mjs';

/** What our transports take beside what the SDKs' take. */
export interface Closing {
  /** Closes the connection of a request's stream without terminating the stream. */
  closeSSEStream(requestId: RequestId, options?: CloseOptions): void;
  /** Closes the connection of the standalone stream without terminating the stream. */
  closeStandaloneSSEStream(options?: CloseOptions): void;
}

/** For node:http. `AuthInfo` is the SDK's. */
export interface NodeFace<AuthInfo> {
  handleRequest(req: IncomingMessage & { auth?: AuthInfo }, res: ServerResponse, parsedBody?: unknown): Promise<void>;
}

/** An SDK's class on our engine; `Made` is what it makes. */
export type Resumable<Stock extends StockClass, Made = InstanceType<Stock> & Closing> = new (
  options?: ConstructorParameters<Stock>[0] & OwnOptions,
) => Made;

/** What answers a request in the transport's place; what the arguments are is between it and its caller. */
type HandleRequest = StockTransport['handleRequest'];

/**
 * Makes a subclass of an SDK's transport whose sessions are served on the engine. Without
 * `sessionIdGenerator` (stateless mode) it is the SDK's class: there is nothing to resume.
 *
 * `sdk` is what differs between the SDK lines; `handle` answers one request, and what `stockHandler` makes one of
 * stateless mode.
 */
function resumable<Args extends unknown[]>(
  Stock: StockClass,
  sdk: Sdk,
  handle: (sessions: SessionServer, ...args: Args) => Promise<unknown>,
  stockHandler = (
    _transport: StockTransport,
    handleRequest: HandleRequest,
    _options: TransportOptions,
  ): HandleRequest => handleRequest,
): StockClass {
  return class ResumableTransport extends Stock implements Closing {
    #sessions: SessionServer | undefined;
    #stock: HandleRequest;

    constructor(options: TransportOptions = {}) {
      checkGiven(options, optionsOf(Stock), 'a transport');
      super(only(options, optionsOf(Stock)));
      this.#stock = stockHandler(this, (...args) => super.handleRequest(...args), options);
      if (options.sessionIdGenerator !== undefined && !isStock(sdk)) {
        this.#sessions = new SessionServer(this, sdk, options, options.sessionIdGenerator);
      }
    }

    override get sessionId(): string | undefined {
      return this.#sessions === undefined ? super.sessionId : this.#sessions.sessionId;
    }

    override set sessionId(value: string | undefined) {
      if (this.#sessions === undefined) {
        super.sessionId = value;
      } else {
        this.#sessions.sessionId = value;
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

    override handleRequest(...args: unknown[]): Promise<unknown> {
      return this.#sessions === undefined ? this.#stock(...args) : handle(this.#sessions, ...(args as Args));
    }

    override async send(message: Message, options?: SendOptions): Promise<void> {
      return this.#sessions === undefined ? super.send(message, options) : this.#sessions.send(message, options);
    }

    override closeSSEStream(requestId: RequestId, options?: CloseOptions): void {
      if (this.#sessions === undefined) {
        super.closeSSEStream(requestId);
      } else {
        this.#sessions.closeConnection(requestId, options);
      }
    }

    override closeStandaloneSSEStream(options?: CloseOptions): void {
      if (this.#sessions === undefined) {
        super.closeStandaloneSSEStream();
      } else {
        this.#sessions.closeStandalone(options);
      }
    }

    override async close(): Promise<void> {
      this.#sessions?.close();
      // Also where the engine serves: the SDK's class calls `onclose`, once.
      return super.close();
    }
  };
}

const serveNode = (sessions: SessionServer, req: Incoming, res: ServerResponse, parsedBody?: unknown) =>
  sessions.serve(new NodeExchange(req, res, parsedBody));

/** For the SDKs' transports of node:http. */
export function resumableNode<Stock extends StockClass>(Stock: Stock, sdk: Sdk): Resumable<Stock> {
  return resumable(Stock, sdk, serveNode) as Resumable<Stock>;
}

/** For node:http, where the SDK's class for that is in a package that need not be there. `AuthInfo` is the SDK's. */
export function resumableNodeOverWeb<Stock extends StockClass, AuthInfo>(
  Stock: Stock,
  sdk: WebSdk,
): Resumable<Stock, Omit<InstanceType<Stock>, 'handleRequest'> & Closing & NodeFace<AuthInfo>> {
  return resumable(Stock, sdk, serveNode, (transport, handleRequest, { maxRequestBodySize }) => {
    const onerror = (error: Error) => transport.onerror?.(error);
    return (...args) => {
      const [req, res, parsedBody] = args as Parameters<NodeFace<AuthInfo>['handleRequest']>;
      const fetch = async (request: Request, options?: FetchOptions) => {
        const response = (await handleRequest(request, options)) as Response;
        // The SDK's handler holds the head back until there is a body, which may be long after: its class does not.
        const flush = () => res.headersSent && !res.writableEnded && res.flushHeaders?.();
        setImmediate(callHost, flush, () => {});
        return response;
      };
      const serve = () => sdk.nodeHandler({ fetch }, { maxRequestBodySize, onerror })(req, res, parsedBody);
      return guarded(new NodeExchange(req, res, parsedBody), sdk.major, onerror, serve);
    };
  }) as unknown as Resumable<Stock, Omit<InstanceType<Stock>, 'handleRequest'> & Closing & NodeFace<AuthInfo>>;
}

/** For the SDKs' web-standard transports. */
export function resumableWeb<Stock extends StockClass>(Stock: Stock, sdk: Sdk): Resumable<Stock> {
  return resumable(Stock, sdk, (sessions, request: Request, options?: FetchOptions) => {
    return new WebExchange(request, options).answeredBy((exchange) => sessions.serve(exchange));
  }) as Resumable<Stock>;
}

/** For hosts that make the exchanges themselves, and adopt sessions; never stock. */
export function resumableExchange(Stock: StockClass, sdk: Sdk): StockClass {
  return resumable(Stock, sdk, (sessions, request: Exchange | Adoption) =>
    request instanceof Adoption ? sessions.adopt(request) : sessions.serve(request),
  );
}
