// What a session's server sends.
import { setImmediate } from 'node:timers';

import { ours } from '../errors.mjs';
import { Engine, type Session } from '../native.mjs';
import type { Runtime } from '../runtime.mjs';
import type { Outcomes } from './outcomes.mjs';
import type { Message, RequestId } from './sdk.mjs';

/** What the engine answers where the sender has to let the event loop turn (F-46). */
const YIELD = -1;
/** In characters. A message that is larger may push those before it out of their log. */
const LARGE = 64 << 10;

/** Sends the messages of one session's server. */
export class Outbox {
  #runtime: Runtime;
  #session: Session;
  #outcomes: Outcomes | undefined;
  /** The last turn of the event loop in which something was sent, and since when it is known. */
  #turn: number | undefined;
  #turnedAt = 0;
  #large: number;

  constructor(runtime: Runtime, session: Session, outcomes: Outcomes | undefined) {
    this.#runtime = runtime;
    this.#session = session;
    this.#outcomes = outcomes;
    this.#large = Math.min(LARGE, runtime.options.maxBytesPerStream / 4);
  }

  /** Stores one message on the stream that it belongs to, before anything of it is sent. */
  async send(message: Message, related: RequestId | undefined): Promise<void> {
    const { id } = message;
    const isResponse = message.method === undefined;
    let number: number | null;
    try {
      if (isResponse) {
        number = this.#session.respond(checkAnswers(id), this.#behindOthers(responseText(message, id)));
      } else {
        const payload = this.#behindOthers(JSON.stringify(message));
        const sinceMs = this.#sinceMs();
        number =
          id === undefined
            ? this.#session.notify(related, payload, sinceMs)
            : this.#session.ask(id, related, payload, sinceMs);
      }
    } catch (error) {
      throw ours(error);
    }
    if (number === YIELD) {
      await new Promise<void>((resolve) => setImmediate(resolve));
      this.#noteTurn();
    } else if (number !== null && this.#outcomes !== undefined) {
      const stored = this.#outcomes.outcome(number);
      // The engine answers the client for a response that was not stored.
      await (isResponse ? stored.catch(() => {}) : stored);
    }
  }

  /** Has readers get what was sent before a large message. */
  #behindOthers(payload: string): string {
    if (payload.length >= this.#large) {
      this.#runtime.flush();
    }
    return payload;
  }

  /** How long the event loop has not turned, as far as this session knows. */
  #sinceMs(): number {
    if (this.#turn !== this.#runtime.turn) {
      this.#noteTurn();
    }
    return performance.now() - this.#turnedAt;
  }

  #noteTurn(): void {
    this.#turn = this.#runtime.turn;
    this.#turnedAt = performance.now();
  }
}

/** Sends a message of a server whose session is not open, or not any more. */
export async function sendUnopened({ id, method }: Message, related: RequestId | undefined): Promise<void> {
  const request = method === undefined ? checkAnswers(id) : related;
  // What answers nobody is for a client that listens, and none does yet, or any more.
  if (request !== undefined) {
    throw new Error(`No connection established for request ID: ${String(request)}`);
  }
}

function checkAnswers(id: RequestId | undefined): RequestId {
  if (id === undefined) {
    throw new Error('Cannot send a response on a standalone SSE stream unless resuming a previous client request');
  }
  return id;
}

/** A response as JSON. One that cannot be written is replaced by an error, or its request would never end. */
function responseText(message: Message, id: RequestId | undefined): string {
  try {
    return JSON.stringify(message);
  } catch {
    return Engine.unwritable(id ?? '');
  }
}
