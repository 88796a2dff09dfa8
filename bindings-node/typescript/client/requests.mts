// The requests of one stream: the one that it begins with, and its resumes, which carry what that did and what is
// newer.
import { type Asked, get, headerOf, overlay, textOf } from './http.mjs';
import type { Settings } from './options.mjs';
import type { Scope } from './scope.mjs';

const REVISION = 'mcp-protocol-version';

export class Requests {
  /** Whether the one that the stream begins with is still to be sent. */
  isFirst: boolean;
  readonly #begun: Asked;
  readonly #inherited: { headers: Headers; settings: RequestInit };
  readonly #scope: Scope;
  readonly #settings: Settings;

  constructor(begun: Asked, scope: Scope, settings: Settings, isFirst: boolean) {
    this.#begun = begun;
    this.#inherited = inherited(begun);
    this.#scope = scope;
    this.#settings = settings;
    this.isFirst = isFirst;
  }

  get sessionId(): string | undefined {
    const { sessionId } = this.#scope;
    return sessionId && textOf(sessionId);
  }

  get protocolVersion(): string | undefined {
    const version = this.#scope.newest.get(REVISION) ?? this.#inherited.headers.get(REVISION) ?? undefined;
    return version && textOf(version);
  }

  async first(signal: AbortSignal): Promise<Response> {
    this.isFirst = false;
    const { input, init } = this.#begun;
    const { fetch } = this.#settings;
    return fetch(input, { ...init, signal });
  }

  /** `isOpened` says whether the stream has had an answer. */
  async resume(lastEventId: string | undefined, isOpened: boolean, signal: AbortSignal): Promise<Response> {
    const { fetch, headers: more } = this.#settings;
    const { init, url } = this.#begun;
    const headers = new Headers(this.#inherited.headers);
    headers.set('accept', 'text/event-stream');
    this.#scope.renew(headers);
    await overlay(headers, more);
    if (lastEventId !== undefined) {
      headers.set('last-event-id', headerOf(lastEventId));
    }
    const settings = { ...this.#inherited.settings, headers, signal };
    if (!isOpened && init?.redirect !== undefined) {
      // The caller wanted to see where it leads.
      return fetch(url, { ...settings, method: 'GET', redirect: init.redirect });
    }
    return get(fetch, url, settings);
  }
}

/** What a resume takes over from the request that began its stream. */
function inherited({ headers, init }: Asked): { headers: Headers; settings: RequestInit } {
  const kept = new Headers(headers);
  for (const name of headers.keys()) {
    if (name.startsWith('content-') || name === 'last-event-id') {
      kept.delete(name);
    }
  }
  // Where to connect through, and the like; the rest is each connection's own.
  const { body, duplex, headers: _, method, redirect, signal, ...settings } = init ?? {};
  return { headers: kept, settings };
}
