// A user's own event store at work under our transport.
import { Outcomes } from './outcomes.mjs';
import { isPriming } from './request.mjs';

class ReplayTooLarge extends Error {}

/**
 * A user's own store at work for one session. The engine says what to store and in which order; here
 * it is only done. What takes longer than `storeTimeoutMs` counts as failed: the engine waits no longer.
 */
export class UserStore extends Outcomes {
  #store;
  #session;
  #maxReplayBytes;

  constructor(runtime, session) {
    super(runtime, session);
    this.#store = runtime.hostStore;
    this.#session = session;
    this.#maxReplayBytes = runtime.options.maxBytesPerStream;
  }

  perform() {
    for (const { number, stream, payload, lastEventId } of this.#session.takeOperations()) {
      if (stream !== undefined) {
        this.#storeEvent(number, stream, payload);
      } else {
        this.#replay(number, lastEventId);
      }
    }
  }

  async #storeEvent(number, stream, payload) {
    try {
      // The SDKs store a priming as an empty message.
      const message = payload === undefined ? {} : JSON.parse(payload);
      const eventId = await this.#store.storeEvent(stream, message);
      if (typeof eventId !== 'string') {
        throw new TypeError(`storeEvent() gave ${typeof eventId}, not a string`);
      }
      this.#session.stored(number, eventId);
    } catch (error) {
      // Whatever a user's store throws harms this event and no other (I9).
      this.#session.notStored(number, describe(error));
    }
  }

  async #replay(number, lastEventId) {
    const events = [];
    let size = 0;
    const send = async (id, message) => {
      const payload = isPriming(message) ? undefined : JSON.stringify(message);
      size += payload?.length ?? 0;
      if (size > this.#maxReplayBytes) {
        throw new ReplayTooLarge('event store replays more than maxBytesPerStream');
      }
      events.push({ id, payload });
    };
    try {
      // Only this says that an id is unknown: the SDKs' replay has no word for it but an error.
      const canLookUp = this.#store.getStreamIdForEventId !== undefined;
      if (canLookUp && (await this.#store.getStreamIdForEventId(lastEventId)) === undefined) {
        this.#session.replayed(number, undefined, []);
        return;
      }
      const stream = await this.#store.replayEventsAfter(lastEventId, { send });
      if (size > this.#maxReplayBytes) {
        throw new ReplayTooLarge('event store replays more than maxBytesPerStream');
      }
      this.#session.replayed(number, typeof stream === 'string' ? stream : undefined, events);
    } catch (error) {
      if (error instanceof ReplayTooLarge) {
        this.#session.replayed(number, undefined, []);
      } else {
        this.#session.notReplayed(number, describe(error));
      }
    }
  }
}

function describe(error) {
  return error instanceof Error ? `${error.name}: ${error.message}` : String(error);
}
