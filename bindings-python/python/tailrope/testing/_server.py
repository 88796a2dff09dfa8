"""Servers under test: an object served in this event loop, or a process of its own that can be killed."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import inspect
import os
import random
import socket
import subprocess
import sys
import tempfile
from collections.abc import Generator, Mapping, Sequence
from types import TracebackType
from typing import Any

from tailrope._errors import TailropeError
from tailrope.testing._processes import GROUP, end_group
from tailrope.testing._session import NEWEST, WAIT_MS, Session, open_session

START_MS = 60_000
STOP_S = 5.0
POLL_S = 0.02
LOG_SHOWN = 4_000
# Linux chooses ports from 32768 on, others from 49152 on.
FIRST_PORT = 20_000
LAST_PORT = 32_000
PORT_ATTEMPTS = 100

Target = str | Sequence[str] | Any
"""What is served: see `serve`."""


class Server:
    """A server that runs. `url` is that of its MCP endpoint, `port` stays the same over restarts."""

    def __init__(self, port: int, path: str, headers: Mapping[str, str], wait_ms: float) -> None:
        self.port, self.wait_ms = port, wait_ms
        self.url = f"http://127.0.0.1:{port}{path}"
        self._given = dict(headers)
        self._sessions: list[Session] = []

    async def session(
        self,
        *,
        revision: str = NEWEST,
        capabilities: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Session:
        """Open a session; see `open_session`. It is closed with the server."""
        given = {**self._given, **(headers or {})}
        session = await open_session(
            self.url, revision=revision, capabilities=capabilities, headers=given, wait_ms=self.wait_ms
        )
        self._sessions.append(session)
        return session

    @property
    def log(self) -> str:
        """What the process wrote to its standard output and error so far; empty for a server in this process."""
        return ""

    async def kill(self) -> None:
        """End the process at once (SIGKILL), with all that it started. Raises TailropeError `not_restartable` for a
        server in this process."""
        raise TailropeError("this server runs in the test's own process: give a command instead", "not_restartable")

    async def start(self) -> None:
        """Start a process that was killed again, on the same port. Raises TailropeError `not_restartable`,
        `not_started`."""
        raise TailropeError("this server runs in the test's own process: give a command instead", "not_restartable")

    async def restart(self) -> None:
        """`kill()` and `start()`: what a crash and a supervisor make of it. Sessions go on with `resume()`, where the
        server has a store that outlives its process."""
        await self.kill()
        await self.start()

    async def close(self) -> None:
        """Cut what is open and stop the server."""
        for session in self._sessions:
            session.close()
        await self._stop()

    async def _stop(self) -> None:
        raise NotImplementedError


class Served(Server):
    """An ASGI application in this event loop, under uvicorn."""

    def __init__(self, app: Any, path: str, headers: Mapping[str, str], wait_ms: float) -> None:
        import uvicorn

        class Quiet(uvicorn.Server):
            @contextlib.contextmanager
            def capture_signals(self) -> Generator[None, None, None]:
                # Signals are the test runner's.
                yield

        # asyncio sets TCP_NODELAY only where the protocol is named.
        self._listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        self._listener.bind(("127.0.0.1", 0))
        self._listener.listen(512)
        super().__init__(self._listener.getsockname()[1], path, headers, wait_ms)
        self._uvicorn = Quiet(uvicorn.Config(app, log_level="error", ws="none", timeout_graceful_shutdown=1))
        self._task: asyncio.Task[None] | None = None

    async def begin(self, start_ms: float) -> None:
        self._task = asyncio.create_task(self._serve())
        waited = 0.0
        while not self._uvicorn.started:
            if self._task.done():
                await self._stop()
                raise TailropeError("the application's startup failed", "not_started") from self._fault()
            if waited > start_ms / 1000:
                await self._stop()
                raise TailropeError(f"the application did not start within {start_ms:.0f} ms", "not_started")
            await asyncio.sleep(POLL_S)
            waited += POLL_S

    async def _serve(self) -> None:
        try:
            await self._uvicorn.serve(sockets=[self._listener])
        except SystemExit as fault:
            # So uvicorn says that it did not start. A task that ends in it ends the test run.
            raise RuntimeError(f"uvicorn exits with {fault.code}") from fault

    def _fault(self) -> BaseException | None:
        assert self._task is not None
        return None if self._task.cancelled() else self._task.exception()

    async def _stop(self) -> None:
        self._uvicorn.should_exit = True
        if self._task is not None:
            done, _ = await asyncio.wait([self._task], timeout=STOP_S)
            if not done:
                self._task.cancel()
                await asyncio.wait([self._task], timeout=STOP_S)
        self._listener.close()


class Process(Server):
    """A command, in a process group of its own."""

    def __init__(
        self,
        command: Sequence[str],
        path: str,
        headers: Mapping[str, str],
        wait_ms: float,
        start_ms: float,
        env: Mapping[str, str],
        cwd: str | None,
    ) -> None:
        super().__init__(_free_port(), path, headers, wait_ms)
        self._command = [part.replace("{port}", str(self.port)) for part in command]
        self._env = {**os.environ, **env, "PORT": str(self.port)}
        self._cwd, self._start_ms = cwd, start_ms
        self._process: subprocess.Popen[bytes] | None = None
        # Open as long as there is a process to write to it.
        self._log = tempfile.NamedTemporaryFile(prefix="tailrope-", delete=False)  # noqa: SIM115
        atexit.register(self._leave)

    @property
    def log(self) -> str:
        # The process has the same file open, and its place there is its own business.
        with open(self._log.name, "rb") as file:
            return file.read(1 << 20).decode("utf-8", "replace")

    async def start(self) -> None:
        if self._process is not None and self._process.poll() is None:
            raise TailropeError("the process is still running", "not_restartable")
        self._process = subprocess.Popen(
            self._command,
            env=self._env,
            cwd=self._cwd,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            **GROUP,
        )
        waited = 0.0
        while not await self._listens():
            if self._process.poll() is not None:
                raise TailropeError(f"it ended with {self._process.returncode}\n{self.log[-LOG_SHOWN:]}", "not_started")
            if waited > self._start_ms / 1000:
                self._end()
                shown = f"it does not listen on port {self.port}, which PORT names\n{self.log[-LOG_SHOWN:]}"
                raise TailropeError(shown, "not_started")
            await asyncio.sleep(POLL_S)
            waited += POLL_S

    async def _listens(self) -> bool:
        try:
            _, writer = await asyncio.wait_for(asyncio.open_connection("127.0.0.1", self.port), 1)
        except (OSError, TimeoutError):
            return False
        writer.close()
        return True

    async def kill(self) -> None:
        await asyncio.to_thread(self._end)

    def _end(self) -> None:
        if self._process is None:
            return
        # A wrapper that is gone may have left behind what it started.
        end_group(self._process)
        self._process.wait()

    async def _stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                await asyncio.to_thread(self._process.wait, STOP_S)
        await asyncio.to_thread(self._leave)
        atexit.unregister(self._leave)

    def _leave(self) -> None:
        """Leaves neither the process nor its log behind."""
        self._end()
        self._log.close()
        with contextlib.suppress(OSError):
            os.unlink(self._log.name)


class Serving:
    """What `serve()` gives: `async with serve(...) as server`, or `server = await serve(...)` and `server.close()`."""

    def __init__(self, make: Any) -> None:
        self._make = make
        self._server: Server | None = None

    def __await__(self) -> Generator[Any, None, Server]:
        made: Generator[Any, None, Server] = self._make().__await__()
        return made

    async def __aenter__(self) -> Server:
        self._server = await self
        return self._server

    async def __aexit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        await self._server.close()


def serve(
    target: Target,
    *,
    path: str = "/mcp",
    headers: Mapping[str, str] | None = None,
    env: Mapping[str, str] | None = None,
    cwd: str | os.PathLike[str] | None = None,
    start_ms: float = START_MS,
    wait_ms: float = WAIT_MS,
) -> Serving:
    """Start a server on a free port of 127.0.0.1. `target` is one of

    - a server object of an SDK (`MCPServer`, `FastMCP`, or the low-level `Server`), or an ASGI application: served in
      this event loop, once;
    - `"package.module:name"`, either of them or a function that makes one: imported and served by a process of its own;
    - `"my_server.py"`, or a command as a list: a process of its own, which has to listen on the port that `PORT` in its
      environment names, and `{port}` in the command.

    `path` is where the MCP endpoint is. `headers` go with every request of the test. `env` and `cwd` are those of the
    process, which has `start_ms` to listen; nothing in a test is waited for longer than `wait_ms`.

    Raises TailropeError `not_started`, with what the process wrote; TypeError for what cannot be served.
    """
    place = None if cwd is None else os.fspath(cwd)
    command = _command(target)

    async def make() -> Server:
        if command is None:
            served = Served(application(target), path, headers or {}, wait_ms)
            await served.begin(start_ms)
            return served
        process = Process(command, path, headers or {}, wait_ms, start_ms, env or {}, place)
        try:
            await process.start()
        except BaseException:
            await process._stop()
            raise
        return process

    return Serving(make)


def _command(target: Target) -> list[str] | None:
    if isinstance(target, str):
        if target.endswith(".py"):
            return [sys.executable, target]
        return [sys.executable, "-m", "tailrope.testing._run", target, "{port}"]
    if isinstance(target, Sequence):
        return [str(part) for part in target]
    return None


def application(target: Any) -> Any:
    """The ASGI application of a server object, or the application itself."""
    for name in ("streamable_http_app", "http_app"):
        make = getattr(target, name, None)
        if callable(make):
            return make()
    if callable(getattr(target, "create_initialization_options", None)):
        return _managed(target)
    if callable(target):
        return target
    raise TypeError(f"{type(target).__name__} is no server: give a server object, an ASGI application, or a command")


def _managed(server: Any) -> Any:
    """A low-level server of mcp 1.x behind its session manager."""
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

    manager = StreamableHTTPSessionManager(app=server)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "lifespan":
            await manager.handle_request(scope, receive, send)
            return
        await receive()
        async with manager.run():
            await send({"type": "lifespan.startup.complete"})
            await receive()
        await send({"type": "lifespan.shutdown.complete"})

    return app


def made(target: Any) -> Any:
    """What a function without arguments makes; anything else as it is."""
    if inspect.isfunction(target) and not inspect.signature(target).parameters:
        return target()
    return target


def _free_port() -> int:
    """A port that nobody is given until the process listens there: the system's own choices are above."""
    fault: OSError | None = None
    for _ in range(PORT_ATTEMPTS):
        # Tests may seed the random numbers that everybody shares.
        port = random.SystemRandom().randint(FIRST_PORT, LAST_PORT)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError as error:
                fault = error
                continue
        return port
    raise TailropeError(f"no port is free: {fault}", "not_started")
