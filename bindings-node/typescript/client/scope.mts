// What passes through one `resumableFetch`: which streams are open, and what is known of their sessions.

import type { ClientStream } from '../native.mjs';
import { headerOf } from './http.mjs';
import type { ResumedStream } from './stream.mjs';

const SESSION = 'mcp-session-id';
const NEWEST = ['authorization', 'mcp-protocol-version'];

/** A session at one address, while requests or streams of it are under way. */
export class Scope {
  readonly key: string;
  readonly sessionId: string | undefined;
  readonly streams = new Set<ResumedStream>();
  /** For each POST that has no answer yet, what was cancelled meanwhile. */
  readonly posts = new Set<string[]>();
  readonly newest = new Map<string, string>();
  holders = 0;

  constructor(key: string, sessionId: string | undefined) {
    this.key = key;
    this.sessionId = sessionId;
  }

  /**
   * Takes what a request of a stream carries: it is newer than what is known. Without a session nobody can tell whose
   * it is.
   */
  note(headers: Headers): void {
    if (this.sessionId === undefined) {
      return;
    }
    for (const name of NEWEST) {
      const value = headers.get(name);
      if (value !== null) {
        this.newest.set(name, value);
      }
    }
  }

  /** Puts what is newest over the headers of a resume. */
  renew(headers: Headers): void {
    if (this.sessionId !== undefined) {
      headers.set(SESSION, this.sessionId);
    }
    for (const [name, value] of this.newest) {
      headers.set(name, value);
    }
  }

  /** Nobody waits for this request any more. */
  cancel(request: string): void {
    for (const stream of [...this.streams]) {
      stream.cancelled(request);
    }
    for (const cancelled of this.posts) {
      cancelled.push(request);
    }
  }
}

export class Scopes {
  #scopes = new Map<string, Scope>();
  /** Streams that are done, and whose readers have not read all. Their readers keep them alive. */
  #unread = new Set<WeakRef<ResumedStream>>();

  /**
   * The scope of a request. Clients that share a `fetch` and not a session share no credentials. To be left as often as
   * it is entered.
   */
  enter(url: URL, headers: Headers, sessionId = headers.get(SESSION) ?? undefined): Scope {
    const key = `${url.origin}${url.pathname}\n${sessionId ?? ''}`;
    let scope = this.#scopes.get(key);
    if (scope === undefined) {
      scope = new Scope(key, sessionId);
      this.#scopes.set(key, scope);
    }
    scope.holders += 1;
    return scope;
  }

  leave(scope: Scope): void {
    scope.holders -= 1;
    if (scope.holders === 0) {
      this.#scopes.delete(scope.key);
    }
  }

  /** The scope of a stream whose answer tells its session, as that to `initialize` does. */
  told(scope: Scope, url: URL, headers: Headers, answer: Response): Scope | undefined {
    const sessionId = answer.headers.get(SESSION) ?? undefined;
    if (scope.sessionId !== undefined || sessionId === undefined) {
      return undefined;
    }
    const told = this.enter(url, headers, sessionId);
    told.note(headers);
    return told;
  }

  *streams(): Generator<ResumedStream, void, undefined> {
    for (const { streams } of this.#scopes.values()) {
      yield* streams;
    }
    for (const ref of this.#unread) {
      const stream = ref.deref();
      if (stream?.token() === undefined) {
        this.#unread.delete(ref);
      } else {
        yield stream;
      }
    }
  }

  /** Nothing comes of the stream any more. */
  done(stream: ResumedStream): void {
    if (stream.token() !== undefined) {
      // Those that were read, or dropped, go.
      for (const _ of this.streams());
      this.#unread.add(new WeakRef(stream));
    }
  }
}

/** The headers that a saved stream's session wants. */
export function savedHeaders({ sessionId, protocolVersion }: ClientStream): Headers {
  const headers = new Headers();
  if (sessionId !== undefined && sessionId !== null) {
    headers.set(SESSION, headerOf(sessionId));
  }
  if (protocolVersion !== undefined && protocolVersion !== null) {
    headers.set('mcp-protocol-version', headerOf(protocolVersion));
  }
  return headers;
}
