"""Clients without mercy: one connection for each request, every byte written down, cut wherever one likes.

They read as bytes come, know of SSE what a cursor needs (ids of complete events) and when a response came, and judge
nothing. A session is opened by tests/kit/peer.py.
"""

from __future__ import annotations

import asyncio
import json
import re
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from kit.peer import NEWEST, Peer

from torture.proxy import Link, Proxy, close, reset
from torture.recorder import Recorder

EVENT_END = re.compile(rb"\r?\n\r?\n")
CHUNK_BYTES = 1 << 16


# Nothing is tested while a session opens; machines are busy.
OPEN_S = 60.0


class Unheard(Recorder):
    """For what is no part of the history."""

    def __init__(self) -> None:
        super().__init__(Path("/nonexistent"))

    def tell(self, fact: str, **more: Any) -> None:
        pass


class Hung(Exception):
    """Waited in vain. It is in the history."""


class Stream:
    """One stream as its readers know it: names, ids in the order of arrival, and whether it is over."""

    def __init__(self, session: Session, name: str, request: Any = None) -> None:
        self.session, self.name, self.request = session, name, request
        self.ids: list[str] = []
        self.is_over = False
        # Its end is an error.
        self.is_failed = False
        self.end = ""
        self.last_n = 0
        # Open connections, oldest first.
        self.open: list[Connection] = []
        recorder = session.recorder
        recorder.tell(
            "stream",
            session=session.name,
            stream=name,
            revision=session.revision,
            **({} if request is None else {"request": request}),
        )

    def done(self) -> None:
        self.session.recorder.tell("done", session=self.session.name, stream=self.name)

    def gone(self, why: str) -> None:
        self.session.recorder.tell("gone", session=self.session.name, stream=self.name, why=why)

    def hung(self, says: str) -> Hung:
        """Write down that something was waited for in vain, and give what to raise."""
        self.session.recorder.tell("hung", session=self.session.name, stream=self.name, says=says)
        return Hung(f"{self.session.name}/{self.name}: {says}")


class Connection:
    """One request and its answer on a connection of its own."""

    def __init__(self, recorder: Recorder, sock: socket.socket, stream: Stream | None, proxy: Proxy | None) -> None:
        self.recorder, self.sock, self.stream = recorder, sock, stream
        # On its way to the server, if any. Its port does not tell: connections to two proxies may have the same.
        self.proxy = proxy
        self.name = recorder.connection()
        self.port: int = sock.getsockname()[1]
        self.status: int | None = None
        self.headers: dict[str, str] = {}
        self.body = bytearray()
        self.ids: list[str] = []
        self.events = 0
        self.has_terminal = False
        # By whom, once it is over.
        self.closed: str | None = None
        self.is_clean = False
        self._raw = bytearray()
        self._parsed = 0
        self._left: int | None = None
        self._chunked = False
        self._waiting: set[asyncio.Future[None]] = set()
        self.moved_at = time.monotonic()

    # Reading

    def start(self) -> None:
        asyncio.get_running_loop().add_reader(self.sock, self._readable)

    def _readable(self) -> None:
        try:
            data = self.sock.recv(CHUNK_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            # A body without a length and without chunks ends like this; any other is broken off.
            is_whole = self.status is not None and self._left is None and not self._chunked
            excused = self.recorder.breaks or self.proxy is not None
            self.end("fault" if excused and not is_whole else "server", clean=is_whole)
            return
        self._raw += data
        self._parse()
        self._changed()

    def _parse(self) -> None:
        if self.status is None:
            end = self._raw.find(b"\r\n\r\n")
            if end < 0:
                return
            self._head(bytes(self._raw[:end]).decode("latin-1"))
            del self._raw[: end + 4]
        while self.closed is None:
            if self._chunked:
                line = self._raw.find(b"\r\n")
                if line < 0:
                    return
                size = int(self._raw[:line].split(b";")[0], 16)
                if len(self._raw) < line + 2 + size + 2:
                    return
                data = bytes(self._raw[line + 2 : line + 2 + size])
                del self._raw[: line + 2 + size + 2]
                if not data:
                    self.end("server", clean=True)
                    return
            else:
                data = bytes(self._raw)
                self._raw.clear()
                if self._left is not None:
                    self._left -= len(data)
            if data:
                self._content(data)
            if self._left == 0:
                self.end("server", clean=True)
            elif not data:
                return

    def _head(self, text: str) -> None:
        status, *lines = text.split("\r\n")
        self.status = int(status.split()[1])
        for line in lines:
            name, _, value = line.partition(":")
            self.headers[name.lower()] = value.strip()
        self._chunked = self.headers.get("transfer-encoding", "").lower() == "chunked"
        if self.status in (202, 204):
            self._left = 0
        elif "content-length" in self.headers:
            self._left = int(self.headers["content-length"])
        self.recorder.tell("head", connection=self.name, status=self.status, headers=self.headers)

    def _content(self, data: bytes) -> None:
        self.recorder.bytes(self.name, data)
        self.body += data
        if not self.headers.get("content-type", "").startswith("text/event-stream"):
            return
        while (end := EVENT_END.search(self.body, self._parsed)) is not None:
            block = bytes(self.body[self._parsed : end.start()])
            self._parsed = end.end()
            self._event(block.decode("utf-8", "replace"))

    def _event(self, block: str) -> None:
        fields = dict(line.split(":", 1) for line in block.splitlines() if ":" in line and not line.startswith(":"))
        if not fields:
            return
        self.moved_at = time.monotonic()
        if "id" in fields:
            self.ids.append(fields["id"].strip())
            if self.stream is not None:
                self.stream.ids.append(self.ids[-1])
        data = fields.get("data", "").strip()
        if not data:
            return
        self.events += 1
        if self.stream is None:
            return
        for n in re.findall(r"\[\[[\w.-]+/" + re.escape(self.stream.name) + r"/(\d+)\]\]", data):
            self.stream.last_n = max(self.stream.last_n, int(n))
            self.recorder.last_seen[f"{self.stream.session.name}-{self.stream.name}"] = self.stream.last_n
        message = json.loads(data)
        if isinstance(message, dict) and "method" not in message and message.get("id") == self.stream.request:
            self.has_terminal = self.stream.is_over = True
            self.stream.is_failed, self.stream.end = "error" in message, data

    # Waiting

    def _changed(self) -> None:
        waiting, self._waiting = self._waiting, set()
        for future in waiting:
            if not future.done():
                future.set_result(None)

    async def until(self, condition: Callable[[], bool], wait_s: float) -> bool:
        """Wait until the condition holds or the connection is over, and say whether it holds."""
        deadline = time.monotonic() + wait_s
        while not condition() and self.closed is None:
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.add(future)
            await asyncio.wait([future], timeout=left)
            self._waiting.discard(future)
        return condition()

    async def over(self, wait_s: float) -> bool:
        return await self.until(lambda: self.closed is not None, wait_s)

    # Ending

    def end(self, by: str, clean: bool) -> None:
        if self.closed is not None:
            return
        self.closed, self.is_clean = by, clean
        self.recorder.tell("closed", connection=self.name, by=by, clean=clean)
        if self.stream is not None and self in self.stream.open:
            self.stream.open.remove(self)
        if by == "client":
            reset(self.sock)
        else:
            close(self.sock)
        self._changed()

    def drop(self) -> None:
        """Reset it."""
        self.end("client", clean=False)

    def leave(self) -> None:
        """Close it in the polite way."""
        if self.closed is None:
            with suppress(OSError):
                self.sock.shutdown(socket.SHUT_RDWR)
            self.end("client", clean=False)

    def half_close(self) -> None:
        """Say that no more requests come; go on reading."""
        with suppress(OSError):
            self.sock.shutdown(socket.SHUT_WR)


class Session:
    """A session of a server, and where its connections go."""

    def __init__(self, recorder: Recorder, name: str, peer: Peer) -> None:
        self.recorder, self.name, self.peer = recorder, name, peer
        self.revision = peer.revision
        self._requests = 0

    @classmethod
    async def open(
        cls, recorder: Recorder, name: str, port: int, revision: str = NEWEST, headers: dict[str, str] | None = None
    ) -> Session:
        peer = Peer(port, headers=headers)
        await cls(Unheard(), name, peer).initialize(revision)
        return cls(recorder, name, peer)

    async def initialize(self, revision: str = NEWEST) -> None:
        params = {"protocolVersion": revision, "capabilities": {}, "clientInfo": {"name": "raw", "version": "1"}}
        answer = await self._whole({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params})
        self.peer.session, self.peer.revision = answer.headers["mcp-session-id"], revision
        await self._whole({"jsonrpc": "2.0", "method": "notifications/initialized"})

    async def _whole(self, message: dict[str, Any]) -> Connection:
        """What opens a session: a request whose answer is not looked at. A busy server is waited for."""
        deadline = time.monotonic() + OPEN_S
        while True:
            connection = await self.connect("POST", None, body=json.dumps(message).encode())
            if await connection.over(OPEN_S) and connection.status in (200, 202):
                return connection
            connection.drop()
            # One whose store was away takes nothing for a while.
            if connection.status != 503 or time.monotonic() > deadline:
                raise RuntimeError(f"{message['method']}: status {connection.status}, {bytes(connection.body)!r}")
            await asyncio.sleep(0.1)

    async def connect(
        self,
        method: str,
        stream: Stream | None,
        *,
        cursor: str | None = None,
        body: bytes | None = None,
        port: int | None = None,
        proxy: Proxy | None = None,
        process: str | None = None,
        **facts: Any,
    ) -> Connection:
        """Make a request, through a proxy where one is given. Raises ConnectionError as the system does."""
        headers = self.peer.headers(Last_Event_ID=cursor)
        headers["Accept"] = "text/event-stream" if method == "GET" else "application/json, text/event-stream"
        lines = [f"{method} /mcp HTTP/1.1", f"Host: 127.0.0.1:{self.peer.port}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        if body is not None:
            lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
        sock = socket.socket()
        sock.setblocking(False)
        target = proxy.port if proxy is not None else port or self.peer.port
        connection: Connection | None = None
        try:
            loop = asyncio.get_running_loop()
            await loop.sock_connect(sock, ("127.0.0.1", target))
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection = Connection(self.recorder, sock, stream, proxy)
            # What an older connection was sent before may be read after the first bytes of this one.
            facts["in_flight"] = True
            if process is not None:
                facts["process"] = process
            if stream is not None:
                stream.open.append(connection)
            self.recorder.tell(
                "open",
                connection=connection.name,
                session=self.name,
                stream=stream.name if stream is not None else None,
                cursor=cursor,
                method=method,
                **facts,
            )
            connection.start()
            await loop.sock_sendall(sock, "\r\n".join(lines).encode() + b"\r\n\r\n" + (body or b""))
        except BaseException:
            if connection is None:
                close(sock)
            else:
                connection.end("fault", clean=False)
            raise
        return connection

    def request(self, name: str, plan: dict[str, Any], id: Any = None) -> tuple[Stream, bytes]:
        """A call of the tool `marked`: its stream, and the body that makes it."""
        if id is None:
            self._requests += 1
            id = self._requests
        stream = Stream(self, name, id)
        plan = {**plan, "session": self.name, "stream": name}
        params = {"name": "marked", "arguments": {"plan": plan}, "_meta": {"progressToken": f"p-{id}"}}
        return stream, json.dumps({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params}).encode()

    async def link(self, proxy: Proxy, connection: Connection) -> Link:
        return await proxy.link(connection.port)
