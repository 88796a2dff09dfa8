// A small HTTP client that hides nothing: each reply keeps the events of its own connection, in order,
// and nothing is retried. Every wait is bounded: a silent server is a failed test, not a hung one.
import http from 'node:http';

const WAIT_MS = 4_000;
export const ACCEPT = 'application/json, text/event-stream';

export function within(promise, ms = WAIT_MS, what = 'the server') {
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`${what} took longer than ${ms} ms`)), ms);
  });
  return Promise.race([promise, late]).finally(() => clearTimeout(timer));
}

export const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

function parseBlock(block) {
  const event = {};
  const data = [];
  for (const line of block.split('\n')) {
    if (line.startsWith(':')) {
      event.comment = line.slice(1).trim();
      continue;
    }
    const [, key, value] = /^([a-z]+): ?(.*)$/s.exec(line);
    if (key === 'data') {
      data.push(value);
    } else {
      event[key] = key === 'retry' ? Number(value) : value;
    }
  }
  if (data.length > 0) {
    event.data = data.join('\n');
    event.message = event.data === '' ? undefined : JSON.parse(event.data);
  }
  event.isPriming = event.data === '' && event.id !== undefined;
  event.isTerminal = event.message !== undefined && event.message.method === undefined;
  return event;
}

/** One answer on its own connection. */
export class Reply {
  #response;
  #text = '';
  #events = [];
  #ended = false;
  #broken = false;
  #wake = () => {};

  constructor(response) {
    this.#response = response;
    this.status = response.statusCode;
    this.headers = response.headers;
    this.received = 0;
    response.setEncoding('utf8');
    const over = () => {
      this.#ended = true;
      this.#wake();
    };
    response.on('end', over);
    response.on('error', () => {
      this.#broken = true;
      over();
    });
    response.on('close', over);
  }

  #read() {
    if (this.#response.listenerCount('data') > 0) {
      return;
    }
    const stream = this.headers['content-type'] === 'text/event-stream';
    this.#response.on('data', (chunk) => {
      this.#text += chunk;
      this.received += chunk.length;
      if (stream) {
        const blocks = this.#text.split('\n\n');
        this.#text = blocks.pop();
        this.#events.push(...blocks.map(parseBlock));
      }
      this.#wake();
    });
  }

  async #next() {
    this.#read();
    while (this.#events.length === 0 && !this.#ended) {
      await within(new Promise((resolve) => (this.#wake = resolve)));
    }
    return this.#events.shift();
  }

  /** The next event; comments are skipped. Undefined when the connection has ended. */
  async event() {
    for (;;) {
      const event = await this.#next();
      if (event === undefined || event.comment === undefined) {
        return event;
      }
    }
  }

  /** Events up to the `count`th message. */
  async some(count) {
    const events = [];
    for (let messages = 0; messages < count; ) {
      const event = await this.event();
      if (event === undefined) {
        throw new Error(`the connection ended after ${messages} of ${count} messages`);
      }
      events.push(event);
      messages += event.message === undefined ? 0 : 1;
    }
    return events;
  }

  /** Everything until the connection ends, without comments. */
  async rest() {
    return (await this.blocks()).filter((block) => block.comment === undefined);
  }

  /** Everything until the connection ends. */
  async blocks() {
    const blocks = [];
    for (;;) {
      const block = await this.#next();
      if (block === undefined) {
        return blocks;
      }
      blocks.push(block);
    }
  }

  /** Nothing comes for so long. */
  async quiet(ms) {
    this.#read();
    await sleep(ms);
    if (this.#ended || this.#events.some((event) => event.comment === undefined)) {
      throw new Error('the connection is not quiet');
    }
  }

  async body() {
    this.#read();
    while (!this.#ended) {
      await within(new Promise((resolve) => (this.#wake = resolve)));
    }
    return this.#text;
  }

  get ended() {
    return this.#ended;
  }

  get broken() {
    return this.#broken;
  }

  drop() {
    this.#response.destroy();
  }
}

/** Sends a request on a connection of its own. The reply is not read before it is asked for. */
export function request(port, method, headers, body) {
  return within(
    new Promise((resolve, reject) => {
      const options = { port, host: '127.0.0.1', path: '/mcp', method, headers, agent: false };
      const request = http.request(options, (response) => resolve(new Reply(response)));
      request.on('error', reject);
      request.end(body);
    }),
  );
}

/** A client of one session that does nothing by itself. */
export class Peer {
  #id = 0;

  constructor(port, revision = '2025-11-25', headers = {}) {
    this.port = port;
    this.revision = revision;
    this.headers = headers;
  }

  static async open(port, revision, headers) {
    const peer = new Peer(port, revision, headers);
    const reply = await peer.post({
      jsonrpc: '2.0',
      id: 'init',
      method: 'initialize',
      params: {
        protocolVersion: peer.revision,
        capabilities: { elicitation: {} },
        clientInfo: { name: 'peer', version: '1' },
      },
    });
    peer.sessionId = reply.headers['mcp-session-id'];
    peer.opening = await reply.rest();
    const ready = await peer.post({ jsonrpc: '2.0', method: 'notifications/initialized' });
    if (ready.status !== 202) {
      throw new Error(`initialized: ${ready.status}`);
    }
    return peer;
  }

  #headers(more) {
    const headers = { accept: ACCEPT, ...this.headers };
    if (this.sessionId !== undefined) {
      headers['mcp-session-id'] = this.sessionId;
      headers['mcp-protocol-version'] = this.revision;
    }
    return { ...headers, ...more };
  }

  post(message, headers = {}) {
    const body = typeof message === 'string' ? message : JSON.stringify(message);
    return request(this.port, 'POST', this.#headers({ 'content-type': 'application/json', ...headers }), body);
  }

  call(name, args, id = ++this.#id) {
    const params = { name, arguments: args, _meta: { progressToken: id } };
    return this.post({ jsonrpc: '2.0', id, method: 'tools/call', params });
  }

  script(...steps) {
    return this.call('script', { steps });
  }

  async ask(...steps) {
    return results(await (await this.script(...steps)).rest())[0];
  }

  listen() {
    return request(this.port, 'GET', this.#headers({}));
  }

  resume(lastEventId) {
    return request(this.port, 'GET', this.#headers({ 'last-event-id': lastEventId }));
  }

  delete() {
    return request(this.port, 'DELETE', this.#headers({}));
  }
}

const messages = (events) => events.map((event) => event.message).filter((message) => message !== undefined);

export const counts = (events) =>
  messages(events)
    .filter((message) => message.method === 'notifications/progress')
    .map((message) => message.params.progress);

export const logs = (events) =>
  messages(events)
    .filter((message) => message.method === 'notifications/message')
    .map((message) => message.params.data);

export const results = (events) =>
  messages(events)
    .filter((message) => message.method === undefined)
    .map((message) => message.error ?? message.result.content?.[0].text ?? message.result);

export const ids = (events) => events.map((event) => event.id).filter((id) => id !== undefined);
export const lastId = (events) => ids(events).at(-1);
