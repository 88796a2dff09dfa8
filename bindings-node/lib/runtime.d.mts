import type { IncomingMessage, ServerResponse } from 'node:http';

/** What can be set on an event store. What is not named keeps its default. */
export interface StoreOptions {
  /** Events kept for one stream. Default 10,000. */
  maxEventsPerStream?: number;
  /** Bytes kept for one stream. Default 8 MiB. */
  maxBytesPerStream?: number;
  /** Bytes kept for one session. Default 64 MiB. */
  maxBytesPerSession?: number;
  /** Bytes kept in all. Default 512 MiB. */
  maxBytes?: number;
  /** A larger event is not kept: a notification throws, a response is sent once. Default 64 MiB. */
  maxEventBytes?: number;
  /** How long a finished stream stays readable. Default 600,000 (10 minutes). */
  retentionMs?: number;
  /** Events older than this are trimmed when their stream is written again. Default 3,600,000 (1 hour). */
  maxAgeMs?: number;
  /**
   * What a durable store promises of an event that is stored: it survives the end of the process (`process`, the
   * default), or also a power failure (`power`), for which every commit waits for the disk.
   */
  durability?: 'process' | 'power';
  /**
   * Payloads are encrypted at rest with the first of these keys and read with any: 64 hexadecimal digits each, as
   * `openssl rand -hex 32` writes them.
   */
  encryptionKeys?: string[];
  /**
   * A process that has given no sign of life for so long counts as gone: the requests that it ran get their error
   * from whoever serves their readers. Default 10,000.
   */
  ownerLostMs?: number;
}

/**
 * An open event store. Engines of its thread may share it; workers open their own. Nothing has to be closed: it
 * goes with the last that uses it.
 */
export interface Store {
  /** Where it is, without user, password and settings. */
  readonly address: string;
  toJSON(): { address: string };
}

/**
 * Opens an event store: `memory:`, `sqlite:PATH` for a file that the processes of one machine share and that survives
 * them, `redis://...` or `postgres://...` for processes of any machine. Resolves when the store can be used, which may
 * take some seconds on a network; other work of this thread goes on meanwhile.
 *
 * @throws (rejects with) an `Error` with code `store_not_opened` that says what was tried, or `invalid_argument` for an
 * unknown option or a value out of range. Neither shows what is secret in an address.
 */
export function openStore(address: string, options?: StoreOptions): Promise<Store>;

/**
 * Names the user who sends a request; a session is found by its own user alone. `undefined` leaves it to what
 * authentication and credentials say: docs/security.md.
 */
export type Principal = (request: IncomingMessage | Request) => string | null | undefined;

/** What `createSessionRouter` of an SDK line makes; `AuthInfo` is the SDK's. */
export interface RouterOf<S, AuthInfo> {
  /** Serves node:http, express (`app.all('/mcp', router.node)`), fastify; `parsedBody` is what a parser has made. */
  node(req: IncomingMessage & { auth?: AuthInfo }, res: ServerResponse, parsedBody?: unknown): Promise<void>;
  /** Serves the web platform: Hono, and frameworks like it. */
  fetch(request: Request, options?: { authInfo?: AuthInfo; parsedBody?: unknown }): Promise<Response>;
  /** The servers of the sessions that are open here. */
  servers(): S[];
  /** Ends the sessions that are open here; after `drain()` their clients go on at another process. */
  close(): Promise<void>;
}

export interface PrincipalOption {
  /** Names users; what `configure()` was given serves transports that have none. */
  principal?: Principal;
}

/**
 * Options of an engine, and of its store where that is opened with it. What is not named keeps its default. Durations
 * are in milliseconds, sizes in bytes.
 */
export interface EngineOptions extends StoreOptions {
  /** Names users, for transports that name none of their own. Default none. */
  principal?: Principal;
  /**
   * How long a connection may be silent before a comment is written; a transport's `keepAliveMs` wins. 0 switches it off.
   * Default 15,000.
   */
  keepAliveMs?: number;
  /** How long a client waits before it comes back; a transport's `retryInterval` wins. Default 3,000. */
  retryMs?: number;
  /**
   * The engine closes a connection at this age; the client resumes. One whose reader has taken nothing for so long is
   * cut. 0 (the default) switches it off.
   */
  maxConnectionMs?: number;
  /** The engine closes a connection that carried this much; the client resumes. 0 (the default) switches it off. */
  maxConnectionBytes?: number;
  /** A larger event is logged as a warning: clients with small buffers drop it. Default 1 MiB. */
  warnEventBytes?: number;
  /** Sessions open at once. Default 10,000. */
  maxSessions?: number;
  /** A session that nothing holds for so long is closed. 0 switches it off. Default 1,800,000 (30 minutes). */
  sessionIdleMs?: number;
  /** How long requests may run without any contact to their client. Default 3,600,000 (1 hour). */
  maxDetachedMs?: number;
  /** How long a resumed connection waits for a store that cannot be read. Default 10,000. */
  storeWaitMs?: number;
  /** How long a store may take for an operation before it counts as failed. Default 30,000. */
  storeTimeoutMs?: number;
}

export interface ConfigureOptions extends EngineOptions {
  /**
   * The store of transports that name no event store: one that is open, which has its own `StoreOptions` already, or
   * the address `memory:` (the default) or `sqlite:PATH`.
   */
  store?: string | Store;
  /**
   * What to do under an SDK that Tailrope does not fit under: leave its own transports in place, with one error in the
   * log, or throw an `Error` with code `unsupported_sdk`. Default `stock`.
   */
  onUnsupported?: 'stock' | 'raise';
}

/**
 * Sets the options of this thread's engines: of the shared one, which serves transports that name no event store,
 * and of those over users' own event stores. To be called before the transports are made; called again, it
 * replaces the options for new ones. Throws what `openStore` rejects with, and then changes nothing.
 */
export function configure(options: ConfigureOptions): void;

export interface CloseOptions {
  /** How long the stream's clients wait before they come back, now and on later closes, in milliseconds. */
  retryMs?: number;
  /** A resumed connection is closed again after this time, in milliseconds. 0 is pure polling. */
  holdMs?: number;
}

export type LogLevel = 'error' | 'warn' | 'info' | 'debug';

/**
 * What Tailrope did and holds on this thread, by name. Counts of the present: `sessions`, `connections`,
 * `streams`, `events`, `bytes`. Everything else counts since the start.
 */
export function stats(): Record<string, number>;

/** What is in force on this thread. */
export interface Status {
  /** Of Tailrope. */
  version: string;
  /** The SDKs that it serves under, with their versions where these can be read. */
  sdk: string[];
  /** TAILROPE_DISABLE is set: everything is stock. */
  isDisabled: boolean;
  /** Whose transport serves sessions; null while everything is stock, also under SDKs that Tailrope does not fit under. */
  transport: 'tailrope' | null;
  /** The address of the store of transports that name no event store, without user, password and options. */
  store: string | null;
  /** Whether every `createResumableMcpHandler` steers its clients to a revision that can resume; null without any. */
  preferResumable: boolean | null;
  /** What single servers have of their own: the stores of each `EventStore` that is in use. */
  servers: { store: string }[];
  /** What is unusual, and what it means. */
  notices: string[];
}

/** What is in force on this thread. `configure()` logs the same at `info`. */
export function status(): Status;

/**
 * Closes every connection because the process is going away. Each ends with an id and a `retry`, so that
 * its client comes back after the restart; what connects meanwhile gets its priming event and ends as well.
 * Resolves to whether all of them ended within `budgetMs` (default 1,000). `retryMs` is what the restart
 * takes; default 5,000.
 */
export function drain(options?: { retryMs?: number; budgetMs?: number }): Promise<boolean>;

/**
 * Sends the engines' log lines of this thread to `sink`, down to `level` (default `info`). Without a sink, errors
 * and warnings go to stderr. Payloads are never logged.
 */
export function setLog(sink: (level: LogLevel, line: string) => void, level?: LogLevel): void;
