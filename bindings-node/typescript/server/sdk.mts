// What the files that serve every SDK line need of one, without a package of either.
import type { IncomingMessage, ServerResponse } from 'node:http';

import type { Refusal } from '../native.mjs';
import type { HostStore } from '../store/user-store.mjs';
import type { CloseOptions } from './close.mjs';
import type { Exchange, FetchOptions, SeenRequest } from './exchange.mjs';
import type { FrontDoor, frontDoor } from './front-door.mjs';
import type { Seam } from './seam.mjs';
import type { OwnOptions } from './transport-options.mjs';

export type RequestId = string | number;

/** A JSON-RPC message of any kind. */
export interface Message {
  jsonrpc: '2.0';
  id?: RequestId | undefined;
  method?: string | undefined;
}

export interface RequestMessage extends Message {
  id: RequestId;
  method: string;
}

export function isRequest(message: Message): message is RequestMessage {
  return message.method !== undefined && message.id !== undefined;
}

/** What the SDK is told beside a message. */
export interface Extra {
  authInfo?: unknown;
  request?: Request;
  requestInfo?: unknown;
  closeSSEStream?: (options?: CloseOptions) => boolean | void;
  closeStandaloneSSEStream?: (options?: CloseOptions) => boolean | void;
}

export interface SendOptions {
  relatedRequestId?: RequestId | undefined;
}

/** The options of the SDKs' transports, and ours. */
export interface TransportOptions extends OwnOptions {
  sessionIdGenerator?: (() => string) | undefined;
  onsessioninitialized?: ((sessionId: string) => void | Promise<void>) | undefined;
  onsessionclosed?: ((sessionId: string) => void | Promise<void>) | undefined;
  enableJsonResponse?: boolean;
  eventStore?: HostStore;
  allowedHosts?: string[];
  allowedOrigins?: string[];
  enableDnsRebindingProtection?: boolean;
  retryInterval?: number;
  keepAliveMs?: number;
  maxRequestBodySize?: number;
  supportedProtocolVersions?: string[];
  [frontDoor]?: FrontDoor | undefined;
}

/** What a session needs of the transport that it belongs to. */
export interface Transport {
  sessionId?: string | undefined;
  onclose?: (() => void) | undefined;
  onerror?: ((error: Error) => void) | undefined;
  // A method, so that each SDK's own types of messages fit.
  onmessage?(message: Message, extra?: Extra): unknown;
  close(): Promise<void>;
  // Ours take options, and say whether they closed.
  closeSSEStream(requestId: RequestId, options?: CloseOptions): boolean | void;
  closeStandaloneSSEStream(options?: CloseOptions): boolean | void;
}

/** An SDK's own transport. */
export interface StockTransport extends Transport {
  start(): Promise<void>;
  handleRequest(...args: unknown[]): Promise<unknown>;
  send(message: Message, options?: SendOptions): Promise<void>;
  setSupportedProtocolVersions?(versions: string[]): void;
  setScopeChallengeResolver?(resolver: ScopeChallengeResolver): void;
}

/** The class of an SDK's own transports. */
export type StockClass = new (options?: TransportOptions) => StockTransport;

/** The scopes that a request needs and has not. */
export interface ScopeChallenge {
  scopes: readonly [string, ...string[]];
  errorDescription?: string;
}

export type ScopeChallengeResolver = (context: {
  request: RequestMessage;
  authInfo?: unknown;
}) => ScopeChallenge | undefined | Promise<ScopeChallenge | undefined>;

/** A server of an SDK's. */
export interface Server {
  connect(transport: StockTransport): Promise<void>;
  close(): Promise<void>;
}

/** What is used of one SDK line. */
export interface Sdk<Context = unknown> {
  readonly seam: Seam;
  readonly major: number;
  readonly WebStock: StockClass;
  /** The revisions that it serves. */
  readonly versions: string[];
  /** Throws for what is no message. */
  parseMessage(value: unknown): Message;
  isInitializeRequest(value: unknown): boolean;
  /** What the function that makes a server is told of the request. */
  context(exchange: Exchange): Context;
  extra(request: SeenRequest): Extra;
  /** What `onerror` gets for a body that is not taken, where that is not the refusal's message. */
  bodyError?(refusal: Refusal, body: unknown): unknown;
  scopeChallengeResponse?(challenge: ScopeChallenge, authInfo: unknown): Response;
}

/** Serves the web platform. */
export interface FetchHandler {
  fetch(request: Request, options?: FetchOptions): Promise<Response>;
}

export type NodeHandler = (req: IncomingMessage, res: ServerResponse, parsedBody?: unknown) => Promise<void>;

export interface NodeHandlerOptions {
  onerror?: ((error: Error) => void) | undefined;
  maxRequestBodySize?: number | undefined;
}

/** An SDK line that has a handler for the web platform. */
export interface HandlingSdk<Context = unknown> extends Sdk<Context> {
  /** Serves node:http with what serves the web platform. */
  nodeHandler(handler: FetchHandler, options?: NodeHandlerOptions): NodeHandler;
}
