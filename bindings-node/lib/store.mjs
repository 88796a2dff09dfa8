// Our event store where the SDKs take one, and which engine serves a transport.
import { Runtime, runtimeOfUserStore, sharedRuntime } from './runtime.mjs';
import { StockLog } from './stock-log.mjs';

/** Tells our stores, also those of another copy of this file, see runtime.mjs. */
const runtime = Symbol.for('tailrope.runtime');

/**
 * A bounded event store with an engine, and so bounds, of its own. Passed as `eventStore` to tailrope's
 * transports; one store may serve all sessions of a server. Where an SDK's own transport serves, it keeps
 * that transport's events, within what that transport can do.
 */
export class EventStore {
  #stock;

  constructor(store = 'memory:', options = {}) {
    if (store !== 'memory:') {
      throw new TypeError(`unknown event store ${JSON.stringify(store)}: "memory:" is the one there is`);
    }
    Object.defineProperty(this, runtime, { value: new Runtime(options) });
  }

  #log() {
    this.#stock ??= new StockLog(this[runtime].options);
    return this.#stock;
  }

  async storeEvent(streamId, message) {
    return this.#log().append(streamId, message);
  }

  async getStreamIdForEventId(eventId) {
    return this.#log().streamOf(eventId);
  }

  async replayEventsAfter(lastEventId, { send }) {
    const log = this.#log();
    const streamId = log.streamOf(lastEventId);
    if (streamId === undefined) {
      throw new Error('Event not found');
    }
    for (const { eventId, message } of log.after(lastEventId)) {
      await send(eventId, message);
    }
    return streamId;
  }
}

/** The engine that serves transports with this event store. */
export function runtimeFor(store) {
  if (store === undefined || store === null) {
    return sharedRuntime();
  }
  return store[runtime] ?? runtimeOfUserStore(store);
}
