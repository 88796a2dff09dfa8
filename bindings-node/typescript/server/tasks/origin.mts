// The request in whose context the SDK is given a call.
import { AsyncResource } from 'node:async_hooks';

import { Engine, type Travelled } from '../../native.mjs';
import { authOf } from '../relayed.mjs';

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

  /**
   * A request of ours in its place. Its body is given beside it: another message than the request's own where that has these headers,
   * of which each name is followed by its value.
   */
  request(signal: AbortSignal, ofMessage?: string[]): Request {
    const headers = new Headers(this.headers);
    headers.delete('content-length');
    if (ofMessage !== undefined) {
      for (const name of [...headers.keys()].filter((name) => Engine.isOfMessage(name))) {
        headers.delete(name);
      }
      for (let at = 0; at < ofMessage.length; at += 2) {
        headers.append(ofMessage[at], ofMessage[at + 1]);
      }
    }
    return new Request(this.url, { method: 'POST', headers, signal });
  }
}
