// Requests for a session that their transport has not: hosts make transports for sessions that they know from before.
import type { Body } from '../native.mjs';
import { type Runtime, runtimeOf, writeLogOnce } from '../runtime.mjs';
import type { Adopt } from './adoption.mjs';
import type { Exchange } from './exchange.mjs';
import type { Sdk } from './sdk.mjs';
import { type StoredOptions, StoredSessions } from './stored-sessions.mjs';

const NOT_HERE =
  'A request names a session, and came to a transport that never got its `initialize`. Without a store that outlives the process ' +
  'only the transport that opened a session can serve it: createSessionRouter() finds that, and with such a store serves the ' +
  'sessions of other processes';

/**
 * Serves a request for the session that it names, wherever that is; `adopt` goes on with one whose process is gone. Resolves to false,
 * with nothing answered, where it names none that is known.
 */
export async function serveNamed(
  sdk: Sdk,
  runtime: Runtime,
  options: StoredOptions,
  exchange: Exchange,
  body: Body,
  adopt: Adopt | undefined,
): Promise<boolean> {
  const isNamed = exchange.header('mcp-session-id') !== undefined;
  if (!isNamed || sdk.isInitializeRequest(exchange.parsedBody ?? jsonOf(body))) {
    return false;
  }
  if (!runtime.outlivesProcess) {
    writeLogOnce('warn', NOT_HERE);
    return false;
  }
  exchange.text = body;
  const pinned = { ...options, ...{ [runtimeOf]: runtime } };
  const served = await new StoredSessions(sdk, pinned, adopt).serve(exchange);
  if (typeof served !== 'object') {
    return served === 'served';
  }
  const owner = runtime.ownerOf(served.here);
  await owner?.serve(exchange);
  return owner !== undefined;
}

/** The value of a body; nothing where it has none. */
function jsonOf(body: Body): unknown {
  try {
    return JSON.parse(String(body));
  } catch {
    return undefined;
  }
}
