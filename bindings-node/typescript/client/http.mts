// Requests and answers of the client's half: HTTP as `fetch` has it, and nothing of streams.
import type { FetchLike, HeaderValues, ResumeOptions } from './options.mjs';

/** How long what remains of a connection is read once nobody needs it, so that it can be kept alive. */
export const LINGER_MS = 1_000;
const MAX_REDIRECTS = 5;
const LARGEST_REST_BYTES = 64 << 10;

/** What `fetch` is given, taken apart. */
export interface Asked {
  readonly input: string | URL | Request;
  readonly init: RequestInit | undefined;
  /** Where `input` is one. */
  readonly request: Request | undefined;
  readonly url: URL;
  readonly method: string;
  readonly headers: Headers;
  readonly signal: AbortSignal | undefined;
}

/** Nothing is sent and no body is read. */
export function requestOf(input: string | URL | Request, init?: RequestInit): Asked {
  const isRequest = typeof input === 'object' && 'url' in input;
  const request = isRequest ? input : undefined;
  return {
    input,
    init,
    request,
    url: new URL(isRequest ? input.url : input),
    method: (init?.method ?? request?.method ?? 'GET').toUpperCase(),
    headers: new Headers(init?.headers ?? request?.headers),
    signal: init?.signal ?? request?.signal ?? undefined,
  };
}

/** The body of a request where it can be read without taking it away: text or bytes. */
export async function bodyOf({ request, init }: Asked): Promise<string | Uint8Array | undefined> {
  const body = init?.body ?? undefined;
  if (typeof body === 'string') {
    return body;
  }
  if (body instanceof ArrayBuffer) {
    return new Uint8Array(body);
  }
  if (ArrayBuffer.isView(body)) {
    return new Uint8Array(body.buffer, body.byteOffset, body.byteLength);
  }
  if (body === undefined && request !== undefined) {
    return new Uint8Array(await request.clone().arrayBuffer());
  }
  // A stream or a form: no message of MCP's clients.
  return undefined;
}

/** Header values are bytes; an event id is text. */
export const headerOf = (text: string) => Buffer.from(text, 'utf8').toString('latin1');
export const textOf = (header: string) => Buffer.from(header, 'latin1').toString('utf8');

/** Adds what `headers` names, an object or what a function returns. */
export async function overlay(headers: Headers, more: ResumeOptions['headers']): Promise<void> {
  const values: HeaderValues | undefined = typeof more === 'function' ? await more() : more;
  if (values) {
    for (const [name, value] of new Headers(values)) {
      headers.set(name, value);
    }
  }
}

/**
 * GET. Redirects are followed within the origin: credentials are for nobody else, and headers that carry them cannot
 * be told from others. Where one leads elsewhere it is the answer.
 */
export async function get(fetch: FetchLike, url: URL, init: RequestInit): Promise<Response> {
  for (let hops = 0; ; hops += 1) {
    const response = await fetch(url, { ...init, method: 'GET', redirect: 'manual' });
    const location = [301, 302, 303, 307, 308].includes(response.status) ? response.headers.get('location') : null;
    if (location === null || hops === MAX_REDIRECTS) {
      return response;
    }
    const target = URL.canParse(location, url.href) ? new URL(location, url) : undefined;
    if (target?.origin !== url.origin) {
      return response;
    }
    void readOut(response);
    url = target;
  }
}

/** `Retry-After` in milliseconds. A date counts from the answer's own `Date`, where it has one. */
export function retryAfterMs(headers: Headers): number | undefined {
  const text = headers.get('retry-after')?.trim() ?? '';
  const told = Date.parse(headers.get('date') ?? '');
  const now = Number.isNaN(told) ? Date.now() : told;
  const ms = /^\d+$/.test(text) ? Number(text) * 1_000 : Date.parse(text) - now;
  return ms > 0 ? Math.min(ms, Number.MAX_SAFE_INTEGER) : undefined;
}

/** Reads an answer that nobody wants, for a while, so that its connection can be used again. */
export async function readOut(response: Response): Promise<void> {
  if (!response.body) {
    return;
  }
  const reader = response.body.getReader();
  const letGo = () => void reader.cancel().catch(() => {});
  const timer = setTimeout(letGo, LINGER_MS).unref();
  try {
    for (let size = 0; ; ) {
      const { done, value } = await reader.read();
      if (done) {
        return;
      }
      size += value.byteLength;
      if (size > LARGEST_REST_BYTES) {
        letGo();
      }
    }
  } catch {
    // It broke: nothing is left to read.
  } finally {
    clearTimeout(timer);
  }
}
