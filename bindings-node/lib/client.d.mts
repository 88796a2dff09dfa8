/** Why a stream ended before it was complete. */
export type FailureCode =
  | 'session_lost'
  | 'stream_lost'
  | 'no_stream'
  | 'unauthorized'
  | 'unexpected_answer'
  | 'not_resumable'
  | 'gave_up'
  | 'event_too_large';

export class TailropeError extends Error {
  /** The kind of failure, or `invalid_argument`. */
  readonly code: FailureCode | 'invalid_argument';
  /** The HTTP status of a POST that `stream()` made and that was refused. */
  readonly status?: number;
}

/** Part of `fetch` that is used. */
export type FetchLike = (input: string | URL | Request, init?: RequestInit) => Promise<Response>;

type HeaderValues = Headers | [string, string][] | Record<string, string>;

export interface Resume {
  /** The cursor that is sent; null where a standalone stream has none. */
  lastEventId: string | null;
  /** Which try it is since the last that brought something; the first is 1. */
  attempt: number;
  /** How long the stream waited before it, in milliseconds. */
  delayMs: number;
  /** The ids of the requests that still wait. */
  requests: (number | string)[];
}

export interface Gap {
  /** The position of the first event that is lost; null where the server refused the cursor of a standalone stream. */
  first: number | null;
  /** How many are lost; null likewise. */
  count: number | null;
}

/** How streams come back. Durations are in milliseconds. Where `null` is taken it means "never" or "any number". */
export interface ResumeOptions {
  /** The wait before a resume while the stream has told no `retry`. Default 1,000. */
  initialDelayMs?: number;
  /** The longest wait that back-off makes; a longer `retry` is waited all the same. Default 30,000. */
  maxDelayMs?: number;
  /** By how much the wait grows with each failure in a row, 1 to 100. Default 1.5. */
  growth?: number;
  /** How much longer the wait is at most, as a share of it, 0 to 10. Default 0.25. */
  jitter?: number;
  /** No further try when tries without progress took so long. Default 600,000 (10 minutes). */
  giveUpAfterMs?: number | null;
  /** How many tries without progress are made. Default 100. */
  maxAttempts?: number | null;
  /** A connection that can be resumed and is silent for so long counts as broken. Default 300,000. */
  maxSilenceMs?: number | null;
  /** What one event may hold, in bytes. Default 64 MiB. */
  maxEventBytes?: number;
  /** Headers for the connections that Tailrope makes: values, or a function that is called before each. */
  headers?: HeaderValues | (() => HeaderValues | undefined | Promise<HeaderValues | undefined>);
  /** Called before each resume. */
  onResume?: (resume: Resume) => void;
  /** Called when events are lost. */
  onGap?: (gap: Gap) => void;
  /**
   * Calls `wake` after `delayMs`, for programs that do not run all the time; calling it early or twice does no harm.
   * What it returns is called where nobody waits any more. Default: timers.
   */
  schedule?: (delayMs: number, wake: () => void) => (() => void) | void;
}

/** The messages of a stream, as they come: parsed JSON, over as many connections as it takes. */
export interface Messages extends AsyncGenerator<any, void, undefined> {
  /**
   * What it takes to continue the stream in any process, see `streams.export()`; absent while it has no cursor. It is never
   * ahead of what was handed out, and moves on when `next()` is called and nothing is left: a message that was not asked
   * past may come again.
   */
  readonly token: string | undefined;
}

export interface ResumableFetch {
  (input: string | URL | Request, init?: RequestInit): Promise<Response>;
  /** The streams that are open. */
  readonly streams: {
    /**
     * A token for each that can be continued: text of one line, without credentials, for `resume` in any process. It
     * stands for what the body's reader has read before its last read, so nothing is lost and the last may come again.
     */
    export(): string[];
    readonly size: number;
  };
  /**
   * The messages of a stream that was exported, from where it was. `url` is that of the server; `headers` are what
   * its requests carry, except for the session and the revision, which the token names.
   */
  resume(
    token: string,
    where: { url: string | URL; headers?: ResumeOptions['headers']; signal?: AbortSignal },
  ): Messages;
}

/**
 * A `fetch` under which MCP streams do not end when their connections do:
 * `new StreamableHTTPClientTransport(url, { fetch: resumableFetch() })`. Everything that is no resumable stream
 * passes through untouched. A stream that fails gives each of its requests a JSON-RPC error with the kind in
 * `error.data.tailrope` (F-80). With TAILROPE_DISABLE=1 in the environment everything passes through.
 *
 * @throws `TailropeError` or `Error` with code `invalid_argument` for an unknown option or a value out of range.
 */
export function resumableFetch(fetch?: FetchLike, options?: ResumeOptions): ResumableFetch;

export interface StreamOptions extends ResumeOptions {
  /** What to post: a JSON-RPC message, a batch of them, or its JSON text. */
  message?: object | string;
  /** A stream that was exported. Without `message` and `token`, the standalone stream is read. */
  token?: string;
  fetch?: FetchLike;
  signal?: AbortSignal;
}

/**
 * The messages that answer a message, for programs without an SDK: as they come, over as many connections as it
 * takes. Leaving the loop ends the stream.
 *
 * @throws `TailropeError` when the stream fails or the server refuses the message.
 */
export function stream(url: string | URL, options?: StreamOptions): Messages;
