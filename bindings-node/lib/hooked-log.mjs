// The events of an SDK's own transport, where that serves, in one of our stores.
import { clearTimeout, setTimeout } from 'node:timers';

import { isPriming } from './request.mjs';

const NOTIFICATION = 0;
const REQUEST = 2;
const RESPONSE = 3;
const MAX_TIMER_MS = 2 ** 31 - 1;

function kindOf({ method, id }) {
  if (method === undefined) {
    return RESPONSE;
  }
  return id === undefined ? NOTIFICATION : REQUEST;
}

/** Streams by the names that the SDK gives them, in scopes. */
export class HookedLog {
  scheduled = false;
  #log;
  #runtime;
  #waiting = new Map();

  constructor(runtime) {
    this.#runtime = runtime;
    this.#log = runtime.engine.hookLog();
    runtime.wait(this.#log.key, this);
  }

  pump() {
    for (const { number, code, message, ...outcome } of this.#log.takeOutcomes()) {
      const waiting = this.#waiting.get(number);
      // What comes after it was given up changes nothing.
      waiting?.(code === undefined ? undefined : Object.assign(new Error(message), { code }), outcome);
    }
  }

  #outcome(number) {
    const { storeTimeoutMs } = this.#runtime.options;
    return new Promise((resolve, reject) => {
      const late = () => settle(Object.assign(new Error('the event store did not answer in time'), { code: 'store_timed_out' }));
      const timer = setTimeout(late, Math.min(storeTimeoutMs, MAX_TIMER_MS));
      const settle = (error, outcome) => {
        clearTimeout(timer);
        this.#waiting.delete(number);
        if (error === undefined) {
          resolve(outcome);
        } else {
          reject(error);
        }
      };
      this.#waiting.set(number, settle);
      this.pump();
    });
  }

  /** Resolves to the event's id. */
  async store(scope, streamId, message) {
    const [kind, payload] = isPriming(message) ? [NOTIFICATION, ''] : [kindOf(message), JSON.stringify(message)];
    const { eventId } = await this.#outcome(this.#log.store(scope, String(streamId), kind, payload));
    return eventId;
  }

  /** The stream of an id and what came after it; nothing when the id means nothing. */
  async replay(scope, eventId) {
    const { stream, events } = await this.#outcome(this.#log.replay(scope, String(eventId)));
    return stream === undefined ? undefined : { streamId: stream, events };
  }

  drop(scope) {
    this.#log.dropScope(scope);
  }
}
