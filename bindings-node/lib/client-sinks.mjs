// Where the events of a stream go: into the body of a response, or to a loop of its own. A sink tells its stream when
// there is room, so that a connection is read as fast as its reader reads, and no faster.
const encoder = new TextEncoder();
/** What is read ahead of the response's reader, as a socket would. */
const READ_AHEAD_BYTES = 16 << 10;

/** The response that a client of HTTP gets: one for the stream, however many connections it takes. */
export class ResponseSink {
  wantsMessages = false;
  #resolve;
  #reject;
  #controller;
  #onRoom;

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
        pull: () => this.#onRoom?.(),
        cancel,
      },
      new ByteLengthQueuingStrategy({ highWaterMark: READ_AHEAD_BYTES }),
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
    if (frames) {
      this.#controller.enqueue(typeof frames === 'string' ? encoder.encode(frames) : frames);
    }
  }

  hasRoom() {
    return this.#controller.desiredSize > 0;
  }

  whenRoom(callback) {
    this.#onRoom = callback;
  }

  end() {
    this.#controller.close();
  }

  /** The requests get their errors, which `frames` are; a stream without requests breaks. */
  failed(error, frames) {
    if (frames) {
      this.deliver({ frames });
      this.#controller.close();
    } else {
      this.#controller?.error(error);
    }
  }

  /** Whoever asked does not wait any more. */
  aborted(reason) {
    this.#reject(reason);
    // Nothing happens to a body that its reader has cancelled.
    this.#controller?.error(reason);
  }
}

/** The messages of a stream, for a loop. */
export class MessageSink {
  wantsMessages = true;
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
    for (;;) {
      const texts = this.#texts;
      this.#texts = [];
      for (const text of texts) {
        yield* each(JSON.parse(text));
      }
      if (this.#texts.length > 0) {
        continue;
      }
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
  }
}

/** The messages of a body, which may be a batch. */
export function each(body) {
  return Array.isArray(body) ? body : [body];
}
