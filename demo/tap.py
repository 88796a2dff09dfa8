"""A passive tap between client and server: forwards every byte and decodes what it forwards.

It changes nothing and adds nothing, so what it reports is what was on the wire. HTTP/1.1 and Server-Sent Events are
decoded from the copied bytes, by code that shares nothing with the engine or the SDK.
"""

import asyncio
import contextlib
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Self


@dataclass
class Exchange:
    """One HTTP request and its answer: what the project calls a connection when the answer carries a stream."""

    number: int
    method: str
    headers: dict[str, str]
    upstream_port: int
    body: bytes = b""
    status: int = 0
    content_type: str = ""
    # Of one that is no stream.
    answer: bytes = b""


@dataclass
class Event:
    """One event as the server sent it; `retry_ms` is None where the event carried no `retry` field."""

    event_id: str = ""
    data: str | None = None
    retry_ms: int | None = None


@dataclass
class Observer:
    """Callbacks, all called on the tap's event loop at the moment the bytes pass."""

    on_request: Callable[[Exchange], None]
    on_response: Callable[[Exchange], None]
    on_event: Callable[[Exchange, Event], None]
    on_end: Callable[[Exchange], None]


class EventDecoder:
    """Bytes of one `text/event-stream` body in, events out; comments are skipped."""

    def __init__(self) -> None:
        self._rest = b""
        self._event = Event()
        self._is_empty = True

    def feed(self, data: bytes) -> list[Event]:
        *lines, self._rest = (self._rest + data).split(b"\n")
        events = []
        for raw in lines:
            line = raw.rstrip(b"\r").decode()
            if not line:
                if not self._is_empty:
                    events.append(self._event)
                self._event, self._is_empty = Event(), True
            elif not line.startswith(":"):
                self._take(*self._split(line))
        return events

    @staticmethod
    def _split(line: str) -> tuple[str, str]:
        name, _, value = line.partition(":")
        return name, value.removeprefix(" ")

    def _take(self, name: str, value: str) -> None:
        event = self._event
        if name == "id":
            event.event_id = value
        elif name == "data":
            event.data = value if event.data is None else f"{event.data}\n{value}"
        elif name == "retry" and value.isdigit():
            event.retry_ms = int(value)
        else:
            return
        self._is_empty = False


class HttpDecoder:
    """One direction of an HTTP/1.1 connection: calls `on_head`, `on_body` and `on_end` for each message in turn."""

    def __init__(
        self,
        on_head: Callable[[str, dict[str, str]], bool],
        on_body: Callable[[bytes], None],
        on_end: Callable[[], None],
    ) -> None:
        self._on_head, self._on_body, self._on_end = on_head, on_body, on_end
        self._buffer = b""
        self._in_body = False
        self._is_chunked = False
        self._left = 0  # bytes of the body, or of the current chunk, still to come; -1: the body ends with the socket
        self._last_chunk = False

    def feed(self, data: bytes) -> None:
        self._buffer += data
        while self._step():
            pass

    def eof(self) -> None:
        if self._in_body:
            self._finish()

    def _step(self) -> bool:
        """Consume one syntactic piece; False when more bytes are needed."""
        if not self._in_body:
            return self._read_head()
        if self._left:
            piece = self._buffer if self._left < 0 else self._buffer[: self._left]
            if not piece:
                return False
            self._buffer = self._buffer[len(piece) :]
            if self._left > 0:
                self._left -= len(piece)
            self._on_body(piece)
            if self._left == 0 and not self._is_chunked:
                self._finish()
            return True
        return self._read_chunk_size()

    def _read_head(self) -> bool:
        head, separator, rest = self._buffer.partition(b"\r\n\r\n")
        if not separator:
            return False
        self._buffer = rest
        first, *lines = head.decode("latin-1").split("\r\n")
        pairs = (line.partition(":") for line in lines)
        headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
        ends_with_socket = self._on_head(first, headers)
        self._is_chunked = "chunked" in headers.get("transfer-encoding", "")
        self._last_chunk = False
        self._in_body = True
        if self._is_chunked:
            self._left = 0
        elif "content-length" in headers:
            self._left = int(headers["content-length"])
        else:
            self._left = -1 if ends_with_socket else 0
        if self._left == 0 and not self._is_chunked:
            self._finish()
        return True

    def _read_chunk_size(self) -> bool:
        # The line end after a chunk's data is skipped here, before the next size.
        line, separator, rest = self._buffer.partition(b"\r\n")
        if not separator:
            return False
        self._buffer = rest
        if self._last_chunk:
            if not line:
                self._finish()
        elif line:
            self._left = int(line.split(b";")[0], 16)
            self._last_chunk = self._left == 0
        return True

    def _finish(self) -> None:
        self._in_body = False
        self._on_end()


@dataclass
class _Link:
    """State of one client socket: requests that wait for their answers, oldest first."""

    upstream_port: int
    waiting: list[Exchange] = field(default_factory=list)
    current: Exchange | None = None
    events: EventDecoder | None = None


class Tap:
    """Listens on a free port of the loopback interface and forwards each connection to the first of `upstream_ports`
    that takes it.
    """

    def __init__(self, upstream_ports: list[int], observer: Observer) -> None:
        self.upstream_ports = upstream_ports
        self._observer = observer
        self._links: dict[asyncio.StreamWriter, _Link] = {}
        self._numbers = itertools.count(1)
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = 0

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._server is not None:
            self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def prefer(self, port: int) -> None:
        """From now on clients come to this one if it is there: connections between two requests are closed."""
        self.upstream_ports.sort(key=lambda other: other != port)
        for writer, link in self._links.items():
            if link.current is None and not link.waiting:
                writer.close()

    async def _connect(self) -> tuple[int, asyncio.StreamReader, asyncio.StreamWriter]:
        for port in self.upstream_ports:
            with contextlib.suppress(OSError):
                return port, *await asyncio.open_connection("127.0.0.1", port)
        raise ConnectionRefusedError

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None  # a stream callback always runs in a task
        self._tasks.add(task)
        try:
            port, up_reader, up_writer = await self._connect()
            link = self._links[writer] = _Link(port)
            requests, responses = self._decoders(link)
            await asyncio.gather(
                self._forward(reader, up_writer, requests), self._forward(up_reader, writer, responses)
            )
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            writer.close()
            self._links.pop(writer, None)
            self._tasks.discard(task)

    async def _forward(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, decoder: HttpDecoder) -> None:
        try:
            while data := await source.read(65536):
                # Forward first: decoding must not delay a byte.
                sink.write(data)
                decoder.feed(data)
                await sink.drain()
        except ConnectionError:
            pass
        finally:
            decoder.eof()
            with contextlib.suppress(OSError, RuntimeError):
                sink.close()

    def _decoders(self, link: _Link) -> tuple[HttpDecoder, HttpDecoder]:
        observer = self._observer

        def request_head(line: str, headers: dict[str, str]) -> bool:
            link.waiting.append(Exchange(next(self._numbers), line.split(" ")[0], headers, link.upstream_port))
            return False

        def request_body(data: bytes) -> None:
            link.waiting[-1].body += data

        def request_end() -> None:
            observer.on_request(link.waiting[-1])

        def response_head(line: str, headers: dict[str, str]) -> bool:
            exchange = link.current = link.waiting.pop(0)
            exchange.status = int(line.split(" ")[1])
            exchange.content_type = headers.get("content-type", "")
            link.events = EventDecoder() if exchange.content_type.startswith("text/event-stream") else None
            observer.on_response(exchange)
            return exchange.status not in (202, 204)

        def response_body(data: bytes) -> None:
            exchange = link.current
            if exchange is None:
                return
            if link.events is None:
                exchange.answer += data
                return
            for event in link.events.feed(data):
                observer.on_event(exchange, event)

        def response_end() -> None:
            exchange, link.current = link.current, None
            if exchange is not None:
                observer.on_end(exchange)

        return (
            HttpDecoder(request_head, request_body, request_end),
            HttpDecoder(response_head, response_body, response_end),
        )
