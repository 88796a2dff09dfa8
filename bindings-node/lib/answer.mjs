// Writes HTTP answers to a ServerResponse.

/** What is handed to the socket at once. A stalled reader holds no more than this and the socket's buffers. */
const PAGE_BYTES = 256 << 10;
const MAX_TIMER_MS = 2 ** 31 - 1;
const KEEP_ALIVE = ': keep-alive\n\n';

/** An answer that is known as a whole. */
export function writeWhole(res, status, headers, body = '') {
  if (status !== 204) {
    headers['content-length'] = Buffer.byteLength(body);
  }
  res.writeHead(status, headers);
  res.end(body);
}

/** The answer to a request that is not admitted. */
export function writeRefusal(res, refusal) {
  const headers = { 'content-type': 'application/json' };
  if (refusal.allow) {
    headers.allow = refusal.allow;
  }
  writeWhole(res, refusal.status, headers, refusal.body);
}

function headersOf(res, contentType, sessionId) {
  const headers = { 'mcp-session-id': sessionId };
  if (contentType) {
    headers['content-type'] = contentType;
  }
  if (contentType === 'text/event-stream') {
    headers['cache-control'] = 'no-cache, no-transform';
    // Proxies that buffer would hold events back (W-030).
    headers['x-accel-buffering'] = 'no';
    if (res.req.httpVersionMajor < 2) {
      headers.connection = 'keep-alive';
    }
  }
  return headers;
}

/**
 * Writes what the engine has for a connection until it ends or the peer is gone.
 *
 * Nothing is polled while the socket is full: what is not polled stays in the log.
 */
export class Answer {
  /** Whether the runtime will call `pump` anyway. */
  scheduled = false;
  #connection;
  #res;
  #runtime;
  #sessionId;
  #keepAliveMs;
  #keepAlive;
  #started = false;
  #full = false;
  #over = false;
  #done = withResolvers();

  constructor(connection, res, { runtime, sessionId, keepAliveMs }) {
    this.#connection = connection;
    this.#res = res;
    this.#runtime = runtime;
    this.#sessionId = sessionId;
    this.#keepAliveMs = keepAliveMs;
  }

  /** Resolves when everything is handed over, or the peer is gone. */
  get done() {
    return this.#done.promise;
  }

  /** Starts writing, at the end of this turn of the event loop: what is answered at once is one write. */
  start() {
    const res = this.#res;
    res.on('close', this.#lost);
    res.on('error', this.#lost);
    res.on('drain', this.#drained);
    if (res.destroyed || res.socket?.destroyed) {
      this.#lost();
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
      this.#res.destroy();
      this.#done.reject(error);
    }
  }

  #pump() {
    while (!this.#full && !this.#over) {
      const { data, end, waitMs } = this.#connection.poll(PAGE_BYTES);
      if (end) {
        this.#finish(data);
      } else if (data) {
        this.#begin();
        this.#full = !this.#res.write(data);
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
    this.#res.writeHead(status, headersOf(this.#res, contentType, this.#sessionId));
    const every = this.#keepAliveMs;
    if (Number.isFinite(every) && every >= 1) {
      this.#keepAlive = setInterval(() => {
        // A socket that is full is not silent for want of comments.
        if (!this.#full) {
          this.#full = !this.#res.write(KEEP_ALIVE);
        }
      }, Math.min(every, MAX_TIMER_MS));
      this.#keepAlive.unref?.();
    }
  }

  #finish(data) {
    this.#end();
    if (this.#started) {
      this.#res.end(data);
    } else {
      const { status, contentType } = this.#connection;
      writeWhole(this.#res, status || 200, headersOf(this.#res, contentType, this.#sessionId), data);
    }
    this.#done.resolve();
  }

  #drained = () => {
    this.#full = false;
    this.#runtime.schedule(this);
  };

  #lost = () => {
    if (!this.#over) {
      this.#end();
      this.#done.resolve();
    }
  };

  #end() {
    this.#over = true;
    // Also when the engine has ended it: what is held for the connection goes now, not with the object.
    this.#connection.lost();
    clearInterval(this.#keepAlive);
    this.#runtime.forget(this.#connection.key);
    this.#res.off('close', this.#lost);
    this.#res.off('drain', this.#drained);
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

function withResolvers() {
  let resolve, reject;
  const promise = new Promise((yes, no) => {
    resolve = yes;
    reject = no;
  });
  return { promise, resolve, reject };
}
