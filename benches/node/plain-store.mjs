// The simplest event store that the stock transports accept: append to a list, look up in a map.

/**
 * Keeps everything, for ever, as the messages the SDK hands over; an id is the stream's name and the
 * place in its list. A replay costs what it replays, so that nothing of what is timed on the stock
 * side is the store's. The SDKs name the standalone stream of every session alike, so sessions share
 * it here; the bench has no events on it.
 */
export class PlainStore {
  #streams = new Map();

  async storeEvent(streamId, message) {
    const messages = this.#streams.get(streamId);
    if (messages === undefined) {
      this.#streams.set(streamId, [message]);
      return `${streamId}_1`;
    }
    return `${streamId}_${messages.push(message)}`;
  }

  async replayEventsAfter(lastEventId, { send }) {
    const end = lastEventId.lastIndexOf('_');
    const streamId = lastEventId.slice(0, end);
    const messages = this.#streams.get(streamId);
    if (messages === undefined) {
      return '';
    }
    for (let count = Number(lastEventId.slice(end + 1)) + 1; count <= messages.length; count++) {
      const message = messages[count - 1];
      // A priming is stored as a message without anything in it; nobody waits for it again.
      if (message.jsonrpc !== undefined) {
        await send(`${streamId}_${count}`, message);
      }
    }
    return streamId;
  }
}
