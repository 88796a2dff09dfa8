// How an SDK is given a message.
import { callHost } from '../host.mjs';
import type { SeenRequest } from './exchange.mjs';
import { type Extra, isRequest, type Message, type Sdk, type Transport } from './sdk.mjs';

/** Not under `--frozen-intrinsics`. */
const canLimitStacks = Object.getOwnPropertyDescriptor(Error, 'stackTraceLimit')?.writable === true;

/** What takes a transport's messages: its `onmessage`. */
export class Receiver {
  #transport: Transport;
  #sdk: Sdk;
  #onmessage: Transport['onmessage'];
  #sets = 0;
  /** It is the SDK's own function, with nothing of the host's before or behind it. */
  #isSdks = false;

  /** From now on it is known who sets the transport's `onmessage`. */
  constructor(transport: Transport, sdk: Sdk) {
    this.#transport = transport;
    this.#sdk = sdk;
    Object.defineProperty(transport, 'onmessage', {
      configurable: true,
      enumerable: true,
      get: () => this.#onmessage,
      set: (onmessage: Transport['onmessage']) => {
        this.#sets += 1;
        this.#isSdks = false;
        this.#onmessage = onmessage;
      },
    });
  }

  /** An SDK connects its server: it has set its function, which calls what was there before. */
  connected(): void {
    this.#isSdks = this.#sets === 1;
  }

  /** Gives it a message of a request. With `canPoll` its handler can close the connection. `failed` gets what it throws. */
  dispatch(message: Message, request: SeenRequest, canPoll: boolean, failed: (error: unknown) => void): void {
    callHost(() => {
      const extra = this.#sdk.extra(request);
      if (canPoll && isRequest(message)) {
        const transport = this.#transport;
        extra.closeSSEStream = (options) => transport.closeSSEStream(message.id, options);
        extra.closeStandaloneSSEStream = (options) => transport.closeStandaloneSSEStream(options);
      }
      return this.#give(message, extra);
    }, failed);
  }

  /** Gives a message to it. Throws what that throws, and gives what that gives. */
  #give(message: Message, extra: Extra): unknown {
    if (!canLimitStacks || !this.#isSdks || !isRequest(message)) {
      return this.#transport.onmessage?.(message, extra);
    }
    const { stackTraceLimit } = Error;
    try {
      // The SDKs ask of every request whether it is a response, by a schema check that fails with an error: its stack would be a
      // sixth of what a call costs. Handlers start in a later microtask, with their stacks.
      Error.stackTraceLimit = 0;
      return this.#transport.onmessage?.(message, extra);
    } finally {
      Error.stackTraceLimit = stackTraceLimit;
    }
  }
}
