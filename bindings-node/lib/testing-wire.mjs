// HTTP on a connection of its own for each request: what a server put on it, and how it ended.
//
// `fetch` reuses connections, and closes them politely. A test has to reset them, and to know a body that was cut from
// one that was complete.
import http from 'node:http';
import https from 'node:https';
import { StringDecoder } from 'node:string_decoder';

import { KitError } from './testing-errors.mjs';

/** The connection ended inside a body. */
export class Broken extends Error {}

/** SSE from bytes: CR, LF and CRLF end a line, wherever the bytes are split. */
export class Decoder {
  #text = new StringDecoder('utf8');
  #line = '';
  #afterCr = false;
  #block = {};
  #data = [];

  feed(bytes) {
    const blocks = [];
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

  #take(line, blocks) {
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
    const [, key, value] = /^([^:]*):? ?(.*)$/s.exec(line);
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
  #response;
  #pieces = [];
  #end;
  #wake = () => {};

  constructor(response) {
    this.#response = response;
    this.status = response.statusCode;
    this.headers = response.headers;
    const over = (end) => {
      this.#end ??= end;
      this.#wake();
    };
    response.on('end', () => over('closed'));
    response.on('error', () => over('broken'));
    response.on('close', () => over(response.complete ? 'closed' : 'broken'));
  }

  get isStream() {
    return (this.headers['content-type'] ?? '').toLowerCase().startsWith('text/event-stream');
  }

  /** What comes next, within `waitMs`. Throws `Broken`, and KitError `timed_out`. */
  async piece(waitMs) {
    // Nothing is read before it is asked for.
    if (this.#response.listenerCount('data') === 0) {
      this.#response.on('data', (piece) => {
        this.#pieces.push(piece);
        this.#wake();
      });
    }
    if (this.#pieces.length === 0 && this.#end === undefined) {
      await within(
        new Promise((resolve) => {
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
  async body(waitMs) {
    const pieces = [];
    try {
      for (let piece; (piece = await this.piece(waitMs)) !== undefined; ) {
        pieces.push(piece);
      }
    } catch (error) {
      throw error instanceof Broken ? new KitError('no_connection', `the answer was cut: ${error.message}`) : error;
    } finally {
      this.close();
    }
    return Buffer.concat(pieces).toString();
  }

  /** Cuts the connection as a dying network path would, without a farewell. */
  reset() {
    // Node 20 never ends a process that reset a socket whose answer was complete.
    if (!this.#response.complete) {
      this.#response.socket?.resetAndDestroy?.();
    }
    this.close();
  }

  close() {
    this.#response.destroy();
  }
}

/** Settles as the promise does, or throws KitError `timed_out` after `waitMs`. */
export function within(promise, waitMs, message) {
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new KitError('timed_out', message)), waitMs);
  });
  return Promise.race([promise, late]).finally(() => clearTimeout(timer));
}

/** Sends one request and waits for the head of its answer. */
export async function send(url, method, headers, body, waitMs) {
  const { request } = new URL(url).protocol === 'https:' ? https : http;
  let sent;
  const answered = new Promise((resolve, reject) => {
    sent = request(url, { method, headers, agent: false }, (response) => resolve(new Answer(response)));
    sent.on('error', (error) => reject(new KitError('no_connection', `${method} ${url}: ${error.message || error.code}`)));
    sent.end(body);
  });
  try {
    return await within(answered, waitMs, `${method} ${url} was not answered within ${waitMs} ms`);
  } catch (error) {
    sent.destroy();
    throw error;
  }
}
