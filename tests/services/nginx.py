"""nginx for tests, which start it themselves: each has servers of its own to put behind it.

`nginx` sets TAILROPE_TEST_NGINX, the program, and TAILROPE_TEST_NGINX_TLS, a folder with ca.pem, server.pem and
server.key.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import common


def packages() -> list[str]:
    return ["nginx", "openssl"]


def start(folder: Path, kinds: list[str]) -> tuple[dict[str, str], list[subprocess.Popen[bytes]]]:
    """Makes a certificate. Returns variables for the tests; nothing runs that would have to be ended."""
    # Debian has it where only root looks.
    os.environ["PATH"] += os.pathsep + "/usr/sbin"
    common.certify(folder)
    return {"TAILROPE_TEST_NGINX": common.program("nginx", "nginx"), "TAILROPE_TEST_NGINX_TLS": str(folder)}, []
