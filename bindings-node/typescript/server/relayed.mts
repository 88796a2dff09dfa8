// What travels of a request to the process that has its session, and what handlers see of it there.
import type { Posted, Travelling } from '../native.mjs';
import type { Exchange, RequestInfo, SeenRequest } from './exchange.mjs';

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

/** A relayed request, as handlers see it. */
export class RelayedRequest implements SeenRequest {
  readonly auth: unknown;
  #headers: Record<string, string>;
  #url: string;

  /** `url` is where the session was opened. */
  constructor(posted: Posted, sessionId: string, url: string) {
    this.auth = authOf(posted.authJson);
    this.#headers = { 'content-type': 'application/json', 'mcp-session-id': sessionId };
    const { headers } = posted;
    for (let at = 0; at < headers.length; at += 2) {
      this.#headers[headers[at]] = headers[at + 1];
    }
    this.#url = url;
  }

  webRequest(): Request {
    return new Request(this.#url, { method: 'POST', headers: this.#headers });
  }

  requestInfo(): RequestInfo {
    return { headers: { ...this.#headers }, url: new URL(this.#url) };
  }
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
