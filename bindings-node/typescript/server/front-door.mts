// The sessions that a front serves, and what it has for them.

import { traceOf } from '../host.mjs';
import type { Front, FrontTerms, Session } from '../native.mjs';
import { type Runtime, type Waiter, writeLog } from '../runtime.mjs';
import { IDENTITY_HEADERS, type Identity } from './requester.mjs';

/** The option by which the transports of a router find the front that their sessions are handed over to. */
export const frontDoor = Symbol('tailrope.front');

/** What the front has to know of all sessions. */
export type EndpointTerms = Pick<FrontTerms, 'path' | 'allowedHosts' | 'allowedOrigins'>;

/** What it has to know of one. */
type SessionTerms = Omit<FrontTerms, keyof EndpointTerms>;

export class FrontDoor implements Waiter {
  #runtime: Runtime;
  scheduled = false;
  #front: Front;
  #terms: EndpointTerms;
  #isPassed: () => boolean;

  /** `isPassed` says whether there is something in front of sessions that every request has to pass. */
  constructor(runtime: Runtime, front: Front, terms: EndpointTerms, isPassed: () => boolean) {
    this.#runtime = runtime;
    this.#front = front;
    this.#terms = terms;
    this.#isPassed = isPassed;
    runtime.isWokenElsewhere = true;
    runtime.wait(front.key, this);
  }

  /**
   * Has the front serve a session, unless something here has to see its requests, or says of a requester what only this knows, or
   * has its events: an event store of a user's own works on this thread.
   */
  handOver(session: Session, runtime: Runtime, { principal, identityHeaders }: Identity, terms: SessionTerms): void {
    const isKnown = principal === undefined && identityHeaders.size === IDENTITY_HEADERS.length;
    const isHere = runtime === this.#runtime && runtime.hostStore === undefined;
    if (isKnown && isHere && !this.#isPassed()) {
      this.#front.serve(session, { ...this.#terms, ...terms });
    }
  }

  /** Gives sessions what came for them. */
  pump(): void {
    for (const arrival of this.#front.take()) {
      if (typeof arrival === 'string') {
        this.#runtime.becomeIdle([arrival]);
        continue;
      }
      try {
        const { text } = arrival;
        const factsAt = text.indexOf('\n') + 1;
        const bodyAt = text.indexOf('\n', factsAt) + 1;
        const owner = this.#runtime.ownerOf(text.slice(0, factsAt - 1));
        if (!owner?.takeArrival(arrival, Number(text.slice(factsAt, bodyAt - 1)), text.slice(bodyAt))) {
          arrival.decline();
        }
      } catch (error) {
        // One that fails must not keep the others from theirs.
        writeLog('error', `a request failed: ${traceOf(error)}`);
        arrival.decline();
      }
    }
  }

  close(): void {
    this.#runtime.forget(this.#front.key);
  }
}
