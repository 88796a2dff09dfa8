// Sessions that this process adopts: their owner is gone, and a request for them came here.
import type { Adopted, Offer, Session } from '../native.mjs';
import type { Runtime, Waiter } from '../runtime.mjs';
import type { Exchange } from './exchange.mjs';

/** A session whose process is gone, and that goes on in this one. */
export interface AdoptedSession<S> {
  readonly sessionId: string;
  /** The server that was made for it here. It was told what the session's client has told. */
  readonly server: S;
}

/** What a transport needs that goes on with a session. */
export class Adoption {
  readonly sessionId: string;
  readonly adopted: Adopted;
  /** The request that came for the session. */
  readonly exchange: Exchange;
  /** Called when the server knows what its client has told, and before it is given any request. */
  readonly onReady: () => void | Promise<void>;

  constructor(sessionId: string, adopted: Adopted, exchange: Exchange, onReady: () => void | Promise<void>) {
    this.sessionId = sessionId;
    this.adopted = adopted;
    this.exchange = exchange;
    this.onReady = onReady;
  }
}

/** Goes on with a session. */
export type Adopt = (sessionId: string, adopted: Adopted, exchange: Exchange) => void;

/** A session of another process that goes on here, should that be gone. It does so also when the client that asked for it has left (I12). */
class Waiting implements Waiter {
  scheduled = false;
  #runtime: Runtime;
  #offer: Offer;
  #take: (adopted: Adopted) => void;

  constructor(runtime: Runtime, offer: Offer, take: (adopted: Adopted) => void) {
    this.#runtime = runtime;
    this.#offer = offer;
    this.#take = take;
    runtime.wait(offer.key, this);
  }

  pump(): void {
    const adopted = this.#offer.take();
    if (adopted !== null || this.#offer.isOver) {
      this.#runtime.forget(this.#offer.key);
    }
    if (adopted !== null) {
      // Another session may have given way to it.
      this.#runtime.armDue();
      this.#take(adopted);
    }
  }
}

/** Has `adopt` go on with a session of another process, to which a request is going to be relayed. */
export function offer(runtime: Runtime, sessionId: string, view: Session, exchange: Exchange, adopt: Adopt): void {
  new Waiting(runtime, view.offerAdoption(), (adopted) => adopt(sessionId, adopted, exchange));
}
