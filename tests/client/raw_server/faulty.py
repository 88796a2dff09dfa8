"""A correct resumable server, and one for each fault: python -m raw_server.faulty [CERTIFICATE]. Prints `READY
PORT`; with a certificate, in a file with its key, it speaks TLS.

The path of a request names the server, `/NAME/FAULT+FAULT`: each path has sessions of its own, and the faults that it
names. Without any it is correct: tests/vectors/probe.json says what a probe has to find in each. Its tools are `slow`
(read-only, five progress notifications over half a second, then a result) and `eager` (takes an argument). It ends with
its input.

    no-ids, no-priming, lone-id, no-retry, primes-older, ids-per-connection    what events have
    json, json-ping, no-standalone, no-get, stateless, older, newer            what the server has not
    both-eras                                                                 what it has besides
    stays-open, purges, purges-later, resume-stays-open, end-404, end-again    ends
    standalone-unprimed, resume-unprimed                                      priming of GETs
    unknown-404, -204, -500, -409, -nothing, -silence, -mute                   cursors that name nothing
    shared, foreign-opens, foreign-403, foreign-disturbs                       whose events these are
    refuses-second, second-gets-nothing, first-keeps, both-get                 two readers
    loses, repeats, swaps, forgets                                            what a resume brings
    closes, closes-blind, closes-silently                                     a call whose connection ends early
    quick, late, fails, no-tools                                                  its tool
    silent, empty-keeps                                                       a connection on which nothing happens
    tasks, tasks-settings, tasks-list, tasks-older                            2026-07-28, too
    tasks-open, tasks-unnamed, tasks-known, tasks-acked                       refusals there
    task-whole, task-id, task-status, task-date, task-ttl, task-pause, task-message    what its tasks have
    task-lost, task-typed, task-other, task-odd, task-empty, task-asks, task-changes    what polls are answered
    task-refuses, task-acks-bare, task-forgets                                cancellations
    session-400, no-delete, delete-keeps, ping-fails, notified-200            sessions and requests
    guarded, no-mcp                                                           401 without authorization; 404
"""

from __future__ import annotations

import asyncio
import itertools
import json
import ssl
import sys
from dataclasses import dataclass, field
from typing import Any

from .sockets import Connection, GoneError, Listener, Request
from .tasks import REVISION, Tasks

NEWEST = "2025-11-25"
RETRY_MS = 20
KEEP_ALIVE_MS = 150
STEP_MS = 150
# Nothing is sent before, so that a resume can be empty.
QUIET_MS = 100
LATE_MS = 1_500
PROGRESS = 5


def names() -> set[str]:
    """Every fault that there is."""
    lines = [line.strip().split("   ")[0] for line in (__doc__ or "").split("\n\n")[2].splitlines()]
    found = [name.strip() for line in lines for name in line.split(",")]
    return {f"unknown{name}" if name.startswith("-") else name for name in found}


@dataclass
class Stream:
    """One log and its readers. `messages` are lines of data; the terminal is the last one."""

    name: str
    messages: list[str] = field(default_factory=list)
    is_done: bool = False
    is_purged: bool = False
    resumes: int = 0
    was_left: bool = False
    visits: int = 0
    # The reader that gets what comes; a reader that it is not ends.
    reader: int = 0
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def append(self, message: dict[str, Any], is_last: bool = False) -> None:
        self.messages.append(json.dumps(message))
        self.is_done = is_last
        self.change()

    def change(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()


@dataclass
class Session:
    id: str
    revision: str
    streams: dict[str, Stream] = field(default_factory=dict)


class World:
    """One server: what one path has."""

    def __init__(self, faults: set[str]) -> None:
        assert faults <= names(), faults - names()
        self.faults = faults
        self.sessions: dict[str, Session] = {}
        self.made = Tasks(self.has)
        self.count = itertools.count(1)
        # Every session's, where they share.
        self.shared: dict[str, Stream] = {}
        self.tasks: set[asyncio.Task[None]] = set()

    def has(self, name: str) -> bool:
        return name in self.faults

    # Requests.

    async def handle(self, connection: Connection, request: Request) -> None:
        if self.has("guarded") and request.headers.get("authorization") != "Bearer hunter2":
            refuse(connection, 401)
            return
        session_id = request.headers.get("mcp-session-id")
        message = request.json() if request.method == "POST" else None
        if message is not None and message.get("method") == "initialize":
            self.initialize(connection, message)
            return
        if message is not None and message.get("method") == "server/discover" and self.has("both-eras"):
            answer_json(connection, {"jsonrpc": "2.0", "id": message["id"], "result": {}})
            return
        if message is not None and self.has("tasks") and request.headers.get("mcp-protocol-version") == REVISION:
            status, answer = self.made.answer(message)
            answer_json(connection, {"jsonrpc": "2.0", "id": message["id"], **answer}, status=status)
            return
        session = self.sessions.get(session_id or "")
        if session is None and self.has("stateless"):
            session = Session("", NEWEST)
        if session is None:
            refuse(connection, 400 if session_id is None or self.has("session-400") else 404)
        elif message is not None:
            await self.post(connection, session, message)
        elif request.method == "GET":
            await self.get(connection, session, request.headers.get("last-event-id"))
        elif self.has("no-delete"):
            refuse(connection, 405)
        else:
            if not self.has("delete-keeps"):
                del self.sessions[session.id]
            connection.answer(200, {}, b"")

    def initialize(self, connection: Connection, message: dict[str, Any]) -> None:
        if self.has("no-mcp"):
            refuse(connection, 404)
            return
        if self.has("newer"):
            refuse(connection, 400, -32_022)
            return
        revision = "2025-06-18" if self.has("older") else message["params"]["protocolVersion"]
        session = Session(f"session-{next(self.count)}", revision)
        self.sessions[session.id] = session
        result = {
            "protocolVersion": revision,
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "faulty", "version": "1"},
        }
        extra = {} if self.has("stateless") else {"mcp-session-id": session.id}
        answer_json(connection, {"jsonrpc": "2.0", "id": message["id"], "result": result}, extra)

    async def post(self, connection: Connection, session: Session, message: dict[str, Any]) -> None:
        method, id = message.get("method"), message.get("id")
        if id is None:
            connection.answer(200 if self.has("notified-200") else 202, {}, b"")
            return
        stream = Stream(str(id))
        if self.has("shared"):
            stream = self.shared.setdefault(str(id), stream)
        session.streams[stream.name] = stream
        if method == "tools/call":
            quick = 0 if self.has("quick") else 1
            task = asyncio.create_task(self.work(stream, message, quick))
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)
        else:
            stream.append({"jsonrpc": "2.0", "id": id, **self.plain(method)}, is_last=True)
        if self.has("json") or (method == "ping" and self.has("json-ping")):
            while not stream.is_done:
                await stream.changed.wait()
            answer_json(connection, json.loads(stream.messages[-1]))
            return
        position = len(stream.messages) - 1 if stream.is_done else 0
        if self.has("purges") and stream.is_done:
            # A reader that is cut may be back before the end of its connection is seen here.
            stream.is_purged = True
        await self.serve(connection, session, stream, position, is_resume=False, is_call=method == "tools/call")
        if self.has("purges"):
            stream.is_purged = True

    def plain(self, method: str | None) -> dict[str, Any]:
        if method == "ping" and not self.has("ping-fails"):
            return {"result": {}}
        if method == "tools/list" and not self.has("no-tools"):
            eager = {"name": "eager", "inputSchema": {"type": "object", "required": ["what"]}}
            slow = {"name": "slow", "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": True}}
            return {"result": {"tools": [{**eager, "annotations": {"readOnlyHint": True}}, slow]}}
        return {"error": {"code": -32_601, "message": "no such method"}}

    async def work(self, stream: Stream, message: dict[str, Any], quick: int) -> None:
        """The tool. With `forgets` it keeps what comes only while somebody reads."""
        token = message["params"]["_meta"]["progressToken"]
        await asyncio.sleep((LATE_MS if self.has("late") else QUIET_MS) * quick / 1_000)
        for number in range(1, PROGRESS + 1):
            await asyncio.sleep(STEP_MS * quick / 1_000)
            params = {"progressToken": token, "progress": number}
            if not self.has("forgets") or not stream.was_left or number == 1:
                stream.append({"jsonrpc": "2.0", "method": "notifications/progress", "params": params})
        content = [{"type": "text", "text": "done"}]
        result = {"content": content, "isError": self.has("fails")}
        stream.append({"jsonrpc": "2.0", "id": message["id"], "result": result}, is_last=True)

    # Resumes.

    async def get(self, connection: Connection, session: Session, cursor: str | None) -> None:
        if self.has("no-get") or (cursor is None and self.has("no-standalone")):
            refuse(connection, 405)
            return
        if cursor is None:
            await self.listen(connection, session)
            return
        owner, stream, position = self.find(session, cursor)
        if stream is None or owner is None:
            await self.unknown(connection, session, cursor)
        elif owner is not session and not self.has("shared") and not self.has("foreign-opens"):
            if self.has("foreign-403"):
                refuse(connection, 403)
                return
            if self.has("foreign-disturbs"):
                # Who reads is thrown out, and what is left is lost.
                stream.is_purged, stream.reader = True, stream.reader + 1
                stream.change()
            await self.unknown(connection, session, cursor)
        elif stream.is_purged or (self.has("purges-later") and stream.resumes > 0):
            await self.serve_nothing(connection)
        elif stream.is_done and position >= len(stream.messages) and not self.has("resume-stays-open"):
            if self.has("end-again"):
                await self.serve(connection, session, stream, position - 1, is_resume=True)
            else:
                refuse(connection, 404) if self.has("end-404") else connection.answer(204, {}, b"")
        else:
            await self.serve(connection, session, stream, position, is_resume=True)

    def find(self, session: Session, cursor: str) -> tuple[Session | None, Stream | None, int]:
        """`SESSION/STREAM.POSITION~VISIT`"""
        owner, _, rest = cursor.partition("/")
        name, _, place = rest.partition(".")
        place = place.partition("~")[0]
        found = self.sessions.get(owner)
        stream = found.streams.get(name) if found is not None else None
        if self.has("ids-per-connection") and cursor.isdigit():
            found, stream, place = session, next(iter(session.streams.values()), None), cursor
        return found, stream, int(place) if place.isdigit() else 0

    async def listen(self, connection: Connection, session: Session) -> None:
        stream = session.streams.setdefault("standalone", Stream("standalone"))
        if stream.reader and self.has("refuses-second"):
            refuse(connection, 409)
            return
        await self.serve(connection, session, stream, len(stream.messages), is_resume=False)

    async def unknown(self, connection: Connection, session: Session, cursor: str) -> None:
        for status in (404, 500, 409):
            if self.has(f"unknown-{status}"):
                refuse(connection, status)
                return
        if self.has("unknown-204"):
            connection.answer(204, {}, b"")
        elif self.has("unknown-nothing"):
            await self.serve_nothing(connection)
        elif self.has("unknown-silence"):
            connection.begin_stream()
            await connection.pause(60_000)
        elif self.has("unknown-mute"):
            await connection.pause(60_000)
        else:
            refuse(connection, 400)

    async def serve_nothing(self, connection: Connection) -> None:
        connection.begin_stream()
        connection.end_stream()

    async def serve(
        self,
        connection: Connection,
        session: Session,
        stream: Stream,
        position: int,
        *,
        is_resume: bool,
        is_call: bool = False,
    ) -> None:
        """One connection: what follows the position, and what comes."""
        is_second = is_resume and stream.reader > 0
        if is_second and not stream.is_done and stream.name != "standalone":
            if self.has("refuses-second"):
                refuse(connection, 409)
                return
            if self.has("second-gets-nothing"):
                await self.serve_nothing(connection)
                return
        stream.resumes += is_resume
        is_observer = is_second and self.has("first-keeps")
        if not is_observer:
            stream.reader = me = stream.reader + 1
        else:
            me = -1
        stream.change()
        connection.begin_stream()
        writer = Writer(self, connection, session, stream)
        try:
            await self.prime(writer, position, is_resume)
            await self.follow(writer, position, me, is_resume, is_call, is_observer)
        except GoneError:
            stream.was_left = True
            raise
        finally:
            # A server that refuses others does not see that it is gone.
            if stream.reader == me and not self.has("refuses-second"):
                stream.reader = 0

    async def prime(self, writer: Writer, position: int, is_resume: bool) -> None:
        is_new = writer.session.revision == NEWEST or self.has("primes-older")
        is_standalone = writer.stream.name == "standalone"
        if not is_new or self.has("no-ids"):
            return
        if (is_resume and self.has("resume-unprimed")) or (self.has("no-priming") and not is_standalone):
            return
        if self.has("standalone-unprimed") and is_standalone:
            return
        await writer.priming(position)

    async def follow(
        self, writer: Writer, position: int, me: int, is_resume: bool, is_call: bool, is_observer: bool
    ) -> None:
        stream, connection = writer.stream, writer.connection
        is_live = not stream.is_done
        skipped = False
        while True:
            if is_call and stream.messages and self.closes(writer, is_resume):
                break
            while position < len(stream.messages) and not is_observer:
                if self.has("loses") and is_resume and is_live and not skipped and position < len(stream.messages):
                    skipped, position = True, position + 1
                    continue
                if self.has("swaps") and is_resume and is_live and not skipped:
                    if position + 2 > len(stream.messages):
                        break
                    await writer.event(position + 1)
                    await writer.event(position)
                    skipped, position = True, position + 2
                    continue
                await writer.event(position)
                if self.has("repeats") and is_resume and is_live and not skipped:
                    skipped = True
                    continue
                position += 1
            is_over = stream.is_done and position >= len(stream.messages)
            stays = self.has("resume-stays-open") if is_resume else self.has("stays-open")
            if (is_over and not stays) or (is_observer and stream.is_done):
                break
            if stream.reader != me and not is_observer and not self.has("first-keeps") and not self.has("both-get"):
                break
            await self.wait(writer)
        connection.end_stream()

    def closes(self, writer: Writer, is_resume: bool) -> bool:
        closing = any(self.has(name) for name in ("closes", "closes-blind", "closes-silently"))
        return closing and not is_resume and not writer.stream.is_done

    async def wait(self, writer: Writer) -> None:
        """Until something changes; a comment where nothing does."""
        changed = asyncio.create_task(writer.stream.changed.wait())
        gone = asyncio.create_task(writer.connection.gone.wait())
        done, pending = await asyncio.wait(
            [changed, gone], timeout=KEEP_ALIVE_MS / 1_000, return_when=asyncio.FIRST_COMPLETED
        )
        for task in pending:
            task.cancel()
        if gone in done:
            raise GoneError
        if not done and not self.has("silent"):
            await writer.connection.stream(b"data:\n\n" if self.has("empty-keeps") else b": alive\n\n")


@dataclass
class Writer:
    """Events on one connection."""

    world: World
    connection: Connection
    session: Session
    stream: Stream
    sent: int = 0

    def id(self, position: int, is_visit: bool = False) -> str:
        if self.world.has("ids-per-connection"):
            self.sent += 1
            return str(self.sent)
        visit = ""
        if is_visit and self.stream.visits:
            visit = f"~{self.stream.visits}"
        self.stream.visits += is_visit
        return f"{self.session.id}/{self.stream.name}.{position}{visit}"

    async def priming(self, position: int) -> None:
        has_retry = not (self.world.has("no-retry") or self.world.has("closes-silently"))
        lines = [] if self.world.has("closes-blind") else [f"id: {self.id(position, is_visit=True)}"]
        lines += [f"retry: {RETRY_MS}"] * has_retry + ["data: "] * (not self.world.has("lone-id"))
        await self.write(lines)

    async def event(self, index: int) -> None:
        lines = [] if self.world.has("no-ids") else [f"id: {self.id(index + 1)}"]
        await self.write([*lines, f"data: {self.stream.messages[index]}"])

    async def write(self, lines: list[str]) -> None:
        await self.connection.stream("\n".join([*lines, "", ""]).encode())


def answer_json(
    connection: Connection, message: dict[str, Any], headers: dict[str, str] | None = None, status: int = 200
) -> None:
    connection.answer(status, {"content-type": "application/json", **(headers or {})}, json.dumps(message).encode())


def refuse(connection: Connection, status: int, code: int = -32_000) -> None:
    error = {"jsonrpc": "2.0", "id": None, "error": {"code": code, "message": f"refused with {status}"}}
    connection.answer(status, {"content-type": "application/json"}, json.dumps(error).encode())


async def main(certificate: str | None = None) -> None:
    worlds: dict[str, World] = {}

    async def handle(connection: Connection, request: Request) -> bool:
        path = request.target.partition("?")[0].strip("/")
        if path not in worlds:
            worlds[path] = World({name for name in path.partition("/")[2].split("+") if name})
        await worlds[path].handle(connection, request)
        return False

    tls = None
    if certificate is not None:
        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        tls.load_cert_chain(certificate)
    listener = Listener(handle, tls)
    await listener.open()
    print(f"READY {listener.port}", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await listener.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
