// The scopes that calls need: the SDK's server says which, and what is not allowed is answered with a challenge.
import type { Exchange } from './exchange.mjs';
import { fail, refusalOf } from './refusal.mjs';
import { isRequest, type Message, type ScopeChallenge, type ScopeChallengeResolver, type Sdk } from './sdk.mjs';

/** The scopes that a request needs and its sender has not, or a promise of them. */
export type Found = ReturnType<ScopeChallengeResolver>;

/** What one transport knows of scopes. */
export class Scopes {
  #sdk: Sdk;
  #onerror: (error: Error) => void;
  #resolver: ScopeChallengeResolver | undefined;

  constructor(sdk: Sdk, onerror: (error: Error) => void) {
    this.#sdk = sdk;
    this.#onerror = onerror;
  }

  setResolver(resolver: ScopeChallengeResolver): void {
    this.#resolver = resolver;
  }

  /** The scopes that one of the requests needs and its sender has not. Never throws. */
  find(messages: Message[], authInfo: unknown): Found {
    const resolver = this.#resolver;
    if (resolver === undefined) {
      return undefined;
    }
    try {
      for (let at = 0; at < messages.length; at++) {
        const request = messages[at];
        const found = isRequest(request)
          ? resolver({ request, ...(authInfo !== undefined && { authInfo }) })
          : undefined;
        if (found instanceof Promise) {
          return found.then((challenge) => challenge || this.find(messages.slice(at + 1), authInfo));
        }
        if (found) {
          return found;
        }
      }
    } catch (error) {
      return Promise.reject(error);
    }
    return undefined;
  }

  /** Whether it is certain at once that requests of somebody who is not known need no scope. */
  needsNone(messages: Message[]): boolean {
    const found = this.find(messages, undefined);
    if (found instanceof Promise) {
      // It is asked again where it can be waited for.
      found.catch(() => {});
    }
    return !found;
  }

  /** Whether a call lacks a scope; then that was the answer. `found` is what was found, where something was. */
  async challenged(
    messages: Message[],
    exchange: Exchange,
    found = this.find(messages, exchange.auth),
  ): Promise<boolean> {
    let challenge: ScopeChallenge | undefined;
    try {
      challenge = await found;
    } catch (error) {
      fail(exchange, refusalOf(this.#sdk.major, 'internal'), this.#onerror, 'a resolver of scopes failed', error);
      return true;
    }
    const response = challenge && this.#sdk.scopeChallengeResponse?.(challenge, exchange.auth);
    if (response !== undefined) {
      exchange.whole(response.status, Object.fromEntries(response.headers), await response.text());
    }
    return response !== undefined;
  }
}
