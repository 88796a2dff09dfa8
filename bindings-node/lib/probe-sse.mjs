// What an SSE body says, block by block, with nothing left out: a client hides comments, empty events and lone ids.

/** One event, or one comment. `data` is undefined where there was no data line. */
export class Block {
  id;
  data;
  retryMs;
  comment;
  /** When it came. */
  at = 0;
  #message;

  get isPriming() {
    return this.id !== undefined && this.data === '';
  }

  /** The JSON-RPC message, if there is one. */
  get message() {
    if (this.data) {
      this.#message ??= parsed(this.data) ?? null;
    }
    return this.#message ?? undefined;
  }

  get isResponse() {
    return isResponse(this.message);
  }
}

export function parsed(text) {
  try {
    const message = JSON.parse(text);
    return typeof message === 'object' && message !== null && !Array.isArray(message) ? message : undefined;
  } catch {
    return undefined;
  }
}

export function isResponse(message) {
  return message !== undefined && !('method' in message) && ('result' in message || 'error' in message);
}

/** Lines end with CR, LF or CRLF, also where CRLF is split between two reads (W-101). */
export class Decoder {
  // It drops the byte order mark, too.
  #utf8 = new TextDecoder();
  #rest = '';
  #skipsLf = false;
  #block;

  feed(chunk) {
    let text = this.#utf8.decode(chunk, { stream: true });
    if (text === '') {
      return [];
    }
    if (this.#skipsLf && text.startsWith('\n')) {
      text = text.slice(1);
    }
    const data = this.#rest + text;
    const lines = data.split(/\r\n|\n|\r/);
    this.#rest = lines.pop();
    this.#skipsLf = data.endsWith('\r');
    return lines.map((line) => this.#line(line)).filter((block) => block !== undefined);
  }

  #line(line) {
    if (line === '') {
      const block = this.#block;
      this.#block = undefined;
      return block;
    }
    if (line.startsWith(':')) {
      return Object.assign(new Block(), { comment: line.slice(1).trim() });
    }
    const colon = line.indexOf(':');
    const name = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? '' : line.slice(colon + 1).replace(/^ /, '');
    const block = (this.#block ??= new Block());
    if (name === 'data') {
      block.data = block.data === undefined ? value : `${block.data}\n${value}`;
    } else if (name === 'id' && !value.includes('\0')) {
      block.id = value || undefined;
    } else if (name === 'retry' && /^[0-9]+$/.test(value)) {
      block.retryMs = Number(value);
    }
    return undefined;
  }
}
