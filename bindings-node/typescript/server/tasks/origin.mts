// The request in whose context the SDK is given a call.
import { AsyncResource } from 'node:async_hooks';

import { Engine, type Travelled } from '../../native.mjs';
import type { Exchange } from '../exchange.mjs';
import { authOf } from '../relayed.mjs';
import { requestWhenRead, type WebHead } from '../web-request.mjs';

/** What says how a body came. The SDK is given it beside its request. */
const OF_BODY = ['content-encoding', 'content-length', 'transfer-encoding'];

/** A request, with all that the SDK and handlers see of it beside its message. */
export class Origin {
  readonly auth: unknown;
  readonly #head: WebHead;
  /** What has the values of `AsyncLocalStorage`s. */
  readonly #resource = new AsyncResource('TAILROPE_TASK');

  constructor(head: WebHead, auth: unknown) {
    this.#head = head;
    this.auth = auth;
  }

  static of(exchange: Exchange): Origin {
    return new Origin(exchange.webHead(), exchange.auth);
  }

  /** A request that came to another process: what travelled of it. */
  static travelled({ headers, authJson }: Travelled, url: string): Origin {
    // What checks the host has let the request pass where it came. A call in its place is for the same host.
    const travelled = new Headers({ 'content-type': 'application/json', host: new URL(url).host });
    for (let at = 0; at < headers.length; at += 2) {
      travelled.set(headers[at], headers[at + 1]);
    }
    return new Origin({ url, headers: () => new Headers(travelled) }, authOf(authJson ?? null));
  }

  get url(): string {
    return this.#head.url;
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
    const headers = this.#head.headers();
    if (ofMessage === undefined) {
      OF_BODY.forEach((name) => headers.delete(name));
    } else {
      [...headers.keys()].filter((name) => Engine.isOfMessage(name)).forEach((name) => headers.delete(name));
      for (let at = 0; at < ofMessage.length; at += 2) {
        headers.append(ofMessage[at], ofMessage[at + 1]);
      }
    }
    const { url } = this;
    return requestWhenRead('POST', { url, headers: () => headers }, signal);
  }
}
