// Answers to what is not served, in the words of the SDKs' transports.
import { type Body, Engine, type Refusal } from '../native.mjs';
import type { Exchange } from './exchange.mjs';

/** Answers an exchange with a refusal of the engine. */
export function writeRefusal(exchange: Exchange, { status, allow, body, retryAfterS }: Refusal): void {
  const more = { ...(allow && { allow }), ...(retryAfterS && { 'retry-after': String(retryAfterS) }) };
  exchange.whole(status, { 'content-type': 'application/json', ...more }, body);
}

/** The answer to what the host does not take, as the core words it for an SDK line: see `Fault` there. */
export function refusalOf(major: number, fault: string, text?: string, body?: Body): Refusal {
  return Engine.refusal(major, fault, text, body);
}
