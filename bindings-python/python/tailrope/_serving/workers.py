"""Several processes at one port. The system spreads connections over them; sessions are shared by their event store."""

from __future__ import annotations

import logging
import logging.config
import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from uvicorn.config import LOGGING_CONFIG

from tailrope._serving import sockets

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tailrope._runtime import Runtime

logger = logging.getLogger("uvicorn.error")

_ENVIRONMENT = "TAILROPE_WORKER"
MAX_RESTARTS = 5
RESTARTS_WITHIN_S = 60.0
"""More restarts than `MAX_RESTARTS` in this time are no accident: everything stops."""


class Worker(NamedTuple):
    """This process is one of several."""

    ready: int
    """A pipe to the first process, which is told where the worker serves. Its end is the end of the worker."""
    first: int
    """A pipe from the first process, whose end is that of all."""

    @classmethod
    def of_environment(cls) -> Worker | None:
        told = os.environ.pop(_ENVIRONMENT, None)
        return None if told is None else cls(*map(int, told.split(",")))

    def begin(self) -> None:
        for descriptor in self:
            # Programs that the app starts do not keep them open.
            os.set_inheritable(descriptor, False)
        threading.Thread(target=self._end_with_first, name="tailrope-first", daemon=True).start()

    def _end_with_first(self) -> None:
        os.read(self.first, 1)
        os.kill(os.getpid(), signal.SIGTERM)

    def serves(self, urls: Sequence[str]) -> None:
        os.write(self.ready, "".join(f"{url}\n" for url in urls).encode())

    @staticmethod
    def check(runtime: Runtime | None) -> None:
        """Checks that workers can share their sessions.

        Raises:
            ValueError: they cannot.
        """
        if runtime is None:
            msg = "--workers needs Tailrope, and it is switched off or does not fit here: sessions cannot be shared"
            raise ValueError(msg)
        if not runtime.engine.outlives_process():
            msg = (
                "--workers needs an event store that outlives a process: a client's requests come to any of them, and "
                "with the store memory: a session is known to one only. Name one, as in --store sqlite:events.db"
            )
            raise ValueError(msg)


_ENDINGS = (signal.SIGTERM, signal.SIGINT)


class _Process:
    """One worker, as the first process knows it."""

    def __init__(self, words: Sequence[str], port: int, first: int) -> None:
        self.ready, ready = os.pipe()
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tailrope", "serve", *words, "--port", str(port)],
                env={**os.environ, _ENVIRONMENT: f"{ready},{first}"},
                pass_fds=(ready, first),
            )
        finally:
            os.close(ready)
        self.serves = False

    def signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            self.process.send_signal(number)

    def ended(self) -> int:
        os.close(self.ready)
        return self.process.wait()


class _Workers:
    def __init__(self, words: Sequence[str], count: int, port: int) -> None:
        self._words = words
        self._count = count
        self._port = port
        self._selector = selectors.DefaultSelector()
        self._first, self._alive = os.pipe()
        self._processes: set[_Process] = set()
        self._restarts: deque[float] = deque(maxlen=MAX_RESTARTS + 1)
        self._signals = 0
        self._status = 0
        self._is_told = False

    def run(self) -> int:
        heard, told = socket.socketpair()
        for end in (heard, told):
            end.setblocking(False)
        signal.set_wakeup_fd(told.fileno())
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: None)
        self._selector.register(heard, selectors.EVENT_READ)
        # The first alone: what is wrong with the app is then said once.
        self._start()
        while self._processes:
            for key, _ in self._selector.select():
                if key.data is None:
                    for _number in heard.recv(64):
                        self._stop()
                elif text := os.read(key.fd, 4_096):
                    self._serves(key.data, text.decode())
                else:
                    self._ended(key.data)
        return self._status

    def _start(self) -> None:
        process = _Process(self._words, self._port, self._first)
        self._processes.add(process)
        self._selector.register(process.ready, selectors.EVENT_READ, process)

    def _serves(self, process: _Process, urls: str) -> None:
        process.serves = True
        if not self._is_told:
            self._is_told = True
            for url in urls.split():
                logger.info("serving MCP on %s with %d processes", url, self._count)
            for _ in range(self._count - 1):
                if not self._signals:
                    self._start()

    def _ended(self, process: _Process) -> None:
        self._selector.unregister(process.ready)
        self._processes.discard(process)
        status = process.ended()
        if self._signals:
            return
        if not self._is_told:
            # It has said why.
            self._status = status or 1
            return
        logger.error("worker %d has ended with status %d", process.process.pid, status)
        now = time.monotonic()
        self._restarts.append(now)
        if len(self._restarts) > MAX_RESTARTS and now - self._restarts[0] < RESTARTS_WITHIN_S:
            logger.error(
                "%d workers have ended within %d s: no more are started", len(self._restarts), RESTARTS_WITHIN_S
            )
            self._status = 1
            self._stop()
            return
        self._start()

    def _stop(self) -> None:
        """Has the workers drain; told again, they do not wait for anything; told once more, they are ended."""
        self._signals += 1
        for process in self._processes:
            if self._signals > len(_ENDINGS):
                process.process.kill()
            else:
                process.signal(_ENDINGS[self._signals - 1])


def run(words: Sequence[str], count: int, host: str, port: int) -> int:
    """Starts the workers, and starts them again when they end. The exit status, when all have ended.

    Raises:
        OSError: the port is taken, or the host is none of this machine.
        ValueError: this system does not share ports.
    """
    if not hasattr(socket, "SO_REUSEPORT"):
        msg = "--workers needs SO_REUSEPORT, which this system does not have: start one process for each port"
        raise ValueError(msg)
    # Alone at first: with other programs the port is not shared.
    alone = sockets.bound(host, port)
    port = alone[0].getsockname()[1]
    for listener in alone:
        listener.close()
    reserved = sockets.bound(host, port, reuse_port=True)
    logging.config.dictConfig(LOGGING_CONFIG)
    try:
        return _Workers(words, count, port).run()
    finally:
        for listener in reserved:
            listener.close()
