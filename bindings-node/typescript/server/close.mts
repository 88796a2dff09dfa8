// Closing connections from a handler (SEP-1699), with the options that the SDKs' types do not name.
import { checkNames } from '../options.mjs';
import { checkMs } from './transport-options.mjs';

export interface CloseOptions {
  /** How long the stream's clients wait before they come back, now and on later closes, in milliseconds. */
  retryMs?: number;
  /** A resumed connection is closed again after this time, in milliseconds. 0 is pure polling. */
  holdMs?: number;
}

/** What a handler gets from the SDKs: `extra` of 1.x, `ctx` of 2.x. */
export interface HandlerContext {
  http?: { closeSSE?: () => void; closeStandaloneSSE?: () => void };
  closeSSEStream?: () => void;
  closeStandaloneSSEStream?: () => void;
}

/**
 * Closes the connection that carries this request's stream, from a handler; the request runs on and the client
 * comes back. Returns false where nothing can be resumed.
 */
export function closeSSEStream(context: HandlerContext, options?: CloseOptions): boolean {
  return called(context.http?.closeSSE ?? context.closeSSEStream, options);
}

/** Closes the connection of the session's standalone stream, likewise. */
export function closeStandaloneSSEStream(context: HandlerContext, options?: CloseOptions): boolean {
  return called(context.http?.closeStandaloneSSE ?? context.closeStandaloneSSEStream, options);
}

/** The SDKs' own functions take and give nothing; ours take options and say whether they closed. */
function called(
  close: ((options?: CloseOptions) => boolean | void) | undefined,
  options: CloseOptions | undefined,
): boolean {
  return close === undefined ? false : (close(options) ?? true);
}

/** The pauses that are asked of a close. */
export function pausesOf(
  options: CloseOptions | undefined,
): [retryMs?: number | undefined, holdMs?: number | undefined] {
  if (options === undefined) {
    return [];
  }
  checkNames(options, ['retryMs', 'holdMs'], 'a close');
  return [checkMs('retryMs', options.retryMs), checkMs('holdMs', options.holdMs)];
}
