// The events of an SDK's own transport, where that serves, in one of our stores.
import { clearTimeout, setTimeout } from 'node:timers';

import { TailropeError, told } from '../errors.mjs';
import type { HookLog, HookOutcome } from '../native.mjs';
import type { Runtime, Waiter } from '../runtime.mjs';
import { isPriming } from './priming.mjs';

const NOTIFICATION = 0;
const REQUEST = 2;
const RESPONSE = 3;
const MAX_TIMER_MS = 2 ** 31 - 1;

/** What came after an event. */
export interface Replay {
  streamId: string;
  events: { id: string; payload: string }[];
}

function kindOf({ method, id }: { method?: unknown; id?: unknown }): number {
  if (method === undefined) {
    return RESPONSE;
  }
  return id === undefined ? NOTIFICATION : REQUEST;
}

/** Streams by the names that the SDK gives them, in scopes. */
export class HookedLog implements Waiter {
  scheduled = false;
  #log: HookLog;
  #runtime: Runtime;
  #waiting = new Map<number, (error: Error | undefined, outcome?: HookOutcome) => void>();

  constructor(runtime: Runtime) {
    this.#runtime = runtime;
    this.#log = runtime.engine.hookLog();
    runtime.wait(this.#log.key, this);
  }

  pump(): void {
    for (const outcome of this.#log.takeOutcomes()) {
      const { number, code, message } = outcome;
      const waiting = this.#waiting.get(number);
      // What comes after it was given up changes nothing.
      waiting?.(code === undefined ? undefined : told(code, message), outcome);
    }
  }

  /** What an operation found: who asked knows what that is. */
  #outcome<Found>(number: number): Promise<Found> {
    const { storeTimeoutMs } = this.#runtime.options;
    return new Promise((resolve, reject) => {
      const late = () => settle(new TailropeError('store_timed_out', 'the event store did not answer in time'));
      const timer = setTimeout(late, Math.min(storeTimeoutMs, MAX_TIMER_MS));
      const settle = (error: Error | undefined, outcome?: HookOutcome) => {
        clearTimeout(timer);
        this.#waiting.delete(number);
        if (error === undefined) {
          resolve(outcome as Found);
        } else {
          reject(error);
        }
      };
      this.#waiting.set(number, settle);
      this.pump();
    });
  }

  /** Resolves to the event's id. */
  async store(scope: string, streamId: string, message: unknown): Promise<string> {
    const [kind, payload] = isPriming(message) ? [NOTIFICATION, ''] : [kindOf(message), JSON.stringify(message)];
    const { eventId } = await this.#outcome<{ eventId: string }>(
      this.#log.store(scope, String(streamId), kind, payload),
    );
    return eventId;
  }

  /** The stream of an id and what came after it; nothing when the id means nothing. */
  async replay(scope: string, eventId: string): Promise<Replay | undefined> {
    const { stream, events } = await this.#outcome<HookOutcome>(this.#log.replay(scope, String(eventId)));
    return stream === undefined || events === undefined ? undefined : { streamId: stream, events };
  }

  drop(scope: string): void {
    this.#log.dropScope(scope);
  }
}
