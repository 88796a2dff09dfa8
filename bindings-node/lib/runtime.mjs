// Engines: which one serves, who ticks it, who waits for it.
//
// Everything belongs to one JavaScript thread: a worker that imports this has engines of its own.
import { clearTimeout, setImmediate, setTimeout } from 'node:timers';

import { Engine } from './native.mjs';
import { boundsOf, checkNumbers, storeOf } from './open-store.mjs';
import { checkPrincipal } from './request.mjs';

/** The store in this process, and bounded. */
export const MEMORY = 'memory:';
/** When a session that nothing holds ends. */
const DEFAULT_SESSION_IDLE_MS = 30 * 60_000;
/** The `retry` of a drain that names none: what a restart usually takes. */
const DEFAULT_DRAIN_MS = 5_000;
/** How often the engine is ticked at least while it follows logs that other processes write. */
const FOLLOW_MS = 1_000;
/** What the engines of one store count together. */
const OF_STORE = ['streams', 'events', 'bytes'];
/** How often sessions are looked at for idleness, at most. */
const MAX_SWEEP_MS = 60_000;

/**
 * Of this thread, by native half: programs may load this file as ES module and as CommonJS, which share it, and another
 * installed copy of the package, which has its own.
 */
const states = (globalThis[Symbol.for('tailrope')] ??= new WeakMap());
if (!states.has(Engine)) {
  states.set(Engine, {
    runtimes: new Set(),
    hosted: new WeakMap(),
    options: {},
    shared: undefined,
    log: (level, line) => console.error(`tailrope: ${level}: ${line}`),
    level: 'warn',
    seams: new Map(),
    onUnsupported: 'stock',
    handlers: new Set(),
    configured: 0,
    openBefore: 0,
    runtimeOf: Symbol('tailrope.runtime'),
  });
}
export const state = states.get(Engine);
const { runtimes } = state;

/** The property in which our event stores keep their runtime. */
export const { runtimeOf } = state;

/**
 * Sends the engines' log lines of this thread to `sink(level, line)`, down to `level`: `error`, `warn`, `info`
 * or `debug`. Without a sink, errors and warnings go to stderr.
 */
export function setLog(sink, level = 'info') {
  Engine.setLogLevel(level);
  state.level = level;
  state.log = sink;
}

export function writeLog(level, line) {
  try {
    state.log(level, line);
  } catch {
    // A logger that throws costs its line, never a session.
  }
}

/** An engine with what waits for it. */
export class Runtime {
  /** Counts the turns of the event loop in which something was written. */
  turn = 0;
  /** The options in force, by name. */
  options;
  /** Whether the engine's store may answer later, and wakes from threads of its own. */
  answersElsewhere;
  /** Whether sessions may live in other processes, or have lived in ones that are gone. */
  outlivesProcess;
  /** The store, unless it is a user's own. */
  store;
  /** Whether an EventStore of ours has it. */
  isOfEventStore;
  /** The user's function that names who sends a request. */
  principal;
  #engine;
  #sessionIdleMs;
  #waiting = new Map();
  #ready = [];
  #timer;
  #dueAt = Infinity;
  #sweepMs;
  #sweepAt = 0;
  #transports = new Set();
  #guests = 0;

  constructor(options = {}, { hostStore, isOfEventStore = false } = {}) {
    const {
      sessionIdleMs = DEFAULT_SESSION_IDLE_MS,
      store = MEMORY,
      principal,
      ...others
    } = options;
    checkNumbers({ sessionIdleMs });
    let engineOptions;
    if (hostStore === undefined) {
      [this.store, engineOptions] = storeOf(store, others);
    } else {
      engineOptions = boundsOf(others);
    }
    this.principal = checkPrincipal(principal);
    this.#sessionIdleMs = sessionIdleMs;
    this.hostStore = hostStore;
    this.isOfEventStore = isOfEventStore;
    // The engine must not keep alive what has been forgotten otherwise.
    const me = new WeakRef(this);
    const resolve = (keys) => me.deref()?.resolve(keys);
    const signal = () => me.deref()?.engine.flush();
    this.#engine = new Engine(this.store, engineOptions, resolve, writeLog, signal);
    this.options = this.#engine.options();
    this.answersElsewhere = this.#engine.answersElsewhere();
    this.outlivesProcess = this.#engine.outlivesProcess();
    const times = [sessionIdleMs || Infinity, this.options.maxDetachedMs, MAX_SWEEP_MS * 4];
    this.#sweepMs = Math.max(Math.min(...times) / 4, 1);
    runtimes.add(me);
    if (this.outlivesProcess && !state.leaves) {
      state.leaves = true;
      // Not called for every end of a process; then others find out that nobody writes any more.
      process.on('exit', leave);
    }
    if (runtimes.size % 64 === 0) {
      forgetCollected();
    }
  }

  get engine() {
    return this.#engine;
  }

  /** Runs `waiter.pump()` in a turn of its own whenever the key is woken. */
  wait(key, waiter) {
    this.#waiting.set(key, waiter);
  }

  forget(key) {
    this.#waiting.delete(key);
  }

  resolve(keys) {
    for (const key of keys) {
      const waiter = this.#waiting.get(key);
      if (waiter !== undefined) {
        this.schedule(waiter);
      }
    }
  }

  /** All that happens in this turn of the event loop leaves in one write. */
  schedule(waiter) {
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
  flush() {
    const ready = this.#ready;
    this.#ready = [];
    for (const waiter of ready) {
      waiter.scheduled = false;
      try {
        waiter.pump();
      } catch (error) {
        // One that fails must not keep the others of its turn from theirs.
        writeLog('error', `a writer failed: ${error?.stack ?? error}`);
      }
    }
  }

  /** Makes sure that the engine is ticked within `waitMs`. */
  arm(waitMs) {
    const delay = Math.min(Math.max(waitMs, 1), MAX_SWEEP_MS);
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

  /** Makes sure that the engine is ticked when it asks for it, and sessions are looked at. */
  armDue() {
    const atLeast = this.#guests > 0 ? Math.min(FOLLOW_MS, this.#sweepMs) : this.#sweepMs;
    this.arm(Math.min(this.#engine.dueInMs(), atLeast));
  }

  #tick() {
    this.#dueAt = Infinity;
    this.#engine.tick();
    this.#sweep();
    // Ended sessions hold nothing that time would have to free.
    if (this.#transports.size + this.#guests > 0) {
      this.armDue();
    }
  }

  /** Closes sessions that have been idle, or without their client, for too long (I11). */
  #sweep() {
    const idleMs = this.#sessionIdleMs === 0 ? undefined : this.#sessionIdleMs;
    const now = performance.now();
    if (now < this.#sweepAt) {
      return;
    }
    this.#sweepAt = now + this.#sweepMs;
    for (const transport of this.#transports) {
      if (transport.idleInMs(idleMs) === 0) {
        transport.closeIdle();
      }
    }
  }

  opened(transport) {
    this.#transports.add(transport);
    this.armDue();
  }

  closed(transport) {
    this.#transports.delete(transport);
  }

  /** A reader of a session that lives elsewhere is served from now on. */
  guestCame() {
    this.#guests += 1;
    this.armDue();
  }

  guestLeft() {
    this.#guests -= 1;
  }

  drain(retryMs) {
    this.#engine.drain(retryMs ?? Math.max(DEFAULT_DRAIN_MS, this.options.retryMs));
  }
}

export function* living() {
  for (const reference of runtimes) {
    const runtime = reference.deref();
    if (runtime !== undefined) {
      yield runtime;
    }
  }
}

/** The process ends: what it was given to store is written, and what runs gets its end. */
function leave() {
  for (const runtime of living()) {
    if (runtime.outlivesProcess) {
      runtime.engine.leave();
    }
  }
}

function forgetCollected() {
  for (const reference of runtimes) {
    if (reference.deref() === undefined) {
      runtimes.delete(reference);
    }
  }
}

/** The engine of the transports that name no event store. */
export function sharedRuntime() {
  state.shared ??= new Runtime(state.options);
  return state.shared;
}

/** The engine whose events a user's own store holds. */
export function runtimeOfUserStore(store) {
  let runtime = state.hosted.get(store);
  if (runtime === undefined) {
    const { store: _, ...options } = state.options;
    runtime = new Runtime(options, { hostStore: store });
    state.hosted.set(store, runtime);
  }
  return runtime;
}

/**
 * What Tailrope did and holds on this thread, by name. Several engines are added up.
 */
export function stats() {
  const total = {};
  const counted = new Set();
  sharedRuntime();
  for (const runtime of living()) {
    const isCounted = counted.has(runtime.store);
    for (const [name, value] of Object.entries(runtime.engine.stats())) {
      total[name] = (total[name] ?? 0) + (isCounted && OF_STORE.includes(name) ? 0 : value);
    }
    if (runtime.store !== undefined) {
      counted.add(runtime.store);
    }
  }
  return total;
}

/**
 * Closes every connection because the process is going away. Each ends with an id and a `retry`, so
 * that its client comes back after the restart. Resolves to whether all of them ended in `budgetMs`.
 */
export async function drain({ retryMs, budgetMs = 1_000 } = {}) {
  for (const runtime of living()) {
    runtime.drain(retryMs);
  }
  const end = performance.now() + budgetMs;
  while (stats().connections > 0) {
    if (performance.now() >= end) {
      return false;
    }
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
  return true;
}
