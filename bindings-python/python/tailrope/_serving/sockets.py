"""Where clients connect, and the place in which the app listens for what they are passed on to."""

from __future__ import annotations

import errno
import os
import shutil
import socket
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

BACKLOG = 2_048


def bound(host: str, port: int, *, reuse_port: bool = False) -> list[socket.socket]:
    """Sockets that are bound to every address of a host. With port 0 the system chooses one port for all of them.

    Raises:
        OSError: the port is taken, or the host is none of this machine.
    """
    opened: list[socket.socket] = []
    try:
        for family, address in _addresses(host, port):
            if opened and port == 0:
                address = (address[0], opened[0].getsockname()[1], *address[2:])
            opened.append(_bound(family, address, reuse_port=reuse_port))
    except OSError as error:
        for listener in opened:
            listener.close()
        taken = error.errno == errno.EADDRINUSE
        why = "the port is taken: another program listens there" if taken else os.strerror(error.errno or 0)
        msg = f"cannot listen at {url(host, port)}: {why}"
        raise OSError(error.errno, msg) from None
    return opened


def _addresses(host: str, port: int) -> list[tuple[socket.AddressFamily, Any]]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except socket.gaierror as error:
        raise OSError(errno.EADDRNOTAVAIL, f"cannot listen at {host}: {error.strerror}") from None
    return list(dict.fromkeys((family, address) for family, _, _, _, address in found))


def _bound(family: socket.AddressFamily, address: Any, *, reuse_port: bool) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        if sys.platform != "win32":
            # On Windows this would let two programs share a port.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if reuse_port:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind(address)
    except OSError:
        listener.close()
        raise
    return listener


def url(host: str, port: int, path: str = "") -> str:
    return f"http://[{host}]:{port}{path}" if ":" in host else f"http://{host}:{port}{path}"


@contextmanager
def private_place() -> Iterator[str | None]:
    """The path of a Unix socket that only this user can connect to; None where there are no such sockets."""
    if not hasattr(socket, "AF_UNIX"):
        yield None
        return
    # Made with mode 0700.
    folder = tempfile.mkdtemp(prefix="tailrope-")
    try:
        yield str(Path(folder) / "app.sock")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
