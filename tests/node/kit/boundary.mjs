// Generated calls across the native boundary: node boundary.mjs MODE SEED SECONDS TRACE.
//
// Whatever is called with whatever, the answer is a value or an error of the documented kinds. MODE is `values` (wrong
// types, huge values, objects that are closed), `threads` (workers with machines of their own, which are sent each
// other's objects and ended amid calls) or `public` (the package's own functions). Each call is written to the file TRACE
// before it is made, so that a crash names it; the same seed makes the same calls, but for workers.
import { mkdtempSync, openSync, rmSync, writeSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { inspect } from 'node:util';
import { isMainThread, parentPort, threadId, Worker, workerData } from 'node:worker_threads';

import * as client from 'tailrope/client';
import * as mcp from 'tailrope/mcp';

import { ClientOptions, ClientStream, Engine, Front, Refusal, Store } from '../../../bindings-node/lib/native.mjs';
import { head } from './head.mjs';

const POOL = 60;
const CALL_MS = 20_000;
// Those that Node-API gives a value it cannot take, and ours.
const CODES = new Set([
  'InvalidArg',
  'ObjectExpected',
  'StringExpected',
  'FunctionExpected',
  'NumberExpected',
  'BooleanExpected',
  'ArrayExpected',
  'BigintExpected',
  'DateExpected',
  'invalid_argument',
  'store_not_opened',
  'closed',
  // An address that this machine has not.
  'EADDRNOTAVAIL',
  // A store whose bound is a few bytes.
  'gone',
  'store_full',
  'inbox_full',
  'session_ended',
  'session_exists',
  'too_many_sessions',
  'finished',
  'full',
]);

// What Node-API says of an object of another kind, of a number beyond a u16, and of what is no function: no code tells it.
const WORDS =
  /^(Illegal invocation|Class contains no `constructor`|Failed to convert u32 to u16|Create reference failed|Create threadsafe function in)/;

class Planned extends Error {}

// Also where a callback that was handed in is a class, which is called all the same.
const isPlanned = (error) =>
  error instanceof Planned || /^Class constructors? .*cannot be invoked/.test(error?.message);

/** Numbers from a seed. */
function generator(seed) {
  let state = seed >>> 0;
  return (below) => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) % below;
  };
}

const raising = () => {
  throw new Planned();
};
const nasty = () =>
  new Proxy(
    {},
    { get: raising, has: raising, ownKeys: raising, getPrototypeOf: raising, getOwnPropertyDescriptor: raising },
  );
const getter = () => Object.defineProperty({}, 'method', { get: raising, enumerable: true });
const NUMBERS = [
  0,
  -0,
  1,
  -1,
  0.5,
  255,
  65_536,
  2 ** 31,
  2 ** 32 - 1,
  2 ** 32,
  2 ** 53,
  2 ** 64,
  1e308,
  -1e308,
  NaN,
  Infinity,
];
const TEXTS = ['', 'a', '0', '1', 'memory:', 'é\u2028\u{1f600}', 'a\0b', '\ud800', 'x'.repeat(70_000), 'line\r\nline'];
const INITIALIZE = {
  jsonrpc: '2.0',
  id: 0,
  method: 'initialize',
  params: { protocolVersion: '2025-11-25', capabilities: {}, clientInfo: { name: 'x', version: '1' } },
};
const HEAD = {
  accept: 'application/json, text/event-stream',
  contentType: 'application/json',
  protocolVersion: '2025-11-25',
};

function shown(value) {
  try {
    return inspect(value, { depth: 1, breakLength: Infinity, maxStringLength: 60, maxArrayLength: 4 })
      .slice(0, 300)
      .replaceAll('\n', ' ');
  } catch {
    return '<nasty>';
  }
}

class Machine {
  pool = new Map();
  calls = 0;
  raised = {};
  findings = [];
  answered = new Set();

  constructor(seed, trace, folder) {
    this.below = generator(seed);
    this.trace = trace;
    this.folder = folder;
  }

  pick(list) {
    return list[this.below(list.length)];
  }

  keep(value) {
    for (const each of Array.isArray(value) ? value : [value]) {
      const kind = each?.constructor;
      if (typeof kind === 'function' && kind.prototype !== Object.prototype && KINDS.has(kind.name)) {
        const kept = this.pool.get(kind.name) ?? [];
        this.pool.set(kind.name, kept);
        kept[kept.length < POOL ? kept.length : this.below(POOL)] = each;
      }
    }
    return value;
  }

  one(kind) {
    const kept = this.pool.get(kind);
    return kept === undefined ? undefined : this.pick(kept);
  }

  body() {
    const call = { jsonrpc: '2.0', id: this.pick([1, '1', 2 ** 60, -5]), method: 'tools/call', params: { name: 'x' } };
    const cancelled = { jsonrpc: '2.0', method: 'notifications/cancelled', params: { requestId: 1 } };
    const answer = { jsonrpc: '2.0', id: 1, result: {} };
    return JSON.stringify(this.pick([INITIALIZE, call, cancelled, answer, [call, call], [], 7, null]));
  }

  head() {
    const method = this.pick(['POST', 'GET', 'DELETE', 'PUT']);
    const sessionId = this.pick(['s1', 's2', 's3', undefined, '']);
    const lastEventId = this.pick([undefined, undefined, 'a'.repeat(33), 'zz', 'x'.repeat(9000)]);
    const whole = head({ ...HEAD, method, sessionId, lastEventId });
    return this.pick([whole, whole, whole, method, '']);
  }

  travelling(method) {
    const headers = this.pick([[], ['accept', '*/*'], ['x-own', 'x', 'odd'], ['cookie', 'a\0b']]);
    const [more, dropped] = [this.pick([[], ['x-own', '']]), this.pick([[], ['auth x']])];
    return { method, headers, more, authJson: this.pick([undefined, '{}', '{']), dropped };
  }

  requester() {
    const credentials = this.pick([[], ['authorization', 'Bearer x'], ['authorization'], ['x-api-key', 'k', 'odd']]);
    const userJson = this.pick([undefined, '"alice"', '{"sub":"bob"}', '{', '[1]']);
    return this.pick([undefined, undefined, { credentials, userJson, named: this.pick([undefined, 'alice', '']) }]);
  }

  any() {
    switch (this.below(10)) {
      case 0:
        return this.pick(NUMBERS);
      case 1:
        return this.pick(TEXTS);
      case 2:
        return this.pick([undefined, null, true, false, Symbol('s'), 10n, 2n ** 70n, raising, class {}]);
      case 3:
        return this.pick([
          Buffer.from('{}'),
          new Uint8Array(70_000),
          new ArrayBuffer(8),
          new DataView(new ArrayBuffer(8)),
        ]);
      case 4:
        return this.pick([
          {},
          [],
          [1, 'a', null],
          { a: 1 },
          new Map(),
          new Date(NaN),
          /x/,
          Promise.resolve(),
          new Error('x'),
        ]);
      case 5:
        return this.pick([nasty(), getter(), Object.create(null), Object.freeze([]), Object.create(Engine.prototype)]);
      case 6:
        return structuredClone(new Uint8Array(8), { transfer: [] });
      case 7: {
        // A buffer whose memory has been given away.
        const gone = new Uint8Array(64);
        structuredClone(gone.buffer, { transfer: [gone.buffer] });
        return gone;
      }
      case 8:
        return new Uint8Array(new SharedArrayBuffer(16));
      default:
        return this.one(this.pick([...this.pool.keys()]));
    }
  }

  /** A value that an argument of this name takes, as a rule. */
  fitting(name) {
    switch (name) {
      case 'store':
        return this.pick([this.one('Store'), undefined]);
      case 'options':
        return this.pick([{}, { retryMs: 5 }, { maxBytes: 1 << 20 }]);
      case 'engine':
        return this.one('Engine');
      case 'frontOptions':
        return {
          address: this.pick(['127.0.0.1', '::1', 'nowhere']),
          port: 0,
          reusePort: false,
          app: join(this.folder, 'app'),
        };
      case 'frontTerms':
        return { path: '/mcp', jsonResponse: false, maxBodyBytes: this.pick([0, 1 << 20, Infinity]) };
      case 'clientOptions':
        return this.one('ClientOptions');
      case 'function':
        return this.pick([() => {}, raising]);
      case 'admission':
        return this.one('Admission');
      case 'session':
        return this.one('Session');
      case 'travelling':
        return this.travelling(this.pick(['POST', 'POST', 'DELETE', 'GET']));
      case 'fault':
        return this.pick(['internal', 'invalid_message', 'nothing']);
      case 'head':
        return this.head();
      case 'requester':
        return this.requester();
      case 'body':
      case 'payload':
        return this.body();
      case 'bytes':
        return Buffer.from(this.pick(['id: 1\ndata: {}\n\n', 'data', 'retry: 5\n\n', this.body()]));
      case 'bool':
        return this.pick([true, false]);
      case 'major':
        return this.pick([1, 2]);
      case 'versions':
        return ['2025-11-25'];
      case 'id':
        return this.pick(['s1', 's2', 's3', '1']);
      case 'request':
        return this.pick([1, '1', 2 ** 53]);
      case 'number':
        return this.pick([0, 1, 5, 1000, null]);
      case 'jitter':
        return this.below(1000);
      case 'now':
        return this.calls;
      case 'status':
        return this.pick([200, 202, 204, 400, 404, 500]);
      case 'type':
        return this.pick([null, 'text/event-stream', 'application/json']);
      case 'requests':
        return this.pick(['1', '[1]', '["a"]']);
      case 'level':
        return this.pick(['error', 'debug', 'off']);
      case 'address':
        return this.pick(['memory:', `sqlite:${join(this.folder, 'fuzz.db')}`, 'sqlite:', 'nothing:', 'redis://']);
      case 'replayed':
        return [{ id: '1', payload: this.body() }];
      default:
        return this.pick([null, ...TEXTS]);
    }
  }

  args(names) {
    const isWrong = this.below(2) === 0;
    if (isWrong && this.below(10) === 0) {
      return Array.from({ length: this.below(7) }, () => this.any());
    }
    return names.map((name) => (isWrong && this.below(5) < 2 ? this.any() : this.fitting(name)));
  }

  make(what, given, call) {
    this.calls += 1;
    writeSync(this.trace, `${this.calls} ${what} ${shown(given)}\n`);
    try {
      const value = this.keep(call());
      this.answered.add(what);
      return value;
    } catch (error) {
      // A RangeError is the SDKs' own word for a limit of theirs.
      const isKnown = error instanceof TypeError || error instanceof RangeError || error instanceof Planned;
      const code = isKnown ? error.constructor.name : error?.code;
      if (!isKnown && !(error instanceof Error && CODES.has(code))) {
        if (!WORDS.test(error?.message)) {
          this.findings.push(`${what} ${shown(given)}: ${error?.name} ${code} ${error?.message}`);
        }
      }
      this.raised[code] = (this.raised[code] ?? 0) + 1;
      return undefined;
    }
  }

  step() {
    if (this.below(5) === 0) {
      const [what, [make, names]] = this.pick(Object.entries(MAKERS));
      const args = this.args(names);
      this.make(what, args, () => make(...args));
      return;
    }
    const kind = this.pick([...this.pool.keys()]);
    const target = this.one(kind);
    const { prototype } = target.constructor;
    const names = Object.getOwnPropertyNames(prototype).filter((each) => each !== 'constructor');
    if (names.length === 0) {
      return;
    }
    const name = this.pick(names);
    const { value, get } = Object.getOwnPropertyDescriptor(prototype, name);
    const self = this.below(40) === 0 ? this.any() : target;
    if (value === undefined) {
      this.make(`${kind}.${name}`, [], () => get.call(self));
    } else {
      const args = this.args(METHODS[`${kind}.${name}`] ?? METHODS[name] ?? []);
      this.make(`${kind}.${name}`, args, () => value.apply(self, args));
    }
  }

  /** Sessions that live elsewhere, with requests on their way, and what has come of them. */
  async relay() {
    const nothing = () => {};
    const place = `sqlite:${join(this.folder, `relay-${threadId}.db`)}`;
    const [owner, other] = [0, 1].map(() => {
      const engine = new Engine(new Store(place, {}), {}, nothing, nothing, () => engine.flush());
      return this.keep(engine);
    });
    const turn = () => {
      // What was not told is looked for.
      other.tick();
      return new Promise((resolve) => setImmediate(resolve));
    };
    const call = (there, name, id) => {
      const body = JSON.stringify({ jsonrpc: '2.0', id, method: 'tools/call', params: { name: 'x' } });
      const admission = there.admit(head({ ...HEAD, method: 'POST', sessionId: name }), null, null, body, false);
      this.keep(there.relay(admission, body, this.travelling('POST'), id === 3));
    };
    const [relayed, adopted, refused] = await Promise.all(
      ['relayed', 'adopted', 'refused'].map(async (name) => {
        const post = { ...HEAD, method: 'POST', sessionId: name };
        const here = this.keep(owner.openSession(name, '', null, 2, ['2025-11-25'], null));
        const first = head({ ...post, sessionId: undefined });
        const opening = owner.admit(first, null, JSON.stringify(INITIALIZE), false, 2, ['2025-11-25']);
        here.open(opening, false);
        here.respond(0, JSON.stringify({ jsonrpc: '2.0', id: 0, result: { protocolVersion: '2025-11-25' } }));
        for (;;) {
          const look_up = this.keep(other.lookUpSession(name, head(post), '', null, 2, ['2025-11-25']));
          let there = null;
          for (; there === null; await turn()) {
            there = look_up.take();
          }
          if (there !== false) {
            return { here, there: this.keep(there), name };
          }
        }
      }),
    );
    relayed.here.acceptPosted();
    for (const id of [1, 2, 3]) {
      call(relayed.there, relayed.name, id);
    }
    for (let come = 0; come < 3; await turn()) {
      come += this.keep(relayed.here.takePosted()).length;
    }
    // An owner that drains leaves its sessions to others.
    owner.drain(5);
    for (const { here, there, name } of [adopted, refused]) {
      here.end();
      const offer = this.keep(there.offerAdoption());
      call(there, name, 1);
      let taken = null;
      for (; taken === null; await turn()) {
        taken = offer.take();
      }
      this.keep([taken, taken.session()]);
      if (name === 'refused') {
        taken.refuse('internal', 'no reason');
      }
    }
  }

  /** Objects in all states to begin with: live, ended, drained. */
  async furnish() {
    await this.relay();
    const store = this.keep(new Store(`sqlite:${join(this.folder, 'fuzz.db')}`, {}));
    this.keep([new Store('memory:', {}), new ClientOptions({})]);
    const nothing = () => {};
    for (const each of [store, undefined, this.pool.get('Store')[1], store]) {
      const engine = this.keep(new Engine(each, {}, nothing, nothing, nothing));
      for (const id of ['s1', 's2', 's3']) {
        const session = this.keep(engine.openSession(`${id}`, '', null, 2, ['2025-11-25'], null));
        const call = { jsonrpc: '2.0', id: 1, method: 'tools/call', params: { name: 'x' } };
        for (const [method, message] of [['POST', INITIALIZE], ['POST', call], ['GET']]) {
          const body = message === undefined ? '' : JSON.stringify(message);
          const admission = this.keep(session.admit(head({ ...HEAD, method, sessionId: id }), null, null, body, false));
          if (!(admission instanceof Refusal)) {
            this.keep(session.open(admission, false));
          }
        }
        if (id === 's3') {
          session.end();
        }
      }
      const elsewhere = head({ ...HEAD, method: 'GET', sessionId: 'elsewhere' });
      this.keep([engine.hookLog(), engine.lookUpSession('elsewhere', elsewhere, '', null, 2, ['2025-11-25'])]);
    }
    this.pool.get('Engine').at(-1).drain(5);
    this.keep(ClientStream.standalone(this.one('ClientOptions'), true, 0));
  }

  /** Calls for so long, but no fewer than `least`, with turns for what engines are told by their stores. */
  async run(seconds, least = 0) {
    const end = performance.now() + seconds * 1000;
    while ((performance.now() < end || this.calls < least) && this.findings.length < 20) {
      for (let turn = 0; turn < 200; turn++) {
        this.step();
      }
      const began = performance.now();
      await new Promise((resolve) => setImmediate(resolve));
      if (performance.now() - began > CALL_MS) {
        this.findings.push('the event loop was held');
      }
    }
  }
}

const KINDS = new Set(
  'ClientStream Session HookLog Engine LookUp Refusal Store Admission ClientOptions Connection Posted Offer Adopted Front'.split(
    ' ',
  ),
);
const TIMED = ['now', 'jitter'];
const MAKERS = {
  Engine: [(...args) => new Engine(...args), ['store', 'options', 'function', 'function', 'function']],
  Store: [(...args) => new Store(...args), ['address', 'options']],
  ClientOptions: [(...args) => new ClientOptions(...args), ['options']],
  Refusal: [(...args) => new Refusal(...args), []],
  Front: [(...args) => new Front(...args), ['engine', 'frontOptions']],
  'Engine.setLogLevel': [(...args) => Engine.setLogLevel(...args), ['level']],
  'ClientStream.posted': [(...args) => ClientStream.posted(...args), ['requests', 'clientOptions', 'bool', 'now']],
  'ClientStream.standalone': [(...args) => ClientStream.standalone(...args), ['clientOptions', 'bool', 'now']],
  'ClientStream.continued': [(...args) => ClientStream.continued(...args), ['id', 'clientOptions', 'bool', 'now']],
  'ClientStream.saved': [(...args) => ClientStream.saved(...args), ['id', 'clientOptions', 'bool', 'now']],
  'ClientStream.classify': [(...args) => ClientStream.classify(...args), ['body']],
  'ClientStream.refused': [(...args) => ClientStream.refused(...args), ['number']],
  'ClientStream.takesAnswer': [(...args) => ClientStream.takesAnswer(...args), ['number', 'text']],
  'ClientStream.takesRequest': [(...args) => ClientStream.takesRequest(...args), ['text', 'text', 'text']],
};
const METHODS = {
  __proto__: null,
  'ClientStream.head': [...TIMED, 'status', 'type', 'number'],
  'ClientStream.bytes': [...TIMED, 'bytes'],
  'ClientStream.end': TIMED,
  'ClientStream.broken': TIMED,
  'ClientStream.cancelled': [...TIMED, 'requests'],
  'ClientStream.abort': TIMED,
  'ClientStream.abandon': TIMED,
  'ClientStream.tick': TIMED,
  'ClientStream.token': ['text', 'text'],
  'Engine.admit': ['head', 'requester', 'body', 'bool', 'major', 'versions'],
  openSession: ['id', 'requester', 'major', 'versions', 'number'],
  lookUpSession: ['id', 'head', 'id', 'requester', 'major', 'versions'],
  drain: ['number', 'number'],
  'Session.admit': ['head', 'id', 'requester', 'body', 'bool'],
  'Session.open': ['admission', 'bool'],
  relay: ['admission', 'body', 'travelling', 'bool'],
  'Posted.admit': ['session', 'bool'],
  begin: ['admission'],
  refuse: ['fault'],
  serve: ['session', 'frontTerms'],
  close: ['number'],
  'Adopted.refuse': ['fault', 'text'],
  dispatched: ['admission'],
  setKeepAliveMs: ['number'],
  unwritable: ['request'],
  'Engine.refusal': ['major', 'text', 'text', 'body'],
  'Engine.forbidden': ['major', 'versions', 'versions', 'text', 'text'],
  received: ['admission'],
  notify: ['request', 'payload', 'number', 'bool'],
  respond: ['request', 'payload'],
  ask: ['request', 'request', 'payload', 'number', 'bool'],
  stored: ['number', 'id'],
  notStored: ['number', 'text'],
  replayed: ['number', 'text', 'replayed'],
  notReplayed: ['number', 'text'],
  closeConnection: ['request', 'number', 'number'],
  closeStandalone: ['number', 'number'],
  'Session.cancelled': ['request'],
  callSpan: ['request'],
  traceCall: ['request', 'text'],
  poll: ['number'],
  'HookLog.store': ['id', 'id', 'number', 'payload'],
  'HookLog.replay': ['id', 'text'],
  dropScope: ['id'],
};

const OPTIONS =
  'retryMs maxBytes maxSessions durability encryptionKeys store storeWaitMs sessionIdleMs ownerLostMs unknown'.split(
    ' ',
  );
const CLIENT =
  'initialDelayMs growth jitter maxAttempts headers onResume schedule unknown message token fetch signal'.split(' ');

/** The package's own functions, with options of wrong names, types and sizes. */
async function callPublic(machine, seconds) {
  const given = (names) => {
    const count = 1 + machine.below(3);
    return Object.fromEntries(Array.from({ length: count }, () => [machine.pick(names), machine.any()]));
  };
  const either = (names) => (machine.below(6) === 0 ? machine.any() : given(names));
  const calls = {
    configure: () => [either(OPTIONS)],
    openStore: () => [machine.any(), either(OPTIONS)],
    EventStore: () => [machine.any(), either(OPTIONS)],
    closeSSEStream: () => [machine.any(), either(['retryMs', 'holdMs'])],
    closeStandaloneSSEStream: () => [machine.any(), either(['retryMs', 'holdMs'])],
    setLog: () => [machine.any(), machine.any()],
    stats: () => [],
    NodeStreamableHTTPServerTransport: () => [
      either(['sessionIdGenerator', 'eventStore', 'retryInterval', 'maxRequestBodySize']),
    ],
    WebStandardStreamableHTTPServerTransport: () => [either(['sessionIdGenerator', 'eventStore', 'retryInterval'])],
    createResumableMcpHandler: () => [
      machine.any(),
      either(['preferResumable', 'eventStore', 'retryInterval', 'onerror']),
    ],
    resumableFetch: () => [machine.any(), either(CLIENT)],
    stream: () => [machine.any(), either(CLIENT)],
  };
  const entries = { ...client, ...mcp };
  const end = performance.now() + seconds * 1000;
  while ((performance.now() < end || machine.calls <= 100) && machine.findings.length < 20) {
    const [name, args] = machine.pick(Object.entries(calls));
    const values = args();
    const target = entries[name];
    const isClass = /^[A-Z]/.test(name);
    const made = machine.make(name, values, () => (isClass ? new target(...values) : target(...values)));
    (made?.return?.() ?? made)?.catch?.(() => {});
    if (machine.below(20) === 0) {
      const options = either(['retryMs', 'spreadMs', 'withinMs']);
      machine.make('drain', [options], () => mcp.drain(options).catch(() => {}));
      await new Promise((resolve) => setImmediate(resolve));
    }
  }
  mcp.configure({});
}

/** Workers that call on their own, are sent objects of this thread, and end in the middle of it. */
async function callInWorkers(machine, seconds) {
  await machine.furnish();
  const end = performance.now() + seconds * 1000;
  for (let round = 0; performance.now() < end || machine.calls <= 200; round++) {
    const started = [0, 1].map((number) => {
      const data = {
        seed: machine.below(1 << 30),
        folder: machine.folder,
        trace: process.argv[5],
        seconds: 0.3 + number * 0.5,
      };
      return new Worker(fileURLToPath(import.meta.url), { workerData: data });
    });
    await Promise.all(
      started.map(async (worker, number) => {
        const ended = new Promise((resolve, reject) => worker.on('exit', resolve).on('error', reject));
        worker.on('message', ({ calls, findings }) => {
          machine.calls += calls;
          machine.findings.push(...findings);
        });
        for (const kind of machine.pool.keys()) {
          machine.make('postMessage', [kind], () => {
            try {
              // A copy has nothing native in it, and is used as if it had.
              const copy = structuredClone(machine.one(kind));
              Object.setPrototypeOf(copy, machine.one(kind).constructor.prototype);
              machine.keep(copy);
              worker.postMessage(copy);
            } catch (error) {
              if (!(error instanceof DOMException)) {
                throw error;
              }
            }
          });
        }
        await machine.run(0.2);
        if ((round + number) % 2 === 1) {
          await worker.terminate();
        }
        await ended;
      }),
    );
  }
}

async function main([mode, seed, seconds, file]) {
  const folder = mkdtempSync(join(tmpdir(), 'tailrope-boundary-'));
  const machine = new Machine(Number(seed), openSync(file, 'a'), folder);
  mcp.setLog(() => {}, 'error');
  // A promise that nobody waits for, and a callback that throws, are the caller's matter.
  process.on('unhandledRejection', () => {});
  process.on('uncaughtException', (error) => {
    if (!isPlanned(error)) {
      machine.findings.push(`uncaught: ${error.stack}`);
    }
  });
  try {
    if (mode === 'values') {
      await machine.furnish();
      await machine.run(Number(seconds), 3_000);
    } else {
      await { public: callPublic, threads: callInWorkers }[mode](machine, Number(seconds));
    }
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
  const { calls, raised, findings, answered } = machine;
  console.log(JSON.stringify({ calls, raised, findings, answered: [...answered].sort() }));
  process.exit(findings.length > 0 ? 1 : 0);
}

if (isMainThread) {
  await main(process.argv.slice(2));
} else {
  const { seed, folder, trace, seconds } = workerData;
  const machine = new Machine(seed, openSync(trace, 'a'), folder);
  process.on('uncaughtException', (error) => isPlanned(error) || machine.findings.push(`uncaught: ${error.stack}`));
  await machine.furnish();
  await machine.run(seconds);
  parentPort.postMessage({ calls: machine.calls, findings: machine.findings });
}
