// The answer to a call that may become a task.
import { EVENT_STREAM } from '../answer.mjs';
import { withResolvers } from '../with-resolvers.mjs';

const encoder = new TextEncoder();
const STREAM_HEADERS = {
  'content-type': EVENT_STREAM,
  'cache-control': 'no-cache, no-transform',
  // Proxies that buffer would hold events back (W-030).
  'x-accel-buffering': 'no',
};

export class Reply {
  #response = withResolvers<Response>();
  #controller: ReadableStreamDefaultController<Uint8Array> | undefined;
  #signal: AbortSignal;
  #gone: (() => void) | undefined;
  /** There is an answer, though not all of it may be there. */
  isGiven = false;

  /** `gone` is called, once, when the client has closed its connection, unless the reply was unlinked before. */
  constructor(signal: AbortSignal, gone: () => void) {
    this.#signal = signal;
    this.#gone = gone;
    signal.addEventListener('abort', this.#aborted);
    if (signal.aborted) {
      this.#aborted();
    }
  }

  get response(): Promise<Response> {
    return this.#response.promise;
  }

  #aborted = () => {
    const gone = this.#gone;
    this.unlink();
    gone?.();
    // Nobody is left to get it.
    this.give(new Response(null, { status: 499 }));
  };

  /** The end of the client's connection concerns nobody any more. */
  unlink(): void {
    this.#gone = undefined;
    this.#signal.removeEventListener('abort', this.#aborted);
  }

  /** Answers, unless there is an answer. */
  give(response: Response): void {
    this.isGiven = true;
    this.#response.resolve(response);
  }

  whole(status: number, body: string | Uint8Array): void {
    this.unlink();
    this.give(new Response(body, { status, headers: { 'content-type': 'application/json' } }));
  }

  begin(): void {
    const body = new ReadableStream<Uint8Array>({
      start: (controller) => {
        this.#controller = controller;
      },
      cancel: () => {
        this.#controller = undefined;
        this.#aborted();
      },
    });
    this.give(new Response(body, { status: 200, headers: STREAM_HEADERS }));
  }

  write(data: string | Uint8Array): void {
    this.#controller?.enqueue(typeof data === 'string' ? encoder.encode(data) : data);
  }

  end(): void {
    this.unlink();
    this.#controller?.close();
    this.#controller = undefined;
  }
}
