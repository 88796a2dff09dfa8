"""What a measurement was made on: the machine, and the versions of everything that took part."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Which packages of the Python environments and of node_modules handle a call.
PYTHON = {
    "mcp2": ["mcp", "pydantic", "starlette", "sse-starlette", "uvicorn", "httptools"],
    "mcp1": ["mcp", "pydantic", "starlette", "sse-starlette", "uvicorn", "httptools"],
    "fastmcp": ["fastmcp", "mcp", "pydantic", "starlette", "sse-starlette", "uvicorn", "httptools"],
}
NODE = {
    "v2": ["@modelcontextprotocol/server", "@modelcontextprotocol/node", "@hono/node-server", "zod"],
    "v1": ["@modelcontextprotocol/sdk", "@hono/node-server", "zod"],
}


def machine() -> dict[str, str]:
    """Linux only, as the load client is."""
    cpuinfo = Path("/proc/cpuinfo").read_text()
    model = re.search(r"^model name\s*: (.*)$", cpuinfo, re.MULTILINE)
    kind = ", virtual machine" if re.search(r"^flags.*\bhypervisor\b", cpuinfo, re.MULTILINE) else ""
    total = re.search(r"^MemTotal:\s*(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE)
    system = platform.freedesktop_os_release().get("PRETTY_NAME", platform.system())
    # Without what a distribution or a host appends to it.
    kernel = re.match(r"[\d.]+\d", platform.release())
    return {
        "CPU": f"{model[1] if model else platform.machine()}, {os.cpu_count()} cores{kind}",
        "Memory": f"{int(total[1]) / 2**20:.1f} GiB" if total else "unknown",
        "System": f"{system}, Linux {kernel[0] if kernel else platform.release()}",
    }


def tailrope() -> str:
    return str(tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]["version"])


def python_versions(program: str, flavor: str) -> dict[str, str]:
    code = (
        "import importlib.metadata, platform, sys; print(platform.python_version());"
        "[print(importlib.metadata.version(name)) for name in sys.argv[1:]]"
    )
    names = PYTHON[flavor]
    found = subprocess.run([program, "-c", code, *names], capture_output=True, text=True, check=True).stdout.split()
    return dict(zip(["Python", *names], found, strict=True))


def rust_versions() -> dict[str, str]:
    rustc = subprocess.run(["rustc", "--version"], capture_output=True, text=True, check=True).stdout.split()[1]
    crates = {each["name"]: each["version"] for each in tomllib.loads((ROOT / "Cargo.lock").read_text())["package"]}
    return {"Rust": rustc, **{name: crates[name] for name in ("rmcp", "hyper", "tokio")}}


def node_versions(flavor: str) -> dict[str, str]:
    node = subprocess.run(["node", "--version"], capture_output=True, text=True, check=True).stdout.strip()
    found = {"Node": node.removeprefix("v")}
    for name in NODE[flavor]:
        found[name] = str(json.loads((ROOT / "node_modules" / name / "package.json").read_text())["version"])
    return found
