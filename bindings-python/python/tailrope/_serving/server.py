"""`tailrope.serve`: an app on uvicorn, with the front before it."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any, Unpack

import uvicorn
from uvicorn.config import LOGGING_CONFIG
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from tailrope._native import Front
from tailrope._options import MEMORY, Options, is_disabled
from tailrope._runtime import drain_ends_at
from tailrope._serving import apps, sockets
from tailrope._serving.behind import Behind
from tailrope.mcp import _engage, _hosts, _install
from tailrope.mcp._arrivals import Arrivals
from tailrope.mcp._manager import managers_in

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Generator, Mapping

    from starlette.types import ASGIApp

    from tailrope._native import Store
    from tailrope._runtime import Runtime
    from tailrope._serving.workers import Worker
    from tailrope.mcp._engage import Way

logger = logging.getLogger("uvicorn.error")

MORE_S = 5.0
"""How much longer than for calls is waited for the answers of an app that stops, where uvicorn would wait for ever."""
KEEP_ALIVE_S = 3_600
"""The front alone decides when a connection to the app is no longer needed."""

_HARMLESS = frozenset(
    {"access_log", "date_header", "forwarded_allow_ips", "http", "lifespan", "log_config", "log_level", "loop"}
    | {"proxy_headers", "server_header", "timeout_graceful_shutdown", "timeout_notify", "use_colors"}
    | {"ws", "ws_max_queue", "ws_max_size", "ws_per_message_deflate", "ws_ping_interval", "ws_ping_timeout"}
)
"""Settings of uvicorn that decide about no request."""
_OURS = frozenset({"app", "backlog", "factory", "fd", "host", "interface", "port", "timeout_keep_alive", "uds"})
_NOT_HERE = ("reload", "ssl", "workers")
"""What settings begin with that a server with a front cannot have."""


class Server(uvicorn.Server):
    """One app, served at one address. The sockets are bound; nothing listens yet."""

    def __init__(
        self,
        app: ASGIApp,
        way: Way | None,
        listeners: list[socket.socket],
        settings: Mapping[str, Any],
        paths: list[str],
        worker: Worker | None = None,
    ) -> None:
        given = {**_logging(), "access_log": False, **settings}
        self._app = app
        self._way = way
        self._listeners = listeners
        self._worker = worker
        self._resources = ExitStack()
        for listener in listeners:
            self._resources.callback(listener.close)
        self.is_serving = False
        """Whether clients are answered."""
        self._front: Front | None = None
        self._behind: Behind | None = None
        self._place: str | None = None
        host, port = listeners[0].getsockname()[:2]
        self.urls = [sockets.url(host, port, path) for path in paths or [""]]
        if way is None:
            super().__init__(uvicorn.Config(app, **given))
            return
        self._place = self._resources.enter_context(sockets.private_place())
        around = _around(given)
        unknown = sorted(name for name, value in given.items() if not _is_harmless(name, value))
        self._behind = Behind(app, around, (host, port), unknown)
        place: dict[str, Any] = {"host": "127.0.0.1", "port": 0} if self._place is None else {"uds": self._place}
        given |= {"proxy_headers": False, "timeout_keep_alive": KEEP_ALIVE_S, **place}
        super().__init__(uvicorn.Config(self._behind, **given))
        vars(self)[_hosts.FRONT_ENDS] = self._end_front

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=self._listeners if self._behind is None else None)
        if self._behind is not None and self._way is not None:
            await self._start_front(self._behind, self._way)
        self.is_serving = True
        if self._worker is not None:
            self._worker.serves(self.urls)
            return
        for url in self.urls:
            logger.info("serving MCP on %s", url)

    def _log_started_message(self, listeners: Any) -> None:
        """Where the app listens concerns nobody."""

    async def _start_front(self, behind: Behind, way: Way) -> None:
        runtime = _runtime(self._app, way)
        await runtime.ready()
        # Its threads wake what waits on any loop of the engine.
        runtime.is_fronted = True
        here = runtime.here()
        port = self.servers[0].sockets[0].getsockname()[1] if self._place is None else None
        for listener in self._listeners:
            listener.listen(sockets.BACKLOG)
        descriptors = [listener.detach() for listener in self._listeners]
        self._front = front = Front(runtime.engine, here.waiters, descriptors, self._place or f"127.0.0.1:{port}")
        arrivals = Arrivals(front, behind, runtime, here, self.lifespan.state)
        self._resources.callback(front.close, 0)
        self._resources.callback(arrivals.close)

    async def _end_front(self) -> None:
        """Stops the front, and waits until its answers have ended. The app still answers meanwhile."""
        if self._front is None:
            return
        # First, so that no client comes that is not served any more.
        self._front.stop()
        grace = self.config.timeout_graceful_shutdown
        within_s = max(drain_ends_at() - time.monotonic(), 0) + MORE_S if grace is None else grace
        closed = asyncio.Event()
        loop = asyncio.get_running_loop()

        def close(front: Front) -> None:
            front.close(round(within_s * 1_000))
            # Where nobody waits any more, the loop may be closed.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(closed.set)

        # A thread that nobody has to wait for, when the signal comes again.
        threading.Thread(target=close, args=(self._front,), name="tailrope-front-end", daemon=True).start()
        while not closed.is_set() and not self.force_exit:
            await asyncio.sleep(_POLL_S)

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        with super().capture_signals():
            try:
                yield
            finally:
                # Before the signal is raised again, which may end the process.
                self._resources.close()


_POLL_S = 0.02


def _is_harmless(name: str, value: Any) -> bool:
    # A protocol of the user's own may do anything.
    return name in _HARMLESS and (name != "http" or value in ("auto", "h11", "httptools"))


def _around(settings: Mapping[str, Any]) -> Callable[[ASGIApp], ASGIApp]:
    """What uvicorn puts around an app of what it knows of the client."""
    if not settings.get("proxy_headers", True):
        return lambda app: app
    # As it decides about them itself.
    trusted = uvicorn.Config(lambda: None, forwarded_allow_ips=settings.get("forwarded_allow_ips"), log_config=None)

    def around(app: ASGIApp) -> ASGIApp:
        wrapped: Any = ProxyHeadersMiddleware(app, trusted.forwarded_allow_ips)  # type: ignore[arg-type]
        return wrapped  # type: ignore[no-any-return]

    return around


def _logging() -> dict[str, Any]:
    """uvicorn's own logging, in which our lines show as well, unless they have a place already."""
    if logging.getLogger("tailrope").hasHandlers():
        return {}
    ours = {"handlers": ["default"], "level": "INFO", "propagate": False}
    return {"log_config": {**LOGGING_CONFIG, "loggers": {**LOGGING_CONFIG["loggers"], "tailrope": ours}}}


def _runtime(app: Any, way: Way) -> Runtime:
    """The engine of the app's sessions, or of the first of several kinds."""
    for found in managers_in(app):
        manager = getattr(found, "session_manager", None) or found
        runtime = way.runtime_for(getattr(manager, "event_store", None))
        if runtime is not None:
            return runtime
    return way.runtime.current


def _engaged(app: Any, store: str | Store | None, options: Options) -> Way | None:
    """The way that is in force for an app; `install()` is called where none is. None where stock serves."""
    way: Way | None
    explicit = [it._tailrope_way for it in managers_in(app) if getattr(it, "_tailrope_way", None) is not None]
    if explicit or _engage.installed is not None:
        if options or store is not None:
            msg = "Tailrope is installed already: give the options to install() or resumable()"
            raise ValueError(msg)
        way = explicit[0] if explicit else _engage.installed
    else:
        _install.install(store=MEMORY if store is None else store, **options)
        way = _engage.installed
    return None if way is None or is_disabled() or way.transport == "stock" else way


def prepared(
    served: Any,
    host: str,
    port: int,
    path: str | None,
    settings: Mapping[str, Any] | None,
    store: str | Store | None,
    options: Options,
    *,
    worker: Worker | None = None,
) -> Server:
    """A server that has its port, and has not begun. `worker` says that it is one of several."""
    settings = dict(settings or {})
    for name in settings:
        if name in _OURS or name.startswith(_NOT_HERE):
            msg = f"tailrope.serve() does not take {name} for uvicorn"
            raise ValueError(msg)
    if isinstance(served, str):
        served = apps.imported(served)
    app = apps.app_of(served, path, host)
    listeners = sockets.bound(host, port, reuse_port=worker is not None)
    try:
        way = _engaged(app, store, options)
        if worker is not None:
            worker.check(None if way is None else _runtime(app, way))
            worker.begin()
        return Server(app, way, listeners, settings, list(apps.endpoints(app)), worker)
    except BaseException:
        for listener in listeners:
            listener.close()
        raise


def serve(
    server: Any,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    path: str | None = None,
    uvicorn: Mapping[str, Any] | None = None,
    store: str | Store | None = None,
    **options: Unpack[Options],
) -> None:
    """Serves MCP until the process is told to stop. Tailrope listens itself: requests of its sessions that need no code
    of yours are answered without it, and everything else goes to the app.

    Args:
        server: a server of the SDK or of fastmcp, an ASGI app that has such servers in it, or the name of one of these
            as in `shop.main:mcp`.
        host: the address to listen at.
        port: the port; with 0 the system chooses one, and the log says which.
        path: the path of a server's endpoint. Default the server's own.
        uvicorn: further settings of the `uvicorn.Config` of the app, by name.
        store: the event store, see `tailrope.install`, which is called unless it was called before.
        options: see `tailrope.install`.

    Raises:
        OSError: the port is taken, or the host is none of this machine.
        TypeError: the server is none.
        ValueError: an unknown or wrong option, or there are options for a server that is resumable already.
        TailropeError: the store cannot be opened (code `store_not_opened`).
    """
    run(prepared(server, host, port, path, uvicorn, store, options))


def run(prepared: Server) -> None:
    # uvicorn raises it again once it has stopped.
    with suppress(KeyboardInterrupt):
        prepared.run()
    if not prepared.started:
        sys.exit(STARTUP_FAILURE)


STARTUP_FAILURE = 3
"""What uvicorn exits with when an app cannot be started."""


async def serve_async(
    server: Any,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    path: str | None = None,
    uvicorn: Mapping[str, Any] | None = None,
    store: str | Store | None = None,
    **options: Unpack[Options],
) -> None:
    """Serves MCP on the running event loop: see `serve`. Returns when the process is told to stop; when the task is
    cancelled, connections are cut."""
    await prepared(server, host, port, path, uvicorn, store, options).serve()
