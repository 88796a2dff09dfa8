// One run of a call: the SDK's handling of it, which nobody's connection ends.
import type { FetchHandler } from '../sdk.mjs';
import type { Origin } from './origin.mjs';
import type { Reply } from './reply.mjs';
import type { Room } from './room.mjs';

/** Who is told what comes of a run. None of it throws. */
export interface RunListener extends Room {
  /** The whole answer. */
  answered(run: number, status: number, contentType: string | undefined, body: string): void;
  /** Whether the answer is a body that may have to be passed on as it is. */
  begun(run: number, status: number, contentType: string | undefined): boolean;
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
  /** What came of a body, while it may still be passed on. */
  #kept: Uint8Array[] | undefined;
  /** All of it, where it was there at once. */
  #whole: string | undefined;
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
    if (contentType?.startsWith('application/json')) {
      // What is JSON is there at once, and reading it as a stream takes longer. Text leaves in one piece with its head.
      const body = await response.text();
      if (!this.#isOver) {
        this.#whole = body;
        this.#isOver = true;
        this.#over?.abort();
        this.#listener.answered(this.number, response.status, contentType, body);
      }
      return;
    }
    if (this.#listener.begun(this.number, response.status, contentType) && this.number === 0) {
      this.#kept = [];
    }
    for await (const chunk of response.body ?? []) {
      if (this.#isOver) {
        // Leaving the loop cancels the rest.
        return;
      }
      this.#kept?.push(chunk);
      this.#listener.data(this.number, chunk);
      await this.#listener.room;
    }
    this.#end();
  }

  #end(): void {
    if (this.#isOver) {
      return;
    }
    this.#isOver = true;
    this.#over?.abort();
    this.#listener.ended(this.number);
  }

  /** The answer is not passed on any more. */
  settle(): void {
    this.#kept = undefined;
  }

  /** Gives `reply` the SDK's answer, a body, as it is. */
  passOn(reply: Reply): void {
    const { status = 500, headers = [] } = this.#response ?? {};
    const kept = this.#kept ?? [];
    this.#kept = undefined;
    reply.whole(
      status,
      Object.fromEntries(headers),
      this.#whole || (kept.length > 0 ? Buffer.concat(kept) : undefined),
    );
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
