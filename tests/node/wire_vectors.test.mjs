// Runs event_id.json, jsonrpc.json and sse.json on the native half, as far as it lets one in: what a text means and
// which bytes are written. Needs no SDK but for the revisions that are served.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { describe } from 'node:test';

import { parseJSONRPCMessage, SUPPORTED_PROTOCOL_VERSIONS } from '@modelcontextprotocol/server';

import { Engine, Refusal, Store } from '../../bindings-node/lib/native.mjs';
import { head } from './kit/head.mjs';
import { ACCEPT, NEWEST, OLD, until } from './kit/raw.mjs';
import { ours, test } from './kit/test.mjs';

const read = (name) => JSON.parse(readFileSync(new URL(`../vectors/${name}.json`, import.meta.url))).vectors;

const REASONS = {
  reads: 'this package reads no events',
  anonymous: 'only list_changed has no id, see "the-answer-to-initialize-tells-version-and-announcements"',
  retry: 'an engine tells its retry with every priming event',
  errors: 'the words of errors are not for a caller to choose',
  digits: 'JavaScript has no such number: see tests/wire/test_answers.py',
  strict: 'these SDKs do not take such a message',
  empty: 'an empty Last-Event-ID is none',
};

const VERSIONS = [...SUPPORTED_PROTOCOL_VERSIONS];
const POST = head({ method: 'POST', accept: ACCEPT, contentType: 'application/json', sessionId: 's' });
const get = (lastEventId) => head({ method: 'GET', accept: 'text/event-stream', sessionId: 's', lastEventId });
const engines = [];

/** A session of an engine of its own. `store` answers what a store of the host is asked for. */
function openSession({ bounds = {}, store, retryMs, revision = NEWEST, result } = {}) {
  const memory = store === undefined ? new Store('memory:', bounds) : undefined;
  const engine = new Engine(memory, { keepAliveMs: 0 }, ...Array(3).fill(() => {}));
  engines.push(engine);
  const session = engine.openSession('s', '', undefined, 2, VERSIONS, retryMs);
  const serve = () => session.takeOperations().forEach((operation) => store(session, operation));
  const params = { protocolVersion: revision, capabilities: {}, clientInfo: { name: 'v', version: '1' } };
  const initialize = JSON.stringify({ jsonrpc: '2.0', id: 'init', method: 'initialize', params });
  session.open(engine.admit(POST, undefined, initialize, false, 2, VERSIONS), false);
  serve();
  const answer = { protocolVersion: revision, capabilities: {}, serverInfo: { name: 'v', version: '1' } };
  session.respond('init', result ?? JSON.stringify({ jsonrpc: '2.0', id: 'init', result: answer }));
  serve();
  const resume = (lastEventId) => {
    const admission = session.admit(get(lastEventId), undefined, undefined, '', false);
    return admission instanceof Refusal ? admission : session.open(admission, false);
  };
  return {
    engine,
    session,
    serve,
    resume,
    listen: () => session.open(session.admit(get(), undefined, undefined, '', false), false),
  };
}

/** What a connection has to write, once it has. */
function written({ engine }, connection) {
  return until(() => {
    engine.tick();
    const [, , data] = connection.poll(1 << 20);
    return data?.toString();
  });
}

/** Runs each vector that nothing is against. */
function each(name, least, run, leftOut) {
  describe(name, () => {
    const vectors = read(name);
    const runnable = vectors.filter((vector) => !leftOut(vector));
    test('every vector is run or left out for a reason', ours, () => {
      assert.equal(new Set(vectors.map(({ name }) => name)).size, vectors.length);
      assert.ok(runnable.length >= least, `${runnable.length} of ${vectors.length}`);
    });
    for (const { name, given, want } of runnable) {
      test(name, ours, () => run(given, want));
    }
  });
}

each(
  'event_id',
  42,
  async ({ text, position, tombstone }, want) => {
    const host = openSession();
    const opened = host.resume(text ?? want.text);
    const { origin } = position ?? tombstone ?? {};
    const isUnnamed = origin === 'unnamed' || want.reads_as === 'unnamed';
    if (opened instanceof Refusal) {
      assert.deepEqual([want, opened.status], ['no-event-id', 400]);
      return;
    }
    const [answer, , data] = opened.poll(1 << 20);
    const status = answer & 0xffff;
    if (want === 'no-event-id' || isUnnamed) {
      assert.equal(status, 400);
    } else if (tombstone !== undefined) {
      assert.deepEqual([status, data], [204, undefined]);
    } else if (origin === 'standalone') {
      assert.equal(status, 200);
      // It may be there already, where a moment passed before the first poll.
      const bytes = data?.toString() ?? (await written(host, opened));
      assert.match(bytes, /^id: a\S{32}\n/, 'the own standalone stream');
    } else {
      // Of a stream that nobody has: the request that it names gets an error.
      assert.equal(status, 200);
      const [, error] = /^data: (.*)$/m.exec(data);
      assert.ok(error.includes(`"id":${origin.request},`), error);
    }
  },
  ({ given }) => given.text === '' && REASONS.empty,
);

each(
  'jsonrpc',
  72,
  async ({ body, body_hex: hex, initialize_result: result }, want) => {
    if (result !== undefined) {
      const host = openSession({ result: result.replace('"id":0', '"id":"init"') });
      const { protocol_version: version = '', list_changed: changed = [] } = want.initialize_result ?? {};
      assert.ok(version === '' || host.session.canPoll === (version === NEWEST));
      // A client whose standalone stream is lost hears of everything that may have changed.
      const lost = host.resume(`a${'B'.repeat(16)}${'A'.repeat(16)}`);
      const text = version === '' ? '' : await written(host, lost).catch(() => '');
      const methods = [...text.matchAll(/"notifications\/(\w+)\/list_changed"/g)].map(([, name]) => name);
      assert.deepEqual(methods.sort(), [...changed].sort());
      return;
    }
    const host = openSession();
    const content = body ?? Buffer.from(hex, 'hex');
    const isInitialize = want.messages?.[0].method === 'initialize';
    const admission = isInitialize
      ? host.engine.admit(POST, undefined, content, false, 2, VERSIONS)
      : host.session.admit(POST, undefined, undefined, content, false);
    if (want.code !== undefined) {
      // Whichever of the codes it is: these SDKs have one for all of them.
      assert.ok(admission instanceof Refusal, 'is refused');
      assert.deepEqual([admission.status, JSON.parse(admission.body).error.code], [400, -32700]);
      return;
    }
    const requests = want.messages.filter(({ kind }) => kind === 'request');
    assert.ok(!(admission instanceof Refusal), admission.message);
    const { facts } = admission;
    const wanted = requests.length > 0 ? 5 : 4;
    const cancelled = want.messages.map(({ fields }) => fields?.cancelled_request).filter((id) => id !== undefined);
    assert.deepEqual([facts & 7, (facts & 8) !== 0, (facts & 16) !== 0], [wanted, isInitialize, cancelled.length > 0]);
    if (requests.length > 0 && !isInitialize) {
      host.session.open(admission, false);
      assert.equal(host.session.inFlight, requests.length);
      // Each is known by its id, and only by that.
      for (const { id } of requests) {
        assert.equal(host.session.cancelled(JSON.parse(id)), true, id);
      }
      assert.equal(host.session.inFlight, 0);
    }
  },
  ({ given, want }) =>
    (given.write_error !== undefined && REASONS.errors) ||
    (want.messages?.some(({ id }) => Number(id) > Number.MAX_SAFE_INTEGER) && REASONS.digits) ||
    (want.messages !== undefined && !isTaken(given.body) && REASONS.strict),
);

/** Whether the SDK takes the message, too. */
function isTaken(text) {
  try {
    [JSON.parse(text)].flat().forEach((message) => parseJSONRPCMessage(message));
    return true;
  } catch {
    return false;
  }
}

const PRIMING = /^id: \S+\nretry: \d+\ndata: \n\n/;

/** A session whose store gives these ids: one for primings, one for messages. */
function stored(priming, message, more) {
  const host = openSession({
    store: (session, { number, payload }) => session.stored(number, payload === undefined ? priming : message),
    ...more,
  });
  const connection = host.listen();
  host.serve();
  return { ...host, connection };
}

const writes = {
  async message({ id, payload }) {
    const host = stored('p', id);
    host.session.notify(undefined, payload, 0);
    host.serve();
    return (await written(host, host.connection)).replace(PRIMING, '');
  },
  async priming({ id, retry_ms: retryMs }) {
    const host = stored(id, 'm', { retryMs });
    return written(host, host.connection);
  },
  async retry(retryMs) {
    const host = stored('p', 'm');
    await written(host, host.connection);
    host.session.closeStandalone(retryMs);
    return written(host, host.connection);
  },
  async keep_alive() {
    const host = openSession({ revision: OLD[1] });
    return written(host, host.listen());
  },
  async gap({ first, count }) {
    const host = openSession({ bounds: { maxEventsPerStream: 1 } });
    const connection = host.listen();
    const notify = () => host.session.notify(undefined, '{"jsonrpc":"2.0","method":"x"}', 0);
    for (let position = 1; position < first; position++) {
      notify();
      await written(host, connection);
    }
    for (let position = first; position <= first + count; position++) {
      notify();
    }
    return (await written(host, connection)).split('id: ')[0];
  },
};

each(
  'sse',
  20,
  async ({ write, foreign_id: id }, want) => {
    if (id !== undefined) {
      const host = stored('p', id);
      const number = host.session.notify(undefined, '{"jsonrpc":"2.0","method":"x"}', 0);
      host.serve();
      const outcome = host.session.takeOutcomes().find((outcome) => outcome.number === number);
      assert.equal(outcome.code === undefined, want.valid);
      return;
    }
    const [[kind, value]] = typeof write === 'string' ? [[write]] : Object.entries(write);
    assert.equal(await writes[kind](value), want.text);
  },
  ({ given: { read, write } }) =>
    (read !== undefined && REASONS.reads) ||
    (write?.anonymous !== undefined && REASONS.anonymous) ||
    (write?.priming?.retry_ms === null && REASONS.retry),
);
