"""nginx in front of servers: one process, and a port of its own for each server behind it.

`tests/services/with nginx` installs the program and makes a certificate. Time is compressed ten times: what a balancer
does to a connection that is silent for a minute happens here after six seconds, or two where it is meant to happen.
"""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from services.common import free_ports

# A busy machine lets a server that keeps its connections alive stand still for less.
IDLE_S = 6
# For those who bear to be cut.
CUTTING_IDLE_S = 2
START_S = 20.0

# What its documentation tells people to write for streams...
TUNED = """
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_set_header Host $http_host;
            proxy_buffering off;
"""
# ... and what people write: HTTP/1.0 to the server, answers are buffered unless the server asks for the contrary, and
# whatever the client takes so is compressed.
DEFAULT = """
            gzip on;
            gzip_types *;
            gzip_proxied any;
            gzip_min_length 0;
"""

CONFIG = """
daemon off;
master_process off;
pid {folder}/pid;
error_log {folder}/error.log warn;
{user}
events {{ worker_connections 1024; }}
http {{
    log_format ours '$server_port $server_protocol $request_method $status';
    access_log {folder}/access.log ours;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
{servers}
}}
"""

SERVER = """
    server {{
        listen 127.0.0.1:{port}{listen};
        {tls}
        location / {{
            proxy_pass http://127.0.0.1:{upstream};
            proxy_read_timeout {idle_s}s;
            {how}
        }}
    }}
"""


@dataclass(frozen=True)
class Front:
    """One port of nginx: what is behind it, how it is configured, whether it speaks TLS (and so HTTP/2), and for how
    long it bears a connection that is silent."""

    upstream: int
    how: str = TUNED
    has_tls: bool = False
    idle_s: int = IDLE_S


class Nginx:
    def __init__(self, folder: Path, ports: list[int], fronts: list[Front]) -> None:
        self._folder = folder
        self._fronts = dict(zip(ports, fronts, strict=True))
        self.ports = ports

    def urls(self) -> list[str]:
        return [
            f"https://localhost:{port}/mcp" if front.has_tls else f"http://127.0.0.1:{port}/mcp"
            for port, front in self._fronts.items()
        ]

    def protocols(self, port: int) -> Counter[str]:
        """How many requests came to a port by each revision of HTTP; those that are over."""
        lines = (self._folder / "access.log").read_text().splitlines()
        words = [line.split() for line in lines]
        return Counter(word[1] for word in words if word[0] == str(port))

    def cuts(self, port: int) -> int:
        """How many connections of a port were cut for being silent."""
        log = (self._folder / "error.log").read_text(errors="replace")
        upstream = self._fronts[port].upstream
        return len(re.findall(rf"upstream timed out .* upstream: \"http://127.0.0.1:{upstream}/", log))


def certificates() -> Path:
    return Path(os.environ["TAILROPE_TEST_NGINX_TLS"])


def is_there() -> bool:
    return "TAILROPE_TEST_NGINX" in os.environ


@asynccontextmanager
async def nginx(*fronts: Front) -> AsyncIterator[Nginx]:
    """An nginx with a port for each front, as long as the block runs."""
    ports = free_ports(len(fronts))
    with tempfile.TemporaryDirectory(prefix="tailrope-nginx-") as name:
        folder = Path(name)
        at = Nginx(folder, ports, list(fronts))
        servers = "".join(server(port, front) for port, front in zip(ports, fronts, strict=True))
        user = "user root;" if os.geteuid() == 0 else ""
        (folder / "nginx.conf").write_text(CONFIG.format(folder=folder, user=user, servers=servers))
        command = [os.environ["TAILROPE_TEST_NGINX"], "-p", name, "-e", f"{name}/error.log", "-c", f"{name}/nginx.conf"]
        # Its own group: an interrupt at the keyboard is for the tests.
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL, process_group=0)
        try:
            await answers(ports, process, folder)
            yield at
        finally:
            process.terminate()
            await asyncio.to_thread(process.wait, START_S)


def server(port: int, front: Front) -> str:
    tls = ""
    if front.has_tls:
        folder = certificates()
        tls = f"ssl_certificate {folder}/server.pem; ssl_certificate_key {folder}/server.key;"
    return SERVER.format(
        port=port,
        listen=" ssl http2" if front.has_tls else "",
        tls=tls,
        upstream=front.upstream,
        idle_s=front.idle_s,
        how=front.how,
    )


async def answers(ports: list[int], process: subprocess.Popen[bytes], folder: Path) -> None:
    deadline = asyncio.get_running_loop().time() + START_S
    for port in ports:
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.close()
                break
            except OSError as error:
                late = asyncio.get_running_loop().time() > deadline
                if late or process.poll() is not None:
                    log = (folder / "error.log").read_text(errors="replace")
                    raise RuntimeError(f"nginx did not start:\n{log}") from error
                await asyncio.sleep(0.02)
