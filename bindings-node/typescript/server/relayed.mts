// What travels of a request to the process that has its session, and what handlers see of it there.
import type { Arrival, Posted, Travelling } from '../native.mjs';
import type { Exchange, RequestInfo, SeenRequest } from './exchange.mjs';
import { infoOf, requestWhenRead } from './web-request.mjs';

/** What travels of a request beside its body; `more` names headers that the core would not choose. */
export function travellingOf(exchange: Exchange, more: string[]): Travelling {
  const headers = Object.entries(exchange.requestInfo().headers).flatMap(([name, value]) =>
    value === undefined ? [] : [name, Array.isArray(value) ? value.join(', ') : value],
  );
  return { method: exchange.method, headers, more, ...authOfSender(exchange.auth) };
}

/** What is JSON of the SDK's auth object, and what is not. The core removes credentials. */
function authOfSender(auth: unknown): { authJson: string | undefined; dropped: string[] } {
  if (typeof auth !== 'object' || auth === null) {
    return { authJson: undefined, dropped: auth === undefined || auth === null ? [] : ['auth'] };
  }
  const facts: string[] = [];
  const dropped: string[] = [];
  for (const name of Object.keys(auth)) {
    const json = jsonOf(auth, name);
    if (json === undefined) {
      dropped.push(`auth ${name}`);
    } else {
      facts.push(`${JSON.stringify(name)}:${json}`);
    }
  }
  return { authJson: `{${facts.join()}}`, dropped };
}

/** A member as JSON; nothing where it is none, or cannot be read. */
function jsonOf(auth: object, name: string): string | undefined {
  try {
    return JSON.stringify(Reflect.get(auth, name));
  } catch {
    return undefined;
  }
}

/** The auth object of a relayed request. The SDKs' types have a token in it: it is empty. */
export function authOf(json: string | null): unknown {
  const facts: unknown = json === null ? undefined : JSON.parse(json);
  if (typeof facts !== 'object' || facts === null) {
    return undefined;
  }
  const { resource } = facts as { resource?: unknown };
  const isUrl = typeof resource === 'string' && URL.canParse(resource);
  return { ...facts, token: '', ...(isUrl && { resource: new URL(resource) }) };
}

/** A POST that came to this process without an exchange of its own, as handlers see it. */
export class DetachedRequest implements SeenRequest {
  readonly auth: unknown;
  #read: () => Head;

  /** `read` is called when a handler asks for what came. */
  constructor(read: () => Head, auth?: unknown) {
    this.auth = auth;
    this.#read = read;
  }

  webRequest(): Request {
    const read = this.#read;
    return requestWhenRead('POST', {
      get url() {
        return read().url;
      },
      headers: () => new Headers(read().headers),
    });
  }

  requestInfo(): RequestInfo {
    const { url, headers } = this.#read();
    return infoOf(headers, () => new URL(url));
  }
}

interface Head {
  url: string;
  headers: Record<string, string>;
}

/** Of `pairs`, each name in lower case is followed by its value; `headers` are those that may be missing there. */
function headOf(url: string, pairs: readonly string[], headers: Record<string, string> = {}): Head {
  for (let at = 0; at < pairs.length; at += 2) {
    headers[pairs[at]] = pairs[at + 1];
  }
  return { url, headers };
}

/** A relayed request. `url` is where the session was opened. */
export function relayedRequest(posted: Posted, sessionId: string, url: string): DetachedRequest {
  const pairs = posted.headers;
  const own = () => ({ 'content-type': 'application/json', 'mcp-session-id': sessionId });
  return new DetachedRequest(() => headOf(url, pairs, own()), authOf(posted.authJson));
}

/** A request that the front has read. */
export function arrivedRequest(arrival: Arrival): DetachedRequest {
  return new DetachedRequest(() => {
    const [url, ...pairs] = arrival.head.split('\n');
    return headOf(url, pairs);
  });
}

/** Where a request came, without what its sender added. */
export function endpointOf(exchange: Exchange): string {
  try {
    const { origin, pathname } = exchange.requestInfo().url;
    return origin + pathname;
  } catch {
    // The host that it asks for is none.
    return 'http://localhost/';
  }
}
