"""What the modules of servers share: free ports, and waiting until a server answers."""

from __future__ import annotations

import contextlib
import random
import shutil
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

# A server that has not answered for so long will not.
PATIENCE_S = 30


# Below what the system gives to whoever wants any port: until a server has bound its own, nobody is handed it.
PORTS = range(20_000, 32_000)


def free_ports(count: int) -> list[int]:
    """Ports of loopback that nobody uses now, all different."""
    ports: set[int] = set()
    while len(ports) < count:
        port = random.choice(PORTS)
        with socket.socket() as trial, contextlib.suppress(OSError):
            trial.bind(("127.0.0.1", port))
            ports.add(port)
    return list(ports)


def program(name: str, package: str) -> str:
    """Where a program is.

    Raises RuntimeError, naming the package that has it, when it is nowhere.
    """
    path = shutil.which(name)
    if path is None:
        raise RuntimeError(f"{name} is not there; Debian has it in the package {package}")
    return path


def start(command: list[str | Path], log: Path) -> subprocess.Popen[bytes]:
    """Starts a server in a process group of its own: a Ctrl-C in the terminal is ours to handle."""
    with log.open("ab") as output:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, process_group=0, cwd=log.parent
        )


def wait_until(what: str, is_true: Callable[[], bool], process: subprocess.Popen[bytes], log: Path) -> None:
    """Waits until a server is ready.

    Raises RuntimeError with the end of its log when it ends, or takes too long.
    """
    deadline = time.monotonic() + PATIENCE_S
    while not is_true():
        ended = process.poll()
        if ended is not None or time.monotonic() > deadline:
            last = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
            state = "it took too long" if ended is None else f"it ended with {ended}"
            raise RuntimeError(f"{what}: {state}\n{last}")
        time.sleep(0.02)


def certify(folder: Path, client: str = "client") -> None:
    """A throw-away authority, and certificates of it: ca.pem, server.pem and server.key for localhost, client.pem and
    client.key for a client of this name."""
    openssl = program("openssl", "openssl")
    ec = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    sign = ["x509", "-req", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2"]
    (folder / "names").write_text(
        "subjectAltName=DNS:localhost,IP:127.0.0.1\nbasicConstraints=CA:FALSE\nextendedKeyUsage=serverAuth\n"
    )
    (folder / "use").write_text("basicConstraints=CA:FALSE\nextendedKeyUsage=clientAuth\n")
    for command in (
        ["req", "-x509", *ec, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=throw-away authority"],
        ["req", *ec, "-keyout", "server.key", "-out", "server.csr", "-subj", "/CN=localhost"],
        [*sign, "-in", "server.csr", "-extfile", "names", "-out", "server.pem"],
        ["req", *ec, "-keyout", "client.key", "-out", "client.csr", "-subj", f"/CN={client}"],
        [*sign, "-in", "client.csr", "-extfile", "use", "-out", "client.pem"],
    ):
        done = subprocess.run([openssl, *command], cwd=folder, capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(f"openssl {command[0]} failed: {done.stderr}")
