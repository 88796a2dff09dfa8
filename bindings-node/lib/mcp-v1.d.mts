import {
  type EventStore as SdkEventStore,
  StreamableHTTPServerTransport as NodeStock,
} from '@modelcontextprotocol/sdk/server/streamableHttp.js';
import {
  WebStandardStreamableHTTPServerTransport as WebStock,
  type WebStandardStreamableHTTPServerTransportOptions,
} from '@modelcontextprotocol/sdk/server/webStandardStreamableHttp.js';
import type { AuthInfo } from '@modelcontextprotocol/sdk/server/auth/types.js';
import type { Transport } from '@modelcontextprotocol/sdk/shared/transport.js';
import type { JSONRPCMessage, RequestId, RequestInfo } from '@modelcontextprotocol/sdk/types.js';

import type { IncomingMessage, ServerResponse } from 'node:http';

import type { CloseOptions, EngineOptions, PrincipalOption, RouterOf, Store } from './runtime.mjs';

export { configure, drain, openStore, setLog, stats, status } from './runtime.mjs';
export type { CloseOptions, ConfigureOptions, EngineOptions, LogLevel, Principal, Status, Store, StoreOptions } from './runtime.mjs';

/**
 * The SDK's class on Tailrope's engine: same options, same methods. With a `sessionIdGenerator` its sessions
 * are resumable, also without an `eventStore`; without one (stateless mode) it is the SDK's class.
 */
export class StreamableHTTPServerTransport extends NodeStock {
  constructor(options?: ConstructorParameters<typeof NodeStock>[0] & PrincipalOption);
  /** Closes the connection of a request's stream without terminating the stream. */
  closeSSEStream(requestId: RequestId, options?: CloseOptions): void;
  /** Closes the connection of the standalone stream without terminating the stream. */
  closeStandaloneSSEStream(options?: CloseOptions): void;
}

/** The same for the web platform (`Request` to `Response`): Hono, and frameworks like it, on Node. */
export class WebStandardStreamableHTTPServerTransport extends WebStock {
  constructor(options?: ConstructorParameters<typeof WebStock>[0] & PrincipalOption);
  /** Closes the connection of a request's stream without terminating the stream. */
  closeSSEStream(requestId: RequestId, options?: CloseOptions): void;
  /** Closes the connection of the standalone stream without terminating the stream. */
  closeStandaloneSSEStream(options?: CloseOptions): void;
}

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

/** The options of the transports, which each of the router's sessions gets. */
export interface SessionRouterOptions extends WebStandardStreamableHTTPServerTransportOptions, PrincipalOption {
  /** Gets what was refused, and what failed. */
  onerror?: (error: Error) => void;
}

export type SessionRouter<S> = RouterOf<S, AuthInfo>;

/**
 * Routes an endpoint's requests to its sessions, in the place of a map of transports by session id. `makeServer` makes the
 * server of each session, when its client opens it. Sessions of other processes are served from an event store that
 * outlives processes. Where `makeServer` or `connect` fails the request is answered with 500, and `onerror` gets the error.
 */
export function createSessionRouter<S extends ServerOfSession>(
  makeServer: (context: OpeningContext) => S | Promise<S>,
  options?: SessionRouterOptions,
): SessionRouter<S>;

/** The options of the transports: those that count are the ones about GETs. */
export interface StoredSessionOptions extends WebStandardStreamableHTTPServerTransportOptions, PrincipalOption {
  /** Gets what was refused, and why a store could not tell. */
  onerror?: (error: Error) => void;
}

/**
 * For routers of your own: serves a GET of a session that no transport here has from the
 * event store, where that outlives processes. The session may live in another process, or have lived in one. Resolves
 * to true when the answer is handed over, and to false, with nothing answered, when the session is not known or
 * belongs to somebody else: answer as for any unknown session. Other requests than GETs are never served.
 */
export function serveStoredSession(
  req: IncomingMessage & { auth?: AuthInfo },
  res: ServerResponse,
  options?: StoredSessionOptions,
): Promise<boolean>;

/** The same for the web platform: resolves to the response, or to nothing. */
export function fetchStoredSession(
  request: Request,
  options?: StoredSessionOptions & { authInfo?: AuthInfo },
): Promise<Response | undefined>;

/** What an SDK's own transport asks of a store. */
export interface ScopedEventStore extends SdkEventStore {
  storeEvent(streamId: string, message: JSONRPCMessage): Promise<string>;
  getStreamIdForEventId(eventId: string): Promise<string | undefined>;
  /** Rejects when the event was dropped, or never was. */
  replayEventsAfter(
    lastEventId: string,
    sender: { send: (eventId: string, message: JSONRPCMessage) => Promise<void> },
  ): Promise<string>;
  /** Forgets everything of the session, when it has ended. */
  drop(): void;
}

/**
 * A bounded event store with an engine, and so bounds, of its own, to be passed as `eventStore`. One store
 * may serve all sessions of a server. Where the SDK's own transport serves, it keeps that transport's events,
 * within what that transport can do.
 */
export class EventStore implements SdkEventStore {
  /**
   * `store` is one that is open, which has its own `StoreOptions` already, or the address `memory:` (the default) or
   * `sqlite:PATH`. Throws what `openStore` rejects with.
   */
  constructor(store?: string | Store, options?: EngineOptions);
  storeEvent(streamId: string, message: JSONRPCMessage): Promise<string>;
  getStreamIdForEventId(eventId: string): Promise<string | undefined>;
  /** Rejects when the event was dropped, or never was. */
  replayEventsAfter(
    lastEventId: string,
    sender: { send: (eventId: string, message: JSONRPCMessage) => Promise<void> },
  ): Promise<string>;
  /**
   * The part of this store that belongs to one session, for a transport of the SDK's own, which does not say whose
   * events it asks for: ids of other sessions mean nothing there. Tailrope's transports need no such thing.
   */
  scoped(sessionId: string): ScopedEventStore;
}

/**
 * Closes the connection that carries this request's stream, from a handler; the request runs on and the client
 * comes back. The same as `extra.closeSSEStream()`, with options. Returns false where nothing can be resumed.
 */
export function closeSSEStream(
  extra: { closeSSEStream?: () => void; closeStandaloneSSEStream?: () => void },
  options?: CloseOptions,
): boolean;

/** Closes the connection of the session's standalone stream, likewise. */
export function closeStandaloneSSEStream(
  extra: { closeSSEStream?: () => void; closeStandaloneSSEStream?: () => void },
  options?: CloseOptions,
): boolean;
