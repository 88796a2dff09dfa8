// How an SDK is given a message.
import type { Extra, Message, Transport } from './sdk.mjs';

/** Not under `--frozen-intrinsics`. */
const canLimitStacks = Object.getOwnPropertyDescriptor(Error, 'stackTraceLimit')?.writable === true;

/** Gives a message to what is connected to the transport. Throws what that throws, and gives what that gives. */
export function give(transport: Transport, message: Message, extra: Extra): unknown {
  const { stackTraceLimit } = Error;
  try {
    // The SDKs ask of every request whether it is a response, by a schema check that fails with an error: its
    // stack would be a sixth of what a call costs. Handlers start in a later microtask, with their stacks.
    setStackTraceLimit(0);
    return transport.onmessage?.(message, extra);
  } finally {
    setStackTraceLimit(stackTraceLimit);
  }
}

function setStackTraceLimit(limit: number): void {
  if (canLimitStacks) {
    Error.stackTraceLimit = limit;
  }
}
