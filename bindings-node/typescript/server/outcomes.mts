// What becomes of messages whose event store answers later.
import { told } from '../errors.mjs';
import type { Session } from '../native.mjs';
import type { Runtime, Waiter } from '../runtime.mjs';
import type { Resolvers } from './with-resolvers.mjs';

/** The late outcomes of one session's messages. */
export class Outcomes implements Waiter {
  scheduled = false;
  #session: Session;
  #runtime: Runtime;
  #onWoken: (() => void) | undefined;
  #waiting = new Map<number, Omit<Resolvers<void>, 'promise'>>();
  #closed = false;

  /** `onWoken` is called whenever the session is woken. */
  constructor(runtime: Runtime, session: Session, onWoken?: () => void) {
    this.#session = session;
    this.#runtime = runtime;
    this.#onWoken = onWoken;
    runtime.wait(session.key, this);
  }

  pump(): void {
    this.#catchUp();
    this.#onWoken?.();
  }

  #catchUp(): void {
    this.perform();
    this.#settle();
    // What the store does not answer in time is given up at a tick.
    this.#runtime.armDue();
  }

  /** Starts what the session asks its host to do. */
  perform(): void {}

  /** Waits until the store has answered for one message. Rejects when it was not stored. */
  outcome(number: number): Promise<void> {
    return new Promise((resolve, reject) => {
      if (this.#closed) {
        resolve();
        return;
      }
      this.#waiting.set(number, { resolve, reject });
      // Now, not in a turn to come: the store is called when its event is sent, as the SDKs do.
      this.#catchUp();
    });
  }

  #settle(): void {
    for (const { number, code, message } of this.#session.takeOutcomes()) {
      const waiting = this.#waiting.get(number);
      this.#waiting.delete(number);
      if (code === undefined) {
        waiting?.resolve();
      } else {
        waiting?.reject(told(code, message));
      }
    }
  }

  /** The session has ended: nothing is stored for it any more. */
  close(): void {
    this.#closed = true;
    this.#runtime.forget(this.#session.key);
    this.#settle();
    for (const { resolve } of this.#waiting.values()) {
      resolve();
    }
    this.#waiting.clear();
  }
}
