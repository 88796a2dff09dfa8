// What both kinds of HTTP exchange share, and what handlers see of a request.
import { isUtf8 } from 'node:buffer';

import { Engine } from './native.mjs';
import { invalid } from './open-store.mjs';

const DEFAULT_MAX_BODY_BYTES = 4 << 20;

export function maxBodyBytes(value) {
  return value ?? DEFAULT_MAX_BODY_BYTES;
}

/** Text, or the bytes where they are none: the engine says so. */
export function bodyText(chunks) {
  const bytes = chunks.length === 1 ? chunks[0] : Buffer.concat(chunks);
  return isUtf8(bytes) ? Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength).toString() : bytes;
}

export function eventStreamHeaders(headers) {
  headers['content-type'] = 'text/event-stream';
  headers['cache-control'] = 'no-cache, no-transform';
  // Proxies that buffer would hold events back (W-030).
  headers['x-accel-buffering'] = 'no';
}

export function withResolvers() {
  let resolve, reject;
  const promise = new Promise((yes, no) => {
    resolve = yes;
    reject = no;
  });
  return { promise, resolve, reject };
}

const CREDENTIAL_HEADERS = Engine.credentialHeaders();

/**
 * What the host knows of who sends the request, for the engine to make the principal of; nothing where nothing is known.
 * `principal` is the user's option of that name. See docs/security.md.
 */
export function askerOf(exchange, principal) {
  const named = principal?.(exchange.request) ?? undefined;
  if (named !== undefined && typeof named !== 'string') {
    throw new TypeError(`principal() returned a ${typeof named}, not a string that names the user or undefined`);
  }
  const userJson = exchange.user === undefined || exchange.user === null ? undefined : factsOf(exchange.user);
  const credentials = [];
  for (const name of CREDENTIAL_HEADERS) {
    const value = exchange.header(name);
    if (value !== undefined) {
      credentials.push(name, String(value));
    }
  }
  return named === undefined && userJson === undefined && credentials.length === 0
    ? undefined
    : { named, userJson, credentials };
}

function factsOf(user) {
  try {
    return JSON.stringify(user);
  } catch {
    // Not JSON as a whole: what is plain of it.
    const isPlain = ([, value]) => ['string', 'number', 'boolean'].includes(typeof value);
    return JSON.stringify(Object.fromEntries(Object.entries(user).filter(isPlain)));
  }
}

/** A transport's `keepAliveMs`, which the SDKs take with any value, as the engine takes it. */
export function keepAliveOf(value) {
  return Number.isFinite(value) && value >= 1 ? Math.min(Math.round(value), 2 ** 32 - 1) : 0;
}

/** Checks the option `principal`. */
export function checkPrincipal(principal) {
  if (principal !== undefined && (typeof principal !== 'function' || principal.constructor.name === 'AsyncFunction')) {
    invalid('principal must be a plain function that takes a request and returns a string or undefined');
  }
  return principal;
}

/** Why a request from this host or origin is not served, where the transport's options restrict these: fault and text. */
export function forbidden(exchange, { enableDnsRebindingProtection, allowedHosts, allowedOrigins }) {
  if (!enableDnsRebindingProtection) {
    return undefined;
  }
  const { host } = exchange;
  const origin = exchange.header('origin');
  if (allowedHosts?.length > 0 && !allowedHosts.includes(host)) {
    return ['foreign_host', String(host ?? null)];
  }
  if (allowedOrigins?.length > 0 && origin && !allowedOrigins.includes(origin)) {
    return ['foreign_origin', origin];
  }
  return undefined;
}

/** The host that an IncomingMessage asks for: HTTP/2 has a field of its own for it. */
export function hostOf({ headers }) {
  return headers.host ?? headers[':authority'];
}

function urlOf(req) {
  const scheme = req.socket?.encrypted ? 'https' : 'http';
  return new URL(req.url ?? '/', `${scheme}://${hostOf(req) ?? 'localhost'}`);
}

/** `extra.requestInfo` of an IncomingMessage. */
export function requestInfoOf(req) {
  let url;
  return {
    headers: { ...req.headers },
    get url() {
      url ??= urlOf(req);
      return url;
    },
  };
}

/** What the SDKs give a store where a stream begins without a message. */
export function isPriming(message) {
  return message === undefined || message === null || Object.keys(message).length === 0;
}

const incoming = Symbol('incoming');
const made = Symbol('made');

/** A web `Request` that is made when a handler looks at it, which few do. */
const lazy = Object.create(Request.prototype);
for (const [name, { get, value }] of Object.entries(Object.getOwnPropertyDescriptors(Request.prototype))) {
  if (get) {
    Object.defineProperty(lazy, name, {
      get() {
        return materialise(this)[name];
      },
    });
  } else if (typeof value === 'function' && name !== 'constructor') {
    lazy[name] = function (...args) {
      return materialise(this)[name](...args);
    };
  }
}

function materialise(request) {
  if (request[made] === undefined) {
    const req = request[incoming];
    const headers = new Headers();
    for (const [name, value] of Object.entries(req.headers)) {
      // HTTP/2's own fields are no headers.
      if (!name.startsWith(':')) {
        headers.set(name, Array.isArray(value) ? value.join(', ') : value);
      }
    }
    request[made] = new Request(urlOf(req), { method: req.method, headers });
  }
  return request[made];
}

/** A web `Request` for an IncomingMessage. Its body has been read, as in the SDK's own transport. */
export function webRequest(req) {
  const request = Object.create(lazy);
  request[incoming] = req;
  return request;
}
