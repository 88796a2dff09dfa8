"""The simplest event store that the stock transports accept: append to a list, look up in a dict."""

from typing import Any

from mcp.server.streamable_http import EventCallback, EventMessage, EventStore


class PlainStore(EventStore):
    """Keeps everything, for ever, as the messages the SDK hands over.

    An id is the stream's name and the place in its list. The SDKs name a stream by its request id alone, so two
    sessions that use the same id share a stream here; the bench client uses ids that are unique in the process.
    """

    def __init__(self) -> None:
        self.streams: dict[str, list[Any]] = {}

    async def store_event(self, stream_id: str, message: Any) -> str:
        stream = self.streams.get(stream_id)
        if stream is None:
            stream = self.streams[stream_id] = []
        stream.append(message)
        return f"{stream_id}_{len(stream)}"

    async def replay_events_after(self, last_event_id: str, send_callback: EventCallback) -> str | None:
        stream_id, _, count = last_event_id.rpartition("_")
        stream = self.streams.get(stream_id)
        if stream is None:
            return None
        place = int(count)
        while place < len(stream):
            message = stream[place]
            place += 1
            # A priming is stored as no message; nobody waits for it again.
            if message is not None:
                await send_callback(EventMessage(message, f"{stream_id}_{place}"))
        return stream_id
