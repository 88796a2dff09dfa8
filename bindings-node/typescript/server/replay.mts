// What the client of a session has told before: the server of a process that goes on with the session is told it again.
import type { SeenRequest } from './exchange.mjs';
import type { Receiver } from './receiver.mjs';
import { isRequest, type Message, type RequestId, type Sdk } from './sdk.mjs';
import { withResolvers } from './with-resolvers.mjs';

/** Tells one server. */
export class Replay {
  #sdk: Sdk;
  #receiver: Receiver;
  /** The request that the server is given again, until it has answered. */
  #waiting: { id: RequestId; resolve: (answer: Message | undefined) => void } | undefined;

  constructor(sdk: Sdk, receiver: Receiver) {
    this.#sdk = sdk;
    this.#receiver = receiver;
  }

  /** Gives the server the messages, one behind the other. Rejects where the session `isOver`, or the server does not take them. */
  async of(texts: string[], request: SeenRequest, isOver: () => boolean): Promise<void> {
    for (const text of texts) {
      const message = this.#sdk.parseMessage(JSON.parse(text));
      const answer = await this.#answerTo(message, request);
      checkGoesOn(isOver);
      // Whether the others succeed is between the server and its client.
      if (answer !== undefined && 'error' in answer && this.#sdk.isInitializeRequest(message)) {
        throw new Error('the server answers `initialize` with an error');
      }
    }
  }

  async #answerTo(message: Message, request: SeenRequest): Promise<Message | undefined> {
    const answered = withResolvers<Message | undefined>();
    if (isRequest(message)) {
      this.#waiting = { id: message.id, resolve: answered.resolve };
    } else {
      answered.resolve(undefined);
    }
    this.#receiver.dispatch(message, request, false, answered.reject);
    const answer = await answered.promise;
    this.#waiting = undefined;
    return answer;
  }

  /** The server sends this response. */
  answered(message: Message): void {
    if (this.#waiting !== undefined && this.#waiting.id === message.id) {
      this.#waiting.resolve(message);
    }
  }

  /** The transport is closed: nobody answers any more. */
  close(): void {
    this.#waiting?.resolve(undefined);
  }
}

export function checkGoesOn(isOver: () => boolean): void {
  if (isOver()) {
    throw new Error('the session has ended meanwhile');
  }
}
