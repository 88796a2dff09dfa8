"""Test servers from one process that has imported everything: python -m servers.python.spawner FLAVOR KNOWS FD

A server costs its run then, and not the second of imports before it, and is a process of its own all the same: it runs
and ends as `python -m servers.python.app` does, to the exit of its interpreter; with `-c` and a program as arguments
that program runs instead. KNOWS is `tailrope`, or `nothing`: then its servers come from a process that never heard of
us, and import the SDK's servers themselves, so that `drift` may change these. FD is a socket of packets; each brings
`{"arguments", "env"}` with the descriptors of the server's standard output, its standard error and the socket that gets
its process id and, when it has ended, its exit code. `Spawned` is the other end, shaped like `subprocess.Popen`.
"""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
from pathlib import Path
from typing import IO, Any

TESTS = Path(__file__).resolve().parents[2]
MOST_BYTES = 1 << 17
NUMBER = struct.Struct("q")
# What the servers of a flavour import on their way; none of it acts when it is imported.
COMMON = (
    "anyio._backends._asyncio",
    "fastapi",
    "uvicorn.lifespan.on",
    "uvicorn.protocols.http.auto",
    "uvloop",
)
LIBRARY = {
    "mcp1": ("mcp.server.fastmcp",),
    "mcp2": ("mcp.server.mcpserver",),
    "fastmcp3": ("fastmcp.server.http", "fastmcp.server.server"),
    "lowlevel": ("mcp.server.lowlevel",),
    "byhand": ("mcp.server.lowlevel",),
    "fastmcp4": ("fastmcp.server.http", "fastmcp.server.server"),
}
# Of the SDK, without its transports.
TYPES = "mcp_types" if importlib.util.find_spec("mcp_types") else "mcp.types"


class Spawned:
    """One server process."""

    def __init__(self, spawner: socket.socket, arguments: list[str], env: dict[str, str], stderr: IO[str]) -> None:
        self.returncode: int | None = None
        self._status, status = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        read, write = os.pipe()
        try:
            request = json.dumps({"arguments": arguments, "env": env}).encode()
            socket.send_fds(spawner, [request], [write, stderr.fileno(), status.fileno()])
        finally:
            os.close(write)
            status.close()
        self.stdout = open(read, encoding="utf-8")  # noqa: SIM115
        self.pid = self._number()

    def _number(self) -> int:
        return int(NUMBER.unpack(self._status.recv(NUMBER.size))[0])

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not select.select([self._status], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(["server", str(self.pid)], timeout or 0.0)
            self.returncode = self._number()
            self._status.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        # It may have ended without our having heard of it.
        with contextlib.suppress(ProcessLookupError):
            if self.poll() is None:
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Spawner:
    """The process that has imported what servers of one flavour need. It ends with this one."""

    def __init__(self, python: str, flavor: str, knows: str) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [python, "-m", "servers.python.spawner", flavor, knows, str(theirs.fileno())]
        with theirs:
            self._process = subprocess.Popen(command, cwd=TESTS, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)

    def start(self, arguments: list[str], env: dict[str, str], stderr: IO[str]) -> Spawned:
        return Spawned(self._socket, arguments, env, stderr)


def wait_for(status: socket.socket) -> bool:
    """Make a server of this process, or tell what becomes of it. False in the server."""
    server = os.fork()
    if server == 0:
        return False
    status.send(NUMBER.pack(server))
    _, how = os.waitpid(server, 0)
    # The process that asked may be gone.
    with contextlib.suppress(OSError):
        status.send(NUMBER.pack(os.waitstatus_to_exitcode(how)))
    return True


def next_server(requests: socket.socket) -> list[str] | None:
    """The arguments of the server that this process has become. None when no more is asked for."""
    while True:
        request, descriptors, _, _ = socket.recv_fds(requests, MOST_BYTES, 3)
        if not request:
            return None
        if os.fork() == 0:
            requests.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            with socket.socket(fileno=descriptors[2]) as status:
                if wait_for(status):
                    os._exit(0)
            for descriptor, number in zip(descriptors[:2], (1, 2), strict=True):
                os.dup2(descriptor, number)
                os.close(descriptor)
            order: dict[str, Any] = json.loads(request)
            os.environ.clear()
            os.environ.update(order["env"])
            return list(order["arguments"])
        for descriptor in descriptors:
            os.close(descriptor)


def main(flavor: str, knows: str, descriptor: str) -> None:
    if knows == "tailrope":
        for module in (*LIBRARY[flavor], *COMMON, "tailrope.mcp", "servers.python.app"):
            importlib.import_module(module)
    else:
        # Most of the time goes into the types.
        for module in (TYPES, *COMMON):
            importlib.import_module(module)
        # mcp 1.x has its servers in the same package.
        for module in [name for name in sys.modules if name.startswith("mcp.server")]:
            del sys.modules[module]
        gc.collect()
        assert not {"tailrope", "mcp.server.streamable_http"} & sys.modules.keys()
    assert threading.active_count() == 1, threading.enumerate()
    # Who waits for a server is not waited for.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    arguments = next_server(socket.socket(fileno=int(descriptor)))
    if arguments is None:
        return
    if arguments[0] == "-c":
        sys.argv = ["-c", *arguments[2:]]
        # As the interpreter runs it: what it has made is there until the interpreter has ended.
        exec(arguments[1], vars(sys.modules["__main__"]))
        return
    from .app import main as serve

    serve(arguments)


if __name__ == "__main__":
    main(*sys.argv[1:])
