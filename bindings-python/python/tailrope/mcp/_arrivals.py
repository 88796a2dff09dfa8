"""Requests that the front takes for sessions of this process: their handlers get them as if they had come through the
app. The front passes everything else on to the app, and all of a session that was not handed to it."""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from tailrope.mcp._incoming import dispatch, request_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from starlette.types import Scope

    from tailrope._native import Arrival, Front, Session
    from tailrope._runtime import Loop, Runtime
    from tailrope.mcp._session_server import SessionServer

logger = logging.getLogger("tailrope")

PASSED = "tailrope.passed"
"""The member of a scope that has its `Passed`. A context would keep that: timers of the HTTP server keep contexts."""

_OF_REQUEST = (
    PASSED,
    "auth",
    "client",
    "headers",
    "http_version",
    "method",
    "query_string",
    "scheme",
    "server",
    "state",
    "user",
)
"""What a scope says of one request. The rest is the same for every request of its endpoint."""


class Between(Exception):
    """Something stands before the sessions that their requests have to pass. The text says what."""


class Terms(NamedTuple):
    """For which requests the front may serve a session; the app gets the others."""

    versions: list[str] | None
    """Values of the header `MCP-Protocol-Version`. None where the session itself knows which are none of it."""
    hosts: list[str] | None
    """The values of `Host` that pass, or their beginnings before `:*`. None where every request passes."""
    origins: list[str] | None
    max_body_bytes: int


class App(Protocol):
    """The app behind a front."""

    arrivals: Arrivals | None

    def terms(self, entry: Scope, transport: Any, security: Any) -> Terms:
        """Those of a session.

        Raises:
            Between: the front may not serve it.
        """

    async def settled(self, scope: Scope, client: tuple[str, int]) -> Scope:
        """The scope of a request that the app does not get, as the app would get it."""


class Passed(NamedTuple):
    """A request that a front passed on."""

    to: App
    scope: Scope
    """What the app was given of it that routers look at."""


class Handed:
    """A session whose requests the front takes."""

    def __init__(self, arrivals: Arrivals, server: SessionServer, session: Session, scope: Scope) -> None:
        self._arrivals = arrivals
        self._server = server
        self._session = session
        self._scope = {name: value for name, value in scope.items() if name not in _OF_REQUEST}
        self._context = contextvars.copy_context()
        self._waiting: deque[Arrival] = deque()

    async def take(self, arrival: Arrival) -> None:
        """One after the other, as they came. What has to wait for the SDK delays no other session."""
        if not self._waiting and self._server.has_room:
            await self._serve(arrival)
            return
        self._waiting.append(arrival)
        if len(self._waiting) == 1:
            self._arrivals.start(self._deliver())

    async def _deliver(self) -> None:
        while self._waiting:
            await self._arrivals.serve(self._waiting[0], self._serve)
            self._waiting.popleft()

    async def _serve(self, arrival: Arrival) -> None:
        with self._server.request():
            await self._dispatch(arrival)

    async def _dispatch(self, arrival: Arrival) -> None:
        if self._server.is_terminated:
            arrival.refuse("session_ended", "")
            return
        admission, query_string, headers, http_version, client, body = arrival.read()
        scope = {
            **self._scope,
            "headers": headers,
            "http_version": http_version,
            "method": "POST",
            "query_string": query_string,
            "state": self._arrivals.state(),
        }
        request = request_of(await self._arrivals.app.settled(scope, client), body)
        await dispatch(self._server, self._session, arrival, admission, body, request, self._context.copy())


def _path(scope: Scope) -> str:
    """The path of a request as it came."""
    raw: bytes = scope["raw_path"]
    return raw.partition(b"?")[0].decode("latin-1")


class Arrivals:
    """Those of one front, on the loop of its app."""

    def __init__(self, front: Front, app: App, runtime: Runtime, here: Loop, lifespan_state: dict[str, Any]) -> None:
        self.app = app
        self._front = front
        self._runtime = runtime
        self._here = here
        self._lifespan_state = lifespan_state
        self._tasks: set[asyncio.Task[None]] = set()
        self._told: set[str] = set()
        app.arrivals = self
        self.start(self._run())

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        # What a handler finds in its context is that of its request.
        task = contextvars.Context().run(self._here.loop.create_task, work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def state(self) -> dict[str, Any]:
        """What the lifespan of the app left for its requests: each has a copy."""
        return self._lifespan_state.copy()

    def offer(
        self, server: SessionServer, session: Session, here: Loop, transport: Any, scope: Scope, entry: Scope
    ) -> Handed | None:
        """Hands a session to the front, if nothing that its requests have to pass stands before it: see _between.py."""
        try:
            if server.runtime is not self._runtime or here is not self._here or server.runtime.host_store is not None:
                raise Between("an event store of the server's own")
            if server.runtime.principal is not None:
                raise Between("the option principal")
            if scope.get("user") is not None or scope.get("auth") is not None:
                raise Between("authentication")
            terms = self.app.terms(entry, transport, server.security)
        except Between as found:
            self._tell(scope, str(found))
            return None
        handed = Handed(self, server, session, scope)
        self._front.serve(session, _path(scope), server.json_response, *terms)
        return handed

    def _tell(self, scope: Scope, found: str) -> None:
        if found not in self._told:
            self._told.add(found)
            logger.info(
                "requests for %s are served by the app, as there is something before its sessions that Tailrope does "
                "not know: %s",
                scope.get("path"),
                found,
            )

    async def _run(self) -> None:
        key, waiters = self._front.key, self._here.waiters
        try:
            while True:
                for arrival in self._take():
                    await self.serve(arrival, self._came)
                future: asyncio.Future[None] = self._here.loop.create_future()
                if waiters.park(key, future):
                    await future
        finally:
            waiters.forget(key)

    async def serve(self, arrival: Arrival, how: Callable[[Arrival], Awaitable[None]]) -> None:
        """What fails harms this request and no other."""
        try:
            await how(arrival)
        except Exception:
            logger.exception("a request is left to the app")
            arrival.refuse("internal", "")

    def _take(self) -> list[Arrival]:
        return self._front.take()

    async def _came(self, arrival: Arrival) -> None:
        server: Any = self._runtime.servers.get(arrival.session_name)
        if arrival.is_idle:
            if server is not None:
                server.become_idle()
            return
        handed: Handed | None = getattr(server, "handed", None)
        if handed is None:
            arrival.refuse("session_ended", "")
        else:
            await handed.take(arrival)

    def close(self) -> None:
        """The front is gone."""
        self.app.arrivals = None
        for task in list(self._tasks):
            task.cancel()


def offer(server: SessionServer, session: Session, here: Loop, transport: Any, scope: Scope) -> Handed | None:
    """Hands a session to the front that its first request came through, where there is one."""
    passed: Passed | None = scope.get(PASSED)
    if passed is None or passed.to.arrivals is None:
        return None
    return passed.to.arrivals.offer(server, session, here, transport, scope, passed.scope)
