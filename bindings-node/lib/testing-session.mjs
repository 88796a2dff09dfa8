// A session and its calls, nothing done behind the test's back: connections begin and end when the test says so.
import { setTimeout as sleep } from 'node:timers/promises';

import { KitError } from './testing-errors.mjs';
import { Connection, Event, check, report } from './testing-record.mjs';
import { Broken, Decoder, send } from './testing-wire.mjs';

export const NEWEST = '2025-11-25';
export const WAIT_MS = 20_000;
/** `collect()` waits no longer than this before it comes back, whatever the server asks for. */
const LONGEST_PAUSE_MS = 60_000;
const SETTLE_MS = 500;

const tokenOf = (requestId) => `kit-${requestId}`;

let headersOf;
let begin;
let drop;

/** A tool's call, over as many connections as the test makes of it. */
export class Call {
  #at = new Map();
  #firstId;
  #answer;
  #decoder;
  #blocks = [];
  #retryMs = 0;
  connections = [];

  static {
    begin = (call, ...rest) => call.#begin(...rest);
    drop = (call) => call.#drop();
  }

  constructor(session, tool, requestId) {
    Object.assign(this, { session, tool, requestId });
  }

  get ids() {
    return [...this.#at.keys()];
  }

  get messages() {
    return this.#events().map((event) => event.message);
  }

  get received() {
    return this.#events().map((event) => event.value);
  }

  get isAnswered() {
    return this.#events().some((event) => event.isResponse);
  }

  #reading() {
    return this.connections.filter((each) => !each.readsAgain).at(-1);
  }

  #events() {
    return Event.chain(Connection.head(this.#reading()));
  }

  async #begin(answer, method, after, readsAgain) {
    const number = this.connections.length + 1;
    const connection = new Connection(number, method, after, answer.status, readsAgain, this.#at.get(after));
    this.connections.push(connection);
    if (answer.status === 200 && answer.isStream) {
      this.#answer = answer;
      this.#decoder = new Decoder();
      this.#blocks = [];
      return;
    }
    const body = await answer.body(this.session.waitMs);
    connection.end = 'closed';
    if (method === 'POST' && answer.status === 200) {
      connection.add(undefined, JSON.parse(body));
      return;
    }
    const words = `connection ${number}, ${method}: ${answer.status} ${body.slice(0, 200)}`;
    throw new KitError('refused', words.trimEnd(), answer.status);
  }

  async read(count = 1) {
    const values = [];
    while (values.length < count) {
      const event = await this.#next();
      if (event === undefined) {
        const { end } = this.connections.at(-1);
        throw new KitError('closed', `the connection ended (${end}) after ${values.length} of ${count} messages`);
      }
      if (event.message !== undefined) {
        values.push(event.value);
      }
    }
    return values;
  }

  async cut(after = 0) {
    await this.read(after);
    this.#drop();
  }

  async untilClosed() {
    const values = [];
    for (let event; (event = await this.#next()) !== undefined; ) {
      if (event.message !== undefined) {
        values.push(event.value);
      }
    }
    return values;
  }

  async resume(after, { at } = {}) {
    this.#drop();
    const cursor = after ?? Event.cursor(Connection.head(this.#reading()));
    if (cursor === undefined) {
      throw new KitError('no_cursor', 'no event has had an id');
    }
    if (!this.#at.has(cursor)) {
      throw new KitError('no_cursor', `no event of this call had the id ${cursor}`);
    }
    await this.#get(cursor, at, false);
  }

  async collect({ readAgain = true } = {}) {
    for (let silent = 0; !this.isAnswered; ) {
      if (this.#answer === undefined) {
        await sleep(Math.min(this.#retryMs, LONGEST_PAUSE_MS));
        await this.resume();
      }
      silent = (await this.#untilResponse()) > 0 ? 0 : silent + 1;
      if (silent > 100) {
        throw new KitError('closed', 'the server closed a hundred connections in a row without a message');
      }
    }
    await this.#settle();
    if (readAgain && this.#firstId !== undefined) {
      await this.readAgain();
    }
    return this.received;
  }

  async readAgain() {
    if (this.#firstId === undefined) {
      throw new KitError('no_cursor', 'no event has had an id');
    }
    this.#drop();
    await this.#get(this.#firstId, undefined, true);
    await this.#untilResponse();
    await this.#settle();
    return Event.chain(Connection.head(this.connections.at(-1))).map((event) => event.value);
  }

  assertExactlyOnce(expected) {
    if (expected === undefined && !this.connections.some((each) => each.readsAgain)) {
      const message = 'name what was sent, or read the stream again: it is not known what should come';
      throw new KitError('no_cursor', message);
    }
    check(`call ${this.requestId} (${this.tool})`, this.connections, this.requestId, tokenOf(this.requestId), expected);
  }

  report() {
    return report(this.connections).join('\n');
  }

  async #untilResponse() {
    let count = 0;
    for (let event; (event = await this.#next()) !== undefined; ) {
      count += event.message === undefined ? 0 : 1;
      if (event.isResponse) {
        break;
      }
    }
    return count;
  }

  /** Reads what comes after the response. A stream that never ends may be a fault, but not of this kind. */
  async #settle() {
    try {
      while (this.#answer !== undefined) {
        await this.#next(Math.min(SETTLE_MS, this.session.waitMs));
      }
    } catch (error) {
      if (!(error instanceof KitError)) {
        throw error;
      }
      this.#drop();
    }
  }

  async #get(cursor, at, readsAgain) {
    const headers = headersOf(this.session, { accept: 'text/event-stream', 'last-event-id': cursor });
    const answer = await send(at ?? this.session.url, 'GET', headers, undefined, this.session.waitMs);
    await this.#begin(answer, 'GET', cursor, readsAgain);
  }

  /** The next event of the connection; undefined when it is over. */
  async #next(waitMs = this.session.waitMs) {
    const connection = this.connections.at(-1);
    for (;;) {
      while (this.#blocks.length === 0) {
        if (this.#answer === undefined) {
          return undefined;
        }
        const piece = await this.#piece(connection, waitMs);
        if (piece === undefined) {
          return undefined;
        }
        this.#blocks = this.#decoder.feed(piece);
      }
      const { id, data, retryMs, comment } = this.#blocks.shift();
      if (comment !== undefined) {
        if (comment.startsWith('gap ')) {
          connection.gaps.push(comment);
        }
        continue;
      }
      this.#retryMs = retryMs ?? this.#retryMs;
      const event = connection.add(id, data ? JSON.parse(data) : undefined, retryMs);
      if (id) {
        this.#at.set(id, event);
        this.#firstId ??= id;
      }
      return event;
    }
  }

  async #piece(connection, waitMs) {
    try {
      const piece = await this.#answer.piece(waitMs);
      if (piece === undefined) {
        this.#over('closed');
      }
      return piece;
    } catch (error) {
      if (error instanceof Broken) {
        this.#over('broken');
        return undefined;
      }
      throw new KitError(error.code, `${error.message} on connection ${connection.number}\n${this.report()}`);
    }
  }

  #drop() {
    if (this.#answer !== undefined) {
      this.#answer.reset();
      this.#over('cut');
    }
  }

  #over(end) {
    this.#answer?.close();
    this.#answer = undefined;
    this.connections.at(-1).end = end;
  }
}

/** A session of a server, opened with `initialize`. `id` is undefined for a server that has no sessions. */
export class Session {
  #given;
  #number = 0;
  #calls = [];

  static {
    headersOf = (session, more) => session.#headers(more);
  }

  constructor(url, revision, headers, waitMs) {
    Object.assign(this, { url: String(url), revision, waitMs });
    this.id = undefined;
    this.#given = headers;
  }

  static async open(url, { revision = NEWEST, capabilities = {}, headers = {}, waitMs = WAIT_MS } = {}) {
    const session = new Session(url, revision, headers, waitMs);
    const clientInfo = { name: 'tailrope/testing', version: '1' };
    const params = { protocolVersion: revision, capabilities, clientInfo };
    const answer = await session.#post({ jsonrpc: '2.0', id: 0, method: 'initialize', params });
    if (answer.status !== 200) {
      const words = `initialize: ${answer.status} ${(await answer.body(waitMs)).slice(0, 200)}`;
      throw new KitError('refused', words.trimEnd(), answer.status);
    }
    const { result } = await response(answer, waitMs);
    if (result === undefined) {
      throw new KitError('refused', 'initialize was answered with an error', answer.status);
    }
    session.id = answer.headers['mcp-session-id'];
    session.revision = result.protocolVersion;
    const status = await session.send({ jsonrpc: '2.0', method: 'notifications/initialized' });
    if (![200, 202, 204].includes(status)) {
      throw new KitError('refused', `notifications/initialized: ${status}`, status);
    }
    return session;
  }

  #headers(more) {
    const own = this.id === undefined ? {} : { 'mcp-session-id': this.id };
    return { ...this.#given, ...own, 'mcp-protocol-version': this.revision, ...more };
  }

  #post(message) {
    const headers = { accept: 'application/json, text/event-stream', 'content-type': 'application/json' };
    return send(this.url, 'POST', this.#headers(headers), JSON.stringify(message), this.waitMs);
  }

  async call(tool, args = {}) {
    const call = new Call(this, tool, ++this.#number);
    const params = { name: tool, arguments: args, _meta: { progressToken: tokenOf(call.requestId) } };
    const answer = await this.#post({ jsonrpc: '2.0', id: call.requestId, method: 'tools/call', params });
    this.#calls.push(call);
    await begin(call, answer, 'POST', undefined, false);
    return call;
  }

  async send(message) {
    const answer = await this.#post(message);
    if (answer.isStream) {
      answer.reset();
    } else {
      await answer.body(this.waitMs);
    }
    return answer.status;
  }

  close() {
    this.#calls.forEach(drop);
  }

  async delete() {
    this.close();
    const answer = await send(this.url, 'DELETE', this.#headers({}), undefined, this.waitMs);
    await answer.body(this.waitMs);
    return answer.status;
  }
}

export const openSession = (url, options) => Session.open(url, options);

/** The response that an answer brings, as JSON or as a stream. */
async function response(answer, waitMs) {
  if (!answer.isStream) {
    return JSON.parse(await answer.body(waitMs));
  }
  const decoder = new Decoder();
  try {
    for (let piece; (piece = await answer.piece(waitMs)) !== undefined; ) {
      for (const { data } of decoder.feed(piece)) {
        const message = data ? JSON.parse(data) : undefined;
        if (message !== undefined && message.method === undefined) {
          return message;
        }
      }
    }
  } catch (error) {
    throw error instanceof Broken ? new KitError('no_connection', `the answer was cut: ${error.message}`) : error;
  } finally {
    answer.close();
  }
  throw new KitError('closed', 'the stream ended without a response');
}
