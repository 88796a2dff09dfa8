"""The simplest event store that the stock transports accept: append to a list, look up in a dict."""

from typing import Any

from mcp.server.streamable_http import EventCallback, EventMessage, EventStore


class PlainStore(EventStore):
    """Keeps everything, for ever, as the objects the SDK hands over.

    The SDKs name a stream by its request id alone, so two sessions that use the same id share a stream here;
    the bench client uses ids that are unique in the process.
    """

    def __init__(self) -> None:
        self.streams: dict[str, list[EventMessage]] = {}
        self.places: dict[str, tuple[str, int]] = {}

    async def store_event(self, stream_id: str, message: Any) -> str:
        stream = self.streams.setdefault(stream_id, [])
        event_id = str(len(self.places) + 1)
        self.places[event_id] = (stream_id, len(stream))
        stream.append(EventMessage(message, event_id))
        return event_id

    async def replay_events_after(self, last_event_id: str, send_callback: EventCallback) -> str | None:
        place = self.places.get(last_event_id)
        if place is None:
            return None
        stream_id, index = place
        stream = self.streams[stream_id]
        while (index := index + 1) < len(stream):
            if stream[index].message is not None:
                await send_callback(stream[index])
        return stream_id
