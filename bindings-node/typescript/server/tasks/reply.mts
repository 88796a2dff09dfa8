// The answer to a call that may become a task.
import type { Sink, SinkListener } from '../exchange.mjs';
import { type Resolvers, withResolvers } from '../with-resolvers.mjs';
import type { Room } from './room.mjs';

export class Reply implements Room, SinkListener {
  /** Until the answer is over: a task outlives it by far. */
  #sink: Sink | undefined;
  #gone: (() => void) | undefined;
  #isOpen = false;
  #isBegun = false;
  /** What waits until the client has taken what waits for it. */
  #full: Resolvers<void> | undefined;
  #done = withResolvers<void>();

  /** `gone` is called, once, when the client has closed its connection, unless the reply was unlinked before. */
  constructor(sink: Sink, gone: () => void) {
    this.#sink = sink;
    this.#gone = gone;
  }

  /** Resolves when everything is handed over, or the client is gone. */
  get done(): Promise<void> {
    return this.#done.promise;
  }

  /** There is an answer, though not all of it may be there; or nobody is left to get one. */
  get isGiven(): boolean {
    return this.#isBegun || this.#sink === undefined;
  }

  get room(): Promise<void> | undefined {
    return this.#full?.promise;
  }

  /** From now on it is seen when the client leaves. */
  open(): void {
    this.#isOpen = true;
    if (this.#sink?.open(this) === false) {
      this.lost();
    }
  }

  lost(): void {
    const gone = this.#gone;
    this.#end()?.drop();
    gone?.();
  }

  writable(): void {
    this.#full?.resolve();
    this.#full = undefined;
  }

  /** Who sends the answer waits for the client no more, and its end concerns nobody. */
  unlink(): void {
    this.#gone = undefined;
    this.writable();
  }

  whole(status: number, headers: Record<string, string>, data?: string | Uint8Array): void {
    if (!this.isGiven) {
      this.#end()?.whole(status, headers, data);
    }
  }

  begin(status: number, headers: Record<string, string>): void {
    if (!this.isGiven) {
      this.#isBegun = true;
      this.#sink?.head(status, headers);
    }
  }

  write(data: string | Uint8Array): void {
    try {
      if (this.#sink?.write(data) === false && this.#gone !== undefined) {
        this.#full ??= withResolvers();
      }
    } catch {
      // Not everything that a host answers with has a socket that says so.
      this.lost();
    }
  }

  end(): void {
    this.#end()?.end();
  }

  /** Nothing follows but what the sink is told now. */
  #end(): Sink | undefined {
    const sink = this.#sink;
    this.#sink = undefined;
    if (this.#isOpen) {
      sink?.release();
    }
    this.unlink();
    this.#done.resolve();
    return sink;
  }
}
