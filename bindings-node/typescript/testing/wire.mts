// HTTP on a connection of its own for each request: what a server put on it, and how it ended.
//
// `fetch` reuses connections, and closes them politely. A test has to reset them, and to know a body that was cut from
// one that was complete.
import http from 'node:http';
import https from 'node:https';
import { StringDecoder } from 'node:string_decoder';

import { TailropeError } from '../errors.mjs';

/** The connection ended inside a body. */
export class Broken extends Error {}

/** What a test is told that wanted all of the body. */
export function cut(error: unknown): unknown {
  return error instanceof Broken ? new TailropeError('no_connection', `the answer was cut: ${error.message}`) : error;
}

/** One event as it came, or a comment. */
export interface Block {
  id?: string;
  data?: string;
  retryMs?: number;
  comment?: string;
}

/** SSE from bytes: CR, LF and CRLF end a line, wherever the bytes are split. */
export class Decoder {
  readonly #text = new StringDecoder('utf8');
  #line = '';
  #afterCr = false;
  #block: Block = {};
  #data: string[] = [];

  feed(bytes: Buffer): Block[] {
    const blocks: Block[] = [];
    for (const [piece] of this.#text.write(bytes).matchAll(/[^\r\n]*(\r\n|\r|\n)|[^\r\n]+/g)) {
      if (this.#afterCr && piece === '\n') {
        this.#afterCr = false;
        continue;
      }
      this.#afterCr = piece.endsWith('\r');
      const text = piece.replace(/[\r\n]+$/, '');
      this.#line += text;
      if (text.length < piece.length) {
        const line = this.#line;
        this.#line = '';
        this.#take(line, blocks);
      }
    }
    return blocks;
  }

  #take(line: string, blocks: Block[]): void {
    if (line.startsWith(':')) {
      blocks.push({ comment: line.slice(1).replace(/^ /, '') });
      return;
    }
    if (line === '') {
      if (Object.keys(this.#block).length > 0 || this.#data.length > 0) {
        blocks.push({ ...this.#block, ...(this.#data.length > 0 && { data: this.#data.join('\n') }) });
      }
      this.#block = {};
      this.#data = [];
      return;
    }
    const [, key, value = ''] = /^([^:]*):? ?(.*)$/s.exec(line) ?? [];
    if (key === 'data') {
      this.#data.push(value);
    } else if (key === 'id') {
      this.#block.id = value;
    } else if (key === 'retry' && /^\d+$/.test(value)) {
      this.#block.retryMs = Number(value);
    }
  }
}

/** One answer. Its body comes in pieces, undefined at its proper end. */
export class Answer {
  readonly status: number;
  readonly headers: http.IncomingHttpHeaders;
  readonly #response: http.IncomingMessage;
  readonly #pieces: Buffer[] = [];
  #end: 'closed' | 'broken' | undefined;
  #wake = () => {};

  constructor(response: http.IncomingMessage) {
    this.#response = response;
    // Set in every answer that a client gets.
    this.status = response.statusCode ?? 0;
    this.headers = response.headers;
    const over = (end: 'closed' | 'broken') => {
      this.#end ??= end;
      this.#wake();
    };
    response.on('end', () => over('closed'));
    response.on('error', () => over('broken'));
    response.on('close', () => over(response.complete ? 'closed' : 'broken'));
  }

  get isStream(): boolean {
    return (this.headers['content-type'] ?? '').toLowerCase().startsWith('text/event-stream');
  }

  /** What comes next, within `waitMs`. Throws `Broken`, and TailropeError `timed_out`. */
  async piece(waitMs: number): Promise<Buffer | undefined> {
    // Nothing is read before it is asked for.
    if (this.#response.listenerCount('data') === 0) {
      this.#response.on('data', (piece: Buffer) => {
        this.#pieces.push(piece);
        this.#wake();
      });
    }
    if (this.#pieces.length === 0 && this.#end === undefined) {
      await within(
        new Promise<void>((resolve) => {
          this.#wake = resolve;
        }),
        waitMs,
        `nothing came for ${waitMs} ms`,
      );
    }
    if (this.#pieces.length === 0 && this.#end === 'broken') {
      throw new Broken('the connection ended inside the body');
    }
    return this.#pieces.shift();
  }

  /** All of the body. */
  async body(waitMs: number): Promise<string> {
    const pieces: Buffer[] = [];
    try {
      for (let piece = await this.piece(waitMs); piece !== undefined; piece = await this.piece(waitMs)) {
        pieces.push(piece);
      }
    } catch (error) {
      throw cut(error);
    } finally {
      this.close();
    }
    return Buffer.concat(pieces).toString();
  }

  /** Cuts the connection as a dying network path would, without a farewell. */
  reset(): void {
    // Node 20 never ends a process that reset a socket whose answer was complete.
    if (!this.#response.complete) {
      this.#response.socket?.resetAndDestroy();
    }
    this.close();
  }

  close(): void {
    this.#response.destroy();
  }
}

/** Settles as the promise does, or throws TailropeError `timed_out` after `waitMs`. */
export function within<T>(promise: Promise<T>, waitMs: number, message: string): Promise<T> {
  let timer: NodeJS.Timeout;
  const late = new Promise<never>((_, reject) => {
    timer = setTimeout(() => reject(new TailropeError('timed_out', message)), waitMs);
  });
  return Promise.race([promise, late]).finally(() => clearTimeout(timer));
}

/** Sends one request and waits for the head of its answer. */
export async function send(
  url: string | URL,
  method: string,
  headers: http.OutgoingHttpHeaders,
  body: string | undefined,
  waitMs: number,
): Promise<Answer> {
  const { request } = new URL(url).protocol === 'https:' ? https : http;
  const sent = request(url, { method, headers, agent: false });
  const answered = new Promise<Answer>((resolve, reject) => {
    sent.on('response', (response) => resolve(new Answer(response)));
    sent.on('error', (error: NodeJS.ErrnoException) =>
      reject(new TailropeError('no_connection', `${method} ${url}: ${error.message || error.code}`)),
    );
    sent.end(body);
  });
  try {
    return await within(answered, waitMs, `${method} ${url} was not answered within ${waitMs} ms`);
  } catch (error) {
    sent.destroy();
    throw error;
  }
}
