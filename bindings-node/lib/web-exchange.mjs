// One HTTP exchange of the web platform: a Request is read, a Response is made.
import { Answer } from './answer.mjs';
import { bodyText } from './request.mjs';

const encoder = new TextEncoder();
/** What a stream takes before its reader asks, as a socket does. */
const READ_AHEAD_BYTES = 16 << 10;

export class WebExchange {
  face = 'fetch';
  #request;
  #resolve;
  #reject;
  auth;
  /** What was made of the body in front of the transport, and its text where that is at hand. */
  parsedBody;
  text;
  /** What is known of who sends it. */
  asker;

  /** Resolves to the Response, as soon as its head is known. */
  response = new Promise((resolve, reject) => {
    this.#resolve = resolve;
    this.#reject = reject;
  });

  constructor(request, { authInfo, parsedBody } = {}, text = undefined) {
    this.#request = request;
    this.auth = authInfo;
    this.parsedBody = parsedBody;
    this.text = text;
  }

  get method() {
    return this.#request.method;
  }

  /** What authentication in front of the endpoint left of the user. */
  get user() {
    return this.auth;
  }

  get request() {
    return this.#request;
  }

  get host() {
    return this.header('host') ?? new URL(this.#request.url).host;
  }

  header(name) {
    return this.#request.headers.get(name) ?? undefined;
  }

  /** The parts of the head that the engine looks at. */
  head() {
    return {
      method: this.method,
      accept: this.header('accept'),
      contentType: this.header('content-type'),
      protocolVersion: this.header('mcp-protocol-version'),
      sessionId: this.header('mcp-session-id'),
      lastEventId: this.header('last-event-id'),
      asker: this.asker,
    };
  }

  /** Reads the body: its `text`, `tooLarge`, or `gone` when the peer left. */
  async readBody(maxBytes) {
    if (Number(this.header('content-length')) > maxBytes) {
      return { tooLarge: true };
    }
    const reader = this.#request.body?.getReader();
    if (reader === undefined) {
      return { text: '' };
    }
    const chunks = [];
    let size = 0;
    try {
      for (;;) {
        const { done, value } = await reader.read();
        if (done) {
          return { text: bodyText(chunks) };
        }
        size += value.byteLength;
        if (size > maxBytes) {
          reader.cancel().catch(() => {});
          return { tooLarge: true };
        }
        chunks.push(value);
      }
    } catch {
      return { gone: true };
    }
  }

  /** Answers with what is known as a whole. */
  whole(status, headers, body = '') {
    // Some statuses forbid a body, an empty one too.
    this.respond(new Response(body === '' ? null : body, { status, headers }));
  }

  /** Answers with what a connection of the engine carries. */
  stream(connection, session, headFirst) {
    const answer = new WebAnswer(connection, session, headFirst, this);
    answer.start();
    return answer;
  }

  onGone(callback) {
    this.signal?.addEventListener('abort', callback, { once: true });
  }

  get signal() {
    return this.#request.signal;
  }

  respond(response) {
    this.#resolve(response);
  }

  fail(error) {
    this.#reject(error);
  }

  /** Leaves the answer to a handler. */
  async handTo({ fetch }) {
    const { auth: authInfo, parsedBody } = this;
    const options = { ...(authInfo !== undefined && { authInfo }), ...(parsedBody !== undefined && { parsedBody }) };
    this.respond(await fetch(this.#request, options));
  }

  /** The exchange is over: whoever still waits for a response gets one that says nothing. */
  abandon() {
    this.#resolve(new Response(null, { status: 499 }));
  }

  /** `ctx.http.req` of the 2.x SDK. */
  webRequest() {
    return this.#request;
  }

  /** `extra.requestInfo` of the 1.x SDK. */
  requestInfo() {
    return { headers: Object.fromEntries(this.#request.headers.entries()), url: new URL(this.#request.url) };
  }
}

class WebAnswer extends Answer {
  #exchange;
  #controller;

  constructor(connection, session, headFirst, exchange) {
    super(connection, session, headFirst);
    this.#exchange = exchange;
  }

  open() {
    const { signal } = this.#exchange;
    signal?.addEventListener('abort', this.#lost, { once: true });
    return signal?.aborted !== true;
  }

  head(status, contentType) {
    const body = new ReadableStream(
      {
        start: (controller) => {
          this.#controller = controller;
        },
        // Called when there is room again: only then the log is read on (I10).
        pull: () => this.writable(),
        cancel: () => this.lost(),
      },
      new ByteLengthQueuingStrategy({ highWaterMark: READ_AHEAD_BYTES }),
    );
    this.#exchange.respond(new Response(body, { status, headers: this.headers(contentType) }));
  }

  write(data) {
    this.#controller.enqueue(bytesOf(data));
    return this.#controller.desiredSize > 0;
  }

  flush() {}

  end(data) {
    if (data) {
      this.#controller.enqueue(bytesOf(data));
    }
    this.#controller.close();
  }

  whole(status, contentType, data) {
    this.#exchange.respond(new Response(data ?? null, { status, headers: this.headers(contentType) }));
  }

  fail(error) {
    if (this.#controller === undefined) {
      this.#exchange.fail(error);
    } else {
      this.#controller.error(error);
    }
  }

  release() {
    this.#exchange.signal?.removeEventListener('abort', this.#lost);
  }

  #lost = () => {
    this.lost();
    if (this.#controller === undefined) {
      this.#exchange.abandon();
    } else {
      try {
        this.#controller.close();
      } catch {
        // Its reader has cancelled it.
      }
    }
  };
}

function bytesOf(data) {
  return typeof data === 'string' ? encoder.encode(data) : data;
}
