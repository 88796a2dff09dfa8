// What the options of a transport mean for its requests.
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

/** Why a request from this host or origin is not served, where the transport's options restrict these: fault and text. */
export function forbidden(
  exchange: Exchange,
  { enableDnsRebindingProtection, allowedHosts, allowedOrigins }: AllowedSenders,
): [fault: string, text: string] | undefined {
  if (!enableDnsRebindingProtection) {
    return undefined;
  }
  const { host } = exchange;
  const origin = exchange.header('origin');
  if (allowedHosts?.length && (host === undefined || !allowedHosts.includes(host))) {
    return ['foreign_host', String(host ?? null)];
  }
  if (allowedOrigins?.length && origin && !allowedOrigins.includes(origin)) {
    return ['foreign_origin', origin];
  }
  return undefined;
}
