// Hands what the engine has for a connection to an HTTP answer.
import { traceOf } from '../host.mjs';
import type { Connection, Frames } from '../native.mjs';
import { type Waiter, writeLog } from '../runtime.mjs';
import type { AnswerContext, OpenAnswer, Sink, SinkListener } from './exchange.mjs';
import { withResolvers } from './with-resolvers.mjs';

/** What is handed over at once. A stalled reader holds no more than this and the socket's buffers. */
const PAGE_BYTES = 256 << 10;
const MAX_TIMER_MS = 2 ** 31 - 1;
export const EVENT_STREAM = 'text/event-stream';
export const STREAM_HEADERS = {
  'content-type': EVENT_STREAM,
  'cache-control': 'no-cache, no-transform',
  // Proxies that buffer would hold events back (W-030).
  'x-accel-buffering': 'no',
};
// How an answer starts, one number.
const STATUS = 0xffff;
const CONTENT_TYPES = [undefined, EVENT_STREAM, 'application/json'];
const NAMES_SESSION = 1 << 18;
const IS_REFUSAL = 1 << 19;
/** From this bit on: the seconds of `Retry-After`. */
const RETRY_AFTER_BIT = 20;
// What a writer does that does not wait.
const POLLS_AGAIN = -1;
const ENDS = -2;

/**
 * Writes what the engine has for a connection until it ends or the peer is gone.
 *
 * Nothing is polled while the reader is behind: what is not polled stays in the log. So the engine cannot close such a
 * connection; one that takes nothing for as long as a connection may last is cut (I11).
 */
export class Answer implements OpenAnswer, Waiter, SinkListener {
  /** Whether the runtime will call `pump` anyway. */
  scheduled = false;
  /** Until the answer is over: who keeps the exchange keeps nothing of the session. */
  #connection: Connection | undefined;
  #session: AnswerContext;
  #sink: Sink;
  #opened = false;
  /** What the waiters know the connection as, once it is opened. */
  #key = 0;
  #started = false;
  #full = false;
  #patience: NodeJS.Timeout | undefined;
  #done = withResolvers<void>();

  constructor(connection: Connection, session: AnswerContext, sink: Sink) {
    this.#connection = connection;
    this.#session = session;
    this.#sink = sink;
  }

  #headers(head: number): Record<string, string> {
    const headers: Record<string, string> = {};
    const { sessionId } = this.#session;
    if (head & NAMES_SESSION && sessionId !== undefined) {
      headers['mcp-session-id'] = sessionId;
    }
    const retryAfterS = head >>> RETRY_AFTER_BIT;
    if (retryAfterS > 0) {
      headers['retry-after'] = String(retryAfterS);
    }
    const contentType = CONTENT_TYPES[(head >> 16) & 3];
    if (contentType === EVENT_STREAM) {
      Object.assign(headers, STREAM_HEADERS);
    } else if (contentType) {
      headers['content-type'] = contentType;
    }
    return headers;
  }

  get done(): Promise<void> {
    return this.#done.promise;
  }

  /** Starts writing, at the end of this turn of the event loop: what is answered at once is one write. */
  start(): void {
    this.#session.runtime.schedule(this);
  }

  pump(): void {
    try {
      this.#pump();
    } catch (error) {
      try {
        this.#end();
        this.#breakOff(error);
      } finally {
        // Where nothing has started, this is answered.
        this.#done.reject(error);
      }
    }
  }

  #pump(): void {
    while (!this.#full && this.#connection !== undefined) {
      const [head, wait, data] = this.#connection.poll(PAGE_BYTES);
      if (wait === ENDS) {
        this.#finish(head, data);
        return;
      }
      // Most answers are known at once and need nobody to watch over them.
      const isFirst = !this.#opened;
      if (isFirst && !this.#open(this.#connection)) {
        return;
      }
      if (data) {
        this.#write(head, data);
      }
      if (wait === POLLS_AGAIN || (isFirst && this.#session.runtime.isWokenElsewhere)) {
        // There is more; or a wake-up may have come from elsewhere before there was anybody to wait for it.
        continue;
      }
      this.#session.runtime.arm(wait);
      if (this.#session.isGuest) {
        this.#session.runtime.armDue();
      }
      return;
    }
  }

  #write(head: number, data: Frames): void {
    if (!this.#started) {
      this.#sink.head(head & STATUS, this.#headers(head));
      this.#started = true;
    }
    try {
      this.#full = !this.#sink.write(data);
    } catch {
      // The peer is gone: not everything that a host answers with has a socket that says so.
      this.lost();
    }
    if (this.#full) {
      this.#expectReader();
    }
  }

  #open(connection: Connection): boolean {
    this.#opened = true;
    if (!this.#sink.open(this)) {
      this.lost();
      return false;
    }
    this.#session.open.add(this);
    this.#key = connection.key;
    this.#session.runtime.wait(this.#key, this);
    return true;
  }

  #finish(head: number, data: Frames | undefined): void {
    this.#release();
    if (this.#started) {
      try {
        this.#sink.end(data);
      } catch {
        // Its reader has cancelled it.
      }
    } else {
      this.#sink.whole(head & STATUS, this.#headers(head), data);
      if (data && head & IS_REFUSAL) {
        this.#session.onRefused(data.toString());
      }
    }
    this.#done.resolve();
  }

  /** From now on the reader has so long to take something. */
  #expectReader(): void {
    const { patienceMs } = this.#session.runtime;
    if (patienceMs !== undefined && this.#patience === undefined) {
      this.#patience = setTimeout(() => this.#cut(), Math.min(patienceMs, MAX_TIMER_MS));
      this.#patience.unref?.();
    }
  }

  #cut(): void {
    if (this.#connection !== undefined) {
      this.#end();
      this.#breakOff(new Error('the reader took nothing for too long'));
      this.#done.resolve();
    }
  }

  /** The reader takes more. */
  writable(): void {
    this.#full = false;
    clearTimeout(this.#patience);
    this.#patience = undefined;
    if (this.#connection !== undefined) {
      this.#session.runtime.schedule(this);
    }
  }

  finish(): void {
    this.#full = false;
    this.pump();
  }

  /** The peer is gone. */
  lost(): void {
    if (this.#connection !== undefined) {
      this.#end();
      this.#done.resolve();
    }
    this.#sink.drop();
  }

  #end(): void {
    const connection = this.#connection;
    this.#release();
    try {
      connection?.lost();
    } catch (error) {
      writeLog('error', `a connection was not let go of: ${traceOf(error)}`);
    }
  }

  #breakOff(error: unknown): void {
    try {
      if (this.#started) {
        this.#sink.fail(error);
      }
    } catch {
      // The peer is gone.
    }
  }

  #release(): void {
    const connection = this.#connection;
    this.#connection = undefined;
    if (this.#opened && connection !== undefined) {
      clearTimeout(this.#patience);
      this.#session.open.delete(this);
      this.#session.runtime.forget(this.#key);
      this.#sink.release();
    }
  }
}
