// A user's own event store at work under our transport.
import { describe } from '../host.mjs';
import type { Session } from '../native.mjs';
import type { Runtime } from '../runtime.mjs';
import { Outcomes } from '../server/outcomes.mjs';
import { isPriming } from './priming.mjs';

/** What takes each event of a replay, in turn. */
export interface ReplaySender<Message> {
  send: (eventId: string, message: Message) => Promise<void>;
}

/** An event store that a user wrote, for any SDK line. */
export interface HostStore {
  storeEvent(streamId: string, message: unknown): Promise<string>;
  getStreamIdForEventId?(eventId: string): Promise<string | undefined>;
  replayEventsAfter(lastEventId: string, sender: ReplaySender<unknown>): Promise<string>;
}

class ReplayTooLarge extends Error {}

/**
 * A user's own store at work for one session. The engine says what to store and in which order; here
 * it is only done. What takes longer than `storeTimeoutMs` counts as failed: the engine waits no longer.
 */
export class UserStore extends Outcomes {
  #store: HostStore;
  #session: Session;
  #maxReplayBytes: number;

  constructor(runtime: Runtime, session: Session, store: HostStore) {
    super(runtime, session);
    this.#store = store;
    this.#session = session;
    this.#maxReplayBytes = runtime.options.maxBytesPerStream;
  }

  override perform(): void {
    for (const { number, stream, payload, lastEventId } of this.#session.takeOperations()) {
      if (stream !== undefined) {
        void this.#storeEvent(number, stream, payload);
      } else if (lastEventId !== undefined) {
        void this.#replay(number, lastEventId);
      }
    }
  }

  async #storeEvent(number: number, stream: string, payload: string | undefined): Promise<void> {
    try {
      // The SDKs store a priming as an empty message.
      const message: unknown = payload === undefined ? {} : JSON.parse(payload);
      const eventId: unknown = await this.#store.storeEvent(stream, message);
      if (typeof eventId !== 'string') {
        throw new TypeError(`storeEvent() gave ${typeof eventId}, not a string`);
      }
      this.#session.stored(number, eventId);
    } catch (error) {
      // Whatever a user's store throws harms this event and no other (I9).
      this.#session.notStored(number, describe(error));
    }
  }

  async #replay(number: number, lastEventId: string): Promise<void> {
    const store = this.#store;
    const events: { id: string; payload: string | undefined }[] = [];
    let size = 0;
    const send = async (id: string, message: unknown) => {
      const payload = isPriming(message) ? undefined : JSON.stringify(message);
      size += payload?.length ?? 0;
      if (size > this.#maxReplayBytes) {
        throw new ReplayTooLarge('event store replays more than maxBytesPerStream');
      }
      events.push({ id, payload });
    };
    try {
      // Only this says that an id is unknown: the SDKs' replay has no word for it but an error.
      if (store.getStreamIdForEventId !== undefined && (await store.getStreamIdForEventId(lastEventId)) === undefined) {
        this.#session.replayed(number, undefined, []);
        return;
      }
      const stream: unknown = await store.replayEventsAfter(lastEventId, { send });
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
