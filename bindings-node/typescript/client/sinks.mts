// Where the events of a stream go: into the body of a response, or to a loop of its own. A sink tells its stream when
// there is room, so that a connection is read as fast as its reader reads, and no faster. It knows what its reader has:
// all of it (`isTaken`) once the reader asks for more and nothing is left; a token is never ahead of that.
const encoder = new TextEncoder();
/** What is read ahead of the response's reader, as a socket would. */
const READ_AHEAD_BYTES = 16 << 10;

/** Messages as they come: parsed JSON. */
export type MessageFlow = AsyncGenerator<unknown, void, undefined>;

/** What a stream delivers: events for a reader of HTTP, or the texts of messages. */
export interface Delivered {
  readonly frames?: string | Uint8Array | undefined;
  readonly messages?: readonly string[] | undefined;
}

export interface Sink {
  readonly wantsMessages: boolean;
  /** The reader has all that came. */
  readonly isTaken: boolean;
  /** Nothing is left for the reader, and nothing will come. */
  readonly isOver: boolean;
  /** The first answer is there. `cancel` is called when nobody reads any more. */
  opened(answer: Response, cancel: (reason: unknown) => void): void;
  /** The stream never opened: the server's refusal, or why there is none. `failure` is what the stream failed with. */
  refused(answer: Response | undefined, error: unknown, failure: unknown): void;
  deliver(delivered: Delivered): void;
  hasRoom(): boolean;
  whenRoom(callback: () => void): void;
  end(): void;
  /** `frames` are the errors of the requests, where the stream has any. */
  failed(error: unknown, frames?: string | Uint8Array): void;
  /** The caller does not wait any more. */
  aborted(reason: unknown): void;
}

/** The response that a client of HTTP gets: one for the stream, however many connections it takes. */
export class ResponseSink implements Sink {
  readonly wantsMessages = false;
  isTaken = true;
  isOver = false;
  #resolve!: (response: Response) => void;
  #reject!: (error: unknown) => void;
  #controller: ReadableStreamDefaultController<Uint8Array> | undefined;
  #onRoom: (() => void) | undefined;
  #chunks: Uint8Array[] = [];
  #size = 0;
  #isAsked = false;
  /** What ends the body once all of it is handed out. */
  #ending: (() => void) | undefined;

  readonly response = new Promise<Response>((resolve, reject) => {
    this.#resolve = resolve;
    this.#reject = reject;
  });

  opened(answer: Response, cancel: (reason: unknown) => void): void {
    const body = new ReadableStream<Uint8Array>(
      {
        start: (controller) => {
          this.#controller = controller;
        },
        pull: () => this.#pull(),
        cancel: (reason) => {
          this.#drop();
          cancel(reason);
        },
      },
      // With a queue of its own it would ask before its reader does.
      { highWaterMark: 0 },
    );
    const { status, statusText, url, redirected } = answer;
    const headers = new Headers(answer.headers);
    headers.delete('content-length');
    const response = new Response(body, { status, statusText, headers });
    // What a constructor cannot set.
    Object.defineProperties(response, {
      url: { value: url, configurable: true },
      redirected: { value: redirected, configurable: true },
    });
    this.#resolve(response);
  }

  refused(answer: Response | undefined, error: unknown): void {
    if (answer === undefined) {
      this.#reject(error);
    } else {
      this.#resolve(answer);
    }
  }

  deliver({ frames }: Delivered): void {
    if (!frames || this.isOver) {
      return;
    }
    const chunk = typeof frames === 'string' ? encoder.encode(frames) : frames;
    this.isTaken = false;
    this.#chunks.push(chunk);
    this.#size += chunk.byteLength;
    if (this.#isAsked) {
      this.#handOut();
    }
  }

  hasRoom(): boolean {
    return this.#size < READ_AHEAD_BYTES;
  }

  whenRoom(callback: () => void): void {
    this.#onRoom = callback;
  }

  end(): void {
    this.#settle(() => this.#controller?.close());
  }

  /** The requests get their errors, which `frames` are; a stream without requests breaks. */
  failed(error: unknown, frames?: string | Uint8Array): void {
    if (frames) {
      this.deliver({ frames });
      this.end();
    } else {
      this.#settle(() => this.#controller?.error(error));
    }
  }

  aborted(reason: unknown): void {
    this.#reject(reason);
    this.#drop();
    // Nothing happens to a body that its reader has cancelled.
    this.#controller?.error(reason);
  }

  /** The reader waits for more. */
  #pull(): void {
    this.#isAsked = true;
    if (this.#chunks.length > 0) {
      this.#handOut();
    } else {
      this.isTaken = true;
    }
    this.#onRoom?.();
  }

  #handOut(): void {
    const chunk = this.#chunks.shift();
    if (chunk === undefined) {
      return;
    }
    this.#size -= chunk.byteLength;
    this.#isAsked = false;
    this.#controller?.enqueue(chunk);
    this.#settle();
  }

  #settle(ending?: () => void): void {
    this.#ending ??= ending;
    if (this.#ending !== undefined && this.#chunks.length === 0 && !this.isOver) {
      this.isOver = true;
      this.#ending();
    }
  }

  #drop(): void {
    this.isOver = true;
    this.#chunks = [];
    this.#size = 0;
  }
}

/** The messages of a stream, for a loop. */
export class MessageSink implements Sink {
  readonly wantsMessages = true;
  isTaken = true;
  isOver = false;
  #texts: string[] = [];
  #state: { readonly error: unknown } | undefined;
  #onChange: (() => void) | undefined;
  #onRoom: (() => void) | undefined;

  opened(): void {}

  refused(_answer: Response | undefined, _error: unknown, failure: unknown): void {
    this.#settle(failure);
  }

  deliver({ messages }: Delivered): void {
    if (messages) {
      this.isTaken = false;
      this.#texts.push(...messages);
      this.#onChange?.();
    }
  }

  hasRoom(): boolean {
    return this.#texts.length === 0;
  }

  whenRoom(callback: () => void): void {
    this.#onRoom = callback;
  }

  end(): void {
    this.#settle();
  }

  failed(error: unknown): void {
    this.#settle(error);
  }

  aborted(reason: unknown): void {
    this.#settle(reason);
  }

  #settle(error?: unknown): void {
    this.#state ??= { error };
    this.#onChange?.();
  }

  /** The messages, as they come; throws what the stream failed with, after them. */
  async *messages(): MessageFlow {
    try {
      for (;;) {
        const texts = this.#texts;
        this.#texts = [];
        for (const text of texts) {
          yield* each(JSON.parse(text));
        }
        if (this.#texts.length > 0) {
          continue;
        }
        this.isTaken = true;
        if (this.#state !== undefined) {
          if (this.#state.error !== undefined) {
            throw this.#state.error;
          }
          return;
        }
        await new Promise<void>((resolve) => {
          this.#onChange = resolve;
          this.#onRoom?.();
        });
      }
    } finally {
      this.isOver = true;
    }
  }
}

/** The messages of a body, which may be a batch. */
export function each(body: unknown): unknown[] {
  return Array.isArray(body) ? body : [body];
}
