import type { CloseOptions, EngineOptions, Store } from './runtime.mjs';

export { configure, drain, openStore, setLog, stats, status } from './runtime.mjs';
export type { CloseOptions, ConfigureOptions, EngineOptions, LogLevel, Principal, Status, Store, StoreOptions } from './runtime.mjs';

/** What a handler gets from the SDKs: `extra` of 1.x, `ctx` of 2.x. */
export interface HandlerContext {
  http?: { closeSSE?: () => void; closeStandaloneSSE?: () => void };
  closeSSEStream?: () => void;
  closeStandaloneSSEStream?: () => void;
}

/** See `tailrope/mcp` and `tailrope/mcp-v1`, which have it typed by their SDK. */
export class EventStore {
  constructor(store?: string | Store, options?: EngineOptions);
  storeEvent(streamId: string, message: unknown): Promise<string>;
  getStreamIdForEventId(eventId: string): Promise<string | undefined>;
  replayEventsAfter(
    lastEventId: string,
    sender: { send: (eventId: string, message: any) => Promise<void> },
  ): Promise<string>;
  scoped(sessionId: string): {
    storeEvent(streamId: string, message: unknown): Promise<string>;
    getStreamIdForEventId(eventId: string): Promise<string | undefined>;
    replayEventsAfter(
      lastEventId: string,
      sender: { send: (eventId: string, message: any) => Promise<void> },
    ): Promise<string>;
    drop(): void;
  };
}

/**
 * Closes the connection that carries this request's stream, from a handler; the request runs on and the client
 * comes back. Returns false where nothing can be resumed.
 */
export function closeSSEStream(context: HandlerContext, options?: CloseOptions): boolean;

/** Closes the connection of the session's standalone stream, likewise. */
export function closeStandaloneSSEStream(context: HandlerContext, options?: CloseOptions): boolean;
