// A call that may become a task: does what the engine says, and tells it what comes of that.
import type { TaskCall as NativeCall, Refusal, TaskStep } from '../../native.mjs';
import type { Runtime, Waiter } from '../../runtime.mjs';
import { withinTask } from '../../telemetry.mjs';
import { STREAM_HEADERS } from '../answer.mjs';
import type { Sink } from '../exchange.mjs';
import { headersOf, JSON_HEADERS } from '../refusal.mjs';
import type { FetchHandler } from '../sdk.mjs';
import { Origin } from './origin.mjs';
import type { Asked, AskingRun } from './questions.mjs';
import { Reply } from './reply.mjs';
import { Run, type RunListener } from './run.mjs';

/** What the calls of one handler share. */
export interface CallContext {
  runtime: Runtime;
  /** What serves requests of 2026-07-28. */
  sdk: FetchHandler;
  /** The calls that are served. */
  open: Set<TaskedCall>;
  /** Tells what failed that nobody else hears of. */
  report(what: string, error: unknown): void;
  /** The answer to a call that is not served any more. */
  internal(): Refusal;
}

const RUN = Symbol('tailrope.run');

/** The run for which the SDK has this request. */
export function runOf(request: Request & { [RUN]?: AskingRun }): AskingRun | undefined {
  return request[RUN];
}

/** In the place of a time: nothing is left to do. */
const IS_OVER = -1;

export class TaskedCall implements Waiter, RunListener, Asked {
  scheduled = false;
  #context: CallContext;
  #native: NativeCall;
  /** The call's own request; of one that another process began, the request because of which it is served here. */
  #origin: Origin;
  #reply: Reply | undefined;
  #runs = new Map<number, Run>();
  /** Who waits for the answers to the handlers' questions. */
  #asks = new Map<number, (result: unknown) => void>();
  #lastAsk = 0;
  #onOver: () => void;
  #isPumping = false;
  #isOver = false;
  /** It is not served any more. */
  #isLeft = false;

  constructor(context: CallContext, native: NativeCall, origin: Origin, onOver: () => void) {
    this.#context = context;
    this.#native = native;
    this.#origin = origin;
    this.#onOver = onOver;
    context.open.add(this);
  }

  /** Gives the SDK the call, and writes its answer. Resolves when all of that is written, or the client is gone. */
  answer(sink: Sink): Promise<void> {
    const reply = new Reply(sink, () => this.#input(() => this.#native.clientGone()));
    this.#reply = reply;
    this.#attempt(() => {
      this.#start(0, this.#native.body, this.#origin);
      reply.open();
    });
    this.pump();
    return reply.done;
  }

  answered(run: number, status: number, contentType: string | undefined, body: string): void {
    this.#input(() => this.#native.answered(run, status, contentType, body));
    this.#runs.delete(run);
  }

  begun(run: number, status: number, contentType: string | undefined): boolean {
    let isBody = false;
    this.#input(() => {
      isBody = this.#native.begin(run, status, contentType);
    });
    return isBody;
  }

  data(run: number, chunk: Uint8Array): void {
    this.#input(() => this.#native.data(run, chunk));
  }

  ended(run: number): void {
    this.#input(() => this.#native.ended(run));
    this.#runs.delete(run);
  }

  get room(): Promise<void> | undefined {
    return this.#reply?.room;
  }

  ask(request: object, answered: (result: unknown) => void): number {
    this.#lastAsk += 1;
    const ask = this.#lastAsk;
    this.#asks.set(ask, answered);
    this.#input(() => this.#native.question(ask, JSON.stringify(request)));
    return ask;
  }

  withdraw(ask: number): void {
    this.#asks.delete(ask);
    this.#input(() => this.#native.withdrawn(ask));
  }

  /** A question has its answer, or cannot be asked. */
  #answered(ask: number, result?: unknown): void {
    const answered = this.#asks.get(ask);
    this.#asks.delete(ask);
    answered?.(result);
  }

  failed(error: unknown): void {
    this.#context.report('the server raised while it ran a task', error);
  }

  /** Tells the engine something, and does what follows. */
  #input(tell: () => void): void {
    // What it leads to is done at once, and needs no turn of its own.
    const { scheduled } = this;
    this.scheduled = true;
    this.#attempt(tell);
    this.scheduled = scheduled;
    this.pump();
  }

  /** Does what there is to do. */
  pump(): void {
    if (this.#isPumping || this.#isOver) {
      // What led here was a step. The others of its turn come first.
      return;
    }
    this.#isPumping = true;
    this.#attempt(() => this.#perform());
    this.#isPumping = false;
  }

  #perform(): void {
    let [wait, ...steps] = this.#native.takeSteps();
    while (steps.length > 0) {
      for (const step of steps) {
        this.#attempt(() => this.#do(step));
      }
      [wait, ...steps] = this.#native.takeSteps();
    }
    if (wait === IS_OVER || (this.#isLeft && this.#reply?.isGiven !== false)) {
      this.#isOver = true;
      this.#finish();
      this.#context.open.delete(this);
      this.#onOver();
    } else {
      this.#context.runtime.arm(wait);
    }
  }

  /** A fault of ours costs this call, and no other. */
  #attempt(act: () => void): void {
    try {
      act();
    } catch (error) {
      this.#context.report('a call that may become a task is not served any more', error);
      this.#giveUp();
    }
  }

  #giveUp(): void {
    if (this.#isLeft) {
      return;
    }
    this.#finish();
    this.leave();
  }

  /** Nothing more comes: a client that has no answer gets one, and a stream that has begun ends. */
  #finish(): void {
    if (this.#reply?.isGiven === false) {
      const refusal = this.#context.internal();
      this.#reply.whole(refusal.status, headersOf(refusal), refusal.body);
    }
    this.#reply?.end();
  }

  #do({ kind, run = 0, ask = 0, status = 200, data = '', ...step }: TaskStep): void {
    switch (kind) {
      case 'body':
        this.#settled()?.whole(status, { ...JSON_HEADERS }, data);
        break;
      case 'begin':
        this.#settled()?.begin(200, { ...STREAM_HEADERS });
        break;
      case 'write':
        this.#reply?.write(data);
        break;
      case 'end':
        this.#reply?.end();
        break;
      case 'unlink':
        this.#settled()?.unlink();
        break;
      case 'passOn':
        this.#passOn();
        break;
      case 'disconnect':
        this.#runs.get(run)?.disconnect();
        break;
      case 'kill':
        this.#runs.get(run)?.kill();
        break;
      case 'start':
        this.#start(run, String(data), this.#originOf(step), step.headers);
        break;
      case 'answer':
        this.#answered(ask, JSON.parse(String(data)));
        break;
      case 'refuse':
        this.#answered(ask);
        break;
    }
  }

  /** The reply, now that the SDK's answer is not passed on any more. */
  #settled(): Reply | undefined {
    this.#runs.get(0)?.settle();
    return this.#reply;
  }

  #passOn(): void {
    if (this.#reply !== undefined) {
      this.#runs.get(0)?.passOn(this.#reply);
    }
  }

  /** Whose credentials, and whose context, a round has. */
  #originOf({ request, travelled }: Pick<TaskStep, 'request' | 'travelled'>): Origin {
    if (travelled !== undefined) {
      return Origin.travelled(travelled, this.#origin.url);
    }
    return (request === undefined ? undefined : this.#context.runtime.asking.get(request)) ?? this.#origin;
  }

  #start(number: number, call: string, origin: Origin, ofMessage?: string[]): void {
    const run = new Run(number, this);
    this.#runs.set(number, run);
    const request = origin.request(run.signal, ofMessage);
    const message: unknown = JSON.parse(call);
    const asking: AskingRun = {
      asked: this,
      get signal() {
        return run.over;
      },
    };
    Object.assign(request, { [RUN]: asking });
    const start = () => run.start(this.#context.sdk, request, message, origin);
    origin.run(() => withinTask(this.#native, message, start));
  }

  /** Nobody serves the call any more. A client that waits for an answer gets one. */
  leave(): void {
    this.#isLeft = true;
    this.#reply?.unlink();
    this.#runs.forEach((run) => run.disconnect());
    this.#input(() => this.#native.leave());
  }
}
