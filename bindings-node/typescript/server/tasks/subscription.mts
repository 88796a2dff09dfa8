// A subscription that names tasks: served by the SDK, and what becomes of the tasks goes between the events of its stream.
import type { TaskSubscription as Native } from '../../native.mjs';
import type { Waiter } from '../../runtime.mjs';
import type { CallContext } from './call.mjs';

const encoder = new TextEncoder();

export class TaskSubscription implements Waiter {
  scheduled = false;
  #context: Pick<CallContext, 'runtime' | 'report'>;
  #native: Native;
  /** The subscriptions of one handler. */
  #open: Set<TaskSubscription>;
  #sdk: ReadableStreamDefaultReader<Uint8Array> | undefined;
  #isReading = false;
  #controller: ReadableStreamDefaultController<Uint8Array> | undefined;
  /** Ends the wait of a client that can take more. */
  #wants: (() => void) | undefined;

  constructor(context: CallContext, native: Native, open: Set<TaskSubscription>) {
    this.#context = context;
    this.#native = native;
    this.#open = open;
  }

  /** Resolves to the answer, as soon as the SDK's is there. */
  async answer(sdk: () => Promise<Response>): Promise<Response> {
    const { runtime } = this.#context;
    runtime.wait(this.#native.key, this);
    this.#open.add(this);
    runtime.armDue();
    let isTaken = false;
    try {
      const response = await sdk();
      const { status, statusText, headers } = response;
      if (response.body === null || !this.#native.begin(headers.get('content-type'))) {
        return response;
      }
      this.#sdk = response.body.getReader();
      isTaken = true;
      return new Response(this.#body(), { status, statusText, headers });
    } finally {
      if (!isTaken) {
        this.#forget();
      }
    }
  }

  /** Nothing is read ahead: what a slow client does not take is not there yet. */
  #body(): ReadableStream<Uint8Array> {
    return new ReadableStream<Uint8Array>(
      {
        start: (controller) => {
          this.#controller = controller;
        },
        pull: () =>
          new Promise<void>((resolve) => {
            this.#wants = resolve;
            this.pump();
          }),
        cancel: () => this.#leave(),
      },
      { highWaterMark: 0 },
    );
  }

  /** Gives the client what there is, if it can take it. */
  pump(): void {
    if (this.#wants === undefined) {
      return;
    }
    try {
      const data = this.#native.next();
      this.#context.runtime.armDue();
      if (data !== null) {
        this.#controller?.enqueue(typeof data === 'string' ? encoder.encode(data) : data);
        this.#taken();
      } else if (this.#native.isOver) {
        this.#controller?.close();
        this.#taken();
        this.#leave();
      } else {
        this.#read();
      }
    } catch (error) {
      this.#fail(error);
    }
  }

  #taken(): void {
    const taken = this.#wants;
    this.#wants = undefined;
    taken?.();
  }

  #read(): void {
    if (this.#sdk === undefined || this.#isReading || !this.#native.takes) {
      return;
    }
    this.#isReading = true;
    this.#sdk.read().then(
      ({ done, value }) => {
        this.#isReading = false;
        if (done) {
          this.#sdk = undefined;
          this.#native.end();
        } else {
          this.#native.push(value);
        }
        this.pump();
      },
      (error) => this.#fail(error),
    );
  }

  #fail(error: unknown): void {
    this.#context.report('a subscription to tasks is not served any more', error);
    this.#controller?.error(error);
    this.#taken();
    this.#leave();
  }

  /** Nobody takes anything any more. */
  #leave(): void {
    this.#forget();
    const sdk = this.#sdk;
    this.#sdk = this.#wants = undefined;
    sdk?.cancel().catch((error) => this.#context.report('the end of a subscription failed', error));
  }

  #forget(): void {
    this.#native.leave();
    this.#open.delete(this);
    this.#context.runtime.forget(this.#native.key);
  }

  /** The handler is closed. */
  drain(): void {
    this.#native.drain();
  }
}
