// The simplest event store that the stock transports accept: append to a list, look up in a map.

/**
 * Keeps everything, for ever, as the objects the SDK hands over. A replay costs what it replays, so
 * that nothing of what is timed on the stock side is the store's. The SDKs name the standalone stream
 * of every session alike, so sessions share it here; the bench has no events on it.
 */
export class PlainStore {
  #streams = new Map();
  #places = new Map();

  async storeEvent(streamId, message) {
    let events = this.#streams.get(streamId);
    if (events === undefined) {
      this.#streams.set(streamId, (events = []));
    }
    const eventId = String(this.#places.size + 1);
    this.#places.set(eventId, { streamId, index: events.length });
    events.push({ eventId, message });
    return eventId;
  }

  async replayEventsAfter(lastEventId, { send }) {
    const place = this.#places.get(lastEventId);
    if (place === undefined) {
      return '';
    }
    const events = this.#streams.get(place.streamId);
    for (let index = place.index + 1; index < events.length; index++) {
      const { eventId, message } = events[index];
      // A priming is stored as a message without anything in it; nobody waits for it again.
      if (message.jsonrpc !== undefined) {
        await send(eventId, message);
      }
    }
    return place.streamId;
  }
}
