// Drives one stream of the native half: makes the connections that it asks for, reads them, waits, and hands on what
// is delivered. One loop for the whole stream; what happens beside it (an abort, a cancelled request, silence) tells
// the native half and wakes the loop.

import { type TailropeError, told } from '../errors.mjs';
import { callHost, describe } from '../host.mjs';
import type { ClientStep, ClientSteps, ClientStream } from '../native.mjs';
import { type Asked, LINGER_MS, readOut, retryAfterMs } from './http.mjs';
import type { Settings } from './options.mjs';
import { Requests } from './requests.mjs';
import type { Scope } from './scope.mjs';
import type { Sink } from './sinks.mjs';

/** What timers take at most. */
const LONGEST_TIMER_MS = 2 ** 31 - 1;
const NOTHING = new Uint8Array(0);

// Rounded so that a wait is never shorter than it was told to be (W-043): inputs that begin one are late (`#now`), what
// ends it is early.
const passed = () => Math.floor(performance.now());
const jitter = () => Math.floor(Math.random() * 2 ** 32);

function warn(error: unknown, of = 'schedule') {
  process.emitWarning(error instanceof Error ? error : new Error(`${of}: ${describe(error)}`));
}

type Reader = Pick<ReadableStreamDefaultReader<Uint8Array>, 'read' | 'cancel'>;

/** One connection. */
interface Connection {
  /** Ends the wait for its answer. */
  readonly controller?: AbortController;
  answer?: Response;
  /** Once the answer is a stream. */
  reader?: Reader;
  /** The server has to say something. */
  isAwaited?: boolean;
  /** All of it is read. */
  isOver?: boolean;
  /** Called when nobody wants the answer any more. */
  stopped?: (() => void) | undefined;
}

/** Calls what the program gave for `name`. The stream is not to suffer from its faults, and somebody should know. */
function tell<What>(name: string, callback: ((what: What) => void) | undefined, what: What): void {
  callHost(
    () => callback?.(what),
    (error) => warn(error, name),
  );
}

function readerOf(answer: Response): Reader {
  return answer.body?.getReader() ?? { read: async () => ({ done: true, value: undefined }), cancel: async () => {} };
}

export class ResumedStream {
  readonly #native: ClientStream;
  readonly #sink: Sink;
  readonly #requests: Requests;
  readonly #signal: AbortSignal | undefined;
  readonly #settings: Settings;
  readonly #isStandalone: boolean;
  readonly #scope: Scope;
  /** The connection that counts. */
  #connection: Connection | undefined;
  /** An answer that was no stream, before there ever was one. */
  #refusal: Response | undefined;
  #lastError: unknown;
  /** The `connect` to be done. */
  #next: ClientStep | undefined;
  #isOpened = false;
  /** When the last input was, and how long the wait is that it began. */
  #at = 0;
  #delayMs: number | undefined;
  /** The token of what the sink's reader has, while more has come. */
  #taken: string | undefined;
  /** Ends the wait for time; ends that for the sink's reader. */
  #wake: (() => void) | undefined;
  #go: (() => void) | undefined;
  #silence: NodeJS.Timeout | undefined;
  #linger: NodeJS.Timeout | undefined;

  /** `begun` is the request that the stream begins with; `isFirst` where it is still to be sent. */
  constructor(
    native: ClientStream,
    sink: Sink,
    begun: Asked,
    scope: Scope,
    settings: Settings,
    { isStandalone = false, isFirst = false }: { isStandalone?: boolean; isFirst?: boolean } = {},
  ) {
    this.#native = native;
    this.#sink = sink;
    this.#requests = new Requests(begun, scope, settings, isFirst);
    this.#signal = begun.signal;
    this.#scope = scope;
    this.#settings = settings;
    this.#isStandalone = isStandalone;
    this.#taken = this.#position();
  }

  /**
   * The stream as text, while it can be continued: from what its reader has, which may be behind what came. A stream
   * that is done can be continued until its reader has all of it.
   */
  token(): string | undefined {
    if (this.#sink.isOver) {
      return undefined;
    }
    return this.#sink.isTaken ? this.#position() : this.#taken;
  }

  /** As far as it has come. */
  #position(): string | undefined {
    return this.#native.token(this.#requests.sessionId, this.#requests.protocolVersion) ?? undefined;
  }

  get isDone(): boolean {
    return this.#native.isDone;
  }

  /** Runs until nothing comes of the stream any more. `answer` is that to a POST, which is a stream already. */
  async run(answer?: Response): Promise<void> {
    const signal = this.#signal;
    const onAbort = () => this.abort(signal?.reason);
    const { streams } = this.#scope;
    streams.add(this);
    signal?.addEventListener('abort', onAbort, { once: true });
    this.#sink.whenRoom(() => this.#go?.());
    try {
      if (answer !== undefined) {
        this.#connection = { answer, reader: readerOf(answer) };
        this.#open(answer);
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
  abort(reason?: unknown): void {
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
  cancelled(request: string): void {
    this.#take(this.#native.cancelled(this.#now(), jitter(), request));
    if (this.#native.isDone) {
      this.#wake?.();
      this.#go?.();
    }
  }

  #now(): number {
    this.#at = Math.ceil(performance.now());
    return this.#at;
  }

  async #loop(): Promise<void> {
    while (!this.#native.isDone) {
      if (this.#next !== undefined) {
        await this.#connect(this.#next);
      } else if (this.#connection?.reader !== undefined) {
        await this.#read(this.#connection, this.#connection.reader);
      } else {
        await this.#wait();
      }
    }
  }

  /** Does what the native half says. */
  #take(todo: ClientSteps | null): void {
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
          if (this.#connection?.answer !== undefined) {
            this.#open(this.#connection.answer);
          }
          break;
        case 'gap':
        case 'cursorLost':
          tell('onGap', this.#settings.onGap, { first: step.first ?? null, count: step.count ?? null });
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

  #open(answer: Response): void {
    this.#isOpened = true;
    this.#sink.opened(answer, (reason) => this.abort(reason));
  }

  #finished(): void {
    if (this.#isOpened) {
      this.#sink.end();
    } else {
      this.#refuse();
    }
    // Begins here, for the loop may be waiting for bytes that never come.
    this.#linger = setTimeout(() => this.#stop(), LINGER_MS).unref();
  }

  #failed({ code = 'internal', message }: ClientStep): void {
    const error = told(code, message, { cause: this.#lastError });
    if (this.#isOpened) {
      this.#sink.failed(error, this.#native.failureFrames() ?? undefined);
    } else {
      this.#refuse(error);
    }
  }

  /** Nothing ever opened: the caller gets what the server said, or what became of the last try. */
  #refuse(failure?: TailropeError): void {
    const refusal = this.#refusal;
    this.#refusal = undefined;
    this.#sink.refused(refusal, this.#lastError ?? failure, failure);
  }

  /** Lets go of the connection. */
  #stop(): void {
    const connection = this.#connection;
    this.#connection = undefined;
    connection?.reader?.cancel().catch(() => {});
    if (connection !== undefined && connection.reader === undefined && connection.answer === undefined) {
      connection.controller?.abort();
      connection.stopped?.();
    }
  }

  #resume(lastEventId: string | undefined, signal: AbortSignal): Promise<Response> {
    const delayMs = this.#delayMs;
    this.#delayMs = undefined;
    // A stream that was saved begins without a wait: that is none.
    const { onResume } = this.#settings;
    if (delayMs !== undefined && onResume !== undefined) {
      const { attempts } = this.#native;
      const requests = JSON.parse(this.#native.requests);
      tell('onResume', onResume, { lastEventId: lastEventId ?? null, attempt: attempts + 1, delayMs, requests });
    }
    return this.#requests.resume(lastEventId, this.#isOpened, signal);
  }

  async #connect({ lastEventId }: ClientStep): Promise<void> {
    this.#next = undefined;
    const controller = new AbortController();
    const connection: Connection = { controller, isAwaited: true };
    this.#connection = connection;
    this.#watch();
    let answer: Response;
    try {
      const { signal } = controller;
      const asked = this.#requests.isFirst ? this.#requests.first(signal) : this.#resume(lastEventId, signal);
      asked.then(
        (late) => void (signal.aborted && late.body?.cancel().catch(() => {})),
        () => {},
      );
      // What was asked may not stop when it is told to. No race with the signal: HTTP libraries keep that, and it would
      // keep the answer.
      answer = await new Promise((resolve, reject) => {
        connection.stopped = reject;
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
      answer.body?.cancel().catch(() => {});
    }
  }

  #answered(connection: Connection, answer: Response): void {
    const { status, headers } = answer;
    connection.answer = answer;
    this.#refusal = this.#isOpened ? undefined : answer;
    this.#lastError = undefined;
    const type = headers.get('content-type') ?? undefined;
    this.#take(this.#native.head(this.#now(), jitter(), status, type, retryAfterMs(headers)));
    const isTaken = !this.#isOpened && this.#refusal === undefined;
    this.#refusal = undefined;
    if (this.#connection === connection) {
      connection.reader = readerOf(answer);
    } else if (!isTaken) {
      void readOut(answer);
    }
  }

  async #read(connection: Connection, reader: Reader): Promise<void> {
    if (!this.#sink.hasRoom()) {
      await this.#roomFor(connection);
      return;
    }
    this.#watch();
    let chunk: Awaited<ReturnType<Reader['read']>> | undefined;
    let fault: unknown;
    try {
      connection.isAwaited = true;
      chunk = await reader.read();
    } catch (error) {
      fault = error;
    } finally {
      connection.isAwaited = false;
    }
    if (this.#connection !== connection || this.#native.isDone) {
      connection.isOver = chunk === undefined || chunk.done;
      return;
    }
    if (chunk === undefined) {
      this.#connection = undefined;
      this.#lastError = fault;
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
  async #roomFor(connection: Connection): Promise<void> {
    await new Promise<void>((resolve) => {
      this.#go = resolve;
    });
    this.#go = undefined;
    if (this.#connection === connection) {
      // It was not listened to: that is no silence of the server.
      this.#take(this.#native.bytes(this.#now(), jitter(), NOTHING));
    }
  }

  /** Sees to it that the connection's silence ends, and the wait for its answer. */
  #watch(): void {
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

  #unwatch(): void {
    clearTimeout(this.#silence);
    this.#silence = undefined;
  }

  async #wait(): Promise<void> {
    this.#unwatch();
    const { schedule = this.#timer } = this.#settings;
    const delayMs = Math.max(0, this.#native.deadline - passed());
    this.#delayMs ??= this.#native.deadline - this.#at;
    let wake = () => {};
    const woken = new Promise<void>((resolve) => {
      wake = resolve;
    });
    this.#wake = wake;
    const cancel = schedule(delayMs, wake);
    await woken;
    this.#wake = undefined;
    if (this.#native.isDone) {
      if (cancel !== undefined) {
        cancel();
      }
    } else {
      this.#take(this.#native.tick(passed(), jitter()));
    }
  }

  /** A pending call holds the process; a stream that may never say anything does not. */
  #timer = (delayMs: number, wake: () => void) => {
    const timer = setTimeout(wake, Math.min(delayMs, LONGEST_TIMER_MS));
    if (this.#isStandalone) {
      timer.unref();
    }
    return () => clearTimeout(timer);
  };

  /** Reads on after the end, so that the connection can be used again. */
  async #readRest(): Promise<void> {
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
