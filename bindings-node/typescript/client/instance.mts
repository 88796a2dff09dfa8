// What one `resumableFetch` does: which of its requests are streams, and how those begin.

import { ours, TailropeError, told } from '../errors.mjs';
import { type ClientOptions, ClientRepeats, ClientStream } from '../native.mjs';
import { isDisabled } from '../platform.mjs';
import { type Asked, bodyOf, overlay, readOut, requestOf, textOf } from './http.mjs';
import { type FetchLike, type ResumeOptions, type Settings, settingsOf, type Where } from './options.mjs';
import { repeated } from './repeated.mjs';
import { type Scope, Scopes, savedHeaders } from './scope.mjs';
import { each, type MessageFlow, MessageSink, ResponseSink, type Sink } from './sinks.mjs';
import { ResumedStream } from './stream.mjs';

const ACCEPT = 'application/json, text/event-stream';

/** A stream that is about to run. */
interface Begun {
  readonly native: ClientStream;
  readonly isStandalone?: boolean;
  /** Whether the request is still to be sent as it was asked for. */
  readonly isFirst?: boolean;
  /** Its own, where they differ. */
  readonly settings?: Settings;
}

/** Told of a stream that has started. */
export type Started = (stream: ResumedStream) => void;

export class Instance {
  readonly #settings: Settings;
  readonly #options: ClientOptions;
  readonly #scopes = new Scopes();

  constructor(fetch: FetchLike, options: ResumeOptions) {
    ({ settings: this.#settings, native: this.#options } = settingsOf(fetch, options));
  }

  async fetch(input: string | URL | Request, init?: RequestInit): Promise<Response> {
    const { fetch } = this.#settings;
    if (isDisabled()) {
      return fetch(input, init);
    }
    const request = requestOf(input, init);
    const { method, headers, url } = request;
    const scope = this.#scopes.enter(url, headers);
    let isHeld = false;
    try {
      if (!takes(method, headers)) {
        const repeats = method === 'POST' ? await this.#repeats(request) : null;
        return await (repeats ? repeated(repeats, request, this.#settings) : fetch(input, init));
      }
      scope.note(headers);
      if (method === 'GET') {
        const sink = new ResponseSink();
        isHeld = true;
        this.#run(this.#opened(request, false), sink, request, scope);
        return await sink.response;
      }
      const body = await bodyOf(request);
      const posted = body === undefined ? {} : ClientStream.classify(body);
      for (const id of posted.cancelled ?? []) {
        scope.cancel(id);
      }
      const { answer, cancelled } = await this.#send(scope, request);
      if (!posted.requests || !answer.body || !takesAnswer(answer)) {
        return answer;
      }
      const sink = new ResponseSink();
      isHeld = true;
      const stream = this.#posted(posted.requests, sink, request, scope, answer);
      for (const id of cancelled) {
        stream.cancelled(id);
      }
      return await sink.response;
    } finally {
      if (!isHeld) {
        this.#scopes.leave(scope);
      }
    }
  }

  /** Of a request about a task. */
  async #repeats(request: Asked): Promise<ClientRepeats | null> {
    const version = request.headers.get('mcp-protocol-version');
    const body = version === null ? undefined : await bodyOf(request);
    return body === undefined ? null : ClientRepeats.of(version, body, this.#options);
  }

  /** The answer to a POST, and what was cancelled before it came. */
  async #send(scope: Scope, { input, init }: Asked): Promise<{ answer: Response; cancelled: string[] }> {
    const cancelled: string[] = [];
    scope.posts.add(cancelled);
    try {
      return { answer: await this.#settings.fetch(input, init), cancelled };
    } finally {
      scope.posts.delete(cancelled);
    }
  }

  /** A stream that begins with a GET. */
  #opened({ headers }: Asked, wantsMessages: boolean): Begun {
    const cursor = headers.get('last-event-id');
    const now = performance.now();
    return cursor
      ? { native: ClientStream.continued(textOf(cursor), this.#options, wantsMessages, now), isFirst: true }
      : { native: ClientStream.standalone(this.#options, wantsMessages, now), isStandalone: true, isFirst: true };
  }

  /** Runs a stream that began with a POST. */
  #posted(requests: string, sink: Sink, request: Asked, scope: Scope, answer: Response): ResumedStream {
    const native = ClientStream.posted(requests, this.#options, sink.wantsMessages, performance.now());
    const told = this.#scopes.told(scope, request.url, request.headers, answer);
    if (told !== undefined) {
      this.#scopes.leave(scope);
    }
    return this.#run({ native }, sink, request, told ?? scope, answer);
  }

  /** Runs a stream, and leaves its scope at the end. */
  #run(begun: Begun, sink: Sink, request: Asked, scope: Scope, answer?: Response): ResumedStream {
    const { native, settings = this.#settings, ...how } = begun;
    const stream = new ResumedStream(native, sink, request, scope, settings, how);
    void stream.run(answer).finally(() => {
      this.#scopes.leave(scope);
      this.#scopes.done(stream);
    });
    return stream;
  }

  #saved(token: string): ClientStream {
    try {
      return ClientStream.saved(token, this.#options, true, performance.now());
    } catch (error) {
      throw ours(error);
    }
  }

  /** The messages of a stream that was saved. */
  async *resume(token: string, { url, headers, signal }: Where, started: Started): MessageFlow {
    const sink = new MessageSink();
    const native = this.#saved(token);
    const sent = savedHeaders(native);
    const isAsked = typeof headers === 'function';
    if (!isAsked) {
      await overlay(sent, headers);
    }
    const settings = isAsked ? { ...this.#settings, headers } : this.#settings;
    const request = requestOf(url, { headers: sent, signal });
    const isStandalone = JSON.parse(native.requests).length === 0;
    const scope = this.#scopes.enter(request.url, sent);
    scope.note(sent);
    yield* messages(sink, this.#run({ native, isStandalone, settings }, sink, request, scope), started);
  }

  /** The messages that answer a message, or those of the standalone stream. */
  async *stream(
    url: string | URL,
    message: object | string | undefined,
    signal: AbortSignal,
    started: Started,
  ): MessageFlow {
    const { fetch, headers: more } = this.#settings;
    const headers = new Headers({ accept: message === undefined ? 'text/event-stream' : ACCEPT });
    if (message !== undefined) {
      headers.set('content-type', 'application/json');
    }
    await overlay(headers, more);
    const body = message === undefined || typeof message === 'string' ? message : JSON.stringify(message);
    const init: RequestInit = { method: body === undefined ? 'GET' : 'POST', headers, body, signal };
    const request = requestOf(url, init);
    if (!takes(request.method, headers)) {
      const revision = headers.get('mcp-protocol-version');
      throw new TailropeError('not_resumable', `revision ${revision} of the protocol has no resumption`);
    }
    const sink = new MessageSink();
    if (body === undefined) {
      const scope = this.#scopes.enter(request.url, headers);
      scope.note(headers);
      yield* messages(sink, this.#run(this.#opened(request, true), sink, request, scope), started);
      return;
    }
    const { requests } = ClientStream.classify(body);
    const answer = await fetch(url, init);
    if (requests && answer.body && takesAnswer(answer)) {
      const scope = this.#scopes.enter(request.url, headers);
      scope.note(headers);
      yield* messages(sink, this.#posted(requests, sink, request, scope, answer), started);
    } else {
      yield* whole(answer, requests !== undefined);
    }
  }

  tokens(): string[] {
    return [...this.#scopes.streams()].flatMap((stream) => stream.token() ?? []);
  }

  get size(): number {
    return [...this.#scopes.streams()].filter((stream) => !stream.isDone).length;
  }
}

/** Hands on what the sink gets. A reader that stops ends the stream. */
async function* messages(sink: MessageSink, stream: ResumedStream, started: Started): MessageFlow {
  started(stream);
  try {
    yield* sink.messages();
  } finally {
    if (!stream.isDone) {
      stream.abort();
    }
  }
}

function takes(method: string, headers: Headers): boolean {
  const header = (name: string) => headers.get(name) ?? undefined;
  return ClientStream.takesRequest(method, header('accept'), header('mcp-protocol-version'));
}

function takesAnswer({ status, headers }: Response): boolean {
  return ClientStream.takesAnswer(status, headers.get('content-type') ?? undefined);
}

/** The messages of an answer to a POST that is no stream. */
async function* whole(answer: Response, hasRequests: boolean): MessageFlow {
  const type = answer.headers.get('content-type') ?? '';
  if (answer.ok && /^application\/json\b/i.test(type)) {
    const text = await answer.text();
    yield* text.trim() === '' ? [] : each(JSON.parse(text));
    return;
  }
  // What was no request has no answer: whatever a stream says is for nobody.
  const isForNobody = answer.ok && !hasRequests && (type === '' || takesAnswer(answer));
  void readOut(answer);
  if (answer.status === 202 || isForNobody) {
    return;
  }
  const { code = 'internal', message } = ClientStream.refused(answer.status);
  throw told(code, message, { status: answer.status });
}
