import {
  type EventStore as SdkEventStore,
  StreamableHTTPServerTransport as Stock,
} from '@modelcontextprotocol/sdk/server/streamableHttp.js';
import type { JSONRPCMessage, RequestId } from '@modelcontextprotocol/sdk/types.js';

import type { CloseOptions, EngineOptions } from './runtime.mjs';

export { drain, setLog, stats } from './runtime.mjs';
export type { CloseOptions, EngineOptions, LogLevel } from './runtime.mjs';

/**
 * The SDK's class on Tailrope's engine: same options, same methods. With a `sessionIdGenerator` its sessions
 * are resumable, also without an `eventStore`; without one (stateless mode) it is the SDK's class.
 */
export class StreamableHTTPServerTransport extends Stock {
  /** Closes the connection of a request's stream without terminating the stream. */
  closeSSEStream(requestId: RequestId, options?: CloseOptions): void;
  /** Closes the connection of the standalone stream without terminating the stream. */
  closeStandaloneSSEStream(options?: CloseOptions): void;
}

/**
 * A bounded event store with an engine, and so bounds, of its own, to be passed as `eventStore`. One store
 * may serve all sessions of a server.
 */
export class EventStore implements SdkEventStore {
  /** `store` is the address of the store: `memory:`. */
  constructor(store?: 'memory:', options?: EngineOptions);
  /** Rejects: only Tailrope's transports are served. */
  storeEvent(streamId: string, message: JSONRPCMessage): Promise<string>;
  /** Rejects: only Tailrope's transports are served. */
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
