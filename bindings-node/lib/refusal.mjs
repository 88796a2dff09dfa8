// Answers to what is not served, in the words of the SDKs' transports.
import { Engine } from './native.mjs';

/** Answers an exchange with a refusal of the engine. */
export function writeRefusal(exchange, { status, allow, body }) {
  exchange.whole(status, { 'content-type': 'application/json', ...(allow && { allow }) }, body);
}

/** The answer to what the host does not take, as the core words it for an SDK line: see `Fault` there. */
export function refusalOf(major, fault, text, body) {
  return Engine.refusal(major, fault, text, body);
}

export const REFUSED = -32000;
export const SESSION_NOT_FOUND = -32001;
export const INTERNAL_ERROR = -32603;
export const PARSE_ERROR = -32700;

/** Answers an exchange with a JSON-RPC error. */
export function answerError(exchange, status, error, id = null) {
  const body = JSON.stringify({ jsonrpc: '2.0', error, id });
  exchange.whole(status, { 'content-type': 'application/json' }, body);
}

export function tooLargeMessage(maxBytes) {
  return `Payload Too Large: Request body must not exceed ${maxBytes} bytes`;
}
