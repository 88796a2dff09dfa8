"""Streams without an SDK: one POST, or one token, and its messages."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any, Self, Unpack

from tailrope._errors import TailropeError
from tailrope._native import ClientStream, classify, client_refusal, client_takes_answer, client_takes_request
from tailrope.client._factory import stock_settings
from tailrope.client._library import NotTaken, default_transport, library_of, need_asyncio
from tailrope.client._options import Headers, HeadersCallback, Settings, StreamOptions, checked
from tailrope.client._stream import Connection, Stream, headers_of, now_ms
from tailrope.client._transport import (
    DIRECT,
    SESSION,
    VERSION,
    get_within_origin,
    linger,
    resume_headers,
)

GivenHeaders = Headers | HeadersCallback | None
Send = Callable[[Any], Awaitable[Any]]

_lingering: set[asyncio.Task[None]] = set()
"""Connections that are read out for clients of others."""


class Messages:
    """The messages of one stream, as parsed JSON objects, in order, each once.

    An iterator that is left early has to be closed: `async with` does it, or `aclose()`. A stream that fails raises
    TailropeError, whose `code` tells why.
    """

    def __init__(
        self, start: Callable[[Messages], Awaitable[None]], library: Any, settings: Settings, send: Send
    ) -> None:
        self.library, self.settings = library, settings
        self._start: Callable[[Messages], Awaitable[None]] | None = start
        self._send = send
        self._stream: Stream | None = None
        self._saved: str | None = None
        self._ready: deque[dict[str, Any]] = deque()
        self._lingering: tuple[asyncio.Task[None], Connection] | None = None
        self._alarm: asyncio.Timeout | None = None
        self._client: Any = None
        self._owned: Any = None
        self._is_closed = False

    @classmethod
    def listening(cls, send: Send, library: Any, settings: Settings, url: str, headers: GivenHeaders) -> Messages:
        """The messages of the standalone stream."""
        machine = ClientStream.standalone(settings.native, now_ms(), True)
        return cls._begun(machine, send, library, settings, url, headers)

    @classmethod
    def resumed(
        cls, send: Send, library: Any, settings: Settings, token: str, url: Any, headers: GivenHeaders
    ) -> Messages:
        """A stream that was saved as a token. Raises ValueError for what is no token."""
        machine = ClientStream.saved(token, settings.native, now_ms(), True)
        messages = cls._begun(machine, send, library, settings, url, headers)
        messages._saved = token
        return messages

    @classmethod
    def _begun(
        cls, machine: ClientStream, send: Send, library: Any, settings: Settings, url: Any, headers: GivenHeaders
    ) -> Messages:
        if callable(headers):
            settings, headers = replace(settings, headers=headers), None
        own = library.Headers(headers or {})
        for name, value in ((SESSION, machine.session_id), (VERSION, machine.protocol_version)):
            if value is not None:
                own.setdefault(name, value)

        async def start(messages: Messages) -> None:
            request = messages._request("GET", url, headers=own)
            stream = Stream(messages, machine, request, own.get(SESSION))
            # There is no answer to show: a refusal is a failure like any other.
            stream.is_opened = True
            messages._stream = stream

        return cls(start, library, settings, send)

    @classmethod
    def posted(
        cls, send: Send, library: Any, settings: Settings, url: str, message: Any, headers: GivenHeaders
    ) -> Messages:
        """The messages that a POST is answered with."""
        if callable(headers):
            settings, headers = replace(settings, headers=headers), None

        async def start(messages: Messages) -> None:
            own = library.Headers({"accept": "application/json, text/event-stream"})
            own.update(headers or {})
            own.update(dict(await headers_of(settings)))
            need_resumption("POST", own)
            request = messages._request("POST", url, headers=own, json=message)
            requests, _ = classify(request.content)
            response = await messages._sent(request)
            if response is None:
                return
            content_type = response.headers.get("content-type", "")
            if requests is not None and client_takes_answer(response.status_code, content_type):
                machine = ClientStream.posted(requests, settings.native, now_ms(), True)
                session_id = request.headers.get(SESSION) or response.headers.get(SESSION)
                messages._stream = Stream(messages, machine, request, session_id)
                messages._stream.attach(response)
                return
            try:
                body = await response.aread()
            finally:
                await response.aclose()
            if not response.is_success:
                raise client_refusal(response.status_code)
            if body and content_type.lower().startswith("application/json"):
                messages._hand_out(body)

        return cls(start, library, settings, send)

    async def _sent(self, request: Any) -> Any:
        """The answer to the POST; None when nobody waits for it any more."""
        try:
            async with asyncio.timeout(None) as self._alarm:
                response = await self._send(request)
        except Exception:
            if self._is_closed:
                return None
            raise
        finally:
            self._alarm = None
        if self._is_closed:
            await Connection(response).close()
            return None
        return response

    def _request(self, method: str, url: str, **parts: Any) -> Any:
        timeout = {"timeout": stock_settings()[0].as_dict()}
        build = self.library.Request if self._client is None else self._client.build_request
        return build(method, url, extensions=timeout if self._client is None else None, **parts)

    @property
    def token(self) -> str | None:
        """What it takes to continue in another process; None while there is no cursor, or when the stream is done. It
        follows the messages that were taken: one counts as taken when the next is asked for."""
        return self._saved if self._stream is None else self._stream.token()

    @property
    def session_id(self) -> str | None:
        """The session, as far as it is known."""
        return None if self._stream is None else self._stream.session_id

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> dict[str, Any]:
        while not self._ready:
            if self._is_closed:
                raise StopAsyncIteration
            try:
                await self._more()
            except BaseException:
                await self.aclose()
                raise
        return self._ready.popleft()

    async def _more(self) -> None:
        if (start := self._start) is not None:
            self._start = None
            need_asyncio()
            await start(self)
            return
        stream = self._stream
        delivery = None if stream is None else await stream.read()
        if delivery is not None:
            text, event = delivery
            # Other types than `message` are nothing of MCP's.
            if event is None:
                assert isinstance(text, str)
                self._hand_out(text)
            return
        if stream is not None and stream.failure is not None:
            raise TailropeError(*stream.failure)
        await self.aclose()

    def _hand_out(self, text: str | bytes) -> None:
        found = json.loads(text)
        self._ready.extend(found if isinstance(found, list) else [found])

    async def aclose(self) -> None:
        """Abort the stream, at once."""
        self._is_closed = True
        self._saved = None
        if self._alarm is not None:
            with contextlib.suppress(RuntimeError):
                self._alarm.reschedule(asyncio.get_running_loop().time())
        if self._stream is not None:
            await self._stream.aclose()
        if self._owned is not None:
            owned, self._owned = self._owned, None
            if self._lingering is not None:
                # Nobody uses its connection again.
                task, connection = self._lingering
                task.cancel()
                await asyncio.wait([task])
                await connection.close()
            await owned.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    # What the stream needs: see Host.

    async def connect(self, stream: Stream, last_event_id: str | None) -> Any:
        headers = await resume_headers(self, stream, last_event_id, None)
        need_resumption("GET", headers)
        return await get_within_origin(self._send, self.library, stream.request, headers)

    def read_out(self, connection: Connection) -> None:
        self._lingering = linger(connection, _lingering), connection

    def ended(self, stream: Stream) -> None:
        pass


def need_resumption(method: str, headers: Any) -> None:
    """Raises `not_resumable` for a request of a revision that has no resumption (W-069): it is left alone."""
    version = headers.get(VERSION)
    if not client_takes_request(method, headers.get("accept"), version):
        raise NotTaken(version)


def stream(
    url: str,
    *,
    message: Mapping[str, Any] | list[Any] | None = None,
    token: str | None = None,
    headers: Headers | HeadersCallback | None = None,
    client: Any = None,
    **options: Unpack[StreamOptions],
) -> Messages:
    """The messages that the server sends for `message`, which is POSTed to `url` once, or those of the stream of a
    `token`; with neither those of the standalone stream.

    `client`, an `AsyncClient` of either library, makes the connections; without one a client with the SDK's timeouts is
    made, and closed at the end. Options are those of `StreamOptions`. Raises ValueError for a wrong argument; what the
    iterator raises: see `Messages`.

        async with tailrope.client.stream(url, message=request, headers=session) as messages:
            async for message in messages:
                ...
    """
    if message is not None and token is not None:
        raise ValueError("a stream begins with a message or with a token, not with both")
    library, settings = library_of(client), checked(options)
    owned = None
    if client is None:
        timeout, follow_redirects = stock_settings()
        transport = default_transport(library)
        client = owned = library.AsyncClient(transport=transport, timeout=timeout, follow_redirects=follow_redirects)

    async def send(request: Any) -> Any:
        request.extensions = {**request.extensions, DIRECT: True}
        return await client.send(request, stream=True)

    if token is not None:
        messages = Messages.resumed(send, library, settings, token, url, headers)
    elif message is None:
        messages = Messages.listening(send, library, settings, url, headers)
    else:
        messages = Messages.posted(send, library, settings, url, message, headers)
    messages._client, messages._owned = client, owned
    return messages
