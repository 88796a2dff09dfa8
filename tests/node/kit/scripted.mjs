// A server that does what its test says, request by request.
import http from 'node:http';

import { within } from './raw.mjs';

/** One request, and the answer that a test gives to it. */
class Exchange {
  #req;
  #res;
  /** When it came, in milliseconds. */
  at = performance.now();

  constructor(req, res, body) {
    this.#req = req;
    this.#res = res;
    this.method = req.method;
    this.path = req.url;
    this.headers = req.headers;
    this.body = body;
    this.socket = req.socket;
    /** Resolves when the peer or the test has ended the exchange. */
    this.closed = new Promise((resolve) => res.once('close', resolve));
  }

  /** The ids come as bytes; HTTP libraries show them as Latin-1. */
  get lastEventId() {
    const header = this.#req.headers['last-event-id'];
    return header === undefined ? undefined : Buffer.from(header, 'latin1').toString('utf8');
  }

  head(status = 200, headers = { 'content-type': 'text/event-stream' }) {
    this.#res.writeHead(status, headers);
    this.#res.flushHeaders();
    return this;
  }

  text(text) {
    this.#res.write(text);
    return this;
  }

  /** Resolves to false when the peer takes no more for now. */
  write(bytes) {
    return this.#res.write(bytes);
  }

  drained() {
    return new Promise((resolve) => this.#res.once('drain', resolve));
  }

  get buffered() {
    return this.#res.writableLength + this.socket.writableLength;
  }

  end(text) {
    this.#res.end(text);
    return performance.now();
  }

  /** Ends the connection in the middle of the body, or before the head. What was written arrives. */
  break() {
    if (this.#res.headersSent) {
      this.socket.end();
    } else {
      this.socket.destroy();
    }
    return performance.now();
  }

  json(status, body) {
    const text = JSON.stringify(body);
    this.#res.writeHead(status, { 'content-type': 'application/json' }).end(text);
    return performance.now();
  }
}

export class ScriptedServer {
  #arrived = [];
  #wanted = [];
  sockets = new Set();
  connections = 0;
  /** Exchanges that are not over. */
  open = 0;
  /** Takes every request where it is set; then there is no `next`. */
  handle;

  static async open(t) {
    const self = new ScriptedServer();
    self.#server = http.createServer((req, res) => self.#take(req, res));
    self.#server.keepAliveTimeout = 60_000;
    self.#server.on('connection', (socket) => {
      self.connections += 1;
      self.sockets.add(socket);
      socket.on('error', () => {});
      socket.once('close', () => self.sockets.delete(socket));
    });
    await new Promise((resolve) => self.#server.listen(0, '127.0.0.1', resolve));
    self.port = self.#server.address().port;
    self.url = `http://127.0.0.1:${self.port}/mcp`;
    t.after(() => self.close());
    return self;
  }

  #server;

  async #take(req, res) {
    let body = '';
    req.setEncoding('utf8');
    try {
      for await (const chunk of req) {
        body += chunk;
      }
    } catch {
      return;
    }
    const exchange = new Exchange(req, res, body);
    this.open += 1;
    void exchange.closed.then(() => (this.open -= 1));
    const wanted = this.handle ?? this.#wanted.shift();
    if (wanted === undefined) {
      this.#arrived.push(exchange);
    } else {
      wanted(exchange);
    }
  }

  /** The next request. */
  next(what = 'a request') {
    const arrived = this.#arrived.shift();
    return arrived !== undefined
      ? Promise.resolve(arrived)
      : within(new Promise((resolve) => this.#wanted.push(resolve)), undefined, what);
  }

  /** Requests that came and were not asked for. */
  get waiting() {
    return this.#arrived.length;
  }

  async close() {
    this.#server.closeAllConnections();
    await new Promise((resolve) => this.#server.close(resolve));
  }
}

/** A call, as it is posted. */
export function post(id, headers = {}) {
  return {
    method: 'POST',
    headers: { 'content-type': 'application/json', accept: 'application/json, text/event-stream', ...headers },
    body: JSON.stringify({ jsonrpc: '2.0', id, method: 'tools/call', params: { name: 'work' } }),
  };
}

/** A GET for the standalone stream. */
export function listenTo(headers = {}) {
  return { headers: { accept: 'text/event-stream', ...headers } };
}

export const event = (id, message) => `id: ${id}\ndata: ${message === undefined ? '' : JSON.stringify(message)}\n\n`;
export const primed = (id, retryMs = 1) => `id: ${id}\nretry: ${retryMs}\ndata: \n\n`;
export const note = (progress) => ({ jsonrpc: '2.0', method: 'notifications/progress', params: { progress } });
export const result = (id, value = {}) => ({ jsonrpc: '2.0', id, result: value });
