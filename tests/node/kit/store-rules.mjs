// Puts an event store that is written against the SDKs' interface through the cases of tests/vectors/event_store.json.
//
// It knows nothing of the other tests, so that it runs on any store:
//
//     node tests/node/kit/store-rules.mjs my-store.mjs make
//
// `make`, called without arguments for each case, gives a store with nothing in it.
import assert from 'node:assert/strict';
import { readFileSync, realpathSync } from 'node:fs';
import { resolve } from 'node:path';
import { fileURLToPath, pathToFileURL } from 'node:url';
import { isDeepStrictEqual } from 'node:util';

const file = new URL('../../vectors/event_store.json', import.meta.url);
export const { cases: CASES } = JSON.parse(readFileSync(file, 'utf8'));
const WIRE_ID = /^[\x21-\x7e]{1,512}$/;
const PATIENCE_MS = 60_000;

const FIELDS = {
  store: ['stream', 'message', 'as', 'count', 'session', 'refused'],
  replay: ['after', 'messages', 'session'],
  nothing: ['after', 'id', 'session'],
  together: ['streams', 'count'],
  beside: ['after', 'count'],
  waiting: ['after', 'count'],
  faulty: [],
};

/** A message as the cases write it. The SDKs store a priming event as an empty one. */
function messageOf(short) {
  if (short === null) {
    return {};
  }
  if (short.json !== undefined) {
    return short.json;
  }
  return { jsonrpc: '2.0', method: 'notifications/message', params: { level: 'info', data: textOf(short) } };
}

function textOf(short) {
  if (typeof short === 'string') {
    return short;
  }
  assert.deepEqual(Object.keys(short), ['text', 'times']);
  return short.text.repeat(short.times);
}

const isPriming = (message) => Object.keys(message).length === 0;

/** The stream of an id and the ids and messages after it. `onEvent` is awaited before each is taken. */
async function replayOf(store, lastEventId, onEvent) {
  const found = [];
  const send = async (id, message) => {
    await onEvent?.();
    found.push([id, message]);
  };
  return { streamId: await store.replayEventsAfter(lastEventId, { send }), found };
}

/** Ends also what would wait for ever. */
async function within(promise, ms) {
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new assert.AssertionError({ message: `nothing came for ${ms} ms` })), ms);
  });
  try {
    return await Promise.race([promise, late]);
  } finally {
    clearTimeout(timer);
  }
}

/**
 * One case on one store. The subject has the `store`, and what else a test can do to it: `session(id)` is the part of
 * a session, `faulty(bool)` makes the store fail or work again, `secrets` are what no error of it may say.
 */
export class Run {
  #subject;
  #patienceMs;
  #isFaulty = false;
  #ids = new Set();
  /** What was stored, by session and stream. */
  #logs = new Map();
  #named = new Map();

  constructor(subject, patienceMs = PATIENCE_MS) {
    this.#subject = subject;
    this.#patienceMs = patienceMs;
  }

  async run({ name, about, needs, rules, steps, ...unknown }) {
    assert.deepEqual([unknown, rules.length > 0], [{}, true], name);
    try {
      for (const [at, step] of steps.entries()) {
        try {
          await within(this.#step(step), this.#patienceMs);
        } catch (error) {
          const where = `${name}, step ${at}: ${JSON.stringify(step)}`;
          throw new assert.AssertionError({ message: `${where}: ${error?.message ?? error}` });
        }
      }
    } finally {
      // What serves the store may serve others after it.
      if (this.#isFaulty) {
        await this.faulty(false);
      }
    }
  }

  async #step(step) {
    if (step === 'check') {
      await this.check();
      return;
    }
    const [[kind, value], ...more] = Object.entries(step);
    assert.deepEqual(more, []);
    assert.ok(kind in FIELDS, kind);
    const fields = typeof value === 'object' ? Object.keys(value) : [];
    assert.deepEqual(
      fields.filter((field) => !FIELDS[kind].includes(field)),
      [],
    );
    await this[kind](value);
  }

  #at(session) {
    return session === undefined ? this.#subject.store : this.#subject.session(session);
  }

  #log(place) {
    const key = JSON.stringify([place.session ?? null, place.stream]);
    if (!this.#logs.has(key)) {
      this.#logs.set(key, { place, rows: [] });
    }
    return this.#logs.get(key);
  }

  async #put(place, message) {
    const id = await this.#at(place.session).storeEvent(place.stream, message);
    assert.ok(typeof id === 'string' && WIRE_ID.test(id), `no id for the wire: ${brief(id)}`);
    assert.ok(!this.#ids.has(id), `given twice: ${id}`);
    this.#ids.add(id);
    const log = this.#log(place);
    log.rows.push([id, message]);
    return { log, index: log.rows.length - 1 };
  }

  async store({ stream, message, as, count, session, refused = false }) {
    const place = { session, stream };
    if (refused) {
      await this.#refused(place, messageOf(message));
      return;
    }
    for (let number = 1; number <= (count ?? 1); number++) {
      const suffix = count === undefined ? '' : `-${number}`;
      const stored = await this.#put(place, messageOf(count === undefined ? message : message + suffix));
      if (as !== undefined) {
        this.#named.set(as + suffix, stored);
      }
    }
  }

  async #refused(place, message) {
    let id;
    try {
      id = await this.#at(place.session).storeEvent(place.stream, message);
    } catch (error) {
      const told = `${error} ${error?.stack}`;
      assert.ok(!(this.#subject.secrets ?? []).some((secret) => told.includes(secret)), told);
      return;
    }
    assert.fail(`an event that cannot be stored got the id ${id}`);
  }

  #rest({ log, index }) {
    return log.rows.slice(index + 1).filter(([, message]) => !isPriming(message));
  }

  async replay({ after, messages, session }) {
    const cursor = this.#named.get(after);
    assert.equal(session, cursor.log.place.session, 'that is for `nothing`');
    if (messages !== undefined) {
      const rest = this.#rest(cursor).map(([, message]) => message);
      assert.deepEqual(rest, messages.map(messageOf), 'the case is wrong');
    }
    await this.#replays(cursor);
  }

  async #replays(cursor) {
    const { log, index } = cursor;
    const store = this.#at(log.place.session);
    const id = log.rows[index][0];
    // Optional in the interface; the stock transports ask it before they replay.
    if (store.getStreamIdForEventId !== undefined) {
      assert.equal(await store.getStreamIdForEventId(id), log.place.stream);
    }
    const { streamId, found } = await replayOf(store, id);
    assert.equal(streamId, log.place.stream);
    same(found, this.#rest(cursor));
  }

  async nothing({ after, id, session }) {
    const { log, index } = this.#named.get(after) ?? {};
    const eventId = after === undefined ? textOf(id) : log.rows[index][0];
    const store = this.#at(session);
    if (store.getStreamIdForEventId !== undefined) {
      assert.equal(await store.getStreamIdForEventId(eventId), undefined);
    }
    // What the interface says of an id that means nothing is not said by a value: an error, or no events.
    const sent = [];
    const send = async (...event) => void sent.push(event);
    await store.replayEventsAfter(eventId, { send }).catch(() => {});
    assert.deepEqual(sent, []);
  }

  async together({ streams, count }) {
    const fill = async (stream) => {
      for (let number = 0; number < count; number++) {
        await this.#put({ stream }, messageOf(`${stream} ${number}`));
      }
    };
    await Promise.all(Array.from({ length: streams }, (_, number) => fill(`stream ${number}`)));
  }

  async beside({ after, count }) {
    const cursor = this.#named.get(after);
    const { place, rows } = cursor.log;
    let isDone = false;
    const fill = async () => {
      for (let number = 0; number < count; number++) {
        await this.#put(place, messageOf(`beside ${number}`));
      }
    };
    const filling = fill().finally(() => (isDone = true));
    // Its failure is told at the end.
    filling.catch(() => {});
    const seen = [];
    for (let isLast = false; !isLast; ) {
      isLast = isDone;
      const known = this.#rest(cursor).length;
      const { found } = await replayOf(this.#at(place.session), rows[cursor.index][0]);
      seen.push({ known, found });
      await new Promise(setImmediate);
    }
    await filling;
    const rest = this.#rest(cursor);
    for (const { known, found } of seen) {
      assert.ok(known <= found.length, `${known} events were stored before, ${found.length} are replayed`);
      same(found, rest.slice(0, found.length));
    }
  }

  async waiting({ after, count }) {
    const cursor = this.#named.get(after);
    const { place, rows } = cursor.log;
    const known = this.#rest(cursor).length;
    let isFirst = true;
    const { found } = await replayOf(this.#at(place.session), rows[cursor.index][0], async () => {
      if (isFirst) {
        isFirst = false;
        for (let number = 0; number < count; number++) {
          await this.#put(place, messageOf(`meanwhile ${number}`));
          await this.#put({ ...place, stream: 'another' }, messageOf(`meanwhile ${number}`));
        }
      }
    });
    assert.ok(!isFirst && known <= found.length);
    same(found, this.#rest(cursor).slice(0, found.length));
  }

  async faulty(isFaulty) {
    this.#isFaulty = isFaulty;
    await this.#subject.faulty(isFaulty);
  }

  /** Every stream, from its first event, from its middle and from its last one. */
  async check() {
    for (const log of this.#logs.values()) {
      for (const index of new Set([0, Math.floor(log.rows.length / 2), log.rows.length - 1])) {
        await this.#replays({ log, index });
      }
    }
  }
}

function same(found, wanted) {
  const ids = [found, wanted].map((events) => events.map(([id]) => id));
  assert.ok(ids[0].join() === ids[1].join(), `replayed ${brief(ids[0])}, not ${brief(ids[1])}`);
  for (const [at, [id, message]] of found.entries()) {
    assert.ok(isDeepStrictEqual(message, wanted[at][1]), `${id}: ${brief(message)}, not ${brief(wanted[at][1])}`);
  }
}

function brief(value) {
  const text = String(JSON.stringify(value));
  return text.length <= 500 ? text : `${text.slice(0, 300)} ... ${text.slice(-100)}`;
}

/** How many of the cases that every store can be put through fail. */
async function checkAll(make) {
  let failed = 0;
  for (const each of CASES) {
    if (each.needs !== undefined) {
      console.log(`left out  ${each.name}: needs ${each.needs}`);
      continue;
    }
    try {
      await new Run({ store: await make() }).run(each);
      console.log(`ok        ${each.name}`);
    } catch (error) {
      failed += 1;
      console.log(`FAILED    ${each.name}: ${error?.message ?? error}`);
    }
  }
  return failed;
}

if (process.argv[1] !== undefined && realpathSync(process.argv[1]) === fileURLToPath(import.meta.url)) {
  const [path, name] = process.argv.slice(2);
  const { [name]: make } = await import(pathToFileURL(resolve(path)));
  process.exit(Math.min(await checkAll(make), 1));
}
