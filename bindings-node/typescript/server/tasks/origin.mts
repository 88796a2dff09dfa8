// The request in whose context the SDK is given a call.
import { AsyncResource } from 'node:async_hooks';

import type { Travelled } from '../../native.mjs';
import { authOf } from '../relayed.mjs';

/** Headers that belong to the call, and not to the request in whose context it is posted again. */
const OF_CALL = /^mcp-param-/;

/** A request, with all that the SDK and handlers see of it beside its message. */
export class Origin {
  readonly url: string;
  readonly headers: Headers;
  readonly auth: unknown;
  /** What has the values of `AsyncLocalStorage`s. */
  readonly #resource = new AsyncResource('TAILROPE_TASK');

  constructor(url: string, headers: Headers, auth: unknown) {
    this.url = url;
    this.headers = headers;
    this.auth = auth;
  }

  static of(request: Request, auth: unknown): Origin {
    return new Origin(request.url, request.headers, auth);
  }

  /** A request that came to another process: what travelled of it. */
  static travelled({ headers, authJson }: Travelled, url: string): Origin {
    // What checks the host has let the request pass where it came. A call in its place is for the same host.
    const travelled = new Headers({ 'content-type': 'application/json', host: new URL(url).host });
    for (let at = 0; at < headers.length; at += 2) {
      travelled.set(headers[at], headers[at + 1]);
    }
    return new Origin(url, travelled, authOf(authJson ?? null));
  }

  /** Calls a function in the request's context. */
  run<T>(call: () => T): T {
    return this.#resource.runInAsyncScope(call);
  }

  /** A request of ours in its place, with this method and name. Its body is given beside it. */
  request(signal: AbortSignal, method: string, name: string | undefined, call?: Origin): Request {
    const headers = new Headers(this.headers);
    headers.delete('content-length');
    for (const [header, value] of call?.headers ?? []) {
      if (OF_CALL.test(header)) {
        headers.set(header, value);
      }
    }
    headers.set('mcp-method', method);
    headers.delete('mcp-name');
    if (name !== undefined) {
      headers.set('mcp-name', name);
    }
    return new Request(this.url, { method: 'POST', headers, signal });
  }
}
