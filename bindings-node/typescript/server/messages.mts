// The messages of a request, as the SDK is given them.
import type { Admission } from '../native.mjs';
import { REWRITTEN } from './facts.mjs';
import type { Message, Sdk } from './sdk.mjs';

/** The messages in a body, as the SDK has them; nothing when the SDK does not take one of them. */
export function parsed(sdk: Sdk, body: unknown): Message[] | undefined {
  try {
    const value: unknown = typeof body === 'string' || Buffer.isBuffer(body) ? JSON.parse(String(body)) : body;
    return Array.isArray(value) ? value.map((message) => sdk.parseMessage(message)) : [sdk.parseMessage(value)];
  } catch {
    return undefined;
  }
}

/** The messages of an admitted request, which may be others than those in its body. `messages` are these, where they are known. */
export function messagesOf(
  sdk: Sdk,
  admission: Admission,
  facts: number,
  body: unknown,
  messages: Message[] | undefined,
): Message[] | undefined {
  if (facts & REWRITTEN) {
    const { rewritten } = admission;
    return rewritten === '' ? [] : parsed(sdk, rewritten);
  }
  return messages ?? parsed(sdk, body);
}
