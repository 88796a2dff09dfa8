// Bodies of requests.
import { isUtf8 } from 'node:buffer';

import type { Body } from '../native.mjs';
import type { Exchange } from './exchange.mjs';

const DEFAULT_MAX_BODY_BYTES = 4 << 20;

/** What came of reading a body: it, or that it is too large, or that the peer left. */
export type ReadBody =
  | { text: Body; tooLarge?: undefined; gone?: undefined }
  | { text?: undefined; tooLarge: true; gone?: undefined }
  | { text?: undefined; tooLarge?: undefined; gone: true };

/** How large a body may be, by the option `maxRequestBodySize`. */
export function maxBodyBytes(value: number | undefined): number {
  return value ?? DEFAULT_MAX_BODY_BYTES;
}

/** The body of an exchange, which only a POST has: what is at hand of it, or what is read now. */
export function bodyOf(exchange: Exchange, maxBytes: number): ReadBody | Promise<ReadBody> {
  const { method, text, parsedBody } = exchange;
  if (method !== 'POST') {
    return { text: '' };
  }
  if (text !== undefined) {
    return { text };
  }
  return parsedBody === undefined ? exchange.readBody(maxBytes) : { text: JSON.stringify(parsedBody) ?? '' };
}

/** Text, or the bytes where they are none: the engine says so. */
export function bodyText(chunks: Uint8Array[]): Body {
  const bytes = chunks.length === 1 ? chunks[0] : Buffer.concat(chunks);
  return isUtf8(bytes) ? Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength).toString() : bytes;
}
