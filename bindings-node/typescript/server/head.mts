// The head of a request, as native functions take it.
import type { Head } from '../native.mjs';

/** What a header says. Where node:http has several of it they become one text, with commas. */
type Value = string | string[] | undefined;

/** Stands for what is absent. */
const NONE = '\0';

/** The parts of a head that count, a line for each: see `Head` of the native half. */
export function headOf(
  method: string,
  accept: Value,
  contentType: Value,
  protocolVersion: Value,
  sessionId: Value,
  lastEventId: Value,
): Head {
  const content = `${method}\n${accept ?? NONE}\n${contentType ?? NONE}`;
  return `${content}\n${protocolVersion ?? NONE}\n${sessionId ?? NONE}\n${lastEventId ?? NONE}`;
}
