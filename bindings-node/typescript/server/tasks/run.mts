// One run of a call: the SDK's handling of it, which nobody's connection ends.
import type { FetchHandler } from '../sdk.mjs';
import type { Origin } from './origin.mjs';

/** Who is told what comes of a run. None of it throws. */
export interface RunListener {
  begun(run: number, status: number, contentType: string | undefined): void;
  data(run: number, chunk: Uint8Array): void;
  ended(run: number): void;
  failed(error: unknown): void;
}

export class Run {
  readonly number: number;
  #listener: RunListener;
  #controller = new AbortController();
  #over: AbortController | undefined;
  #response: Response | undefined;
  /** What came of the answer, while it may still be passed on. */
  #kept: Uint8Array[] | undefined = [];
  /** Where the rest goes once it is passed on. */
  #sink: ReadableStreamDefaultController<Uint8Array> | undefined;
  #isOver = false;

  constructor(number: number, listener: RunListener) {
    this.number = number;
    this.#listener = listener;
  }

  /** What tells the SDK that nobody wants the answer any more. */
  get signal(): AbortSignal {
    return this.#controller.signal;
  }

  /** What tells that nobody waits for anything of the run any more. */
  get over(): AbortSignal {
    this.#over ??= new AbortController();
    if (this.#isOver || this.#controller.signal.aborted) {
      this.#over.abort();
    }
    return this.#over.signal;
  }

  /** Gives the SDK the request, whose message is `parsedBody`. */
  start(sdk: FetchHandler, request: Request, parsedBody: unknown, { auth }: Origin): void {
    const answer = async () => sdk.fetch(request, { ...(auth !== undefined && { authInfo: auth }), parsedBody });
    this.#read(answer).catch((error) => {
      if (!this.#isOver) {
        this.#listener.failed(error);
        this.#end();
      }
    });
  }

  async #read(answer: () => Promise<Response>): Promise<void> {
    const response = await answer();
    if (this.#isOver) {
      await response.body?.cancel();
      return;
    }
    this.#response = response;
    const contentType = response.headers.get('content-type') ?? undefined;
    this.#listener.begun(this.number, response.status, contentType);
    // What is JSON is there at once, and reading it as a stream takes longer.
    const isWhole = contentType?.startsWith('application/json') === true;
    for await (const chunk of isWhole ? [new Uint8Array(await response.arrayBuffer())] : (response.body ?? [])) {
      if (this.#isOver) {
        // Leaving the loop cancels the rest.
        return;
      }
      this.#kept?.push(chunk);
      this.#sink?.enqueue(chunk);
      this.#listener.data(this.number, chunk);
    }
    this.#end();
  }

  #end(): void {
    if (this.#isOver) {
      return;
    }
    this.#isOver = true;
    this.#over?.abort();
    this.#sink?.close();
    this.#listener.ended(this.number);
  }

  /** The answer is not passed on any more. */
  settle(): void {
    this.#kept = undefined;
  }

  /** The SDK's answer as it is: what has come of it, and what comes. */
  passOn(): Response {
    const { status = 500, statusText = '', headers } = this.#response ?? {};
    const kept = this.#kept ?? [];
    this.#kept = undefined;
    if (this.#isOver) {
      return new Response(kept.length === 0 ? null : Buffer.concat(kept), { status, statusText, headers });
    }
    const body = new ReadableStream<Uint8Array>({
      start: (controller) => {
        kept.forEach((chunk) => controller.enqueue(chunk));
        this.#sink = controller;
      },
      cancel: () => {
        this.#sink = undefined;
        this.disconnect();
      },
    });
    return new Response(body, { status, statusText, headers });
  }

  /** Ends the connection of the run, so that the SDK cancels its handler. */
  disconnect(): void {
    this.#controller.abort();
    this.#over?.abort();
  }

  /** Waits for it no more: nothing can end a handler that does not listen. */
  kill(): void {
    this.disconnect();
    this.#end();
  }
}
