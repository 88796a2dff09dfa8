// Answers to what is not served, in the words of the SDKs' transports.
import { type Body, Engine, type Refusal } from '../native.mjs';
import type { Exchange } from './exchange.mjs';

type OnError = ((error: Error) => void) | undefined;

/** Tells the user's `onerror` what happened, as it is. What that throws changes nothing. */
export function report(onerror: OnError, error: unknown): void {
  try {
    onerror?.(error as Error);
  } catch {
    // Reporting only.
  }
}

/** Tells of a refusal, in words of its own or by the `error` behind it, and answers with it. */
export function refuse(exchange: Exchange, refusal: Refusal, onerror: OnError, error?: unknown): void {
  if (onerror !== undefined) {
    report(onerror, error ?? new Error(refusal.message));
  }
  answer(exchange, refusal);
}

/** Answers with a refusal that concerns its client alone. */
export function answer(exchange: Exchange, { status, allow, body, retryAfterS }: Refusal): void {
  const more = { ...(allow && { allow }), ...(retryAfterS && { 'retry-after': String(retryAfterS) }) };
  exchange.whole(status, { 'content-type': 'application/json', ...more }, body);
}

/** The answer to what the host does not take, as the core words it for an SDK line: see `Fault` there. */
export function refusalOf(major: number, fault: string, text?: string, body?: Body): Refusal {
  return Engine.refusal(major, fault, text, body);
}
