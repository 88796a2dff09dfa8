// The client's half, for clients that take a `fetch`, and for programs that have no client at all.
import { bodyOf, overlay, readOut, requestOf, textOf } from './client-http.mjs';
import { Scopes, savedHeaders } from './client-scope.mjs';
import { MessageSink, ResponseSink, each } from './client-sinks.mjs';
import { ResumedStream, TailropeError } from './client-stream.mjs';
import { ClientOptions, ClientStream } from './native.mjs';
import { isDisabled } from './platform.mjs';

export { TailropeError };

const NUMBERS = new Set([
  'initialDelayMs',
  'maxDelayMs',
  'growth',
  'jitter',
  'giveUpAfterMs',
  'maxAttempts',
  'maxSilenceMs',
  'maxEventBytes',
]);
const CALLBACKS = new Set(['onResume', 'onGap', 'schedule']);
const ACCEPT = 'application/json, text/event-stream';

/** Takes options apart: those of the native half, checked, and those of ours. */
function settingsOf(fetch, options) {
  if (typeof fetch !== 'function') {
    throw new TailropeError('invalid_argument', 'fetch must be a function');
  }
  const numbers = {};
  const settings = { fetch };
  for (const [name, value] of Object.entries(options)) {
    if (value === undefined) {
      continue;
    }
    if (CALLBACKS.has(name) && typeof value !== 'function') {
      throw new TailropeError('invalid_argument', `${name} must be a function`);
    }
    if (name === 'headers' && !/^(function|object)$/.test(typeof value)) {
      throw new TailropeError('invalid_argument', 'headers must be values or a function');
    }
    if (NUMBERS.has(name) && typeof value !== 'number' && value !== null) {
      throw new TailropeError('invalid_argument', `${name} must be a number`);
    }
    if (CALLBACKS.has(name) || name === 'headers') {
      settings[name] = value;
    } else {
      // The native half tells names that it does not know.
      numbers[name] = NUMBERS.has(name) ? value : null;
    }
  }
  return { settings, native: new ClientOptions(numbers) };
}

/** What one `resumableFetch` does. */
class Instance {
  #settings;
  #options;
  #scopes = new Scopes();

  constructor(fetch, options) {
    ({ settings: this.#settings, native: this.#options } = settingsOf(fetch, options));
  }

  async fetch(input, init) {
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
        return await fetch(input, init);
      }
      scope.note(headers);
      if (method === 'GET') {
        const sink = new ResponseSink();
        isHeld = true;
        this.#run(this.#opened(request, false), sink, request, scope, { isFirst: true });
        return await sink.response;
      }
      const body = await bodyOf(request);
      const posted = body === undefined ? {} : ClientStream.classify(body);
      posted.cancelled?.forEach((id) => scope.cancel(id));
      const { answer, cancelled } = await this.#send(scope, request);
      if (!posted.requests || !answer.body || !takesAnswer(answer)) {
        return answer;
      }
      const sink = new ResponseSink();
      isHeld = true;
      const stream = this.#posted(posted.requests, sink, request, scope, answer);
      cancelled.forEach((id) => stream.cancelled(id));
      return await sink.response;
    } finally {
      if (!isHeld) {
        this.#scopes.leave(scope);
      }
    }
  }

  /** The answer to a POST, and what was cancelled before it came. */
  async #send(scope, { input, init }) {
    const cancelled = [];
    scope.posts.add(cancelled);
    try {
      return { answer: await this.#settings.fetch(input, init), cancelled };
    } finally {
      scope.posts.delete(cancelled);
    }
  }

  /** The native half of a stream that begins with a GET. */
  #opened({ headers }, wantsMessages) {
    const cursor = headers.get('last-event-id');
    const now = performance.now();
    return cursor
      ? { native: ClientStream.continued(textOf(cursor), this.#options, wantsMessages, now) }
      : { native: ClientStream.standalone(this.#options, wantsMessages, now), isStandalone: true };
  }

  /** Runs a stream that began with a POST. */
  #posted(requests, sink, request, scope, answer) {
    const native = ClientStream.posted(requests, this.#options, sink.wantsMessages, performance.now());
    const told = this.#scopes.told(scope, request.url, request.headers, answer);
    if (told !== undefined) {
      this.#scopes.leave(scope);
    }
    return this.#run({ native }, sink, request, told ?? scope, {}, answer);
  }

  /** Runs a stream, and leaves its scope at the end. */
  #run({ native, isStandalone = false, settings = this.#settings }, sink, request, scope, how, answer) {
    const stream = new ResumedStream(native, sink, request, scope, settings, { isStandalone, ...how });
    void stream.run(answer).finally(() => {
      this.#scopes.leave(scope);
      this.#scopes.done(stream);
    });
    return stream;
  }

  /** The messages of a stream that was saved. */
  async *resume(token, { url, headers, signal } = {}, started) {
    const sink = new MessageSink();
    const native = ClientStream.saved(token, this.#options, true, performance.now());
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
  async *stream(url, message, signal, started) {
    const { fetch, headers: more } = this.#settings;
    const headers = new Headers({ accept: message === undefined ? 'text/event-stream' : ACCEPT });
    if (message !== undefined) {
      headers.set('content-type', 'application/json');
    }
    await overlay(headers, more);
    const body = message === undefined || typeof message === 'string' ? message : JSON.stringify(message);
    const init = { method: body === undefined ? 'GET' : 'POST', headers, body, signal };
    const request = requestOf(url, init);
    if (!takes(request.method, headers)) {
      const revision = headers.get('mcp-protocol-version');
      throw new TailropeError('not_resumable', `revision ${revision} of the protocol has no resumption`);
    }
    const sink = new MessageSink();
    if (body === undefined) {
      const scope = this.#scopes.enter(request.url, headers);
      scope.note(headers);
      const opened = this.#opened(request, true);
      yield* messages(sink, this.#run(opened, sink, request, scope, { isFirst: true }), started);
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

  tokens() {
    return [...this.#scopes.streams()].flatMap((stream) => stream.token() ?? []);
  }

  get size() {
    return [...this.#scopes.streams()].filter((stream) => !stream.isDone).length;
  }
}

/** Hands on what the sink gets. Whoever stops listening ends the stream. */
async function* messages(sink, stream, started) {
  started(stream);
  try {
    yield* sink.messages();
  } finally {
    if (!stream.isDone) {
      stream.abort();
    }
  }
}

/** What a generator makes, which can be left while it waits. */
class Messages {
  #generated;
  #stop = new AbortController();
  #stream;
  #saved;
  #isLeft = false;

  /** `generate` is given a signal that ends the stream, and what to tell when it has started. */
  constructor(generate, signal, saved) {
    this.#saved = saved;
    this.#generated = this.#follow(signal, () =>
      generate(this.#stop.signal, (stream) => {
        this.#stream = stream;
      }),
    );
  }

  /** Listens to the caller's signal for as long as the stream takes. */
  async *#follow(signal, generate) {
    const onAbort = () => this.#stop.abort(signal.reason);
    signal?.addEventListener('abort', onAbort, { once: true });
    if (signal?.aborted) {
      onAbort();
    }
    try {
      yield* generate();
    } finally {
      signal?.removeEventListener('abort', onAbort);
    }
  }

  get token() {
    return this.#isLeft ? undefined : this.#stream === undefined ? this.#saved : this.#stream.token();
  }

  async next() {
    try {
      return await this.#generated.next();
    } catch (error) {
      this.#saved = undefined;
      if (this.#isLeft) {
        return { done: true, value: undefined };
      }
      throw error;
    }
  }

  async return(value) {
    this.#isLeft = true;
    this.#stop.abort();
    // It is over when what was asked before is.
    await this.#generated.return().catch(() => {});
    return { done: true, value: await value };
  }

  async throw(error) {
    await this.return();
    throw error;
  }

  [Symbol.asyncIterator]() {
    return this;
  }
}

if (Symbol.asyncDispose !== undefined) {
  Messages.prototype[Symbol.asyncDispose] = async function dispose() {
    await this.return();
  };
}

function takes(method, headers) {
  const header = (name) => headers.get(name) ?? undefined;
  return ClientStream.takesRequest(method, header('accept'), header('mcp-protocol-version'));
}

function takesAnswer({ status, headers }) {
  return ClientStream.takesAnswer(status, headers.get('content-type') ?? undefined);
}

/** The messages of an answer to a POST that is no stream. */
async function* whole(answer, hasRequests) {
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
  const { code, message } = ClientStream.refused(answer.status);
  throw Object.assign(new TailropeError(code, message), { status: answer.status });
}

export function resumableFetch(fetch = globalThis.fetch, options = {}) {
  const instance = new Instance(fetch, options);
  return Object.assign((input, init) => instance.fetch(input, init), {
    streams: {
      export: () => instance.tokens(),
      get size() {
        return instance.size;
      },
    },
    resume: (token, where) =>
      new Messages((signal, started) => instance.resume(token, { ...where, signal }, started), where?.signal, token),
  });
}

export function stream(url, { message, token, headers, fetch = globalThis.fetch, signal, ...options } = {}) {
  const instance = new Instance(fetch, { ...options, headers });
  return token === undefined
    ? new Messages((stop, started) => instance.stream(url, message, stop, started), signal)
    : new Messages((stop, started) => instance.resume(token, { url, signal: stop }, started), signal, token);
}
