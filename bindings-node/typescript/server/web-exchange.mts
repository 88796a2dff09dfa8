// One HTTP exchange of the web platform: a Request is read, a Response is made.
import type { Body, Connection, Head, Requester } from '../native.mjs';
import { Answer, EVENT_STREAM } from './answer.mjs';
import { encoded, handBody, type ReadBody, readRequest } from './body.mjs';
import type {
  AnswerContext,
  Exchange,
  FetchOptions,
  Handlers,
  OpenAnswer,
  RequestInfo,
  Sink,
  SinkListener,
} from './exchange.mjs';
import { headOf } from './head.mjs';
import { serverNameOf } from './server-name.mjs';
import type { WebHead } from './web-request.mjs';
import { withResolvers } from './with-resolvers.mjs';

/** What a stream takes before its reader asks, as a socket does. */
const READ_AHEAD_BYTES = 16 << 10;

export class WebExchange implements Exchange {
  readonly face = 'fetch';
  #request: Request;
  #options: FetchOptions;
  #answered = withResolvers<Response>();
  parsedBody: unknown;
  text: Body | undefined;
  requester: Requester | undefined;
  server = '';

  constructor(request: Request, options?: FetchOptions | null) {
    this.#request = request;
    this.#options = options ?? {};
    this.parsedBody = this.#options.parsedBody;
  }

  /** Has `serve` answer it. Resolves to the Response, as soon as its head is known. */
  async answeredBy(serve: (exchange: WebExchange) => Promise<unknown>): Promise<Response> {
    void serve(this).finally(() => this.abandon());
    return this.#answered.promise;
  }

  checkUnanswered(): void {}

  /** The same request, to be answered once more. */
  again(): WebExchange {
    const again = new WebExchange(this.#request, { ...this.#options, parsedBody: this.parsedBody });
    again.text = this.text;
    return again;
  }

  get method(): string {
    return this.#request.method;
  }

  get auth(): unknown {
    return this.#options.authInfo;
  }

  get user(): unknown {
    return this.auth;
  }

  get request(): Request {
    return this.#request;
  }

  get host(): string {
    return this.header('host') ?? new URL(this.#request.url).host;
  }

  get endpoint(): string {
    return serverNameOf(this.#request.url);
  }

  header(name: string): string | undefined {
    return this.#request.headers.get(name) ?? undefined;
  }

  headersOf(asked: (name: string) => boolean): string[] {
    return [...this.#request.headers].filter(([name]) => asked(name)).flat();
  }

  head(): Head {
    const [accept, contentType] = [this.header('accept'), this.header('content-type')];
    const [protocolVersion, sessionId] = [this.header('mcp-protocol-version'), this.header('mcp-session-id')];
    const lastEventId = this.header('last-event-id');
    return headOf(this.method, accept, contentType, protocolVersion, sessionId, lastEventId);
  }

  readBody(maxBytes: number): Promise<ReadBody> {
    return readRequest(this.#request, maxBytes);
  }

  whole(status: number, headers: Record<string, string>, body = ''): void {
    // Some statuses forbid a body, an empty one too.
    this.respond(new Response(body === '' ? null : body, { status, headers }));
  }

  stream(connection: Connection, context: AnswerContext): OpenAnswer {
    const answer = new Answer(connection, context, this.sink());
    answer.start();
    return answer;
  }

  sink(): Sink {
    return new WebSink(this);
  }

  get signal(): AbortSignal | undefined {
    try {
      return this.#request.signal;
    } catch {
      // What a host has put in front of it may have none: then nobody says that the client leaves.
      return undefined;
    }
  }

  respond(response: Response): void {
    this.#answered.resolve(response);
  }

  handedOn(request: Request, options?: FetchOptions | null): void {
    this.#request = request;
    this.#options = options ?? {};
    handBody(this, this.#options.parsedBody);
  }

  async handTo({ fetch }: Handlers): Promise<void> {
    const { auth: authInfo, parsedBody } = this;
    const options = { ...(authInfo !== undefined && { authInfo }), ...(parsedBody !== undefined && { parsedBody }) };
    this.respond(await fetch(this.#request, options));
  }

  /** A caller that still waits for a response gets an empty one. */
  abandon(): void {
    this.respond(new Response(null, { status: 499 }));
  }

  webHead(): WebHead {
    const { url, headers } = this.#request;
    return { url, headers: () => new Headers(headers) };
  }

  webRequest(): Request {
    return this.#request;
  }

  requestInfo(): RequestInfo {
    return { headers: Object.fromEntries(this.#request.headers.entries()), url: new URL(this.#request.url) };
  }
}

class WebSink implements Sink {
  #exchange: WebExchange;
  #listener: SinkListener | undefined;
  /** From the head on. */
  #controller: ReadableStreamDefaultController<Uint8Array> | undefined;

  constructor(exchange: WebExchange) {
    this.#exchange = exchange;
  }

  open(listener: SinkListener): boolean {
    this.#listener = listener;
    const { signal } = this.#exchange;
    signal?.addEventListener('abort', this.#aborted, { once: true });
    return signal?.aborted !== true;
  }

  head(status: number, headers: Record<string, string>): void {
    const body = new ReadableStream<Uint8Array>(
      {
        start: (controller) => {
          this.#controller = controller;
        },
        // Called when there is room again: only then the log is read on (I10).
        pull: () => this.#listener?.writable(),
        cancel: () => this.#listener?.lost(),
      },
      new ByteLengthQueuingStrategy({ highWaterMark: READ_AHEAD_BYTES }),
    );
    this.#exchange.respond(new Response(body, { status, headers }));
  }

  write(data: string | Uint8Array): boolean {
    this.#controller?.enqueue(encoded(data));
    return (this.#controller?.desiredSize ?? 0) > 0;
  }

  end(data?: string | Uint8Array): void {
    if (data) {
      this.#controller?.enqueue(encoded(data));
    }
    this.#controller?.close();
  }

  whole(status: number, headers: Record<string, string>, data?: string | Uint8Array): void {
    if (headers['content-type'] === EVENT_STREAM) {
      // Hosts tell the length of a body that is no stream, and middleware may change the events.
      this.head(status, headers);
      this.end(data);
      return;
    }
    this.#exchange.respond(new Response(data ?? null, { status, headers }));
  }

  fail(error: unknown): void {
    this.#controller?.error(error);
  }

  release(): void {
    this.#exchange.signal?.removeEventListener('abort', this.#aborted);
  }

  #aborted = () => this.#listener?.lost();

  drop(): void {
    if (this.#controller === undefined) {
      this.#exchange.abandon();
    } else {
      try {
        this.#controller.close();
      } catch {
        // Its reader has cancelled it.
      }
    }
  }
}
