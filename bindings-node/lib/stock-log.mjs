// The events of an SDK's own transport, where that serves.
import { randomBytes } from 'node:crypto';

/** What an event costs besides its message, in bytes. */
const EVENT_OVERHEAD = 256;

/** Bounded by events for each stream and by bytes in all. */
export class StockLog {
  #maxEvents;
  #maxBytes;
  #bytes = 0;
  // Oldest first.
  #events = new Map();
  #streams = new Map();

  constructor({ maxEventsPerStream, maxBytes }) {
    this.#maxEvents = maxEventsPerStream;
    this.#maxBytes = maxBytes;
  }

  append(streamId, message) {
    // The SDK's transport looks ids up for any session: they must not be guessed.
    const eventId = randomBytes(16).toString('base64url');
    const payload = JSON.stringify(message);
    const size = EVENT_OVERHEAD + payload.length;
    this.#events.set(eventId, { streamId, payload, size });
    this.#bytes += size;
    let ids = this.#streams.get(streamId);
    if (ids === undefined) {
      ids = new Set();
      this.#streams.set(streamId, ids);
    }
    ids.add(eventId);
    if (ids.size > this.#maxEvents) {
      this.#drop(first(ids));
    }
    while (this.#bytes > this.#maxBytes && this.#events.size > 1) {
      this.#drop(first(this.#events.keys()));
    }
    return eventId;
  }

  #drop(eventId) {
    const { streamId, size } = this.#events.get(eventId);
    this.#events.delete(eventId);
    this.#bytes -= size;
    const ids = this.#streams.get(streamId);
    ids.delete(eventId);
    if (ids.size === 0) {
      this.#streams.delete(streamId);
    }
  }

  streamOf(eventId) {
    return this.#events.get(eventId)?.streamId;
  }

  /** The messages of an event's stream after it; primings are positions, not messages. */
  after(eventId) {
    const ids = [...this.#streams.get(this.streamOf(eventId))];
    return ids
      .slice(ids.indexOf(eventId) + 1)
      .map((id) => ({ eventId: id, payload: this.#events.get(id).payload }))
      .filter(({ payload }) => payload !== '{}')
      .map(({ eventId: id, payload }) => ({ eventId: id, message: JSON.parse(payload) }));
  }
}

function first(ids) {
  return ids[Symbol.iterator]().next().value;
}
