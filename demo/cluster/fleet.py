"""The store, the load balancer and the three nodes."""

import asyncio
import functools
import os
import shutil
import signal
import sys
from asyncio.subprocess import Process
from collections.abc import Callable
from pathlib import Path

from notes import Notes
from processes import LANGUAGES, free_port, read, start, stop, wait_for_server

# Time enough for a node that lives on a busy machine to be taken for alive.
OWNER_LOST_MS = 4_000
# Longer than any call of the demo runs.
DRAIN_WITHIN_MS = 60_000
# Debian has nginx where users do not look for programs.
PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin"])

NGINX = """
daemon off;
master_process off;
pid {folder}/nginx.pid;
error_log {folder}/nginx.log crit;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    # Each request goes to the next node. One that does not listen is left out for that request only.
    upstream nodes {{
{servers}
    }}
    server {{
        listen 127.0.0.1:{port};
        location / {{
            proxy_pass http://nodes;
            proxy_next_upstream error non_idempotent;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            # The SDK's check of the host looks at it.
            proxy_set_header Host $http_host;
            proxy_buffering off;
            proxy_read_timeout 60s;
        }}
    }}
}}
"""


class Node:
    """A place for a process, and the process that is there now."""

    def __init__(self, name: str, language: str) -> None:
        self.name, self.language = name, language
        self.port = free_port()
        self.process: Process | None = None

    @property
    def title(self) -> str:
        return f"{self.name} ({'Python' if self.language == 'python' else 'Node'})"


class Fleet:
    """Three nodes with one store, and one address for all of them."""

    def __init__(self, folder: Path, story: Notes, told: Callable[[str, dict[str, object]], None]) -> None:
        self.folder, self.story, self.told = folder, story, told
        self.nodes = [Node("A", "python"), Node("B", "python"), Node("C", "node")]
        self.port = free_port()
        self.store = f"sqlite:{folder}/events.db"
        self._others: list[Process] = []
        self._readers: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> "Fleet":
        try:
            if (redis := shutil.which("redis-server", path=PATH)) is not None:
                port = free_port()
                await self._run(
                    redis, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(self.folder)
                )
                await wait_for_server(self._others[-1], port)
                self.store = f"redis://127.0.0.1:{port}/0"
            await asyncio.gather(*(self.start(node) for node in self.nodes))
            await self._balance()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        for process in [*(node.process for node in self.nodes if node.process is not None), *self._others[::-1]]:
            await stop(process)
        await asyncio.gather(*self._readers, return_exceptions=True)

    async def start(self, node: Node) -> None:
        arguments = ["--port", str(node.port), "--store", self.store, "--owner-lost-ms", str(OWNER_LOST_MS)]
        arguments += ["--drain-within-ms", str(DRAIN_WITHIN_MS)]
        process = node.process = await start(LANGUAGES[node.language], "cluster/node", *arguments)
        self._readers.append(asyncio.create_task(read(process, self.story, functools.partial(self.told, node.name))))
        await wait_for_server(process, node.port)

    async def restart(self, node: Node) -> int | None:
        """As a deploy does: it is told to end, and the next one comes when it has. Gives the exit status."""
        assert node.process is not None
        node.process.send_signal(signal.SIGTERM)
        status = await node.process.wait()
        await self.start(node)
        return status

    async def kill(self, node: Node) -> None:
        assert node.process is not None
        node.process.kill()
        await node.process.wait()

    async def _balance(self) -> None:
        nginx = shutil.which("nginx", path=PATH)
        if nginx is None:
            raise SystemExit("this part of the demo needs nginx: apt-get install nginx-light")
        servers = "\n".join(f"        server 127.0.0.1:{node.port} max_fails=0;" for node in self.nodes)
        config = self.folder / "nginx.conf"
        config.write_text(NGINX.format(folder=self.folder, servers=servers, port=self.port))
        await self._run(nginx, "-p", str(self.folder), "-c", str(config), "-e", str(self.folder / "nginx.log"))
        await wait_for_server(self._others[-1], self.port)

    async def _run(self, *command: str) -> None:
        nothing = asyncio.subprocess.DEVNULL
        self._others.append(await asyncio.create_subprocess_exec(*command, stdout=nothing, stderr=sys.stderr))
