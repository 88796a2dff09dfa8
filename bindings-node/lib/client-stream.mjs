// Drives one stream of the native half: makes the connections that it asks for, reads them, waits, and hands on what
// is delivered. One loop for the whole stream; what happens beside it (an abort, a cancelled request, silence) tells
// the native half and wakes the loop.
import { LINGER_MS, get, headerOf, inherited, overlay, readOut, retryAfterMs, textOf } from './client-http.mjs';

/** What timers take at most. */
const LONGEST_TIMER_MS = 2 ** 31 - 1;
const REVISION = 'mcp-protocol-version';
const NOTHING = new Uint8Array(0);

// Rounded so that a wait is never shorter than it was told to be (W-043): inputs that begin one are late (`#now`), what
// ends it is early.
const passed = () => Math.floor(performance.now());
const jitter = () => Math.floor(Math.random() * 2 ** 32);

function warn(error, of = 'schedule') {
  process.emitWarning(error instanceof Error ? error : new Error(`${of}: ${error}`));
}

/** Why a stream ended before it was complete; `code` is the kind, the same in all languages. */
export class TailropeError extends Error {
  constructor(code, message, options) {
    super(message, options);
    this.name = 'TailropeError';
    this.code = code;
  }
}

export class ResumedStream {
  #native;
  #sink;
  #begun;
  #inherited;
  #settings;
  #isStandalone;
  #scope;
  /** The connection that counts: `{ controller }`, and its `reader` once the answer is a stream. */
  #connection;
  #answer;
  /** An answer that was no stream, before there ever was one. */
  #refusal;
  #lastError;
  /** The `connect` to be done. */
  #next;
  #isFirst;
  #isOpened;
  /** When the last input was, and how long the wait is that it began. */
  #at = 0;
  #delayMs;
  /** The token of what the sink's reader has, while more has come. */
  #taken;
  /** Ends the wait for time; ends that for the sink's reader. */
  #wake;
  #go;
  #silence;
  #linger;

  /**
   * `begun` is the request that the stream begins with, see `requestOf`; `settings` are the instance's `fetch`,
   * `headers`, `onResume`, `onGap` and `schedule`.
   */
  constructor(native, sink, begun, scope, settings, { isStandalone = false, isFirst = false } = {}) {
    this.#native = native;
    this.#sink = sink;
    this.#begun = begun;
    this.#inherited = inherited(begun);
    this.#scope = scope;
    this.#settings = settings;
    this.#isStandalone = isStandalone;
    this.#isFirst = isFirst;
    this.#taken = this.#position();
  }

  /**
   * The stream as text, while it can be continued: from what its reader has, which may be behind what came. A stream
   * that is done can be continued until its reader has all of it.
   */
  token() {
    if (this.#sink.isOver) {
      return undefined;
    }
    return this.#sink.isTaken ? this.#position() : this.#taken;
  }

  /** As far as it has come. */
  #position() {
    const { sessionId, newest } = this.#scope;
    const version = newest.get(REVISION) ?? this.#inherited.headers.get(REVISION);
    return this.#native.token(sessionId && textOf(sessionId), version && textOf(version)) ?? undefined;
  }

  get isDone() {
    return this.#native.isDone;
  }

  /** Runs until nothing comes of the stream any more. `answer` is that to a POST, which is a stream already. */
  async run(answer) {
    const { signal } = this.#begun;
    const onAbort = () => this.abort(signal.reason);
    const { streams } = this.#scope;
    streams.add(this);
    signal?.addEventListener('abort', onAbort, { once: true });
    this.#sink.whenRoom(() => this.#go?.());
    try {
      if (answer !== undefined) {
        this.#answer = answer;
        this.#open({ reader: answer.body.getReader() });
      }
      this.#take(this.#native.start());
      if (signal?.aborted) {
        onAbort();
      }
      await this.#loop();
      await this.#readRest();
    } catch (error) {
      // A fault of a replaced `schedule`, or of ours: nobody else tells those that wait.
      warn(error);
      this.#lastError = error;
      this.#take(this.#native.abandon(this.#now(), jitter()));
      this.#stop();
      // Where it was done already.
      this.#sink.failed(error);
      this.#sink.refused(undefined, error, error);
    } finally {
      streams.delete(this);
      signal?.removeEventListener('abort', onAbort);
      clearTimeout(this.#silence);
      clearTimeout(this.#linger);
    }
  }

  /** Nobody waits for the stream any more. */
  abort(reason) {
    if (this.#native.isDone) {
      // What lingers, too.
      this.#stop();
      return;
    }
    this.#take(this.#native.abort(this.#now(), jitter()));
    this.#sink.aborted(reason);
    this.#wake?.();
    this.#go?.();
  }

  /** Nobody waits for this request any more; its id is JSON text. */
  cancelled(request) {
    this.#take(this.#native.cancelled(this.#now(), jitter(), request));
    if (this.#native.isDone) {
      this.#wake?.();
      this.#go?.();
    }
  }

  #now() {
    this.#at = Math.ceil(performance.now());
    return this.#at;
  }

  async #loop() {
    while (!this.#native.isDone) {
      if (this.#next !== undefined) {
        await this.#connect();
      } else if (this.#connection !== undefined) {
        await this.#read();
      } else {
        await this.#wait();
      }
    }
  }

  /** Does what the native half says. */
  #take(todo) {
    if (!todo) {
      return;
    }
    this.#sink.deliver(todo);
    for (const step of todo.steps) {
      switch (step.kind) {
        case 'connect':
          this.#next = step;
          break;
        case 'opened':
          this.#open(this.#connection);
          break;
        case 'gap':
          this.#tell('onGap', { first: step.first, count: step.count });
          break;
        case 'cursorLost':
          this.#tell('onGap', { first: null, count: null });
          break;
        case 'disconnect':
          this.#stop();
          break;
        case 'finished':
          this.#finished();
          break;
        case 'failed':
          this.#failed(step);
          break;
      }
    }
  }

  #open(connection) {
    this.#connection = connection;
    this.#isOpened = true;
    this.#sink.opened(this.#answer, (reason) => this.abort(reason));
  }

  #finished() {
    if (this.#isOpened) {
      this.#sink.end();
    } else {
      this.#refuse();
    }
    // Begins here, for the loop may be waiting for bytes that never come.
    this.#linger = setTimeout(() => this.#stop(), LINGER_MS).unref();
  }

  #failed({ code, message }) {
    const error = new TailropeError(code, message, this.#lastError && { cause: this.#lastError });
    if (this.#isOpened) {
      this.#sink.failed(error, this.#native.failureFrames() ?? undefined);
    } else {
      this.#refuse(error);
    }
  }

  /** Nothing ever opened: whoever asked gets what the server said, or what became of the last try. */
  #refuse(failure) {
    const refusal = this.#refusal;
    this.#refusal = undefined;
    this.#sink.refused(refusal, this.#lastError ?? failure, failure);
  }

  /** Lets go of the connection. */
  #stop() {
    const connection = this.#connection;
    this.#connection = undefined;
    connection?.reader?.cancel().catch(() => {});
    if (connection !== undefined && connection.reader === undefined && connection.answer === undefined) {
      connection.controller.abort();
      connection.stopped?.();
    }
  }

  #tell(name, what) {
    try {
      this.#settings[name]?.(what);
    } catch (error) {
      // The stream is not to suffer from it, and somebody should know.
      warn(error, name);
    }
  }

  #tellResume(lastEventId = null) {
    const delayMs = this.#delayMs;
    this.#delayMs = undefined;
    // A stream that was saved begins without a wait: that is none.
    if (delayMs !== undefined && this.#settings.onResume !== undefined) {
      const { attempts, requests } = this.#native;
      this.#tell('onResume', { lastEventId, attempt: attempts + 1, delayMs, requests: JSON.parse(requests) });
    }
  }

  async #connect() {
    const { lastEventId } = this.#next;
    this.#next = undefined;
    const connection = { controller: new AbortController(), isAwaited: true };
    this.#connection = connection;
    this.#watch();
    let answer;
    try {
      const { signal } = connection.controller;
      const asked = this.#ask(lastEventId ?? undefined, signal);
      asked.then((late) => signal.aborted && late.body?.cancel().catch(() => {}), () => {});
      // What was asked may not stop when it is told to. No race with the signal: HTTP libraries keep that, and it would
      // keep the answer.
      answer = await new Promise((resolve, reject) => {
        connection.stopped = resolve;
        asked.then(resolve, reject);
      });
    } catch (error) {
      if (this.#connection === connection) {
        this.#connection = undefined;
        this.#lastError = error;
        this.#take(this.#native.broken(this.#now(), jitter()));
      }
      return;
    } finally {
      connection.isAwaited = false;
      connection.stopped = undefined;
      this.#unwatch();
    }
    if (this.#connection === connection) {
      this.#answered(connection, answer);
    } else {
      answer?.body?.cancel().catch(() => {});
    }
  }

  #answered(connection, answer) {
    const { status, headers } = answer;
    this.#answer = answer;
    connection.answer = answer;
    this.#refusal = this.#isOpened ? undefined : answer;
    this.#lastError = undefined;
    const type = headers.get('content-type') ?? undefined;
    this.#take(this.#native.head(this.#now(), jitter(), status, type, retryAfterMs(headers)));
    const isTaken = !this.#isOpened && this.#refusal === undefined;
    this.#refusal = undefined;
    if (this.#connection === connection) {
      connection.reader = answer.body?.getReader() ?? { read: async () => ({ done: true }), cancel: async () => {} };
    } else if (!isTaken) {
      void readOut(answer);
    }
  }

  async #ask(lastEventId, signal) {
    const { fetch, headers: more } = this.#settings;
    const { input, init, url } = this.#begun;
    if (this.#isFirst) {
      this.#isFirst = false;
      return fetch(input, { ...init, signal });
    }
    this.#tellResume(lastEventId);
    const headers = new Headers(this.#inherited.headers);
    headers.set('accept', 'text/event-stream');
    this.#scope.renew(headers);
    await overlay(headers, more);
    if (lastEventId !== undefined) {
      headers.set('last-event-id', headerOf(lastEventId));
    }
    const settings = { ...this.#inherited.settings, headers, signal };
    if (!this.#isOpened && init?.redirect !== undefined) {
      // Whoever asked wanted to see for himself where it leads.
      return fetch(url, { ...settings, method: 'GET', redirect: init.redirect });
    }
    return get(fetch, url, settings);
  }

  async #read() {
    const connection = this.#connection;
    if (!this.#sink.hasRoom()) {
      await this.#roomFor(connection);
      return;
    }
    this.#watch();
    let chunk;
    let fault;
    try {
      connection.isAwaited = true;
      chunk = await connection.reader.read();
    } catch (error) {
      fault = { error };
    } finally {
      connection.isAwaited = false;
    }
    if (this.#connection !== connection || this.#native.isDone) {
      connection.isOver = fault !== undefined || chunk.done;
      return;
    }
    if (fault !== undefined) {
      this.#connection = undefined;
      this.#lastError = fault.error;
      this.#take(this.#native.broken(this.#now(), jitter()));
    } else if (chunk.done) {
      this.#connection = undefined;
      this.#take(this.#native.end(this.#now(), jitter()));
    } else {
      if (this.#sink.isTaken) {
        this.#taken = this.#position();
      }
      this.#take(this.#native.bytes(this.#now(), jitter(), chunk.value));
    }
  }

  /** Waits for the reader of what was delivered. */
  async #roomFor(connection) {
    await new Promise((resolve) => {
      this.#go = resolve;
    });
    this.#go = undefined;
    if (this.#connection === connection) {
      // It was not listened to: that is no silence of the server.
      this.#take(this.#native.bytes(this.#now(), jitter(), NOTHING));
    }
  }

  /** Sees to it that the connection's silence ends, and the wait for its answer. */
  #watch() {
    const { deadline } = this.#native;
    if (this.#silence !== undefined || deadline === Infinity) {
      return;
    }
    const check = () => {
      if (this.#silence !== timer) {
        return;
      }
      this.#silence = undefined;
      if (this.#connection?.isAwaited && this.#native.deadline <= passed()) {
        this.#take(this.#native.tick(passed(), jitter()));
      } else if (this.#connection?.isAwaited) {
        this.#watch();
      }
    };
    // Bytes that arrived while the process was busy or asleep are read before the clock is looked at.
    const timer = setTimeout(() => setImmediate(check), Math.min(deadline - passed(), LONGEST_TIMER_MS));
    this.#silence = timer;
    timer.unref();
  }

  #unwatch() {
    clearTimeout(this.#silence);
    this.#silence = undefined;
  }

  async #wait() {
    this.#unwatch();
    const { schedule = this.#timer } = this.#settings;
    const delayMs = Math.max(0, this.#native.deadline - passed());
    this.#delayMs ??= this.#native.deadline - this.#at;
    let cancel;
    await new Promise((resolve) => {
      this.#wake = resolve;
      cancel = schedule(delayMs, resolve);
    });
    this.#wake = undefined;
    if (this.#native.isDone) {
      cancel?.();
    } else {
      this.#take(this.#native.tick(passed(), jitter()));
    }
  }

  /** A pending call holds the process; a stream that may never say anything does not. */
  #timer = (delayMs, wake) => {
    const timer = setTimeout(wake, Math.min(delayMs, LONGEST_TIMER_MS));
    if (this.#isStandalone) {
      timer.unref();
    }
    return () => clearTimeout(timer);
  };

  /** Reads on after the end, so that the connection can be used again. */
  async #readRest() {
    const connection = this.#connection;
    if (connection?.reader === undefined || connection.isOver) {
      return;
    }
    try {
      while (!(await connection.reader.read()).done);
    } catch {
      // It broke: nothing is left to read.
    }
  }
}
