// HTTP/1.1 that hides nothing: each request has a connection of its own, which is read as bytes come and can be cut at
// any time, beside others. Knows nothing of MCP; nothing is retried.
import http from 'node:http';
import https from 'node:https';

import { Decoder, parsed } from './probe-sse.mjs';

const MOST_BYTES = 32 << 20;

/** There was no head of an answer: `silent`, `refused` (nobody listens) or `broken`. */
export class NoAnswer extends Error {
  constructor(kind, text) {
    super(text);
    this.kind = kind;
  }
}

/** One answer. `state` is `open`, `end` (the body is complete) or `broken`; one that we cut stays `open`, as we left it. */
export class Exchange {
  #response;
  #isCut = false;
  #waiting = new Set();
  #decoder = new Decoder();
  #body = [];
  #taken = 0;
  blocks = [];
  response;
  state = 'open';

  constructor(response) {
    this.#response = response;
    this.status = response.statusCode;
    this.headers = response.headers;
    // Read from now on, whoever waits for it or not, so that two connections can be compared by time.
    response.on('data', (piece) => this.#read(piece));
    response.once('end', () => this.#over(response.complete ? 'end' : 'broken'));
    response.once('error', () => this.#over('broken'));
    response.once('close', () => this.#over('broken'));
  }

  #read(piece) {
    if (this.#isCut || this.isOver) {
      return;
    }
    this.#taken += piece.length;
    if (this.#taken > MOST_BYTES) {
      this.#over('broken');
      this.#response.destroy();
      return;
    }
    if (this.isStream) {
      for (const block of this.#decoder.feed(piece)) {
        block.at = performance.now();
        this.blocks.push(block);
        if (this.response === undefined && block.isResponse) {
          this.response = block;
        }
      }
    } else {
      this.#body.push(piece);
    }
    this.#changed();
  }

  #over(state) {
    if (!this.#isCut && !this.isOver) {
      this.state = state;
      this.#changed();
    }
  }

  #changed() {
    for (const look of this.#waiting) {
      look();
    }
  }

  get contentType() {
    return (this.headers['content-type'] ?? '').split(';')[0].trim().toLowerCase();
  }

  get isStream() {
    return this.status === 200 && this.contentType === 'text/event-stream';
  }

  get isOver() {
    return this.state !== 'open';
  }

  get events() {
    return this.blocks.filter((block) => block.comment === undefined);
  }

  get body() {
    return Buffer.concat(this.#body).toString('utf8');
  }

  /** A whole JSON body, or the response that a stream carries. */
  get json() {
    return this.isStream ? this.response?.message : parsed(this.body);
  }

  /** Waits until the condition holds, for so long; resolves to whether it does. */
  until(condition, ms) {
    return new Promise((resolve) => {
      const end = (holds) => {
        clearTimeout(timer);
        this.#waiting.delete(look);
        resolve(holds);
      };
      const look = () => condition() && end(true);
      // What arrived while the process was busy is read before the condition is looked at for the last time.
      const timer = setTimeout(() => setImmediate(() => end(condition())), ms);
      this.#waiting.add(look);
      look();
    });
  }

  /** Resets the connection, as a path that dies. */
  cut() {
    this.#isCut = true;
    const { socket, complete } = this.#response;
    // One that is being closed already would stay half closed, and keep the process; TLS knows no reset.
    if (!complete && !this.isOver && socket?.writable && !socket.destroyed && !socket.encrypted) {
      socket.resetAndDestroy();
    }
    this.#response.destroy();
  }
}

/** Where the server is, and what every request to it carries. */
export class Endpoint {
  constructor(url, headers = {}) {
    this.url = url;
    this.headers = headers;
  }

  send(method, headers, body, timeoutMs) {
    const sent = { 'Accept-Encoding': 'identity' };
    for (const [name, value] of Object.entries({ ...headers, ...this.headers })) {
      if (/[\x00-\x1f\x7f]/.test(value)) {
        return Promise.reject(new NoAnswer('broken', `${name} cannot be sent: there are control characters in it`));
      }
      sent[name] = Buffer.from(value, 'utf8').toString('latin1');
    }
    if (body !== undefined) {
      sent['Content-Length'] = Buffer.byteLength(body);
    }
    const url = new URL(this.url);
    const isTls = url.protocol === 'https:';
    // Credentials in an address are not ours to send.
    url.username = url.password = '';
    return new Promise((resolve, reject) => {
      const request = (isTls ? https : http).request(url, { method, headers: sent, agent: false });
      let isConnected = false;
      let isAnswered = false;
      const late = () => {
        if (!isAnswered) {
          reject(new NoAnswer('silent', `no answer within ${timeoutMs} ms`));
          request.destroy();
        }
      };
      const timer = setTimeout(() => setImmediate(late), timeoutMs);
      request.once('socket', (socket) => socket.once(isTls ? 'secureConnect' : 'connect', () => (isConnected = true)));
      // What comes after the head is the exchange's.
      request.on('error', (error) => {
        clearTimeout(timer);
        const text = error.message || error.code;
        reject(isConnected ? new NoAnswer('broken', 'the connection ended before an answer') : new NoAnswer('refused', text));
      });
      request.once('response', (response) => {
        clearTimeout(timer);
        isAnswered = true;
        resolve(new Exchange(response));
      });
      request.end(body);
    });
  }
}
