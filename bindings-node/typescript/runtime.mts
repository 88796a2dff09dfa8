// Engines: which one serves, who ticks it, who waits for it.
//
// Everything belongs to one JavaScript thread: a worker that imports this has engines of its own.
import { clearTimeout, setImmediate, setTimeout } from 'node:timers';
import type { ConfigureOptions, EngineOptions } from './engine-options.mjs';
import { invalid, ours } from './errors.mjs';
import { callHost, traceOf } from './host.mjs';
import { type Arrival, Engine, type Store as NativeStore } from './native.mjs';
import { ENGINE_OPTIONS, STORE_OPTIONS } from './option-names.mjs';
import { checkNames } from './options.mjs';
import { checkedPaces } from './pace.mjs';
import type { Exchange } from './server/exchange.mjs';
import { checkPrincipal, IDENTITY_HEADERS, type Principal } from './server/requester.mjs';
import type { Seam } from './server/seam.mjs';
import type { Origin } from './server/tasks/origin.mjs';
import { checkServerName } from './server/transport-options.mjs';
import { boundsOf, storeOf } from './store/open.mjs';
import type { HostStore } from './store/user-store.mjs';
import type { Telemetry } from './telemetry.mjs';

/** What `configure()` sets of engines. */
type RuntimeOptions = Omit<ConfigureOptions, 'onUnsupported'>;

type Names<Options> = {
  [Name in keyof Options]-?: NonNullable<Options[Name]> extends number | 'auto' ? Name : never;
}[keyof Options];

/** What an engine has of the options that are numbers. */
export type OptionsInForce = Required<Pick<EngineOptions, Names<EngineOptions>>>;

export type LogLevel = 'error' | 'warn' | 'info' | 'debug';

/** Who waits for a key. */
export interface Waiter {
  /** Whether it is to be called in this turn already. */
  scheduled: boolean;
  pump(): void;
}

/** Who serves a session. */
export interface Idler {
  /** The engine says that nothing holds the session any more (I11), or that it has ended by itself. */
  becomeIdle(): void;
  serve(exchange: Exchange): Promise<void>;
  /** Serves a request that a front has read. False where that is not possible: then it is served behind the front. */
  takeArrival(arrival: Arrival, facts: number, body: string): boolean;
}

/** What makes transports later, and is drained with those that it has made. */
export interface Pinned {
  /** A drain begins: it is for all that this makes from now on. */
  pin(): void;
}

/** The fields of a line, by name. */
export type LogFields = Record<string, string | number | boolean>;
/** Gets the lines of the log. The line says all of it; `fields` has what it names. */
export type LogSink = (level: LogLevel, line: string, fields: LogFields) => void;

/** What there is on this thread. */
interface State {
  runtimes: Set<WeakRef<Runtime>>;
  pinned: Set<WeakRef<Pinned>>;
  /** The engines over users' own stores. */
  hosted: WeakMap<HostStore, Runtime>;
  options: RuntimeOptions;
  shared: Runtime | undefined;
  log: LogSink;
  /** What is used of OpenTelemetry. */
  telemetry: Telemetry | undefined;
  told: Set<string>;
  level: LogLevel;
  seams: Map<string, Seam>;
  onUnsupported: 'stock' | 'raise';
  handlers: Set<{ preferResumable: boolean }>;
  /** How often `configure()` was called. */
  configured: number;
  /** Sessions that were open before. */
  openBefore: number;
  runtimeOf: symbol;
  /** The end of the process is listened for. */
  leaves: boolean;
}

const OPTIONS = [...ENGINE_OPTIONS, ...STORE_OPTIONS];
/** The store in this process, and bounded. */
export const MEMORY = 'memory:';
/** When an engine that failed at a tick is ticked again. */
const TICK_AGAIN_MS = 1_000;

/**
 * Of this thread, by native half: programs may load this file as ES module and as CommonJS, which share it, and another
 * installed copy of the package, which has its own.
 */
const global: { [key: symbol]: WeakMap<typeof Engine, State> | undefined } = globalThis as never;
const states = (global[Symbol.for('tailrope')] ??= new WeakMap());

function fresh(): State {
  return {
    runtimes: new Set(),
    pinned: new Set(),
    hosted: new WeakMap(),
    options: {},
    shared: undefined,
    log: (level, line) => console.error(`tailrope: ${level}: ${line}`),
    telemetry: undefined,
    told: new Set(),
    level: 'warn',
    seams: new Map(),
    onUnsupported: 'stock',
    handlers: new Set(),
    configured: 0,
    openBefore: 0,
    runtimeOf: Symbol('tailrope.runtime'),
    leaves: false,
  };
}

export const state: State = states.get(Engine) ?? fresh();
states.set(Engine, state);
const { runtimes, pinned } = state;

/** The property in which our event stores keep their runtime. */
export const { runtimeOf } = state;

/**
 * Sends the engines' log lines of this thread to `sink`, down to `level` (default `info`). Without a sink, errors
 * and warnings go to stderr. Payloads are never logged.
 */
export function setLog(sink: LogSink, level: LogLevel = 'info'): void {
  if (typeof sink !== 'function') {
    invalid('setLog() takes a function that gets the level and the line');
  }
  try {
    Engine.setLogLevel(level);
  } catch (error) {
    throw ours(error);
  }
  state.level = level;
  state.log = sink;
}

export function writeLog(level: LogLevel, line: string, fields: LogFields = {}): void {
  // A logger that throws costs its line, never a session.
  callHost(
    () => state.log(level, line, fields),
    () => {},
  );
}

/** Does what nobody waits for: what is thrown would end the process, and keep what comes behind it from happening. */
function attempt<Done>(what: string, act: () => Done): Done | undefined {
  try {
    return act();
  } catch (error) {
    noteFailure(what, error);
    return undefined;
  }
}

function noteFailure(what: string, error: unknown): void {
  writeLog('error', `${what} failed: ${traceOf(error)}`);
}

/** Writes a line that is about the program, once on this thread. */
export function writeLogOnce(level: LogLevel, line: string): void {
  if (!state.told.has(line)) {
    state.told.add(line);
    writeLog(level, line);
  }
}

/** An engine with what waits for it. */
export class Runtime {
  /** Counts the turns of the event loop in which something was written. */
  turn = 0;
  /** The options in force, by name. */
  readonly options: OptionsInForce;
  /** After what time a reader that takes nothing is cut off. */
  readonly patienceMs: number | undefined;
  /** Whether the engine's store may answer later. */
  readonly answersElsewhere: boolean;
  /** Whether threads other than this one wake waiters: those of a store, or of a front. */
  isWokenElsewhere: boolean;
  /** Whether sessions may live in other processes, or have lived in ones that are gone. */
  readonly outlivesProcess: boolean;
  /** The store, unless it is a user's own. */
  readonly store: NativeStore | undefined;
  /** The user's own store. */
  readonly hostStore: HostStore | undefined;
  /** Whether an EventStore of ours has it. */
  readonly isOfEventStore: boolean;
  /** The requests about tasks that have no answer yet, by their keys. */
  readonly asking = new Map<number, Origin>();
  /** The user's function that names who sends a request. */
  readonly principal: Principal | undefined;
  /** The user's function that names who sends a request in the log. */
  readonly logUser: Principal | undefined;
  /** The headers that are relayed beside those that always are. */
  readonly relayedHeaders: string[];
  /** The headers that say who sends a request. */
  readonly identityHeaders: ReadonlySet<string>;
  /** The server of transports that name none. */
  readonly serverName: string | undefined;
  #engine: Engine;
  #waiting = new Map<number, Waiter>();
  #ready: Waiter[] = [];
  #timer: NodeJS.Timeout | undefined;
  #dueAt = Infinity;
  #transports = new Map<string, Idler>();
  /** Makes an engine with the same options and the same store. */
  #renew: () => Runtime;
  /** Set once a drain is over. */
  #isRetired = false;
  #next: Runtime | undefined;

  constructor(
    options: RuntimeOptions = {},
    { hostStore, isOfEventStore = false }: { hostStore?: HostStore; isOfEventStore?: boolean } = {},
  ) {
    checkNames(options, OPTIONS, isOfEventStore ? 'an EventStore' : 'configure()');
    const {
      store = MEMORY,
      principal,
      logUser,
      logCalls = false,
      onStoreFailure,
      relayedHeaders = [],
      identityHeaders = [],
      pace = {},
      serverName,
      ...others
    } = options;
    this.principal = checkPrincipal(principal);
    this.logUser = checkPrincipal(logUser, 'logUser');
    if (typeof logCalls !== 'boolean') {
      invalid('logCalls must be true or false');
    }
    this.serverName = checkServerName(serverName);
    for (const [option, names] of Object.entries({ relayedHeaders, identityHeaders })) {
      if (!Array.isArray(names) || !names.every((name) => typeof name === 'string')) {
        invalid(`${option} must be a list of names of headers`);
      }
    }
    this.relayedHeaders = relayedHeaders;
    this.identityHeaders = new Set([...IDENTITY_HEADERS, ...identityHeaders.map((name) => name.toLowerCase())]);
    this.hostStore = hostStore;
    this.isOfEventStore = isOfEventStore;
    // The engine must not keep alive what has been forgotten otherwise.
    const me = new WeakRef(this);
    const resolve = (keys: number[]) => me.deref()?.resolve(keys);
    const signal = () => attempt('waking', () => me.deref()?.engine.flush());
    try {
      const [opened, numbers] = hostStore === undefined ? storeOf(store, others) : [undefined, boundsOf(others)];
      this.store = opened;
      const policy: Record<string, string> = onStoreFailure === undefined ? {} : { onStoreFailure };
      const given = { ...numbers, ...policy, logCalls, pace: checkedPaces(pace) };
      this.#engine = new Engine(opened, given, resolve, writeLog, signal);
      const own = { principal, logUser, logCalls, onStoreFailure, relayedHeaders, identityHeaders, pace, serverName };
      const again = { ...numbers, ...own, ...(opened && { store: opened }) } as RuntimeOptions;
      this.#renew = () => new Runtime(again, { ...(hostStore && { hostStore }), isOfEventStore });
    } catch (error) {
      throw ours(error);
    }
    this.options = this.#engine.options() as unknown as OptionsInForce;
    this.patienceMs = this.#engine.patienceMs() ?? undefined;
    this.answersElsewhere = this.#engine.answersElsewhere();
    this.isWokenElsewhere = this.answersElsewhere;
    this.outlivesProcess = this.#engine.outlivesProcess();
    runtimes.add(me);
    if (!state.leaves) {
      state.leaves = true;
      // Not called for every end of a process; then others find out that nobody writes any more.
      process.on('exit', leave);
    }
    forgetCollected(runtimes);
  }

  get engine(): Engine {
    return this.#engine;
  }

  /** A drain of it is over, and another one has taken its place. */
  get isReplaced(): boolean {
    return this.#next !== undefined;
  }

  /** The engine of what is made from now on. A drain is for what was there: its engine drains for ever. */
  get current(): Runtime {
    if (!this.#isRetired) {
      return this;
    }
    this.#next ??= this.#renew();
    return this.#next.current;
  }

  retire(): void {
    this.#isRetired = true;
  }

  /** Runs `waiter.pump()` in a turn of its own whenever the key is woken. */
  wait(key: number, waiter: Waiter): void {
    this.#waiting.set(key, waiter);
  }

  forget(key: number): void {
    this.#waiting.delete(key);
  }

  resolve(keys: number[]): void {
    for (const key of keys) {
      const waiter = this.#waiting.get(key);
      if (waiter !== undefined) {
        this.schedule(waiter);
      }
    }
  }

  /** All that happens in this turn of the event loop leaves in one write. */
  schedule(waiter: Waiter): void {
    if (waiter.scheduled) {
      return;
    }
    waiter.scheduled = true;
    if (this.#ready.push(waiter) === 1) {
      setImmediate(() => {
        this.turn += 1;
        this.flush();
      });
    }
  }

  /** Writes what this turn has so far. */
  flush(): void {
    const ready = this.#ready;
    this.#ready = [];
    for (const waiter of ready) {
      waiter.scheduled = false;
      try {
        waiter.pump();
      } catch (error) {
        // One that fails must not keep the others of its turn from theirs.
        noteFailure('a writer', error);
      }
    }
  }

  /** Makes sure that the engine is ticked within `waitMs`. */
  arm(waitMs: number): void {
    const delay = Math.max(waitMs, 1);
    const dueAt = performance.now() + delay;
    if (dueAt >= this.#dueAt) {
      return;
    }
    clearTimeout(this.#timer);
    this.#dueAt = dueAt;
    this.#timer = setTimeout(() => this.#tick(), delay);
    // Sockets hold the process open, we do not.
    this.#timer.unref();
  }

  /** Makes sure that the engine is ticked when it asks for it. */
  armDue(): void {
    this.arm(this.#engine.dueInMs());
  }

  #tick(): void {
    this.#dueAt = Infinity;
    const idle = attempt('a tick', () => this.#engine.tick());
    if (idle === undefined) {
      this.arm(TICK_AGAIN_MS);
      return;
    }
    if (idle === null) {
      return;
    }
    this.becomeIdle(idle);
    this.armDue();
  }

  /** The engine says so of the sessions of these names. */
  becomeIdle(names: string[]): void {
    for (const name of names) {
      attempt('ending a session', () => this.#transports.get(name)?.becomeIdle());
    }
  }

  /** The session of this name has a transport. */
  opened(name: string, transport: Idler): void {
    this.#transports.set(name, transport);
    this.armDue();
  }

  closed(name: string): void {
    this.#transports.delete(name);
  }

  /** Who serves the session of this name here. */
  ownerOf(name: string): Idler | undefined {
    return this.#transports.get(name);
  }
}

export const living = () => alive(runtimes);

function* alive<Item extends object>(references: Set<WeakRef<Item>>): Generator<Item> {
  for (const reference of references) {
    const item = reference.deref();
    if (item !== undefined) {
      yield item;
    }
  }
}

/** Has `router` told when a drain begins, as long as there is one. */
export function notePinned(router: Pinned): void {
  pinned.add(new WeakRef(router));
  forgetCollected(pinned);
}

/** A drain begins. */
export function pinRouters(): void {
  for (const router of alive(pinned)) {
    router.pin();
  }
}

/** The process ends: what it was given to store is written, and what runs gets its end. */
function leave(): void {
  for (const runtime of living()) {
    attempt('leaving', () => runtime.engine.leave());
  }
}

/** Now and then. */
function forgetCollected(references: Set<WeakRef<object>>): void {
  if (references.size % 64 !== 0) {
    return;
  }
  for (const reference of references) {
    if (reference.deref() === undefined) {
      references.delete(reference);
    }
  }
}

/** The engine of the transports that name no event store. */
export function sharedRuntime(): Runtime {
  state.shared = state.shared?.current ?? new Runtime(state.options);
  return state.shared;
}

/** The same, also if it is drained: for what is only counted. */
export function countingRuntime(): Runtime {
  return state.shared ?? sharedRuntime();
}

/** The engine whose events a user's own store holds. */
export function runtimeOfUserStore(store: HostStore): Runtime {
  const { store: _, ...options } = state.options;
  const runtime = state.hosted.get(store)?.current ?? new Runtime(options, { hostStore: store });
  state.hosted.set(store, runtime);
  return runtime;
}
