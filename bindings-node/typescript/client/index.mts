// The client's half, for clients that take a `fetch`, and for programs that have no client at all.

import { checkNames } from '../options.mjs';
import { Instance, type Started } from './instance.mjs';
import type { FetchLike, ResumeOptions, Where } from './options.mjs';
import type { MessageFlow } from './sinks.mjs';
import type { ResumedStream } from './stream.mjs';

export { type ErrorCode, type ErrorDetails, TailropeError } from '../errors.mjs';
export type { FetchLike, Gap, HeaderValues, Resume, ResumeOptions, Where } from './options.mjs';

/** The messages of a stream, as they come: parsed JSON, over as many connections as it takes. */
// biome-ignore lint/suspicious/noExplicitAny: a server's JSON, which programs look into.
export interface Messages extends AsyncGenerator<any, void, undefined> {
  /**
   * What it takes to continue the stream in any process, see `streams.export()`; absent while it has no cursor. It is
   * never ahead of what was handed out, and moves on when `next()` is called and nothing is left: a message that was
   * not asked past may come again.
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
  resume(token: string, where: Where): Messages;
}

export interface StreamOptions extends ResumeOptions {
  /** What to post: a JSON-RPC message, a batch of them, or its JSON text. */
  message?: object | string;
  /** A stream that was exported. Without `message` and `token`, the standalone stream is read. */
  token?: string;
  fetch?: FetchLike;
  signal?: AbortSignal;
}

/** What a generator makes, which can be left while it waits. */
class Leavable implements Messages {
  readonly #generated: MessageFlow;
  readonly #stop = new AbortController();
  #stream: ResumedStream | undefined;
  #saved: string | undefined;
  #isLeft = false;
  /** Where this Node has it, see below. */
  declare [Symbol.asyncDispose]: () => Promise<void>;

  /** `generate` is given a signal that ends the stream, and what to tell when it has started. */
  constructor(
    generate: (signal: AbortSignal, started: Started) => MessageFlow,
    signal: AbortSignal | undefined,
    saved?: string,
  ) {
    this.#saved = saved;
    this.#generated = this.#follow(signal, () =>
      generate(this.#stop.signal, (stream) => {
        this.#stream = stream;
      }),
    );
  }

  /** Listens to the caller's signal for as long as the stream takes. */
  async *#follow(signal: AbortSignal | undefined, generate: () => MessageFlow): MessageFlow {
    const onAbort = () => this.#stop.abort(signal?.reason);
    signal?.addEventListener('abort', onAbort, { once: true });
    if (signal?.aborted) {
      onAbort();
    }
    try {
      yield* generate();
    } finally {
      signal?.removeEventListener('abort', onAbort);
    }
  }

  get token(): string | undefined {
    return this.#isLeft ? undefined : this.#stream === undefined ? this.#saved : this.#stream.token();
  }

  async next(): Promise<IteratorResult<unknown, void>> {
    try {
      return await this.#generated.next();
    } catch (error) {
      this.#saved = undefined;
      if (this.#isLeft) {
        return { done: true, value: undefined };
      }
      throw error;
    }
  }

  async return(value?: void | PromiseLike<void>): Promise<IteratorResult<unknown, void>> {
    this.#isLeft = true;
    this.#stop.abort();
    // It is over when what was asked before is.
    await this.#generated.return().catch(() => {});
    return { done: true, value: await value };
  }

  async throw(error: unknown): Promise<never> {
    await this.return();
    throw error;
  }

  [Symbol.asyncIterator](): this {
    return this;
  }
}

if (Symbol.asyncDispose !== undefined) {
  Leavable.prototype[Symbol.asyncDispose] = async function dispose() {
    await this.return();
  };
}

/**
 * A `fetch` under which MCP streams do not end when their connections do:
 * `new StreamableHTTPClientTransport(url, { fetch: resumableFetch() })`. Everything that is no resumable stream
 * passes through untouched. A stream that fails gives each of its requests a JSON-RPC error with the kind in
 * `error.data.tailrope` (F-80). With TAILROPE_DISABLE=1 in the environment everything passes through.
 *
 * @throws `TailropeError` with code `invalid_argument` for an unknown option or a value out of range.
 */
export function resumableFetch(fetch: FetchLike = globalThis.fetch, options: ResumeOptions = {}): ResumableFetch {
  const instance = new Instance(fetch, options);
  return Object.assign((input: string | URL | Request, init?: RequestInit) => instance.fetch(input, init), {
    streams: {
      export: () => instance.tokens(),
      get size() {
        return instance.size;
      },
    },
    resume(token: string, where: Where): Messages {
      checkNames(where, ['url', 'headers', 'signal'], 'resume()');
      const { signal } = where;
      return new Leavable((signal, started) => instance.resume(token, { ...where, signal }, started), signal, token);
    },
  });
}

/**
 * The messages that answer a message, for programs without an SDK: as they come, over as many connections as it
 * takes. Leaving the loop ends the stream.
 *
 * @throws `TailropeError` when the stream fails or the server refuses the message.
 */
export function stream(url: string | URL, options: StreamOptions = {}): Messages {
  const { message, token, fetch = globalThis.fetch, signal, ...others } = options;
  const instance = new Instance(fetch, others);
  return token === undefined
    ? new Leavable((stop, started) => instance.stream(url, message, stop, started), signal)
    : new Leavable((stop, started) => instance.resume(token, { url, signal: stop }, started), signal, token);
}
