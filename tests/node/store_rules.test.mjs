// The rules of tests/vectors/event_store.json, on our stores at the SDKs' hook and on stores that a user wrote. (D6)
//
// tests/python/test_store_rules.py has the same cases under the same names.
import assert from 'node:assert/strict';
import { execFile, spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { after, before } from 'node:test';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';

import { EventStore, openStore } from 'tailrope/mcp';

import { JsonLinesEventStore } from '../../examples/node/own-event-store.mjs';
import { fullDisk, LabStore } from '../servers/node/stores.mjs';
import { DURABLE, folderFor } from './kit/addresses.mjs';
import { CASES, Run } from './kit/store-rules.mjs';
import { ours, test } from './kit/test.mjs';

const BOUND = 50;
const LARGEST = 2 << 20;
const path = (name) => fileURLToPath(new URL(name, import.meta.url));

// A Redis server that refuses does so to everybody: this file, which may run beside others, has one of its own.
const { TAILROPE_TEST_REDIS: shared } = process.env;
let redis;
if (shared) {
  let servers;
  before(
    async () => {
      const command = ['redis', '--', 'sh', '-c', 'echo "$TAILROPE_TEST_REDIS"; read -r _'];
      servers = spawn(path('../services/with'), command, { stdio: ['pipe', 'pipe', 'inherit'] });
      [redis] = await once(createInterface(servers.stdout), 'line');
    },
    { timeout: 120_000 },
  );
  after(async () => {
    // They end when their input does, so they do not outlive this process either.
    servers.stdin.end();
    await once(servers, 'close');
  });
}

function refusing(address) {
  return (isFaulty) => promisify(execFile)(path('../services/refuse'), [isFaulty ? 'yes' : 'no', address]);
}

async function own(address, bound, faulty) {
  const limits = bound ? { maxEventsPerStream: BOUND } : {};
  const store = new EventStore(await openStore(address, { maxEventBytes: LARGEST, ...limits }));
  return { store, session: (id) => store.scoped(id), faulty, secrets: ['hunter2', 'maxmemory', address] };
}

function durable(kind) {
  return (t, bound) => {
    const found = DURABLE.find((each) => each.kind === kind).address(t);
    const address = kind === 'redis' ? found.replace(shared, redis) : found;
    return own(address, bound, refusing(address));
  };
}

function users(_, bound) {
  const store = new LabStore({ cap: bound ? BOUND : undefined });
  return { store, faulty: (isFaulty) => store.plan({ fail: isFaulty ? 'notification' : undefined, times: 9 }) };
}

function slowUsers(t, bound) {
  const { store } = users(t, bound);
  store.plan({ latencyMs: [3, 0, 1] });
  return { store };
}

/** The store of examples/node. */
function example(t, bound) {
  const folder = folderFor(t);
  const store = new JsonLinesEventStore(folder, bound ? BOUND : 1_000);
  return { store, faulty: fullDisk };
}

const SUBJECTS = {
  memory: (_, bound) => own('memory:', bound),
  // It fails where a message says so.
  slow: (_, bound) => own('test-threaded:?delay_ms=2', bound, () => {}),
  ...Object.fromEntries(DURABLE.map(({ kind }) => [kind, durable(kind)])),
  users,
  'slow users': slowUsers,
  example,
};
const HAS = {
  bound: ['memory', 'slow', 'sqlite', 'redis', 'postgres', 'users', 'slow users', 'example'],
  largest: ['memory', 'slow', 'sqlite', 'redis', 'postgres'],
  faults: ['slow', 'sqlite', 'redis', 'postgres', 'users', 'example'],
  sessions: ['memory', 'slow', 'sqlite', 'redis', 'postgres'],
};

for (const [name, make] of Object.entries(SUBJECTS)) {
  for (const each of CASES.filter(({ needs }) => needs === undefined || HAS[needs].includes(name))) {
    test(`rule ${name}, ${each.name}`, ours, async (t) => new Run(await make(t, each.needs === 'bound')).run(each));
  }
}

// Stores that break a rule, so that it is known that the cases find them.

/** A list of everything, with one mistake. */
class BrokenStore {
  #mistake;
  #rows = [];
  #dropped = new Set();
  #given = 0;
  /** What is done one after the other. */
  #work = Promise.resolve();

  constructor(mistake) {
    this.#mistake = mistake;
    if (mistake !== 'does not look up') {
      this.getStreamIdForEventId = async (id) => this.#find(id)?.stream;
    }
  }

  #locked(work) {
    const done = this.#work.then(work);
    this.#work = done.catch(() => {});
    return done;
  }

  storeEvent(stream, message) {
    return this.#locked(() => this.#put(stream, message));
  }

  #put(stream, message) {
    this.#given += 1;
    let id = String(this.#given);
    switch (this.#mistake) {
      case 'gives an id for each stream':
        id = String(this.#rows.filter((row) => row.stream === stream).length + 1);
        break;
      case 'gives an id with a blank':
        id = `${stream} ${id}`;
        break;
      case 'gives a number':
        id = this.#given;
        break;
      case 'keeps no priming':
        if (message.jsonrpc === undefined) {
          return id;
        }
        break;
      case 'takes what is too much':
      case 'forgets when it is full':
        if (this.#rows.length >= BOUND) {
          const dropped = this.#rows.shift();
          this.#dropped.add(this.#mistake === 'takes what is too much' && dropped.id);
        }
        break;
    }
    this.#rows[this.#mistake === 'puts new events first' ? 'unshift' : 'push']({ id, stream, message });
    return id;
  }

  #find(lastEventId) {
    const at = this.#rows.findIndex(({ id }) => id === lastEventId);
    const isTaken = this.#dropped.has(lastEventId) || this.#mistake === 'replays everything for an unknown id';
    if (at === -1 && !(isTaken && this.#rows.length > 0)) {
      return undefined;
    }
    return { at, stream: this.#rows[Math.max(at, 0)].stream };
  }

  replayEventsAfter(lastEventId, { send }) {
    const tell = () => this.#tell(lastEventId, send);
    return this.#mistake === 'locks while it replays' ? this.#locked(tell) : tell();
  }

  async #tell(lastEventId, send) {
    const found = this.#find(lastEventId);
    if (found === undefined) {
      throw new Error('no such event');
    }
    const { at, stream } = found;
    const mistake = this.#mistake;
    const isLoose = mistake === 'compares loosely';
    const isOf = (row) =>
      row.stream === stream || mistake === 'mixes streams' || (isLoose && row.stream.includes(stream));
    const after = this.#rows.slice(mistake === 'replays the cursor, too' ? at : at + 1);
    const isTold = ({ message }) => message.jsonrpc !== undefined || mistake === 'replays primings';
    const rest = after.filter((row) => isOf(row) && isTold(row));
    for (const { id, message } of mistake === 'replays one event' ? rest.slice(0, 1) : rest) {
      await send(mistake === 'replays no ids' ? undefined : id, message);
    }
    return mistake === 'does not name the stream' ? undefined : stream;
  }
}

const MISTAKES = {
  'gives an id for each stream': 'a-replay-tells-of-one-stream-and-no-other',
  'gives an id with a blank': 'events-come-back-in-the-order-in-which-they-were-stored',
  'gives a number': 'events-come-back-in-the-order-in-which-they-were-stored',
  'keeps no priming': 'a-priming-event-is-a-cursor-and-no-message',
  'takes what is too much': 'what-was-dropped-is-unknown-and-never-a-part',
  'puts new events first': 'events-come-back-in-the-order-in-which-they-were-stored',
  'locks while it replays': 'a-replay-whose-reader-waits-holds-up-no-store',
  'replays everything for an unknown id': 'an-unknown-id-means-nothing',
  'replays the cursor, too': 'a-replay-begins-strictly-after-the-id',
  'replays primings': 'a-priming-event-is-a-cursor-and-no-message',
  'mixes streams': 'a-replay-tells-of-one-stream-and-no-other',
  'compares loosely': 'a-replay-tells-of-one-stream-and-no-other',
  'replays no ids': 'a-replay-begins-strictly-after-the-id',
  'replays one event': 'a-replay-beside-a-store-has-no-hole',
  'does not name the stream': 'a-replay-tells-of-one-stream-and-no-other',
};

for (const [mistake, name] of Object.entries(MISTAKES)) {
  test(`a store that breaks a rule is found, ${mistake}`, async () => {
    const found = CASES.find((each) => each.name === name);
    // One that locks waits for itself for ever.
    const run = new Run({ store: new BrokenStore(mistake) }, mistake === 'locks while it replays' ? 1_000 : 30_000);
    await assert.rejects(run.run(found), assert.AssertionError);
  });
}

test('a store without a mistake breaks no rule', async () => {
  for (const each of CASES) {
    for (const mistake of each.needs === undefined ? ['none', 'does not look up'] : ['forgets when it is full']) {
      if (each.needs === undefined || each.needs === 'bound') {
        await new Run({ store: new BrokenStore(mistake) }).run(each);
      }
    }
  }
});

const MY_STORE = `
export const make = () => {
  const rows = [];
  return {
    async storeEvent(stream, message) {
      rows.push({ id: rows.length + '-', stream, message });
      return rows.at(-1).id;
    },
    async replayEventsAfter(lastEventId, { send }) {
      const at = rows.findIndex(({ id }) => id === lastEventId);
      if (at === -1) throw new Error('unknown');
      const rest = rows.slice(at + 1).filter(({ stream, message }) => stream === rows[at].stream && message.jsonrpc);
      for (const { id, message } of rest[HERE]) await send(id, message);
      return rows[at].stream;
    },
  };
};
`;

// As docs/stores/own.md says.
test('the rules run on any store of a file', (t) => {
  const file = join(folderFor(t), 'my-store.mjs');
  for (const [broken, status] of [
    ['', 0],
    ['.slice(0, -1)', 1],
  ]) {
    writeFileSync(file, MY_STORE.replace('[HERE]', broken));
    const command = [path('kit/store-rules.mjs'), file, 'make'];
    const done = spawnSync(process.execPath, command, { encoding: 'utf8' });
    assert.equal(done.status, status, done.stdout + done.stderr);
    assert.ok(done.stdout.includes(`${(broken ? 'FAILED' : 'ok').padEnd(10)}a-replay-changes-nothing`), done.stdout);
  }
});
