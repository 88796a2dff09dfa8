// Our event store where the SDKs take one, and which engine serves a transport.
import { HookedLog } from './hooked-log.mjs';
import { invalid, isStore } from './open-store.mjs';
import { MEMORY, Runtime, runtimeOf, runtimeOfUserStore, sharedRuntime } from './runtime.mjs';

/** What the SDKs' own transports ask of a store, for one scope of a log. */
class Hooks {
  #log;
  #scope;

  constructor(log, scope) {
    this.#log = log;
    this.#scope = scope;
  }

  async storeEvent(streamId, message) {
    return this.#log().store(this.#scope, streamId, message);
  }

  async getStreamIdForEventId(eventId) {
    return (await this.#log().replay(this.#scope, eventId))?.streamId;
  }

  async replayEventsAfter(lastEventId, { send }) {
    const replay = await this.#log().replay(this.#scope, lastEventId);
    if (replay === undefined) {
      throw new Error('Event not found');
    }
    for (const { id, payload } of replay.events) {
      await send(id, JSON.parse(payload));
    }
    return replay.streamId;
  }
}

/** The part of a store that belongs to one session. */
class Scoped extends Hooks {
  #drop;

  constructor(log, scope) {
    super(log, scope);
    this.#drop = () => log().drop(scope);
  }

  drop() {
    this.#drop();
  }
}

/**
 * A bounded event store with an engine, and so bounds, of its own. Passed as `eventStore` to tailrope's
 * transports; one store may serve all sessions of a server. Where an SDK's own transport serves, it keeps
 * that transport's events, within what that transport can do.
 */
export class EventStore extends Hooks {
  #log;

  constructor(store = MEMORY, options = {}) {
    super(() => this.#hooked(), '');
    if (options.store !== undefined) {
      invalid('the store of an EventStore is its first argument');
    }
    const made = new Runtime({ ...options, store }, { isOfEventStore: true });
    Object.defineProperty(this, runtimeOf, { value: made });
  }

  #hooked() {
    this.#log ??= new HookedLog(this[runtimeOf]);
    return this.#log;
  }

  /** The part of this store that belongs to one session, for a transport of an SDK's own. */
  scoped(sessionId) {
    if (typeof sessionId !== 'string' || sessionId === '') {
      invalid('a session id is a string that is not empty');
    }
    const part = new Scoped(() => this.#hooked(), sessionId);
    // Our transports tell sessions apart by themselves.
    return Object.defineProperty(part, runtimeOf, { value: this[runtimeOf] });
  }
}

/** The engine that serves transports with this event store. */
export function runtimeFor(store) {
  if (store === undefined || store === null) {
    return sharedRuntime();
  }
  if (isStore(store) || typeof store === 'string') {
    invalid('`eventStore` takes an EventStore: new EventStore(store)');
  }
  return store[runtimeOf] ?? runtimeOfUserStore(store);
}
