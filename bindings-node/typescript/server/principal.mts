// Who sends a request, as far as a host can know it.
import type { IncomingMessage } from 'node:http';

import { invalid } from '../errors.mjs';
import { type Asker, Engine } from '../native.mjs';
import type { Exchange } from './exchange.mjs';

/**
 * Names the user who sends a request; a session is found by its own user alone. `undefined` leaves it to what
 * authentication and credentials say: docs/security.md.
 */
export type Principal = (request: IncomingMessage | Request) => string | null | undefined;

const CREDENTIAL_HEADERS = Engine.credentialHeaders();

/**
 * What the host knows of the sender, for the engine to make the principal of; nothing where nothing is known.
 * `principal` is the user's option of that name. See docs/security.md.
 */
export function askerOf(exchange: Exchange, principal: Principal | undefined): Asker | undefined {
  const named = principal?.(exchange.request) ?? undefined;
  if (named !== undefined && typeof named !== 'string') {
    throw new TypeError(`principal() returned a ${typeof named}, not a string that names the user or undefined`);
  }
  const userJson = exchange.user === undefined || exchange.user === null ? undefined : factsOf(exchange.user);
  const credentials: string[] = [];
  for (const name of CREDENTIAL_HEADERS) {
    const value = exchange.header(name);
    if (value !== undefined) {
      credentials.push(name, value);
    }
  }
  return named === undefined && userJson === undefined && credentials.length === 0
    ? undefined
    : { named, userJson, credentials };
}

function factsOf(user: NonNullable<unknown>): string {
  try {
    return JSON.stringify(user);
  } catch {
    // Not JSON as a whole: what is plain of it.
    const isPlain = ([, value]: [string, unknown]) => ['string', 'number', 'boolean'].includes(typeof value);
    return JSON.stringify(Object.fromEntries(Object.entries(user).filter(isPlain)));
  }
}

/** Checks the option `principal`. */
export function checkPrincipal(principal: Principal | undefined): Principal | undefined {
  if (principal !== undefined && (typeof principal !== 'function' || principal.constructor.name === 'AsyncFunction')) {
    invalid('principal must be a plain function that takes a request and returns a string or undefined');
  }
  return principal;
}
