// Runs tests/vectors/answers.json end to end: what tests/rust/answers.rs asks of the engine, over HTTP.
//
// The test is the server here: what the SDK hands to it is noted, and the messages of a vector are sent through the
// transport. Every field of a vector is an argument of the method that plays it, so an unknown one fails.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';

import { NEWEST, Peer, sleep, until } from './kit/raw.mjs';
import { classes, listen, packages } from '../servers/node/transports.mjs';
import { onEachLine, ours, test } from './kit/test.mjs';

const { vectors: VECTORS } = JSON.parse(readFileSync(new URL('../vectors/answers.json', import.meta.url)));
const FIELDS = new Set(['name', 'about', 'rules', 'revision', 'limits', 'steps']);
const RETRY_MS = 3_000;
const QUIET_MS = 40;
// Longer pauses want a clock that the test controls.
const MAX_ADVANCE_MS = 2_000;
const LEFT_OUT = {
  'an-idle-connection-gets-keep-alives': 'a silence of 15 s: polling.test.mjs has one with a shorter interval',
};

/** What the file has in the words of Python, in those of these SDKs. */
const WORDS = {
  'Bad Request: the stream of this Last-Event-ID cannot be resumed': [-32000, 'Invalid event ID format'],
  'Not Found: Session has been terminated': [-32001, 'Session not found'],
  // That of a batch, which Python does not take.
  'Invalid Request: request id 2 is already in flight': [
    -32600,
    'Invalid Request: two requests of the batch have the same id',
  ],
};

const camelCase = (name) => name.replace(/_(.)/g, (_, letter) => letter.toUpperCase());

/** A block as the vectors write it. What is not of our form fails. */
function frame({ comment, id, retry, data, message, event }) {
  if (comment !== undefined) {
    const [word, first, count] = comment.split(' ');
    return word === 'gap' ? { gap: { first: Number(first), count: Number(count) } } : { comment };
  }
  assert.equal(event, undefined);
  if (id === undefined && data !== undefined) {
    return { anonymous: message.method };
  }
  if (id === undefined) {
    return { retry_ms: retry };
  }
  const position = Buffer.from(id.slice(1, 33), 'base64url');
  assert.ok(data !== undefined && [undefined, '.'].includes(id[33]), id);
  if (id[0] === 'z') {
    return { tombstone: short(message) };
  }
  assert.equal(id[0], 'a');
  const seq = position.readUIntBE(12, 5);
  return data === '' ? { priming: seq, retry_ms: retry } : { event: seq, is: short(message) };
}

function short({ method, params, id, error }) {
  if (method !== undefined) {
    assert.equal(method, 'notifications/message');
    return params.data;
  }
  return error === undefined ? { result: id } : { error: error.code, id };
}

/** A close that sets a pause rewrites the priming event, or follows it where that was out already. */
function merged(frames) {
  const [first, second, ...rest] = frames;
  const isPause = first?.priming !== undefined && second !== undefined && Object.keys(second).join() === 'retry_ms';
  return isPause ? [{ ...first, ...second }, ...rest] : frames;
}

/** A server of one transport for each session, which does nothing by itself but answer `initialize`. */
async function serveVector(t, line, limits) {
  const engine = Object.fromEntries(Object.entries(limits).map(([name, value]) => [camelCase(name), value]));
  const eventStore = new packages[line].EventStore('memory:', engine);
  const hosts = new Map();
  async function make() {
    const host = { calls: new Map() };
    host.transport = new classes[line]({
      sessionIdGenerator: () => `session-${hosts.size}`,
      retryInterval: RETRY_MS,
      eventStore,
      onsessioninitialized: (id) => hosts.set(id, host),
    });
    host.transport.onmessage = ({ id, method, params }, extra) => {
      if (method === 'initialize') {
        const { protocolVersion } = params;
        const result = { protocolVersion, capabilities: {}, serverInfo: { name: 'vectors', version: '1' } };
        void host.transport.send({ jsonrpc: '2.0', id, result });
      } else if (id !== undefined) {
        host.calls.set(JSON.stringify(id), extra);
      }
    };
    await host.transport.start();
    t.after(() => host.transport.close());
    return host;
  }
  const server = await listen(async (req, res) => {
    const host = hosts.get(req.headers['mcp-session-id']) ?? (await make());
    await host.transport.handleRequest(req, res);
  });
  t.after(() => server.close());
  return { port: server.port, hosts };
}

/** One vector. Each method is a step. */
class Play {
  #sessions = new Map();
  #current;
  #replies = new Map();
  #ids = new Map();
  #ends = [];

  constructor(line, server, revision) {
    this.stats = packages[line].stats;
    this.server = server;
    this.revision = revision;
  }

  async run(steps) {
    const before = this.stats();
    await this.session('s');
    for (const [at, step] of steps.entries()) {
      const [[kind, value]] = typeof step === 'string' ? [[step]] : Object.entries(step);
      try {
        assert.ok(Object.hasOwn(Play.prototype, kind), `unknown step ${kind}`);
        await this[kind](value);
      } catch (error) {
        error.message = `step ${at}, ${JSON.stringify(step)}: ${error.message}`;
        throw error;
      }
    }
    const after = this.stats();
    for (const end of new Set(this.#ends)) {
      const counter = end === 'superseded' ? 'takeovers' : `closes${end[0].toUpperCase()}${end.slice(1)}`;
      assert.ok(after[counter] - before[counter] >= this.#ends.filter((other) => other === end).length, counter);
    }
  }

  get #host() {
    return this.server.hosts.get(this.#peer.sessionId);
  }

  get #peer() {
    return this.#sessions.get(this.#current);
  }

  async session(name) {
    if (!this.#sessions.has(name)) {
      this.#sessions.set(name, await Peer.open(this.server.port, this.revision));
    }
    this.#current = name;
  }

  #post(ids) {
    const messages = ids.map((id) => ({ jsonrpc: '2.0', id, method: 'tools/call', params: { name: 'x' } }));
    return this.#peer.post(messages.length === 1 ? messages[0] : messages);
  }

  /** The message has arrived before its answer starts: what the server does at once leaves with the first bytes. */
  async call({ ids, as, ...more }) {
    assert.deepEqual(more, {});
    const { calls } = this.#host;
    const reply = this.#post(ids);
    await until(() => ids.every((id) => calls.has(JSON.stringify(id))));
    this.#replies.set(as, reply);
    // Some are never read, and the server goes.
    reply.catch(() => {});
  }

  async call_refused({ ids, want, ...more }) {
    assert.deepEqual(more, {});
    await this.#refused(await this.#post(ids), want);
  }

  async listen({ as, ...more }) {
    assert.deepEqual(more, {});
    this.#replies.set(as, await this.#peer.get());
  }

  async resume({ cursor, as, ...more }) {
    assert.deepEqual(more, {});
    this.#replies.set(as, await this.#peer.resume(this.#cursor(cursor)));
  }

  async resume_refused({ cursor, want, ...more }) {
    assert.deepEqual(more, {});
    await this.#refused(await this.#peer.resume(this.#cursor(cursor)), want);
  }

  async read({ of, frames, end, ...more }) {
    assert.deepEqual(more, {});
    const reply = await this.#replies.get(of);
    assert.ok(reply.status === 200 && reply.isStream);
    const got = [];
    while (merged(got).length < frames.length) {
      const block = await reply.block();
      assert.ok(block !== undefined, `the connection ended after ${JSON.stringify(got)}`);
      const found = this.#note(of, block);
      // HTTP takes more than 5 ms: the first bytes of an old session may be a comment.
      const isExtra = this.revision !== NEWEST && found.comment !== undefined && frames[0]?.comment === undefined;
      got.push(...(isExtra ? [] : [found]));
    }
    if (end === undefined) {
      const more = await reply.block(QUIET_MS).then(
        (block) => JSON.stringify(block) ?? 'the end',
        () => undefined,
      );
      assert.equal(more, undefined, `after ${JSON.stringify(got)}`);
    } else {
      this.#ends.push(end);
      got.push(...(await reply.blocks()).map((block) => this.#note(of, block)));
    }
    assert.deepEqual(merged(got), frames);
  }

  async answer({ of, want, ...more }) {
    assert.deepEqual(more, {});
    const { status, content_type: type, frames = [], ...rest } = want;
    assert.deepEqual(rest, {});
    const reply = await this.#replies.get(of);
    const got = reply.isStream ? (await reply.blocks()).map((block) => this.#note(of, block)) : [];
    assert.deepEqual([reply.status, reply.headers['content-type'], merged(got)], [status, type, frames]);
    if (!reply.isStream) {
      assert.equal(await reply.body(), '');
    }
  }

  async same({ of, ...more }) {
    assert.deepEqual(more, {});
    const [one, two] = of.map(async (name) => {
      const reply = await this.#replies.get(name);
      // The id that is sent back has another visit counter and nonce, never another length.
      const { date, 'mcp-session-id': _, ...headers } = reply.headers;
      return [reply.status, headers, reply.raw.replaceAll(/^id: .*$/gm, 'id')];
    });
    assert.deepEqual(await one, await two);
  }

  async lose(name) {
    const before = this.stats().connectionsLost;
    (await this.#replies.get(name)).drop();
    await until(() => this.stats().connectionsLost > before);
  }

  async notify({ name: data, related: relatedRequestId, ...more }) {
    assert.deepEqual(more, {});
    const message = { jsonrpc: '2.0', method: 'notifications/message', params: { level: 'info', data } };
    await this.#host.transport.send(message, { relatedRequestId });
  }

  async respond(id) {
    await this.#host.transport.send({ jsonrpc: '2.0', id, result: {} });
  }

  async cancel(id) {
    assert.equal((await this.#peer.cancel(id)).status, 202);
  }

  #close(request, options) {
    return this.#host.calls.get(JSON.stringify(request)).closeSSEStream?.(options) ?? false;
  }

  close({ request, retry_ms: retryMs, hold_ms: holdMs, ...more }) {
    assert.deepEqual(more, {});
    assert.equal(this.#close(request, { retryMs, holdMs }), true);
  }

  close_refused(request) {
    assert.equal(this.#close(request), false);
  }

  advance({ ms, ...more }) {
    assert.deepEqual(more, {});
    return sleep(ms);
  }

  async end_session() {
    assert.equal((await this.#peer.delete()).status, 200);
  }

  #note(of, block) {
    if (block.id !== undefined) {
      this.#ids.set(of, [...(this.#ids.get(of) ?? []), block.id]);
    }
    return frame(block);
  }

  #cursor(cursor) {
    const [[kind, value]] = Object.entries(cursor);
    const known = this.#ids.get(value.of);
    switch (kind) {
      case 'text':
        return value;
      case 'event':
        return known[value.at];
      case 'last':
        return known.at(-1);
      case 'forged': {
        const last = known.at(-1);
        return last.slice(0, value.at) + (last[value.at] === 'A' ? 'B' : 'A') + last.slice(value.at + 1);
      }
      default:
        throw new Error(`unknown cursor ${kind}`);
    }
  }

  async #refused(reply, { status, body, content_type: type = 'application/json', ...more }) {
    assert.deepEqual(more, {});
    const [code, message] = WORDS[body.error.message] ?? [body.error.code, body.error.message];
    body = { ...body, error: { code, message } };
    assert.deepEqual([reply.status, reply.headers['content-type'], await reply.json()], [status, type, body]);
  }
}

test('only what cannot be said over http is left out', ours, () => {
  const isLong = ({ advance }) => advance?.ms > MAX_ADVANCE_MS;
  const left = VECTORS.filter(({ steps }) => steps.some(isLong)).map(({ name }) => name);
  assert.deepEqual(left, Object.keys(LEFT_OUT));
  assert.ok(VECTORS.length >= 34 && new Set(VECTORS.map(({ name }) => name)).size === VECTORS.length);
  for (const vector of VECTORS) {
    assert.ok(Object.keys(vector).every((field) => FIELDS.has(field)) && vector.rules.length > 0, vector.name);
  }
});

onEachLine(async () => undefined, (line) => {
  for (const { name, limits = {}, revision = NEWEST, steps } of VECTORS.filter(({ name }) => !(name in LEFT_OUT))) {
    test(name, ours, async (t) => {
      const server = await serveVector(t, line, limits);
      await new Play(line, server, revision).run(steps);
    });
  }
});
