// Where the events of a stream go: into the body of a response, or to a loop of its own. A sink tells its stream when
// there is room, so that a connection is read as fast as its reader reads, and no faster. It knows what its reader has:
// all of it (`isTaken`) once the reader asks for more and nothing is left; a token is never ahead of that.
const encoder = new TextEncoder();
/** What is read ahead of the response's reader, as a socket would. */
const READ_AHEAD_BYTES = 16 << 10;

/** The response that a client of HTTP gets: one for the stream, however many connections it takes. */
export class ResponseSink {
  wantsMessages = false;
  isTaken = true;
  /** Nothing is left for the reader, and nothing will come. */
  isOver = false;
  #resolve;
  #reject;
  #controller;
  #onRoom;
  #chunks = [];
  #size = 0;
  #isAsked = false;
  /** What ends the body once all of it is handed out. */
  #ending;

  response = new Promise((resolve, reject) => {
    this.#resolve = resolve;
    this.#reject = reject;
  });

  /** The first answer is there. `cancel` is called when nobody reads any more. */
  opened(answer, cancel) {
    const body = new ReadableStream(
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

  /** The stream never opened: the server's refusal, or why there is none. */
  refused(answer, error) {
    if (answer === undefined) {
      this.#reject(error);
    } else {
      this.#resolve(answer);
    }
  }

  deliver({ frames }) {
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

  hasRoom() {
    return this.#size < READ_AHEAD_BYTES;
  }

  whenRoom(callback) {
    this.#onRoom = callback;
  }

  end() {
    this.#settle(() => this.#controller.close());
  }

  /** The requests get their errors, which `frames` are; a stream without requests breaks. */
  failed(error, frames) {
    if (frames) {
      this.deliver({ frames });
      this.end();
    } else {
      this.#settle(() => this.#controller?.error(error));
    }
  }

  /** Whoever asked does not wait any more. */
  aborted(reason) {
    this.#reject(reason);
    this.#drop();
    // Nothing happens to a body that its reader has cancelled.
    this.#controller?.error(reason);
  }

  /** The reader waits for more. */
  #pull() {
    this.#isAsked = true;
    if (this.#chunks.length > 0) {
      this.#handOut();
    } else {
      this.isTaken = true;
    }
    this.#onRoom?.();
  }

  #handOut() {
    const chunk = this.#chunks.shift();
    this.#size -= chunk.byteLength;
    this.#isAsked = false;
    this.#controller.enqueue(chunk);
    this.#settle();
  }

  #settle(ending) {
    this.#ending ??= ending;
    if (this.#ending !== undefined && this.#chunks.length === 0 && !this.isOver) {
      this.isOver = true;
      this.#ending();
    }
  }

  #drop() {
    this.isOver = true;
    this.#chunks = [];
    this.#size = 0;
  }
}

/** The messages of a stream, for a loop. */
export class MessageSink {
  wantsMessages = true;
  isTaken = true;
  isOver = false;
  #texts = [];
  #state;
  #onChange;
  #onRoom;

  opened() {}

  refused(_answer, _error, failure) {
    this.#settle(failure);
  }

  deliver({ messages }) {
    if (messages) {
      this.isTaken = false;
      this.#texts.push(...messages);
      this.#onChange?.();
    }
  }

  hasRoom() {
    return this.#texts.length === 0;
  }

  whenRoom(callback) {
    this.#onRoom = callback;
  }

  end() {
    this.#settle();
  }

  failed(error) {
    this.#settle(error);
  }

  aborted(reason) {
    this.#settle(reason);
  }

  #settle(error) {
    this.#state ??= { error };
    this.#onChange?.();
  }

  /** The messages, as they come; throws what the stream failed with, after them. */
  async *messages() {
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
        await new Promise((resolve) => {
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
export function each(body) {
  return Array.isArray(body) ? body : [body];
}
