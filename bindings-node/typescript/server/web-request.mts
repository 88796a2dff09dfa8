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

/** `extra.requestInfo` of the 1.x SDK. */
export function requestInfoOf(req: IncomingMessage): RequestInfo {
  let url: URL | undefined;
  return {
    headers: { ...req.headers },
    get url() {
      url ??= urlOf(req);
      return url;
    },
  };
}

const incoming = Symbol('incoming');
const made = Symbol('made');

/** A web `Request` that is made when a handler looks at it, which few do. */
interface LazyRequest {
  [incoming]: IncomingMessage;
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
  const known = request[made];
  if (known !== undefined) {
    return known;
  }
  const req = request[incoming];
  const headers = new Headers();
  for (const [name, value] of Object.entries(req.headers)) {
    // HTTP/2's own fields are no headers.
    if (!name.startsWith(':') && value !== undefined) {
      headers.set(name, Array.isArray(value) ? value.join(', ') : value);
    }
  }
  return (request[made] = new Request(urlOf(req), { method: req.method, headers }));
}

/** A web `Request` for an IncomingMessage. Its body has been read, as in the SDK's own transport. */
export function webRequest(req: IncomingMessage): Request {
  const request = Object.create(lazy);
  request[incoming] = req;
  return request;
}
