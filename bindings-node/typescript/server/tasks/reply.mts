// The answer to a call that may become a task.
import type { Sink, SinkListener } from '../exchange.mjs';
import { type Resolvers, withResolvers } from '../with-resolvers.mjs';
import type { Room } from './room.mjs';

export class Reply implements Room, SinkListener {
  #sink: Sink;
  #gone: (() => void) | undefined;
  #isOpen = false;
  #isBegun = false;
  #isOver = false;
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
    return this.#isBegun || this.#isOver;
  }

  get room(): Promise<void> | undefined {
    return this.#full?.promise;
  }

  /** From now on it is seen when the client leaves. */
  open(): void {
    if (!this.#isOver) {
      this.#isOpen = true;
      if (!this.#sink.open(this)) {
        this.lost();
      }
    }
  }

  lost(): void {
    if (this.#isOver) {
      return;
    }
    this.#end();
    this.#sink.drop();
    const gone = this.#gone;
    this.unlink();
    gone?.();
  }

  writable(): void {
    this.#full?.resolve();
    this.#full = undefined;
  }

  /** Who sends the answer waits for the client no more, and its end concerns nobody; or from now on somebody else. */
  unlink(gone?: () => void): void {
    this.#gone = gone;
    this.writable();
  }

  whole(status: number, headers: Record<string, string>, data?: string | Uint8Array): void {
    if (!this.isGiven) {
      this.#end();
      this.#sink.whole(status, headers, data);
    }
  }

  begin(status: number, headers: Record<string, string>): void {
    if (!this.isGiven) {
      this.#isBegun = true;
      this.#sink.head(status, headers);
    }
  }

  write(data: string | Uint8Array): void {
    if (this.#isOver) {
      return;
    }
    try {
      if (!this.#sink.write(data) && this.#gone !== undefined) {
        this.#full ??= withResolvers();
      }
    } catch {
      // Not everything that a host answers with has a socket that says so.
      this.lost();
    }
  }

  end(): void {
    if (!this.#isOver) {
      this.#end();
      this.#sink.end();
    }
  }

  #end(): void {
    this.#isOver = true;
    this.writable();
    if (this.#isOpen) {
      this.#sink.release();
    }
    this.#done.resolve();
  }
}
