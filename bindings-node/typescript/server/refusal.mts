// Answers to what is not served, in the words of the SDKs' transports.
import { callHost, traceOf } from '../host.mjs';
import { type Body, Engine, type Refusal } from '../native.mjs';
import { countingRuntime, writeLog } from '../runtime.mjs';
import { namingBody } from './body.mjs';
import type { Exchange } from './exchange.mjs';

type OnError = ((error: Error) => void) | undefined;

/** Tells the user's `onerror` what happened, as it is. What that throws changes nothing. */
export function report(onerror: OnError, error: unknown): void {
  callHost(
    () => onerror?.(error as Error),
    () => {},
  );
}

/**
 * Tells what failed here. Always in the log too: an SDK gives every transport an `onerror`, and whether somebody listens
 * behind it cannot be seen.
 */
export function reportFailure(onerror: OnError, what: string, error: unknown): void {
  writeLog('error', `${what}: ${traceOf(error)}`);
  report(onerror, error);
}

/** Tells of a refusal, in words of its own or by the `error` behind it, and answers with it. */
export function refuse(exchange: Exchange, refusal: Refusal, onerror: OnError, error?: unknown): void {
  if (onerror !== undefined) {
    report(onerror, error ?? new Error(refusal.message));
  }
  answer(exchange, refusal);
}

/** Tells what failed here, and answers with the refusal. */
export function fail(exchange: Exchange, refusal: Refusal, onerror: OnError, what: string, error: unknown): void {
  reportFailure(onerror, what, error);
  answer(exchange, refusal);
}

/** Answers with a refusal that concerns its client alone. */
export function answer(exchange: Exchange, refusal: Refusal): void {
  countingRuntime().engine.refused(refusal);
  exchange.whole(refusal.status, headersOf(refusal), refusal.body);
}

export const JSON_HEADERS = { 'content-type': 'application/json' };

export function headersOf({ allow, retryAfterS }: Refusal): Record<string, string> {
  return { ...JSON_HEADERS, ...(allow && { allow }), ...(retryAfterS && { 'retry-after': String(retryAfterS) }) };
}

/** The answer to what the host does not take, as the core words it for an SDK line: see `Fault` there. */
export function refusalOf(major: number, fault: string, text?: string, body?: Body): Refusal {
  return Engine.refusal(major, fault, text, body);
}

/** A request failed here: it is answered, as the SDKs do, and told. */
export function failed(exchange: Exchange, major: number, onerror: OnError, error: unknown): void {
  fail(exchange, refusalOf(major, 'internal', undefined, namingBody(exchange)), onerror, 'a request failed', error);
}

/** Serves an exchange by `serve`. Never rejects: the SDKs' users do not wait for it. */
export async function guarded<Outcome>(
  exchange: Exchange,
  major: number,
  onerror: OnError,
  serve: () => Promise<Outcome>,
): Promise<Outcome | undefined> {
  try {
    exchange.checkUnanswered();
    return await serve();
  } catch (error) {
    failed(exchange, major, onerror, error);
    return undefined;
  }
}
