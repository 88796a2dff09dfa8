// What handlers see of a request of node:http.
import type { IncomingMessage } from 'node:http';
import type { TLSSocket } from 'node:tls';

import type { RequestInfo } from './exchange.mjs';

/** The host that a request asks for: HTTP/2 has a field of its own for it. */
export function hostOf({ headers }: IncomingMessage): string | undefined {
  return headers.host ?? (headers[':authority'] as string | undefined);
}

function originOf(req: IncomingMessage): string {
  const isEncrypted = (req.socket as Partial<TLSSocket> | undefined)?.encrypted;
  return `${isEncrypted ? 'https' : 'http'}://${hostOf(req) ?? 'localhost'}`;
}

/** `extra.requestInfo` of the 1.x SDK, with headers of its own. Few look at the URL. */
export function infoOf(headers: RequestInfo['headers'], makeUrl: () => URL): RequestInfo {
  let url: URL | undefined;
  return {
    headers,
    get url() {
      url ??= makeUrl();
      return url;
    },
  };
}

export function requestInfoOf(req: IncomingMessage): RequestInfo {
  return infoOf({ ...req.headers }, () => new URL(req.url ?? '/', originOf(req)));
}

/** The head of a request as the web platform has it, without what the request came with. */
export interface WebHead {
  readonly url: string;
  /** A copy. */
  headers(): Headers;
}

export function webHead(req: IncomingMessage): WebHead {
  const { url: path = '/', headers } = req;
  const origin = originOf(req);
  return {
    get url() {
      return new URL(path, origin).href;
    },
    headers() {
      const copied = new Headers();
      for (const [name, value] of Object.entries(headers)) {
        // HTTP/2's own fields are no headers.
        if (!name.startsWith(':') && value !== undefined) {
          copied.set(name, Array.isArray(value) ? value.join(', ') : value);
        }
      }
      return copied;
    },
  };
}

const parts = Symbol('parts');
const made = Symbol('made');

interface LazyRequest {
  [parts]: { method: string; head: WebHead; headers?: Headers; signal: AbortSignal | undefined };
  [made]?: Request;
}

/** What is known of a request without making it. */
const KNOWN: Record<string, (of: LazyRequest[typeof parts]) => unknown> = {
  method: ({ method }) => method,
  url: ({ head }) => head.url,
  headers: headersOf,
  signal: ({ signal }) => signal,
};

function headersOf(of: LazyRequest[typeof parts]): Headers {
  of.headers ??= of.head.headers();
  return of.headers;
}

const lazy: Record<string, unknown> = Object.create(Request.prototype);
for (const [name, { get, value }] of Object.entries(Object.getOwnPropertyDescriptors(Request.prototype))) {
  if (get) {
    const known = KNOWN[name];
    Object.defineProperty(lazy, name, {
      get(this: LazyRequest) {
        return (this[made] === undefined && known?.(this[parts])) || Reflect.get(materialise(this), name);
      },
    });
  } else if (typeof value === 'function' && name !== 'constructor') {
    lazy[name] = function (this: LazyRequest, ...args: unknown[]) {
      const request = materialise(this);
      return Reflect.apply(Reflect.get(request, name), request, args);
    };
  }
}

function materialise(request: LazyRequest): Request {
  const { method, head, signal } = request[parts];
  const init = { method, headers: headersOf(request[parts]), ...(signal !== undefined && { signal }) };
  request[made] ??= new Request(head.url, init);
  return request[made];
}

/** A web `Request` whose body has been read. What is not in its head is made when a handler looks at it, which few do. */
export function requestWhenRead(method: string, head: WebHead, signal?: AbortSignal): Request {
  const request = Object.create(lazy);
  request[parts] = { method, head, signal };
  return request;
}
