"""Tries what is in dist/ as its users do: installs it in an empty folder, runs a server there, and asks it.

Where the system can, the clone is hidden from all of that.
"""

import os
import re
import shutil
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
import venv
from collections.abc import Callable
from pathlib import Path

from places import CRATES, DIST, ROOT, VERSION, npm, run, this_platform

SMOKE = Path(__file__).resolve().parent / "smoke"
# One that is in no virtual environment of the clone.
PYTHON = getattr(sys, "_base_executable", sys.executable)
# An empty file system over the clone, in a name space of the program's own.
HIDE = 'mount -t tmpfs none "$0" && exec "$@"'


def hidden() -> list[str]:
    """What a command begins with so that it sees no clone."""
    if sys.platform != "linux" or shutil.which("unshare") is None:
        return []
    user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    start = ["unshare", *user, "--mount", "sh", "-c", HIDE, str(ROOT)]
    works = subprocess.run([*start, "test", "!", "-e", str(ROOT / "Cargo.toml")], capture_output=True).returncode == 0
    return start if works else []


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


class Trial:
    """One folder in which something is installed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.prefix = hidden()
        print(f"in {folder}{', which sees no clone' if self.prefix else ''}", flush=True)
        shutil.copytree(DIST, folder / "dist")
        for program in SMOKE.iterdir():
            shutil.copy(program, folder)

    def run(self, *words: str | Path, **variables: str) -> None:
        run(*words, prefix=self.prefix, cwd=self.folder, env={**os.environ, **variables})

    def ask(self, *server: str | Path) -> None:
        """Runs a server, and the client when it listens."""
        port = free_port()
        environment = {**os.environ, "PORT": str(port)}
        print("$", *server, flush=True)
        process = subprocess.Popen([*self.prefix, *server], cwd=self.folder, env=environment)
        try:
            while True:
                if process.poll() is not None:
                    sys.exit(f"try: {server[0]} has ended")
                with socket.socket() as connection:
                    if connection.connect_ex(("127.0.0.1", port)) == 0:
                        break
                time.sleep(0.05)
            self.run(PYTHON, "client.py", f"http://127.0.0.1:{port}/mcp")
        finally:
            process.kill()
            process.wait()


def environment(trial: Trial) -> Path:
    """An empty virtual environment: its Python."""
    venv.create(trial.folder / "venv", with_pip=True)
    return trial.folder / "venv" / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def python(trial: Trial, *how: str) -> None:
    program = environment(trial)
    found = ["--find-links", "dist/python", f"tailrope=={VERSION}", "fastmcp"]
    trial.run(program, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *how, *found)
    trial.ask(program, "server.py")
    trial.run(program, "-m", "tailrope", "probe", "--help")


def wheel(trial: Trial) -> None:
    python(trial, "--only-binary", "tailrope")


def sdist(trial: Trial) -> None:
    """Built where it is installed, which needs Rust and a C compiler."""
    python(trial, "--no-binary", "tailrope", "--no-cache-dir")


def node(trial: Trial) -> None:
    (trial.folder / "package.json").write_text('{ "private": true, "type": "module" }\n')
    packages = [f"./dist/npm/tailrope-{part}{VERSION}.tgz" for part in ("", f"{this_platform()}-")]
    sdks = ["@modelcontextprotocol/server", "@modelcontextprotocol/node", "express", "hono", "@hono/node-server", "zod"]
    trial.run(*npm("install", "--no-audit", "--no-fund", "--loglevel=error", *packages, *sdks))
    for framework in ("express", "hono"):
        trial.ask("node", "server.mjs", framework)
    trial.run(*npm("exec", "--no", "--", "tailrope", "--help"))


def rust(trial: Trial) -> None:
    for crate in CRATES:
        with tarfile.open(DIST / "crates" / f"{crate}-{VERSION}.crate") as archive:
            archive.extractall(trial.folder, filter="data")
    program = trial.folder / "server"
    trial.run("cargo", "init", "--quiet", "--vcs", "none", program)
    shutil.copy(SMOKE / "server.rs", program / "src" / "main.rs")
    # Until they are published, the crates find each other here.
    manifest = program / "Cargo.toml"
    patches = "".join(f'{crate} = {{ path = "../{crate}-{VERSION}" }}\n' for crate in CRATES)
    manifest.write_text(f"{manifest.read_text()}\n[patch.crates-io]\n{patches}")
    rmcp = re.search(r'rmcp = \{ version = "([\d.]+)"', (ROOT / "server-rust" / "Cargo.toml").read_text())
    assert rmcp is not None
    ours = ["--path", str(trial.folder / f"tailrope-server-{VERSION}"), "--features", "rmcp"]
    crates = [ours, [f"rmcp@{rmcp[1]}"], ["axum@0.8"], ["serde_json"]]
    crates.append(["tokio", "--features", "full"])
    for words in crates:
        trial.run("cargo", "add", "--quiet", "--manifest-path", manifest, *words)
    target = {"CARGO_TARGET_DIR": str(trial.folder / "target"), "CARGO_PROFILE_DEV_DEBUG": "0"}
    trial.run("cargo", "build", "--quiet", "--manifest-path", manifest, **target)
    trial.ask(trial.folder / "target" / "debug" / f"server{'.exe' if os.name == 'nt' else ''}")


LANGUAGES: dict[str, Callable[[Trial], None]] = {"wheel": wheel, "node": node, "rust": rust, "sdist": sdist}


def languages(names: list[str]) -> None:
    for name in names:
        if name not in LANGUAGES:
            sys.exit(f"try: {name} is none of {', '.join(LANGUAGES)}")
        with tempfile.TemporaryDirectory(prefix=f"tailrope-{name}-", ignore_cleanup_errors=True) as folder:
            LANGUAGES[name](Trial(Path(folder).resolve()))
    print(f"try: {', '.join(names)} as it should be")
