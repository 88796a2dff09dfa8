// What the options of a transport mean for its requests.
import { invalid } from '../errors.mjs';
import { Engine, type Refusal } from '../native.mjs';
import type { Runtime } from '../runtime.mjs';
import type { Exchange } from './exchange.mjs';
import { checkPrincipal, type Identity, type Principal } from './requester.mjs';

/** What transports, routers and handlers take beside the SDKs' options. What `configure()` was given serves those that have none. */
export interface OwnOptions {
  /** Names users. */
  principal?: Principal;
  /**
   * What all processes of the server call it. Servers that share a store find no sessions of each other, and the path of its
   * endpoint names a server that has no name: docs/security.md.
   */
  serverName?: string;
}

/** Checks the option `serverName`. */
export function checkServerName(name: string | undefined): string | undefined {
  if (name !== undefined && (typeof name !== 'string' || name === '')) {
    invalid('serverName must be a string that is not empty');
  }
  return name;
}

/** What the options of a transport, or else of its runtime, say of requesters and servers. */
export function identityOf(runtime: Runtime, options: OwnOptions): Identity {
  return {
    principal: checkPrincipal(options.principal) ?? runtime.principal,
    logUser: runtime.logUser,
    serverName: checkServerName(options.serverName) ?? runtime.serverName,
    identityHeaders: runtime.identityHeaders,
  };
}

/** The longest duration that can be told. */
const MAX_MS = 2 ** 32 - 1;

/** Checks a duration. Longer ones end at the longest. */
export function checkMs(name: string, value: number | undefined): number | undefined {
  if (value === undefined) {
    return undefined;
  }
  if (!Number.isInteger(value) || value < 0) {
    invalid(`${name} must be a whole number that is not negative`);
  }
  return Math.min(value, MAX_MS);
}

/** A transport's `keepAliveMs`, which the SDKs take with any value, as the engine takes it. */
export function keepAliveOf(value: number): number {
  return Number.isFinite(value) && value >= 1 ? Math.min(Math.round(value), MAX_MS) : 0;
}

/** From where requests are served. */
export interface AllowedSenders {
  enableDnsRebindingProtection?: boolean;
  allowedHosts?: string[];
  allowedOrigins?: string[];
}

/** The answer to a request from a host or an origin that the transport's options do not allow. */
export function forbidden(
  major: number,
  exchange: Exchange,
  { enableDnsRebindingProtection, allowedHosts, allowedOrigins }: AllowedSenders,
): Refusal | null {
  return enableDnsRebindingProtection
    ? Engine.forbidden(major, allowedHosts ?? [], allowedOrigins ?? [], exchange.host, exchange.header('origin'))
    : null;
}
