// The options of engines, as users give them.
import type { PaceOptions } from './pace.mjs';
import type { Principal } from './server/requester.mjs';
import type { Store, StoreOptions } from './store/open.mjs';

/**
 * Options of an engine, and of its store where that is opened with it. What is not named keeps its default. Durations
 * are in milliseconds, sizes in bytes.
 */
export interface EngineOptions extends StoreOptions {
  /** Names users, for transports that name none of their own. Default none. */
  principal?: Principal;
  /**
   * Names users in the log, for the records of calls, and on the live page: docs/operate/watching.md. Without it the log uses
   * the name that `principal` gives, if there is one. A name that holds a credential is left out. Default none.
   */
  logUser?: Principal;
  /** Every call that ends is logged, not only calls that end badly: docs/operate/watching.md. Default false. */
  logCalls?: boolean;
  /**
   * How long a connection may be silent before a comment is written; a transport's `keepAliveMs` wins. 0 switches it off.
   * Default 15,000.
   */
  keepAliveMs?: number;
  /**
   * How calls are paced, by the name of their tool. A name that ends in `*` stands for all that begin so; the most specific name
   * counts. Default none.
   */
  pace?: Record<string, PaceOptions>;
  /** How long a client waits before it comes back; a transport's `retryInterval` wins. Default 3,000. */
  retryMs?: number;
  /**
   * The engine closes a connection at this age, with jitter, and the client resumes; a connection whose reader takes nothing
   * for so long is cut. 0 switches it off. `auto`: where something else cuts connections at an age, they are closed shortly
   * before it; where it cuts silent ones, comments are written more often. Default `auto`.
   */
  maxConnectionMs?: number | 'auto';
  /** The engine closes a connection that carried this much; the client resumes. 0 (the default) switches it off. */
  maxConnectionBytes?: number;
  /** A larger event is logged as a warning: clients with small buffers drop it. Default 1 MiB. */
  warnEventBytes?: number;
  /**
   * Sessions open at once. For a further one the idlest session of the same user ends; where none is idle, it is refused with
   * status 503. Default 10,000.
   */
  maxSessions?: number;
  /**
   * Sessions of one user open at once, likewise. Requests without any credential have no user: only `maxSessions` bounds
   * theirs. Default 1,000.
   */
  maxSessionsPerPrincipal?: number;
  /** Requests of one session that may run at once; further ones are answered with status 429. Default 1,000. */
  maxRequestsPerSession?: number;
  /** A session that is idle for so long ends. 0 switches it off. Default 1,800,000 (30 minutes). */
  sessionIdleMs?: number;
  /** How long requests and tasks may run without any sign of their client. Default 3,600,000 (1 hour). */
  maxDetachedMs?: number;
  /**
   * How long `drain()` waits for connections to end, and for calls. After that a call gets an error, unless another process can
   * show its end. Default 5,000.
   */
  drainWithinMs?: number;
  /**
   * The clients whose connections a drain closes come back after this time, at the earliest. `auto`: `retryMs` if the store knows
   * other processes that live, otherwise 5,000, or `retryMs` if that is more. Default `auto`.
   */
  drainRetryMs?: number | 'auto';
  /** The return of these clients is spread over this time. `auto`: half of `drainRetryMs`. Default `auto`. */
  drainSpreadMs?: number | 'auto';
  /** A call that takes longer becomes a task, if its client takes tasks: docs/tasks.md. 0 is every call. Default 1,000. */
  taskAfterMs?: number;
  /** How long a resumed connection waits for a store that cannot be read. Default 10,000. */
  storeWaitMs?: number;
  /**
   * How long a sender waits for the store. Then its send fails, and the event is stored as soon as the store answers.
   * What a store of your own has not stored by then has failed. Default 30,000.
   */
  storeTimeoutMs?: number;
  /**
   * What becomes of progress that the store does not take, and of other notifications: `raise` tells the handler, at
   * this or its next message; `drop_progress` counts it (`events_unstored`) and logs it. Questions and results are not
   * concerned. Default `raise`.
   */
  onStoreFailure?: 'raise' | 'drop_progress';
  /**
   * Further headers of a request that reach its handler when another process relays it: docs/security.md. Credentials and
   * cookies are never relayed. Default none.
   */
  relayedHeaders?: string[];
  /**
   * Further headers in which a proxy names the user. Clients must not be able to send them: docs/security.md. Default none.
   */
  identityHeaders?: string[];
  /** The name of the server, the same in all its processes, for transports that are given none. Default none. */
  serverName?: string;
}

export interface ConfigureOptions extends EngineOptions {
  /**
   * The store of transports that name no event store: one that is open, which has its own `StoreOptions` already, or
   * the address `memory:` (the default) or `sqlite:PATH`.
   */
  store?: string | Store;
  /**
   * What to do under an SDK that Tailrope does not fit under: leave its own transports in place, with one error in the
   * log, or throw a `TailropeError` with code `unsupported_sdk`. Default `stock`.
   */
  onUnsupported?: 'stock' | 'raise';
}
