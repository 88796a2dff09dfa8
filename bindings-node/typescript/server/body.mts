// Bodies of requests.
import { isUtf8 } from 'node:buffer';

import type { Body } from '../native.mjs';
import type { Exchange } from './exchange.mjs';

const encoder = new TextEncoder();
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
  return parsedBody === undefined ? exchange.readBody(maxBytes) : { text: written(parsedBody) };
}

/** What a parser has made as text again; none where it cannot be written, and then it is no JSON to the engine. */
export function written(parsedBody: unknown): string {
  try {
    return JSON.stringify(parsedBody) ?? '';
  } catch {
    // It nests too deep, for instance, or has what JSON has not.
    return '';
  }
}

/** Has the body of an exchange be what others have made of it. They may have changed what was parsed, in place too. */
export function handBody(exchange: Exchange, parsedBody: unknown): void {
  if (parsedBody !== exchange.parsedBody || (parsedBody !== undefined && !hasLostId(parsedBody))) {
    exchange.text = undefined;
  }
  exchange.parsedBody = parsedBody;
}

/** Whether the id of a message is a number that JavaScript may have read as another one: nobody is to be answered by it. */
export function hasLostId(parsedBody: unknown): boolean {
  const id = (parsedBody as { id?: unknown } | null | undefined)?.id;
  return typeof id === 'number' && !Number.isSafeInteger(id);
}

/** What an error names its request by: the text of the body, which has the digits of every id, or what is certain without it. */
export function namingBody({ text, parsedBody }: Exchange): Body | undefined {
  try {
    if (text !== undefined || typeof parsedBody !== 'object' || parsedBody === null || hasLostId(parsedBody)) {
      return text;
    }
    const { id, method } = parsedBody as { id?: unknown; method?: unknown };
    const isNamed = typeof method === 'string' && (typeof id === 'string' || typeof id === 'number');
    return isNamed ? JSON.stringify({ jsonrpc: '2.0', id, method }) : undefined;
  } catch {
    // What a parser of the host's has made is the host's.
    return undefined;
  }
}

/** The bytes of a chunk, which is text where something in front of us has set an encoding. */
export function bytesOf(chunk: Uint8Array | string, encoding?: BufferEncoding | null): Uint8Array {
  return typeof chunk === 'string' ? Buffer.from(chunk, encoding ?? 'utf8') : chunk;
}

/** Reads the body of a request of the web platform. */
export async function readRequest({ headers, body }: Request, maxBytes: number): Promise<ReadBody> {
  if (Number(headers.get('content-length')) > maxBytes) {
    return { tooLarge: true };
  }
  if (!body || body.locked) {
    // Something in front of us has read it.
    return { text: '' };
  }
  const reader = body.getReader();
  const chunks: Uint8Array[] = [];
  let size = 0;
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) {
        return { text: bodyOfChunks(chunks) };
      }
      const bytes = bytesOf(value);
      size += bytes.length;
      if (size > maxBytes) {
        reader.cancel().catch(() => {});
        return { tooLarge: true };
      }
      chunks.push(bytes);
    }
  } catch {
    return { gone: true };
  }
}

/** What is written, as bytes that share no memory with others: who gets them may take the memory. */
export function encoded(data: string | Uint8Array): Uint8Array {
  return typeof data === 'string' ? encoder.encode(data) : data;
}

/** Whether a body is text, as JSON has to be. */
export function isText(body: Body): boolean {
  return typeof body === 'string' || isUtf8(body);
}

/** The bytes of a body. */
export function bodyOfChunks(chunks: Uint8Array[]): Buffer {
  const [first] = chunks;
  return chunks.length === 1 ? Buffer.from(first.buffer, first.byteOffset, first.byteLength) : Buffer.concat(chunks);
}
