// One MCP session as a client has it, and one call over all its connections, as a correct client makes them.
import { setTimeout as sleep } from 'node:timers/promises';

import { NoAnswer } from './probe-http.mjs';

export const NEWEST = '2025-11-25';
export const OLDER = '2025-06-18';
export const RESUMABLE = ['2025-03-26', OLDER, NEWEST];
export const UNRESUMABLE = '2026-07-28';
// Comes back no later than this, whatever `retry` says, and no earlier where it says nothing.
const LONGEST_WAIT_MS = 3_000;
const SHORTEST_WAIT_MS = 20;
const MOST_CONNECTIONS = 100;

/** Request ids are given, never counted here: two sessions use the same ones on purpose. */
export class Session {
  id;
  revision;
  /** Every stream that was read, by its name, for what its events' ids say. */
  streams = new Map();
  #opened = [];

  /** `name` tells the progress of this session from that of another. */
  constructor(endpoint, timeoutMs, name) {
    this.endpoint = endpoint;
    this.timeoutMs = timeoutMs;
    this.name = name;
  }

  headers() {
    return {
      ...(this.id !== undefined && { 'Mcp-Session-Id': this.id }),
      ...(this.revision !== undefined && { 'MCP-Protocol-Version': this.revision }),
    };
  }

  async post(message, withinMs = this.timeoutMs) {
    const accept = { Accept: 'application/json, text/event-stream', 'Content-Type': 'application/json' };
    const method = this.revision === UNRESUMABLE && { 'Mcp-Method': message.method };
    const headers = { ...accept, ...this.headers(), ...method };
    const exchange = await this.endpoint.send('POST', headers, JSON.stringify(message), withinMs);
    return this.#kept(exchange, message.id === undefined ? undefined : `request ${message.id}`);
  }

  request(id, method, params) {
    return this.post({ jsonrpc: '2.0', id, method, ...(params !== undefined && { params }) });
  }

  /** `stream` is the name of the stream that the cursor is of, where that is known. */
  async get(cursor, stream) {
    const headers = { Accept: 'text/event-stream', ...this.headers() };
    if (cursor !== undefined) {
      headers['Last-Event-ID'] = cursor;
    }
    return this.#kept(await this.endpoint.send('GET', headers, undefined, this.timeoutMs), stream);
  }

  #kept(exchange, stream) {
    this.#opened.push(exchange);
    if (stream !== undefined) {
      this.streams.set(stream, [...(this.streams.get(stream) ?? []), exchange]);
    }
    return exchange;
  }

  async delete() {
    return this.#kept(await this.endpoint.send('DELETE', this.headers(), undefined, this.timeoutMs));
  }

  /** Initializes, as far as the answer allows it: without a result there is no revision afterwards. */
  async open(revision) {
    const params = {
      protocolVersion: revision,
      capabilities: {},
      clientInfo: { name: 'tailrope-probe', version: '1' },
    };
    const exchange = await this.request(0, 'initialize', params);
    await exchange.until(() => exchange.isOver || exchange.response !== undefined, this.timeoutMs);
    const result = exchange.json?.result;
    if (exchange.status === 200 && typeof result?.protocolVersion === 'string') {
      this.id = exchange.headers['mcp-session-id'];
      this.revision = result.protocolVersion;
    }
    return exchange;
  }

  async notify(method) {
    const exchange = await this.post({ jsonrpc: '2.0', method });
    await exchange.until(() => exchange.isOver, this.timeoutMs);
    return exchange;
  }

  cut() {
    for (const exchange of this.#opened) {
      exchange.cut();
    }
  }

  givenIds() {
    const blocks = [...this.streams.values()].flat().flatMap((exchange) => exchange.blocks);
    return new Set(blocks.map((block) => block.id).filter((id) => id !== undefined));
  }
}

/** One call. Its connections are in `connections`, the first of them is the POST's. */
export class Run {
  constructor(session, id, post) {
    this.session = session;
    this.id = id;
    this.connections = [post];
  }

  get last() {
    return this.connections.at(-1);
  }

  get events() {
    return this.connections.flatMap((exchange) => exchange.events);
  }

  get firstId() {
    return this.events.find((event) => event.id !== undefined)?.id;
  }

  get lastId() {
    return this.events.findLast((event) => event.id !== undefined)?.id;
  }

  get response() {
    return this.connections.find((exchange) => exchange.response !== undefined)?.response;
  }

  /** What follows the first event with an id: all that a resume from there has to give. */
  get messages() {
    const { events } = this;
    const first = events.findIndex((event) => event.id !== undefined);
    return first < 0 ? [] : events.slice(first + 1).filter((event) => event.data);
  }

  /** Waits for an id to come back with. */
  async hasId() {
    const exchange = this.last;
    await exchange.until(() => exchange.isOver || this.lastId !== undefined, this.session.timeoutMs);
    return this.lastId !== undefined;
  }

  async resume() {
    const exchange = await this.session.get(this.lastId, `request ${this.id}`);
    this.connections.push(exchange);
    return exchange;
  }

  /** Reads to the response and comes back as often as that takes; resolves to what went wrong, if something did. */
  async finish(withinMs) {
    const end = performance.now() + withinMs;
    for (;;) {
      const exchange = this.last;
      if (this.connections.length > 1 && !exchange.isStream) {
        const type = exchange.status === 200 ? ` ${exchange.contentType}` : '';
        return `a resume is answered ${exchange.status}${type}`;
      }
      await exchange.until(() => exchange.isOver || this.response !== undefined, Math.max(0, end - performance.now()));
      if (this.response !== undefined) {
        return undefined;
      }
      if (!exchange.isOver) {
        return 'the response does not come';
      }
      if (this.lastId === undefined) {
        return 'the connection ended before the response, and there is no id to come back with';
      }
      if (!exchange.events.some((event) => event.id !== undefined || event.data)) {
        return 'a resume is answered 200 and nothing';
      }
      if (this.connections.length >= MOST_CONNECTIONS) {
        return `no response after ${MOST_CONNECTIONS} connections`;
      }
      const told = this.events.findLast((event) => event.retryMs !== undefined)?.retryMs ?? 0;
      await sleep(Math.min(Math.max(told, SHORTEST_WAIT_MS), LONGEST_WAIT_MS));
      try {
        await this.resume();
      } catch (error) {
        if (!(error instanceof NoAnswer)) {
          throw error;
        }
        return error.kind === 'silent' ? `a resume has ${error.message}` : `a resume fails: ${error.message}`;
      }
    }
  }
}
