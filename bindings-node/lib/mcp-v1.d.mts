import {
  type EventStore as SdkEventStore,
  StreamableHTTPServerTransport as NodeStock,
} from '@modelcontextprotocol/sdk/server/streamableHttp.js';
import { WebStandardStreamableHTTPServerTransport as WebStock } from '@modelcontextprotocol/sdk/server/webStandardStreamableHttp.js';
import type { JSONRPCMessage, RequestId } from '@modelcontextprotocol/sdk/types.js';

import type { CloseOptions, EngineOptions } from './runtime.mjs';

export { configure, drain, setLog, stats } from './runtime.mjs';
export type { CloseOptions, EngineOptions, LogLevel } from './runtime.mjs';

/**
 * The SDK's class on Tailrope's engine: same options, same methods. With a `sessionIdGenerator` its sessions
 * are resumable, also without an `eventStore`; without one (stateless mode) it is the SDK's class.
 */
export class StreamableHTTPServerTransport extends NodeStock {
  /** Closes the connection of a request's stream without terminating the stream. */
  closeSSEStream(requestId: RequestId, options?: CloseOptions): void;
  /** Closes the connection of the standalone stream without terminating the stream. */
  closeStandaloneSSEStream(options?: CloseOptions): void;
}

/** The same for the web platform (`Request` to `Response`): Hono, and frameworks like it, on Node. */
export class WebStandardStreamableHTTPServerTransport extends WebStock {
  /** Closes the connection of a request's stream without terminating the stream. */
  closeSSEStream(requestId: RequestId, options?: CloseOptions): void;
  /** Closes the connection of the standalone stream without terminating the stream. */
  closeStandaloneSSEStream(options?: CloseOptions): void;
}

/**
 * A bounded event store with an engine, and so bounds, of its own, to be passed as `eventStore`. One store
 * may serve all sessions of a server. Where the SDK's own transport serves, it keeps that transport's events,
 * within what that transport can do.
 */
export class EventStore implements SdkEventStore {
  /** `store` is the address of the store: `memory:`. */
  constructor(store?: 'memory:', options?: EngineOptions);
  storeEvent(streamId: string, message: JSONRPCMessage): Promise<string>;
  getStreamIdForEventId(eventId: string): Promise<string | undefined>;
  /** Rejects when the event was dropped, or never was. */
  replayEventsAfter(
    lastEventId: string,
    sender: { send: (eventId: string, message: JSONRPCMessage) => Promise<void> },
  ): Promise<string>;
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
