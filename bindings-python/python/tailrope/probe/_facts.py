"""What several checks need to know, each found out once: sessions, a short stream, a long call; its words."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from tailrope.probe._http import Endpoint, Exchange
from tailrope.probe._session import NEWEST, RESUMABLE, Run, Session
from tailrope.probe._sse import Block

# A live check cuts a call while it runs, several times.
SHORTEST_CALL_MS = 500
LONGEST_CALL_MS = 120_000
# How long what must not come is waited for, and what comes by itself.
SETTLE_MS = 500
MADE_UP = "tailrope-probe-made-up"


@dataclass
class Options:
    """Durations are milliseconds. `only` and `skip` are names of checks."""

    url: str
    headers: dict[str, str]
    tool: str | None = None
    arguments: dict[str, Any] | None = None
    timeout_ms: float = 5_000
    idle_ms: float = 20_000
    only: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()


class NotChecked(Exception):
    """A check that cannot be made, and why."""


class Unusable(Exception):
    """Nothing can be checked at all: not reachable, or no MCP server."""


class Outcome(Exception):
    """What a check found; raised where that is found."""

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(reason)
        self.kind, self.reason = kind, reason


def ok(reason: str) -> Outcome:
    return Outcome("ok", reason)


def warn(reason: str) -> Outcome:
    return Outcome("warn", reason)


def fault(reason: str) -> Outcome:
    return Outcome("fault", reason)


class Facts:
    """One probe of one server."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.endpoint = Endpoint(options.url, options.headers)
        self.timeout_ms = options.timeout_ms
        self.sessions: list[Session] = []
        self.server: dict[str, Any] = {}
        self.calls = 0
        # What was sent and got, of the check that runs.
        self.evidence: list[Callable[[], str]] = []
        # How long the longest request took that nobody disturbed; none is known to take long before.
        self.known_ms: float = 0
        self._found: dict[str, asyncio.Future[Any]] = {}
        self._last_id = 0

    async def once(self, name: str, find: Callable[[], Awaitable[Any]]) -> Any:
        """A fact, or what kept it from being found, again."""
        if name not in self._found:
            found = self._found[name] = asyncio.get_running_loop().create_future()
            try:
                found.set_result(await find())
            except Exception as why:
                found.set_exception(why)
        return await asyncio.shield(self._found[name])

    def note(self, what: str, exchange: Exchange) -> Exchange:
        self.evidence.append(lambda: f"{what}: {shown(exchange)}")
        return exchange

    def next_id(self) -> int:
        self._last_id += 1
        return self._last_id

    # Sessions.

    def session(self, name: str) -> Session:
        session = Session(self.endpoint, self.timeout_ms, name)
        self.sessions.append(session)
        return session

    async def opened(self, name: str, revision: str = NEWEST) -> Session:
        """A session of our own by this name, opened when it is first asked for."""

        async def find() -> Session:
            session = self.session(name)
            answer = await session.open(revision)
            if session.revision is None:
                raise NotChecked(f"initialize with {revision} is answered {answer.status}")
            await session.notify("notifications/initialized")
            return session

        session: Session = await self.once(f"session {name}", find)
        return session

    async def first(self) -> Session:
        """The session that most is done with."""
        session = await self.opening()
        if session.revision not in RESUMABLE:
            raise NotChecked(f"revision {session.revision} has no resumption")
        if session.id is None:
            raise NotChecked("the server gives no session id")
        return session

    async def opening(self) -> Session:
        """The same, whatever came of it; `initialize` and `initialized` are the answers."""

        async def find() -> Session:
            session = self.session("a")
            self.initialize = answer = await session.open(NEWEST)
            message = answer.json or {}
            if session.revision is None:
                error = message.get("error")
                if isinstance(error, dict) and error.get("code") == -32_022:
                    raise NotChecked("the server has only revisions without resumption")
                moved = f", it is at {answer.headers['location']}" if "location" in answer.headers else ""
                raise Unusable(f"no MCP server for us: initialize is answered {shown(answer)}{moved}")
            about = message["result"].get("serverInfo") or {}
            self.server = {key: str(about[key]) for key in ("name", "version") if about.get(key)}
            self.initialized = await session.notify("notifications/initialized")
            return session

        session: Session = await self.once("session a", find)
        return session

    async def second(self) -> Session:
        return await self.opened("b")

    # The short stream: what a ping is answered with, or the tool where that is no stream.

    async def source(self) -> str:
        async def find() -> str:
            return "ping" if (await self.ping()).is_stream else f"tools/call {(await self.tool())[0]}"

        source: str = await self.once("source", find)
        return source

    async def ping(self) -> Exchange:
        async def find() -> Exchange:
            session = await self.first()
            exchange = await session.request(self.next_id(), "ping")
            await exchange.until(lambda: exchange.is_over or exchange.response is not None, self.timeout_ms)
            return await settled(exchange)

        exchange: Exchange = await self.once("ping", find)
        return exchange

    async def begin(self, session: Session, id: int) -> Run:
        """A short request, just sent."""
        if (await self.source()) == "ping":
            return Run(session, id, await session.request(id, "ping"))
        return await self.call(session, id)

    async def short(self) -> Run:
        """The answer to a short request, read to its end."""

        async def find() -> Run:
            session = await self.first()
            loop = asyncio.get_running_loop()
            started = loop.time()
            run = await self.begin(session, self.next_id())
            exchange = run.last
            if not exchange.is_stream:
                raise NotChecked(f"{await self.source()} is answered {shown_type(exchange)}")
            is_call = (await self.source()) != "ping"
            within_ms = LONGEST_CALL_MS if is_call else self.timeout_ms
            await exchange.until(lambda: exchange.is_over or exchange.response is not None, within_ms)
            self.known_ms = (loop.time() - started) * 1_000 if is_call else 0
            await exchange.until(lambda: exchange.is_over, self.timeout_ms)
            return run

        run: Run = await self.once("short", find)
        return run

    async def resumable(self) -> Run:
        """The same, of a server that gives ids at all."""
        run = await self.short()
        if run.first_id is None:
            raise NotChecked("no event has an id")
        return run

    async def missed(self, session: Session, id: int) -> Run:
        """A short request whose connection is cut after its first event with an id."""
        run = await self.begin(session, id)
        if not await run.has_id():
            raise NotChecked("no event has an id")
        run.last.cut()
        # What came with it in one piece counts as lost.
        first = next(index for index, block in enumerate(run.last.blocks) if block.id)
        if run.last.blocks[first].is_response:
            raise NotChecked("the first id comes with the response: nothing can be missed after it")
        del run.last.blocks[first + 1 :]
        run.last.response, run.last.state = None, "cut"
        return run

    async def finished(self) -> Run:
        """A request that was cut, after a resume from its first id: the last connection is that of the resume."""

        async def find() -> Run:
            await self.resumable()
            run = await self.missed(await self.first(), self.next_id())
            exchange = await run.resume()
            await exchange.until(lambda: exchange.is_over or exchange.response is not None, self.patience_ms())
            return run

        run: Run = await self.once("finished", find)
        return run

    # The long call.

    async def tool(self) -> tuple[str, dict[str, Any]]:
        """Its name and arguments."""

        async def find() -> tuple[str, dict[str, Any]]:
            if self.options.tool is not None:
                return self.options.tool, self.options.arguments or {}
            session = await self.first()
            exchange = await session.request(self.next_id(), "tools/list")
            await exchange.until(lambda: exchange.is_over or exchange.response is not None, self.timeout_ms)
            for tool in ((exchange.json or {}).get("result") or {}).get("tools") or []:
                is_safe = (tool.get("annotations") or {}).get("readOnlyHint") is True
                if is_safe and not (tool.get("inputSchema") or {}).get("required"):
                    return str(tool["name"]), {}
            raise NotChecked("no tool is read-only by its annotations and needs no argument: name one with --tool")

        tool: tuple[str, dict[str, Any]] = await self.once("tool", find)
        return tool

    async def call(self, session: Session, id: int) -> Run:
        name, arguments = await self.tool()
        self.calls += 1
        params = {"name": name, "arguments": arguments, "_meta": {"progressToken": f"probe-{session.name}-{id}"}}
        message = {"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params}
        # It may be answered with JSON, once it is over.
        within_ms = self.patience_ms() if self.known_ms else LONGEST_CALL_MS
        return Run(session, id, await session.post(message, within_ms))

    async def polled(self) -> tuple[float, Run, str | None]:
        """The undisturbed call, whatever came of it: how long it takes, what it sends, and what is wrong with it."""

        async def find() -> tuple[float, Run, str | None]:
            await self.resumable()
            session = await self.first()
            loop = asyncio.get_running_loop()
            started = loop.time()
            run = await self.call(session, self.next_id())
            name, _ = await self.tool()
            if not run.last.is_stream:
                raise NotChecked(f"tools/call {name} is answered {shown_type(run.last)}")
            problem = await run.finish(LONGEST_CALL_MS)
            self.known_ms = duration_ms = (loop.time() - started) * 1_000
            if problem is not None:
                return duration_ms, run, f"the call of {name} does not end: {problem}"
            message = run.response.message if run.response is not None else None
            if message is None or "error" in message or (message.get("result") or {}).get("isError"):
                return duration_ms, run, f"the call of {name} fails: name a tool that runs long with --tool"
            return duration_ms, run, None

        found: tuple[float, Run, str | None] = await self.once("reference", find)
        return found

    async def long(self) -> tuple[float, Run]:
        """The undisturbed call, if it is long enough to be disturbed."""
        duration_ms, run, problem = await self.polled()
        if problem is not None:
            raise NotChecked(problem)
        if duration_ms < SHORTEST_CALL_MS:
            name, _ = await self.tool()
            raise NotChecked(
                f"the call of {name} takes less than {SHORTEST_CALL_MS} ms: name a tool that runs long with --tool"
            )
        return duration_ms, run

    def patience_ms(self) -> float:
        """How long a request may take when it is disturbed."""
        return self.timeout_ms + 2 * self.known_ms


async def settled(exchange: Exchange) -> Exchange:
    """What an answer has in it by itself."""
    await exchange.until(lambda: exchange.is_over, SETTLE_MS)
    return exchange


def like(cursor: str) -> str:
    """An id of the same form that was never given: letters and digits of its first half are others."""
    if len(cursor) < 8:
        return "9" * 9
    half = "".join(_other(char) for char in cursor[1 : len(cursor) // 2])
    return cursor[:1] + half + cursor[len(cursor) // 2 :]


def _other(char: str) -> str:
    for first, size in (("a", 26), ("A", 26), ("0", 10)):
        if ord(first) <= ord(char) < ord(first) + size:
            return chr(ord(first) + (ord(char) - ord(first) + size // 2) % size)
    return char


# Words.


def shown_type(exchange: Exchange) -> str:
    return f"{exchange.status} {exchange.content_type}".strip()


def shown(exchange: Exchange) -> str:
    """An answer in short. Comments come when they come, so they are left out."""
    if not exchange.is_stream:
        error = (exchange.json or {}).get("error") or {}
        return shown_type(exchange) + (
            f", error {error['code']}" if isinstance(error, dict) and "code" in error else ""
        )
    words = [described(event) for event in exchange.events]
    short: list[str] = []
    for index, word in enumerate(words):
        if index == 0 or word != words[index - 1]:
            short.append(word)
    ends = {"open": "stays open", "end": "end", "broken": "broken off", "cut": "cut"}[exchange.state]
    return ", ".join([shown_type(exchange), *short, ends])


def described(event: Block) -> str:
    has_id = "" if event.id else " without id"
    if event.data is None:
        return "a lone id" if event.id else "a lone retry"
    if not event.data:
        return ("priming" if event.retry_ms is not None else "priming without retry") if event.id else "an empty event"
    message = event.message
    if message is None:
        return f"something else{has_id}"
    if "method" in message:
        return f"{message['method']}{has_id}"
    error = message.get("error")
    return f"error {error.get('code')}{has_id}" if isinstance(error, dict) else f"response{has_id}"
