// What the options of a transport mean for its requests.
import { Engine, type Refusal } from '../native.mjs';
import type { Exchange } from './exchange.mjs';

/** A transport's `keepAliveMs`, which the SDKs take with any value, as the engine takes it. */
export function keepAliveOf(value: number): number {
  return Number.isFinite(value) && value >= 1 ? Math.min(Math.round(value), 2 ** 32 - 1) : 0;
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
