// What handlers see of a request of node:http.
import type { IncomingMessage } from 'node:http';
import type { TLSSocket } from 'node:tls';

import type { RequestInfo } from './exchange.mjs';

/** The host that a request asks for: HTTP/2 has a field of its own for it. */
export function hostOf({ headers }: IncomingMessage): string | undefined {
  return headers.host ?? (headers[':authority'] as string | undefined);
}

function urlOf(req: IncomingMessage): URL {
  const isEncrypted = (req.socket as Partial<TLSSocket> | undefined)?.encrypted;
  return new URL(req.url ?? '/', `${isEncrypted ? 'https' : 'http'}://${hostOf(req) ?? 'localhost'}`);
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
  return infoOf({ ...req.headers }, () => urlOf(req));
}

const make = Symbol('make');
const made = Symbol('made');

interface LazyRequest {
  [make]: () => Request;
  [made]?: Request;
}

const lazy: Record<string, unknown> = Object.create(Request.prototype);
for (const [name, { get, value }] of Object.entries(Object.getOwnPropertyDescriptors(Request.prototype))) {
  if (get) {
    Object.defineProperty(lazy, name, {
      get(this: LazyRequest) {
        return Reflect.get(materialise(this), name);
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
  request[made] ??= request[make]();
  return request[made];
}

/** A web `Request` that is made when a handler looks at it, which few do. */
export function requestWhenRead(making: () => Request): Request {
  const request = Object.create(lazy);
  request[make] = making;
  return request;
}

/** A web `Request` for an IncomingMessage. Its body has been read, as in the SDK's own transport. */
export function webRequest(req: IncomingMessage): Request {
  return requestWhenRead(() => {
    const headers = new Headers();
    for (const [name, value] of Object.entries(req.headers)) {
      // HTTP/2's own fields are no headers.
      if (!name.startsWith(':') && value !== undefined) {
        headers.set(name, Array.isArray(value) ? value.join(', ') : value);
      }
    }
    return new Request(urlOf(req), { method: req.method, headers });
  });
}
