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
