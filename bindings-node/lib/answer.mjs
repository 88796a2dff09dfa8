// Hands what the engine has for a connection to an HTTP answer.
import { withResolvers } from './request.mjs';

/** What is handed over at once. A stalled reader holds no more than this and the socket's buffers. */
const PAGE_BYTES = 256 << 10;
const MAX_TIMER_MS = 2 ** 31 - 1;
const KEEP_ALIVE = ': keepalive\n\n';

/**
 * Writes what the engine has for a connection until it ends or the peer is gone.
 *
 * Nothing is polled while the reader is behind: what is not polled stays in the log. Subclasses say how bytes
 * leave: `open`, `head`, `write`, `end`, `whole`, `fail`, `release`, `idle`.
 */
export class Answer {
  /** Whether the runtime will call `pump` anyway. */
  scheduled = false;
  sessionId;
  #connection;
  #runtime;
  #keepAliveMs;
  #keepAlive;
  #started = false;
  #full = false;
  #over = false;
  #done;

  constructor(connection, { runtime, sessionId, keepAliveMs }) {
    this.#connection = connection;
    this.#runtime = runtime;
    this.sessionId = sessionId;
    this.#keepAliveMs = keepAliveMs;
  }

  /** Resolves when everything is handed over, or the peer is gone. */
  get done() {
    if (this.#done === undefined) {
      this.#done = withResolvers();
      if (this.#over) {
        this.#done.resolve();
      }
    }
    return this.#done.promise;
  }

  /** Starts writing, at the end of this turn of the event loop: what is answered at once is one write. */
  start() {
    if (!this.open()) {
      this.lost();
      return;
    }
    this.#runtime.wait(this.#connection.key, this);
    this.#runtime.schedule(this);
  }

  pump() {
    try {
      this.#pump();
    } catch (error) {
      this.#end();
      this.fail(error);
      this.#done?.reject(error);
    }
  }

  #pump() {
    while (!this.#full && !this.#over) {
      const { data, end, waitMs } = this.#connection.poll(PAGE_BYTES);
      if (end) {
        this.#finish(data);
      } else if (data) {
        this.#begin();
        this.#full = !this.write(data);
      } else {
        this.#runtime.arm(waitMs);
        return;
      }
    }
  }

  #begin() {
    if (this.#started) {
      return;
    }
    this.#started = true;
    const { status, contentType } = this.#connection;
    this.head(status, contentType);
    const every = this.#keepAliveMs;
    if (Number.isFinite(every) && every >= 1) {
      this.#keepAlive = setInterval(() => {
        // A reader that is behind is not waiting in silence.
        if (this.idle()) {
          this.write(KEEP_ALIVE);
        }
      }, Math.min(every, MAX_TIMER_MS));
      this.#keepAlive.unref?.();
    }
  }

  #finish(data) {
    this.#end();
    if (this.#started) {
      this.end(data);
    } else {
      const { status, contentType } = this.#connection;
      this.whole(status || 200, contentType, data);
    }
    this.#done?.resolve();
  }

  /** The reader takes more. */
  writable() {
    this.#full = false;
    if (!this.#over) {
      this.#runtime.schedule(this);
    }
  }

  /** The peer is gone. */
  lost() {
    if (!this.#over) {
      this.#end();
      this.#done?.resolve();
    }
  }

  #end() {
    this.#over = true;
    // Also when the engine has ended it: what is held for the connection goes now, not with the object.
    this.#connection.lost();
    clearInterval(this.#keepAlive);
    this.#runtime.forget(this.#connection.key);
    this.release();
  }
}

/**
 * Collects what a request in JSON mode is answered with, for a batch: resolves to the text of one body.
 */
export class Part {
  scheduled = false;
  #connection;
  #runtime;
  #text = '';
  #done = withResolvers();

  constructor(connection, runtime) {
    this.#connection = connection;
    this.#runtime = runtime;
    runtime.wait(connection.key, this);
    runtime.schedule(this);
  }

  get done() {
    return this.#done.promise;
  }

  pump() {
    for (;;) {
      const { data, end, waitMs } = this.#connection.poll(PAGE_BYTES);
      if (data) {
        this.#text += data.toString();
      }
      if (end) {
        this.lost();
        return;
      }
      if (!data) {
        this.#runtime.arm(waitMs);
        return;
      }
    }
  }

  /** Ends the wait; what came so far is the result. */
  lost() {
    this.#runtime.forget(this.#connection.key);
    this.#connection.lost();
    this.#done.resolve(this.#text);
  }
}
