// A small HTTP client that hides nothing: each reply keeps the events of its own connection, in order,
// and nothing is retried. Every wait is bounded: a silent server is a failed test, not a hung one.
import http from 'node:http';

// What never comes on the stock transport is waited for only so long: its table is full of it.
const WAIT_MS = process.env.TAILROPE_TEST_TRANSPORT === 'stock' ? 5_000 : 15_000;
export const NEWEST = '2025-11-25';
export const OLD = ['2025-03-26', '2025-06-18'];
export const ACCEPT = 'application/json, text/event-stream';

export class Late extends Error {}

export function within(promise, ms = WAIT_MS, what = 'the server') {
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Late(`${what} took longer than ${ms} ms`)), ms);
  });
  return Promise.race([promise, late]).finally(() => clearTimeout(timer));
}

export const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

/** Lets what has arrived be read. A process that stood still runs the timers that are due before it reads anything. */
export async function turns() {
  for (let turn = 0; turn < 20; turn++) {
    await new Promise((resolve) => setImmediate(resolve));
  }
}

/** Polls until `condition` gives something; for what the wire does not show. */
export async function until(condition, ms = WAIT_MS) {
  for (const end = performance.now() + ms; ; ) {
    const found = await condition();
    if (found) {
      return found;
    }
    if (performance.now() > end) {
      throw new Late(`not within ${ms} ms: ${condition}`);
    }
    await sleep(10);
  }
}

export const upTo = (count, from = 1) => Array.from({ length: count - from + 1 }, (_, index) => index + from);

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

/** The events of a whole body. */
export const parseEvents = (text) => text.split('\n\n').slice(0, -1).map(parseBlock);

/** One answer on its own connection. */
export class Reply {
  #response;
  #text = '';
  #events = [];
  #raw = '';
  #ended = false;
  #broken = false;
  #dropped = false;
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
    const stream = this.isStream;
    this.#response.on('data', (chunk) => {
      this.#text += chunk;
      this.#raw += chunk;
      this.received += chunk.length;
      if (stream) {
        const blocks = this.#text.split('\n\n');
        this.#text = blocks.pop();
        this.#events.push(...blocks.map(parseBlock));
      }
      this.#wake();
    });
  }

  /** The next event or comment. Undefined when the connection has ended; a connection that was cut throws. */
  async block(ms) {
    this.#read();
    while (this.#events.length === 0 && !this.#ended) {
      await within(new Promise((resolve) => (this.#wake = resolve)), ms);
    }
    if (this.#events.length === 0 && this.#broken && !this.#dropped) {
      throw new Error('the connection was cut');
    }
    return this.#events.shift();
  }

  /** The next event; comments are skipped. Undefined when the connection has ended. */
  async event(ms) {
    for (;;) {
      const event = await this.block(ms);
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
      const block = await this.block();
      if (block === undefined) {
        return blocks;
      }
      blocks.push(block);
    }
  }

  /** Everything up to the response, whether the connection ends after it or not. */
  async untilTerminal() {
    const events = [];
    while (!events.at(-1)?.isTerminal) {
      const event = await this.event();
      if (event === undefined) {
        throw new Error(`the connection ended without a response: ${JSON.stringify(events)}`);
      }
      events.push(event);
    }
    return events;
  }

  /** Everything until the connection ends, or nothing has come for so long. */
  async settle(ms = 300) {
    const events = [];
    for (;;) {
      try {
        const event = await this.event(ms);
        if (event === undefined) {
          return events;
        }
        events.push(event);
      } catch (error) {
        if (!(error instanceof Late)) {
          throw error;
        }
        await turns();
        if (this.#events.length === 0 && !this.#ended) {
          return events;
        }
      }
    }
  }

  /** Ends cleanly, with no further event. */
  async ends() {
    const event = await this.event();
    if (event !== undefined) {
      throw new Error(`expected the end, got ${JSON.stringify(event)}`);
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

  /** All of the body that came so far, as it is. */
  get raw() {
    return this.#raw;
  }

  get isStream() {
    return this.headers['content-type']?.startsWith('text/event-stream') ?? false;
  }

  async json() {
    return JSON.parse(await this.body());
  }

  async body() {
    this.#read();
    while (!this.#ended) {
      await within(new Promise((resolve) => (this.#wake = resolve)));
    }
    return this.#raw;
  }

  get ended() {
    return this.#ended;
  }

  get broken() {
    return this.#broken;
  }

  /** Cuts the connection at once, as a dying network path would. */
  drop() {
    this.#dropped = true;
    // Node 20 never ends a process that reset a socket whose answer was complete.
    if (!this.#response.complete) {
      this.#response.socket?.resetAndDestroy();
    }
    this.#response.destroy();
  }

  /** Closes the connection in the polite way. */
  close() {
    this.#dropped = true;
    this.#response.destroy();
  }
}

/** Sends a request on a connection of its own. The reply is not read before it is asked for. */
export function request(port, method, headers, body, path = '/mcp') {
  return within(
    new Promise((resolve, reject) => {
      const options = { port, host: '127.0.0.1', path, method, headers, agent: false };
      const request = http.request(options, (response) => resolve(new Reply(response)));
      request.on('error', reject);
      request.end(body);
    }),
  );
}

/** A client of one session that does nothing by itself. */
export class Peer {
  #id = 0;

  constructor(port, revision = NEWEST, headers = {}, path = '/mcp') {
    this.path = path;
    this.port = port;
    this.revision = revision;
    this.headers = headers;
  }

  static async open(port, revision, headers, path) {
    const peer = new Peer(port, revision, headers, path);
    const reply = await peer.post({
      jsonrpc: '2.0',
      id: 'init',
      method: 'initialize',
      params: {
        protocolVersion: peer.revision,
        capabilities: { elicitation: {}, sampling: {} },
        clientInfo: { name: 'peer', version: '1' },
      },
    });
    peer.sessionId = reply.headers['mcp-session-id'];
    peer.opening = reply.isStream ? await reply.untilTerminal() : [];
    const answer = reply.isStream ? peer.opening.at(-1).message : await reply.json();
    if (reply.status !== 200 || answer.error !== undefined) {
      throw new Error(`initialize: ${reply.status} ${JSON.stringify(answer)}`);
    }
    peer.revision = answer.result.protocolVersion;
    const ready = await peer.notify('notifications/initialized');
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
    // A header that is undefined is not sent.
    return Object.fromEntries(Object.entries({ ...headers, ...more }).filter(([, value]) => value !== undefined));
  }

  async #over(reply) {
    const answer = await reply;
    await answer.body();
    return answer;
  }

  notify(method, params) {
    return this.#over(this.post({ jsonrpc: '2.0', method, params }));
  }

  respond(id, result) {
    return this.#over(this.post({ jsonrpc: '2.0', id, result }));
  }

  cancel(requestId) {
    return this.notify('notifications/cancelled', { requestId, reason: 'test' });
  }

  post(message, headers = {}) {
    const body = typeof message === 'string' ? message : JSON.stringify(message);
    return request(
      this.port,
      'POST',
      this.#headers({ 'content-type': 'application/json', ...headers }),
      body,
      this.path,
    );
  }

  call(name, args, id = ++this.#id, headers = {}) {
    const params = { name, arguments: args, _meta: { progressToken: id } };
    return this.post({ jsonrpc: '2.0', id, method: 'tools/call', params }, headers);
  }

  script(...steps) {
    return this.call('script', { steps });
  }

  /** The result of a script. */
  async ask(...steps) {
    const reply = await this.script(...steps);
    const events = reply.isStream ? await reply.untilTerminal() : [{ message: await reply.json() }];
    return results(events)[0];
  }

  get(headers = {}) {
    return request(this.port, 'GET', this.#headers(headers), undefined, this.path);
  }

  listen() {
    return this.get();
  }

  resume(lastEventId) {
    if (lastEventId === undefined) {
      throw new Error('no cursor to resume with');
    }
    return this.get({ 'last-event-id': lastEventId });
  }

  delete() {
    return this.#over(request(this.port, 'DELETE', this.#headers({}), undefined, this.path));
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

const ALPHABET = 'ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_';

/** A cursor of the same form that names a stream which never was: the nonce is another one. */
export function unknownLike(cursor) {
  if (cursor.length < 33) {
    return '999999999';
  }
  const other = [...cursor.slice(1, 17)].map((char) => ALPHABET[(ALPHABET.indexOf(char) + 17) % 64]);
  return cursor[0] + other.join('') + cursor.slice(17);
}

/** Status, headers and body as another client could compare them: ids and the time of day masked. */
export async function seen(reply, quietMs = 1_000) {
  if (reply.isStream) {
    await reply.settle(quietMs);
  } else {
    await reply.body();
  }
  const { date: _, ...headers } = reply.headers;
  if ('mcp-session-id' in headers) {
    headers['mcp-session-id'] = '*';
  }
  return [reply.status, headers, reply.raw.replaceAll(/^id: .*$/gm, 'id: *')];
}

/** The code and message of a refusal, which answers no request. */
export async function refusal(reply) {
  const { error, id } = await reply.json();
  if (id !== null) {
    throw new Error(`the refusal answers ${id}`);
  }
  return [reply.status, error.code, error.message];
}
