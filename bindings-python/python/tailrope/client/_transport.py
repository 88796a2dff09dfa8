"""The transport below an HTTP client: most exchanges pass, those that are streams become streams that come back."""

from __future__ import annotations

import asyncio
import functools
import logging
import weakref
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Unpack

from tailrope._native import ClientStream, classify, client_takes_answer, client_takes_request
from tailrope._options import is_disabled
from tailrope.client import _tasks
from tailrope.client._library import body_class, default_transport, library_of, need_asyncio, stream_error
from tailrope.client._options import ClientOptions, Headers, HeadersCallback, checked
from tailrope.client._stream import MAX_REDIRECTS, REDIRECTS, Connection, Stream, headers_of, now_ms

if TYPE_CHECKING:
    from tailrope.client._messages import Messages

    Base: Any = object
else:
    Base = object

logger = logging.getLogger("tailrope.client")

LINGER_MS = 1_000
"""How long the rest of an answered stream's connection is read, so that it can be used again."""
MAX_SESSIONS = 256
"""Of how many sessions the newest headers are kept."""
DIRECT = "tailrope.direct"
"""A request with this extension passes: its sender resumes by itself."""
SESSION, VERSION, AUTHORIZATION, LAST_EVENT_ID = (
    "mcp-session-id",
    "mcp-protocol-version",
    "authorization",
    "last-event-id",
)

Key = tuple[str, str | None]


class Streams:
    """The streams of a transport that are open."""

    def __init__(self) -> None:
        self._open: weakref.WeakSet[Stream] = weakref.WeakSet()

    def __len__(self) -> int:
        return len(self._open)

    def export(self) -> list[str]:
        """What it takes to continue each of them in another process: one token a stream that has a cursor. A token
        holds no credentials."""
        return [token for stream in self._open if (token := stream.token()) is not None]


class Unanswered:
    """A POST whose answer has not begun, and which of its requests nobody waits for any more."""

    def __init__(self, key: Key) -> None:
        self.key = key
        self.ids: list[int | str] = []

    def cancelled(self, request: int | str) -> None:
        self.ids.append(request)


class Source:
    """The body of the one answer that the SDK gets for a stream."""

    def __init__(self, stream: Stream, library: Any) -> None:
        self._stream, self._library = stream, library
        self._is_closed = self._is_over = False

    async def read(self) -> bytes | None:
        if self._is_over:
            return None
        frames = await self._stream.read()
        if frames is not None:
            assert isinstance(frames, bytes)
            return frames
        self._is_over = True
        if self._stream.is_aborted and not self._is_closed:
            raise self._library.ReadError("the transport was closed")
        if self._stream.failure is None:
            return None
        if responses := self._stream.machine.failure_frames():
            return responses
        raise stream_error(self._library, *self._stream.failure)

    async def aclose(self) -> None:
        self._is_closed = True
        await self._stream.aclose()


@functools.cache
def _of_library(cls: type, base: type) -> type:
    """The class as one of the library's own transports."""
    return cls if issubclass(cls, base) else type(cls.__name__, (cls, base), {"__module__": cls.__module__})


class ResumableTransport(Base):  # type: ignore[misc]
    """A transport for an `AsyncClient` of httpx (mcp 1.x) or httpx2 (mcp 2.x), whose streams outlive their connections.

    `inner` makes the connections: a transport of either library, or None for what a client of the installed SDK's
    library connects with by itself. It is closed with this one. asyncio only.

    Options are those of `ClientOptions`; ValueError names one that is unknown or out of its range. A stream that fails
    is a JSON-RPC error response for each request that waits, or an exception of the body with `code` on a stream that
    no request waits for (F-80).
    """

    def __new__(cls, inner: Any = None, **options: Unpack[ClientOptions]) -> ResumableTransport:
        own: Any = cls
        made: ResumableTransport = object.__new__(_of_library(own, library_of(inner).AsyncBaseTransport))
        return made

    def __init__(self, inner: Any = None, **options: Unpack[ClientOptions]) -> None:
        self.settings = checked(options)
        self.library = library_of(inner)
        self.streams = Streams()
        self._inner = default_transport(self.library) if inner is None else inner
        self._newest: dict[Key, dict[str, str]] = {}
        self._unanswered: set[Unanswered] = set()
        self._lingering: set[asyncio.Task[None]] = set()
        self._cancelling: set[asyncio.Task[None]] = set()

    async def handle_async_request(self, request: Any) -> Any:
        headers = request.headers
        is_ours = client_takes_request(request.method, headers.get("accept"), headers.get(VERSION))
        if not is_ours or request.extensions.get(DIRECT) or is_disabled():
            if request.method == "POST" and not request.extensions.get(DIRECT) and not is_disabled():
                return await _tasks.post(self, request, headers.get(VERSION))
            if request.method == "DELETE":
                self._newest.pop(key_of(request, headers.get(SESSION)), None)
            return await self._inner.handle_async_request(request)
        need_asyncio()
        self._remember(request)
        return await (self._get(request) if request.method == "GET" else self._post(request))

    async def _post(self, request: Any) -> Any:
        try:
            body = request.content
        except self.library.RequestNotRead:
            # It is made while it is sent; no MCP client does that.
            return await self._inner.handle_async_request(request)
        requests, cancelled = classify(body)
        key = key_of(request, request.headers.get(SESSION))
        open_or_not: list[Stream | Unanswered] = [*self.streams._open, *self._unanswered]
        for waiting in open_or_not:
            if waiting.key == key:
                for id in cancelled:
                    waiting.cancelled(id)
        if requests is None:
            return await self._inner.handle_async_request(request)
        unanswered = Unanswered(key)
        self._unanswered.add(unanswered)
        try:
            response = await self._inner.handle_async_request(request)
        finally:
            self._unanswered.discard(unanswered)
        if not client_takes_answer(response.status_code, response.headers.get("content-type")):
            return response
        machine = ClientStream.posted(requests, self.settings.native, now_ms(), False)
        stream = self._stream(machine, request)
        stream.attach(response)
        answer = self._answer(stream, response)
        for id in unanswered.ids:
            stream.cancelled(id)
        return answer

    async def _get(self, request: Any) -> Any:
        cursor = request.headers.get(LAST_EVENT_ID)
        if cursor:
            machine = ClientStream.continued(cursor, self.settings.native, now_ms(), False)
        else:
            machine = ClientStream.standalone(self.settings.native, now_ms(), False)
        stream = self._stream(machine, request)
        stream.is_first = True
        response = await stream.open()
        return self._answer(stream, response) if stream.is_opened else response

    def _stream(self, machine: ClientStream, request: Any) -> Stream:
        stream = Stream(self, machine, request, request.headers.get(SESSION))
        stream.key = key_of(request, stream.session_id)
        self.streams._open.add(stream)
        return stream

    def _answer(self, stream: Stream, response: Any) -> Any:
        # The answer to `initialize` names the session (W-080); the stream is of that one from now on.
        if stream.session_id is None:
            stream.session_id = response.headers.get(SESSION)
        stream.key = key_of(stream.request, stream.session_id)
        headers = _tasks.kept(response.headers)
        body = body_class(self.library)(Source(stream, self.library))
        return self.library.Response(200, headers=headers, stream=body, extensions=response.extensions)

    # What streams need: see Host.

    async def connect(self, stream: Stream, last_event_id: str | None) -> Any:
        if stream.is_first:
            # The SDK's own GET, as it is.
            stream.is_first = False
            return await self._inner.handle_async_request(stream.request)
        headers = await resume_headers(self, stream, last_event_id, self.newest(stream))
        return await get_within_origin(self._inner.handle_async_request, self.library, stream.request, headers)

    def read_out(self, connection: Connection) -> None:
        linger(connection, self._lingering)

    def ended(self, stream: Stream) -> None:
        self.streams._open.discard(stream)

    def newest(self, stream: Stream) -> dict[str, str] | None:
        """What has passed since a stream began, of its own session. Requests without one may be anybody's."""
        return None if stream.session_id is None else self._newest.get(stream.key)

    def _remember(self, request: Any) -> None:
        if SESSION not in request.headers:
            return
        found = {name: request.headers[name] for name in (AUTHORIZATION, VERSION) if name in request.headers}
        key = key_of(request, request.headers.get(SESSION))
        newest = self._newest.pop(key, {})
        self._newest[key] = newest | found
        if len(self._newest) > MAX_SESSIONS:
            del self._newest[next(iter(self._newest))]

    def resume(self, token: str, url: str, headers: Headers | HeadersCallback | None = None) -> Messages:
        """The messages of a stream that was exported, from where it was left; see `stream`. The connections are made by
        this transport, without what a client around it would add: give it the credentials as `headers`."""
        from tailrope.client._messages import Messages

        return Messages.resumed(self._inner.handle_async_request, self.library, self.settings, token, url, headers)

    def cancel(self, cancelling: Coroutine[Any, Any, None]) -> None:
        """Cancel a task that nobody waits for any more, in the background."""
        task = asyncio.get_running_loop().create_task(cancelling)
        self._cancelling.add(task)
        task.add_done_callback(self._cancelling.discard)

    async def aclose(self) -> None:
        """Abort every stream, and close what the connections are made with."""
        if self._cancelling:
            await asyncio.wait(list(self._cancelling))
        for task in list(self._lingering):
            task.cancel()
        for stream in list(self.streams._open):
            await stream.aclose()
        while self._lingering:
            await asyncio.wait(list(self._lingering))
        await self._inner.aclose()

    async def __aenter__(self) -> ResumableTransport:
        await self._inner.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


def key_of(request: Any, session_id: str | None) -> Key:
    """Whose stream it is: two sessions at one address share nothing, two addresses neither."""
    url = request.url
    return f"{url.scheme}://{url.netloc.decode('ascii')}{url.path}", session_id


async def resume_headers(host: Any, stream: Stream, last_event_id: str | None, newest: Any) -> Any:
    """The headers of a GET that resumes: those that the stream began with, except the body's, and what is newer."""
    began = stream.request.headers.multi_items()
    headers = host.library.Headers([item for item in began if not item[0].lower().startswith("content-")])
    headers.update(newest or {})
    if stream.session_id is not None:
        headers[SESSION] = stream.session_id
    headers.update(dict(await headers_of(host.settings)))
    headers["accept"] = "text/event-stream"
    headers.pop(LAST_EVENT_ID, None)
    headers.pop("transfer-encoding", None)
    if last_event_id is not None:
        # Ids may be any text; the wire's is UTF-8 (W-100).
        raw = [*headers.raw, (b"Last-Event-ID", last_event_id.encode())]
        headers = host.library.Headers(raw)
    return headers


async def get_within_origin(send: Any, library: Any, began: Any, headers: Any) -> Any:
    """GET, following redirects as long as they stay at this origin: what the request carries is meant for it alone."""
    url = began.url
    extensions = {name: value for name, value in began.extensions.items() if name != "trace"}
    for _ in range(MAX_REDIRECTS):
        response = await send(library.Request("GET", url, headers=headers, extensions=extensions))
        location = response.headers.get("location")
        if response.status_code not in REDIRECTS or location is None:
            return response
        target = url.join(location)
        if (target.scheme, target.host, target.port) != (url.scheme, url.host, url.port) or target.userinfo:
            return response
        await response.aclose()
        url = target
    return response


def linger(connection: Connection, tasks: set[asyncio.Task[None]]) -> asyncio.Task[None]:
    """Read out a connection in a task that `tasks` holds until it is done."""
    loop = asyncio.get_running_loop()

    def done(task: asyncio.Task[None]) -> None:
        tasks.discard(task)
        if not connection.is_closed:
            # A task that is cancelled before its first step has not even begun.
            closing = loop.create_task(connection.close())
            tasks.add(closing)
            closing.add_done_callback(tasks.discard)

    task = loop.create_task(_read_out(connection))
    tasks.add(task)
    task.add_done_callback(done)
    return task


async def _read_out(connection: Connection) -> None:
    try:
        async with asyncio.timeout(LINGER_MS / 1_000):
            while await connection.read() is not None:
                pass
    except Exception:
        logger.debug("the rest of a connection could not be read", exc_info=True)
    finally:
        await connection.close()
