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
  #headers: Record<string, string>;
  #url: string;

  /** Of `pairs`, each name in lower case is followed by its value; `headers` are those that may be missing there. */
  constructor(url: string, pairs: readonly string[], headers: Record<string, string> = {}, auth?: unknown) {
    this.auth = auth;
    this.#url = url;
    this.#headers = headers;
    for (let at = 0; at < pairs.length; at += 2) {
      headers[pairs[at]] = pairs[at + 1];
    }
  }

  webRequest(): Request {
    return requestWhenRead(() => new Request(this.#url, { method: 'POST', headers: this.#headers }));
  }

  requestInfo(): RequestInfo {
    return infoOf({ ...this.#headers }, () => new URL(this.#url));
  }
}

/** A relayed request. `url` is where the session was opened. */
export function relayedRequest(posted: Posted, sessionId: string, url: string): DetachedRequest {
  const headers = { 'content-type': 'application/json', 'mcp-session-id': sessionId };
  return new DetachedRequest(url, posted.headers, headers, authOf(posted.authJson));
}

/** A request that the front has read. */
export function arrivedRequest({ head }: Arrival): DetachedRequest {
  const [url, ...pairs] = head.split('\n');
  return new DetachedRequest(url, pairs);
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
