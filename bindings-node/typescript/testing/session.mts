// A session and its calls, nothing done behind the test's back: connections begin and end when the test says so.
import { setTimeout as sleep } from 'node:timers/promises';

import { TailropeError } from '../errors.mjs';
import { checkNames } from '../options.mjs';
import { Connection, check, Event, fieldsOf, report } from './record.mjs';
import type * as kit from './types.mjs';
import { type Answer, type Block, Broken, cut, Decoder, send } from './wire.mjs';

export const NEWEST = '2025-11-25';
export const WAIT_MS = 20_000;
/** `collect()` waits no longer than this before it comes back, whatever the server asks for. */
const LONGEST_PAUSE_MS = 60_000;
const SETTLE_MS = 500;

const tokenOf = (requestId: number) => `kit-${requestId}`;

type Headers = Record<string, string>;
type Options = kit.SessionOptions & { waitMs?: number };

// What a session and its calls need of each other, and tests do not.
let headersOf: (session: Session, more: Headers) => Headers;
let begin: (call: Call, answer: Answer) => Promise<void>;
let drop: (call: Call) => void;

export class Call implements kit.Call {
  readonly session: Session;
  readonly tool: string;
  readonly requestId: number;
  readonly connections: Connection[] = [];
  readonly #at = new Map<string, Event>();
  #firstId: string | undefined;
  #answer: Answer | undefined;
  #decoder = new Decoder();
  #blocks: Block[] = [];
  #retryMs = 0;

  static {
    begin = (call, answer) => call.#begin(answer, 'POST', undefined, false);
    drop = (call) => call.#drop();
  }

  constructor(session: Session, tool: string, requestId: number) {
    this.session = session;
    this.tool = tool;
    this.requestId = requestId;
  }

  get ids(): string[] {
    return [...this.#at.keys()];
  }

  get messages(): unknown[] {
    return this.#events().map((event) => event.message);
  }

  get received(): unknown[] {
    return this.#events().map((event) => event.value);
  }

  get isAnswered(): boolean {
    return this.#events().some((event) => event.isResponse);
  }

  /** The connection that the call's own way goes on with. */
  #reading(): Connection | undefined {
    return this.connections.filter((each) => !each.readsAgain).at(-1);
  }

  #newest(): Connection {
    return this.connections[this.connections.length - 1];
  }

  #events(): Event[] {
    return Event.chain(Connection.head(this.#reading()));
  }

  async #begin(answer: Answer, method: 'POST' | 'GET', after: string | undefined, readsAgain: boolean): Promise<void> {
    const number = this.connections.length + 1;
    const head = after === undefined ? undefined : this.#at.get(after);
    const connection = new Connection(number, method, after, answer.status, readsAgain, head);
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
    throw new TailropeError('refused', words.trimEnd(), { status: answer.status });
  }

  async read(count = 1): Promise<unknown[]> {
    const values: unknown[] = [];
    while (values.length < count) {
      const event = await this.#next();
      if (event === undefined) {
        const { end } = this.#newest();
        const shown = `the connection ended (${end}) after ${values.length} of ${count} messages`;
        throw new TailropeError('ended_early', shown);
      }
      if (event.message !== undefined) {
        values.push(event.value);
      }
    }
    return values;
  }

  async cut(after = 0): Promise<void> {
    await this.read(after);
    this.#drop();
  }

  async untilClosed(): Promise<unknown[]> {
    const values: unknown[] = [];
    for (let event = await this.#next(); event !== undefined; event = await this.#next()) {
      if (event.message !== undefined) {
        values.push(event.value);
      }
    }
    return values;
  }

  async resume(after?: string, options: { at?: string | URL } = {}): Promise<void> {
    checkNames(options, ['at'], 'resume()');
    const { at } = options;
    this.#drop();
    const cursor = after ?? Event.cursor(Connection.head(this.#reading()));
    if (cursor === undefined) {
      throw new TailropeError('no_cursor', 'no event has had an id');
    }
    if (!this.#at.has(cursor)) {
      throw new TailropeError('no_cursor', `no event of this call had the id ${cursor}`);
    }
    await this.#get(cursor, at, false);
  }

  async collect(options: { readAgain?: boolean } = {}): Promise<unknown[]> {
    checkNames(options, ['readAgain'], 'collect()');
    const { readAgain = true } = options;
    for (let silent = 0; !this.isAnswered; ) {
      if (this.#answer === undefined) {
        await sleep(Math.min(this.#retryMs, LONGEST_PAUSE_MS));
        await this.resume();
      }
      silent = (await this.#untilResponse()) > 0 ? 0 : silent + 1;
      if (silent > 100) {
        throw new TailropeError('ended_early', 'the server closed a hundred connections in a row without a message');
      }
    }
    await this.#settle();
    if (readAgain && this.#firstId !== undefined) {
      await this.readAgain();
    }
    return this.received;
  }

  async readAgain(): Promise<unknown[]> {
    if (this.#firstId === undefined) {
      throw new TailropeError('no_cursor', 'no event has had an id');
    }
    this.#drop();
    await this.#get(this.#firstId, undefined, true);
    await this.#untilResponse();
    await this.#settle();
    return Event.chain(Connection.head(this.#newest())).map((event) => event.value);
  }

  assertExactlyOnce(expected?: readonly unknown[]): void {
    if (expected === undefined && !this.connections.some((each) => each.readsAgain)) {
      const message = 'name what was sent, or read the stream again: it is not known what should come';
      throw new TailropeError('no_cursor', message);
    }
    check(`call ${this.requestId} (${this.tool})`, this.connections, this.requestId, tokenOf(this.requestId), expected);
  }

  report(): string {
    return report(this.connections).join('\n');
  }

  async #untilResponse(): Promise<number> {
    let count = 0;
    for (let event = await this.#next(); event !== undefined; event = await this.#next()) {
      count += event.message === undefined ? 0 : 1;
      if (event.isResponse) {
        break;
      }
    }
    return count;
  }

  /** Reads what comes after the response. A stream that never ends may be a fault, but not of this kind. */
  async #settle(): Promise<void> {
    try {
      while (this.#answer !== undefined) {
        await this.#next(Math.min(SETTLE_MS, this.session.waitMs));
      }
    } catch (error) {
      if (!(error instanceof TailropeError)) {
        throw error;
      }
      this.#drop();
    }
  }

  async #get(cursor: string, at: string | URL | undefined, readsAgain: boolean): Promise<void> {
    const headers = headersOf(this.session, { accept: 'text/event-stream', 'last-event-id': cursor });
    const answer = await send(at ?? this.session.url, 'GET', headers, undefined, this.session.waitMs);
    await this.#begin(answer, 'GET', cursor, readsAgain);
  }

  /** The next event of the connection; undefined when it is over. */
  async #next(waitMs = this.session.waitMs): Promise<Event | undefined> {
    const connection = this.#newest();
    for (;;) {
      const block = this.#blocks.shift();
      if (block === undefined) {
        const piece = await this.#piece(connection, waitMs);
        if (piece === undefined) {
          return undefined;
        }
        this.#blocks = this.#decoder.feed(piece);
        continue;
      }
      const { id, data, retryMs, comment } = block;
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

  async #piece({ number }: Connection, waitMs: number): Promise<Buffer | undefined> {
    if (this.#answer === undefined) {
      return undefined;
    }
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
      if (error instanceof TailropeError) {
        throw new TailropeError(error.code, `${error.message} on connection ${number}\n${this.report()}`);
      }
      throw error;
    }
  }

  #drop(): void {
    if (this.#answer !== undefined) {
      this.#answer.reset();
      this.#over('cut');
    }
  }

  #over(end: Connection['end']): void {
    this.#answer?.close();
    this.#answer = undefined;
    this.#newest().end = end;
  }
}

/** A session of a server, opened with `initialize`. `id` is undefined for a server that has no sessions. */
export class Session implements kit.Session {
  readonly url: string;
  id: string | undefined;
  revision: string;
  readonly waitMs: number;
  readonly #given: Headers;
  #number = 0;
  readonly #calls: Call[] = [];

  static {
    headersOf = (session, more) => session.#headers(more);
  }

  constructor(url: string | URL, revision: string, headers: Headers, waitMs: number) {
    this.url = String(url);
    this.revision = revision;
    this.waitMs = waitMs;
    this.#given = headers;
  }

  static async open(url: string | URL, options: Options = {}): Promise<Session> {
    checkNames(options, ['revision', 'capabilities', 'headers', 'waitMs'], 'a session');
    const { revision = NEWEST, capabilities = {}, headers = {}, waitMs = WAIT_MS } = options;
    const session = new Session(url, revision, headers, waitMs);
    const clientInfo = { name: 'tailrope/testing', version: '1' };
    const params = { protocolVersion: revision, capabilities, clientInfo };
    const answer = await session.#post({ jsonrpc: '2.0', id: 0, method: 'initialize', params });
    if (answer.status !== 200) {
      const words = `initialize: ${answer.status} ${(await answer.body(waitMs)).slice(0, 200)}`;
      throw new TailropeError('refused', words.trimEnd(), { status: answer.status });
    }
    const { result } = fieldsOf(await response(answer, waitMs));
    if (result === undefined) {
      throw new TailropeError('refused', 'initialize was answered with an error', { status: answer.status });
    }
    session.id = answer.headers['mcp-session-id']?.toString();
    const { protocolVersion } = fieldsOf(result);
    if (typeof protocolVersion === 'string') {
      session.revision = protocolVersion;
    }
    const status = await session.send({ jsonrpc: '2.0', method: 'notifications/initialized' });
    if (![200, 202, 204].includes(status)) {
      throw new TailropeError('refused', `notifications/initialized: ${status}`, { status });
    }
    return session;
  }

  #headers(more: Headers): Headers {
    const own: Headers = this.id === undefined ? {} : { 'mcp-session-id': this.id };
    return { ...this.#given, ...own, 'mcp-protocol-version': this.revision, ...more };
  }

  #post(message: object): Promise<Answer> {
    const headers = { accept: 'application/json, text/event-stream', 'content-type': 'application/json' };
    return send(this.url, 'POST', this.#headers(headers), JSON.stringify(message), this.waitMs);
  }

  async call(tool: string, args: object = {}): Promise<Call> {
    const call = new Call(this, tool, ++this.#number);
    const params = { name: tool, arguments: args, _meta: { progressToken: tokenOf(call.requestId) } };
    const answer = await this.#post({ jsonrpc: '2.0', id: call.requestId, method: 'tools/call', params });
    this.#calls.push(call);
    await begin(call, answer);
    return call;
  }

  async send(message: object): Promise<number> {
    const answer = await this.#post(message);
    if (answer.isStream) {
      answer.reset();
    } else {
      await answer.body(this.waitMs);
    }
    return answer.status;
  }

  close(): void {
    this.#calls.forEach(drop);
  }

  async delete(): Promise<number> {
    this.close();
    const answer = await send(this.url, 'DELETE', this.#headers({}), undefined, this.waitMs);
    await answer.body(this.waitMs);
    return answer.status;
  }
}

/**
 * Opens a session at a server that runs already: `url` is that of its MCP endpoint. Nothing is waited for longer than
 * `waitMs` (20,000).
 *
 * @throws TailropeError
 */
export function openSession(url: string | URL, options?: Options): Promise<kit.Session> {
  return Session.open(url, options);
}

/** The response that an answer brings, as JSON or as a stream. */
async function response(answer: Answer, waitMs: number): Promise<unknown> {
  if (!answer.isStream) {
    return JSON.parse(await answer.body(waitMs));
  }
  const decoder = new Decoder();
  try {
    for (let piece = await answer.piece(waitMs); piece !== undefined; piece = await answer.piece(waitMs)) {
      for (const { data } of decoder.feed(piece)) {
        const message: unknown = data ? JSON.parse(data) : undefined;
        if (message !== undefined && fieldsOf(message).method === undefined) {
          return message;
        }
      }
    }
  } catch (error) {
    throw cut(error);
  } finally {
    answer.close();
  }
  throw new TailropeError('ended_early', 'the stream ended without a response');
}
