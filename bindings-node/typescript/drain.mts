// The end of a process that others go on for.
import { setTimeout } from 'node:timers';

import { checkNames } from './options.mjs';
import { living, pinRouters } from './runtime.mjs';
import { checkMs } from './server/transport-options.mjs';

export interface DrainOptions {
  /** When clients come back at the earliest: what the restart takes. Default the option `drainRetryMs`. */
  retryMs?: number;
  /** Each client is told up to this much more, so that not all come back at once. Default the option `drainSpreadMs`. */
  spreadMs?: number;
  /**
   * How long to wait for connections to end, and for calls, from the first drain on. Default the option `drainWithinMs`. Calls that
   * run on behind it end when the process does, with an error.
   */
  withinMs?: number;
}

/**
 * Closes every connection because the process is going away, and lets calls run on that other processes can show. Durations are
 * in milliseconds.
 *
 * Each connection ends with an id and a `retry`, so that its client comes back; what connects meanwhile gets its priming event and
 * ends as well, and no session is opened (503). Routers, handlers and transports that are there are drained for ever; those that
 * are made once this is over are not. With a store that several processes share, clients go on at another process: they are sent
 * there what their calls still send here, and a session goes there as soon as no call of it runs here. Calls of clients that cannot
 * be told to come back (those of a revision before 2025-11-25, and those that are answered in JSON) run on; those that still run
 * when `drainWithinMs` is over get a JSON-RPC error.
 *
 * Resolves to whether nothing is left: no connection, and no call that another process could show the end of.
 */
export async function drain(options: DrainOptions = {}): Promise<boolean> {
  checkNames(options, ['retryMs', 'spreadMs', 'withinMs'], 'drain()');
  const { retryMs, spreadMs, withinMs } = options;
  const pauses = [checkMs('retryMs', retryMs), checkMs('spreadMs', spreadMs)] as const;
  const chosenMs = checkMs('withinMs', withinMs);
  const draining = [...living()];
  pinRouters();
  for (const runtime of draining) {
    runtime.engine.drain(...pauses);
    // When it is over, calls that cannot be handed over get an error.
    runtime.armDue();
  }
  for (;;) {
    const left = draining.map((runtime) => runtime.engine.drained(chosenMs));
    if (!left.includes(null)) {
      draining.forEach((runtime) => runtime.retire());
      return left.every((isNothing) => isNothing);
    }
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
}
