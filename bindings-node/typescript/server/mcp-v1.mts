// For @modelcontextprotocol/sdk 1.x.

import type { IncomingMessage, ServerResponse } from 'node:http';
import type { AuthInfo } from '@modelcontextprotocol/sdk/server/auth/types.js';
import type { StreamableHTTPServerTransport as NodeStock } from '@modelcontextprotocol/sdk/server/streamableHttp.js';
import type {
  WebStandardStreamableHTTPServerTransportOptions,
  WebStandardStreamableHTTPServerTransport as WebStock,
} from '@modelcontextprotocol/sdk/server/webStandardStreamableHttp.js';
import type { Transport } from '@modelcontextprotocol/sdk/shared/transport.js';
import type { JSONRPCMessage, RequestId, RequestInfo } from '@modelcontextprotocol/sdk/types.js';

import { EventStore as Events, type ScopedEventStore as ScopedEvents } from '../store/event-store.mjs';
import type { CloseOptions } from './close.mjs';
import {
  type AdoptingOptions,
  checkRouterOptions,
  SessionRouter as Router,
  type RouterOf,
  sessionRouter,
} from './router.mjs';
import { sdk } from './sdk-1.30-or-later.mjs';
import { type Serving, type ServingOptions, serving } from './serve.mjs';
import { storedSessionServers } from './stored-sessions.mjs';
import { type Resumable, resumableNode, resumableWeb } from './transport.mjs';
import type { OwnOptions } from './transport-options.mjs';

// Interfaces, and not intersections, of which subclasses could not override the methods.
interface OnNode extends NodeStock {
  /** Closes the connection of a request's stream without terminating the stream. */
  closeSSEStream(requestId: RequestId, options?: CloseOptions): void;
  /** Closes the connection of the standalone stream without terminating the stream. */
  closeStandaloneSSEStream(options?: CloseOptions): void;
}

interface OnWeb extends WebStock {
  /** Closes the connection of a request's stream without terminating the stream. */
  closeSSEStream(requestId: RequestId, options?: CloseOptions): void;
  /** Closes the connection of the standalone stream without terminating the stream. */
  closeStandaloneSSEStream(options?: CloseOptions): void;
}

// Named, so that the declarations name the SDK's modules as they are imported here.
const NodeTransport: Resumable<typeof NodeStock, OnNode> = resumableNode(sdk.NodeStock, sdk);
const WebTransport: Resumable<typeof WebStock, OnWeb> = resumableWeb(sdk.WebStock, sdk);

/**
 * The SDK's class on Tailrope's engine: same options, same methods. With a `sessionIdGenerator` its sessions
 * are resumable, also without an `eventStore`; without one (stateless mode) it is the SDK's class.
 */
export class StreamableHTTPServerTransport extends NodeTransport {}

/** The same for the web platform (`Request` to `Response`): Hono, and frameworks like it, on Node. */
export class WebStandardStreamableHTTPServerTransport extends WebTransport {}

const transports = { node: StreamableHTTPServerTransport, fetch: WebStandardStreamableHTTPServerTransport };

/** A server of the SDK's: `McpServer`, or the `Server` in it. */
export interface ServerOfSession {
  connect(transport: Transport): Promise<void>;
  close(): Promise<void>;
}

/** The request that opens a session. */
export interface OpeningContext {
  authInfo?: AuthInfo;
  requestInfo: RequestInfo;
}

/** The options of the transports, which each of the router's sessions gets, and those of the router. */
export interface SessionRouterOptions<S = ServerOfSession>
  extends WebStandardStreamableHTTPServerTransportOptions,
    OwnOptions,
    AdoptingOptions<S> {
  /** Gets what was refused, and what failed. */
  onerror?: (error: Error) => void;
}

export type SessionRouter<S> = RouterOf<S, AuthInfo>;

/**
 * Routes an endpoint's requests to its sessions, in the place of a map of transports by session id. `makeServer` makes the
 * server of each session, when its client opens it. Requests for sessions of other processes are served by an event
 * store that outlives processes. A session whose process is gone goes on where the next request for it comes, with a server
 * that `makeServer` makes there. Where `makeServer` or `connect` fails the request is answered with 500, or with 503 when the
 * session was to go on, and `onerror` gets the error.
 */
export const createSessionRouter: <S extends ServerOfSession>(
  makeServer: (context: OpeningContext) => S | Promise<S>,
  options?: SessionRouterOptions<S>,
) => SessionRouter<S> = sessionRouter(sdk, transports);

// biome-ignore lint/suspicious/noExplicitAny: callers name the type of their servers.
type AnyServer = any;

/** The options of `createSessionRouter`, and where it is served. */
export interface ServeOptions<S = ServerOfSession>
  extends SessionRouterOptions<S>,
    ServingOptions<(context: OpeningContext) => S | Promise<S>, AuthInfo> {}

/**
 * Listens on a port, and serves there what `createSessionRouter` serves, and your own `app` on all other paths. Rejects, with
 * the system's code (`EADDRINUSE`), where it cannot listen.
 */
export const serve: <S extends ServerOfSession>(options: ServeOptions<S>) => Promise<Serving> = serving({
  sdk,
  check: (options, of, ...more) => checkRouterOptions(sdk, options, of, ...more),
  endpoint: (makeServer: (context: OpeningContext) => AnyServer, options: SessionRouterOptions<AnyServer>) =>
    new Router(sdk, makeServer, options, transports),
});

/** The options of the transports: those that count are the ones about requests, not about new sessions. */
export interface StoredSessionOptions extends WebStandardStreamableHTTPServerTransportOptions, OwnOptions {
  /** Gets what was refused, and why a store could not tell. */
  onerror?: (error: Error) => void;
}

const stored = storedSessionServers(sdk);

/**
 * For routers of your own: serves a request for a session that no transport here has, where the event store outlives
 * processes. A GET is served from the store, whether the session lives in another process or has lived in one; what
 * else comes is relayed through the store to the process that has the session. `parsedBody` is what a parser has made.
 * Resolves to true when the answer is handed over, and to false, with nothing answered, when the session is not known or
 * belongs to somebody else: answer as for any unknown session.
 */
export const serveStoredSession: (
  req: IncomingMessage & { auth?: AuthInfo },
  res: ServerResponse,
  options?: StoredSessionOptions,
  parsedBody?: unknown,
) => Promise<boolean> = stored.serveStoredSession;

/** The same for the web platform: resolves to the response, or to nothing. */
export const fetchStoredSession: (
  request: Request,
  options?: StoredSessionOptions & { authInfo?: AuthInfo; parsedBody?: unknown },
) => Promise<Response | undefined> = stored.fetchStoredSession;

/** What an SDK's own transport asks of a store. */
export type ScopedEventStore = ScopedEvents<JSONRPCMessage>;

/**
 * A bounded event store with an engine, and so bounds, of its own, to be passed as `eventStore`. One store
 * may serve all sessions of a server. Where the SDK's own transport serves, it keeps that transport's events,
 * within what that transport can do.
 */
export type EventStore = Events<JSONRPCMessage>;
export const EventStore: typeof Events<JSONRPCMessage> = Events;

export * from '../index.mjs';
export type { AdoptedSession } from './adoption.mjs';
export type { App, FetchApp } from './app.mjs';
export type { AdoptingOptions } from './router.mjs';
export type { Authenticate, RequestHead, Serving, ServingOptions } from './serve.mjs';
