// What transports read from an IncomingMessage, and what handlers see of it.
import { isUtf8 } from 'node:buffer';

const DEFAULT_MAX_BODY_BYTES = 4 << 20;

export function maxBodyBytes(value) {
  return value ?? DEFAULT_MAX_BODY_BYTES;
}

/** The parts of the head that the engine looks at. */
export function headOf(req) {
  const headers = req.headers;
  return {
    method: req.method,
    accept: headers.accept,
    contentType: headers['content-type'],
    protocolVersion: headers['mcp-protocol-version'],
    sessionId: headers['mcp-session-id'],
    lastEventId: headers['last-event-id'],
  };
}

/** Reads a body: its bytes, `tooLarge`, or `gone` when the peer left. */
export function readBody(req, maxBytes) {
  if (Number(req.headers['content-length']) > maxBytes) {
    return Promise.resolve({ tooLarge: true });
  }
  if (req.readableEnded) {
    return Promise.resolve({ bytes: Buffer.alloc(0) });
  }
  return new Promise((resolve) => {
    const chunks = [];
    let size = 0;
    const settle = (result) => {
      req.off('data', onData).off('end', onEnd).off('close', onGone).off('error', onGone);
      resolve(result);
    };
    const onData = (chunk) => {
      size += chunk.length;
      if (size > maxBytes) {
        req.pause();
        settle({ tooLarge: true });
      } else {
        chunks.push(chunk);
      }
    };
    const onEnd = () => settle({ bytes: chunks.length === 1 ? chunks[0] : Buffer.concat(chunks) });
    const onGone = () => settle({ gone: true });
    req.on('data', onData).on('end', onEnd).on('close', onGone).on('error', onGone);
  });
}

/** Text, or the bytes where they are none: the engine says so. */
export function bodyOf(bytes) {
  return isUtf8(bytes) ? bytes.toString() : bytes;
}

/** Who sends the request. Another principal does not find the session (I7). */
export function principalOf(auth) {
  if (auth === undefined || auth === null) {
    return undefined;
  }
  const subject = auth.subject ?? auth.sub ?? auth.extra?.subject ?? auth.extra?.sub ?? null;
  return JSON.stringify([auth.clientId ?? null, subject]);
}

function urlOf(req) {
  const scheme = req.socket?.encrypted ? 'https' : 'http';
  return new URL(req.url ?? '/', `${scheme}://${req.headers.host ?? 'localhost'}`);
}

/** `extra.requestInfo` of the 1.x SDK. */
export function requestInfo(req) {
  let url;
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

/** `ctx.http.req` of the 2.x SDK. Its body has been read, as in the SDK's own transport. */
export function webRequest(req) {
  const request = Object.create(lazy);
  request[incoming] = req;
  return request;
}
