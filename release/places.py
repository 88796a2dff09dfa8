"""Where things are, and what is published for which platform."""

import json
import platform
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / "dist"
# The sources as they are published, and what is laid out on the way.
STAGE = ROOT / "target" / "release-stage"
CRATES = ("tailrope-core", "tailrope-client", "tailrope-probe", "tailrope-stores", "tailrope-server", "tailrope-cli")
# The oldest glibc that wheels and addons run on, and the oldest that Rust itself supports.
GLIBC = "2.17"
MACOS = {"aarch64": "11.0", "x86_64": "10.13"}


def workspace() -> dict[str, str]:
    package: dict[str, str] = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]
    return package


VERSION = workspace()["version"]
REPOSITORY = workspace()["repository"]


@dataclass(frozen=True)
class Platform:
    """One that has a wheel and a package of npm."""

    name: str
    target: str

    @property
    def arch(self) -> str:
        return self.target.partition("-")[0]

    @property
    def is_linux(self) -> bool:
        return "linux" in self.target

    @property
    def is_musl(self) -> bool:
        return self.target.endswith("musl")

    @property
    def library(self) -> str:
        """What cargo calls the addon."""
        return {"darwin": "libtailrope_node.dylib", "win32": "tailrope_node.dll"}.get(
            self.name.partition("-")[0], "libtailrope_node.so"
        )

    @property
    def compatibility(self) -> str:
        """Which Linux it runs on, in the words of wheels."""
        return "musllinux_1_2" if self.is_musl else f"manylinux_{GLIBC.replace('.', '_')}"

    @property
    def wheel(self) -> str:
        """The end of the wheel's name."""
        if self.is_linux:
            old = {"manylinux_2_17": f"manylinux2014_{self.arch}."}.get(self.compatibility, "")
            return f"{old}{self.compatibility}_{self.arch}"
        if "apple" in self.target:
            arch = "arm64" if self.arch == "aarch64" else self.arch
            return f"macosx_{MACOS[self.arch].replace('.', '_')}_{arch}"
        return "win_arm64" if self.arch == "aarch64" else "win_amd64"


PLATFORMS = {
    name: Platform(name, each["target"])
    for name, each in json.loads((ROOT / "bindings-node" / "platforms.json").read_text()).items()
}


def this_platform() -> str:
    system = {"linux": "linux", "darwin": "darwin", "win32": "win32"}[sys.platform]
    arch = "arm64" if platform.machine().lower() in ("aarch64", "arm64") else "x64"
    libc = {"linux": "-gnu" if platform.libc_ver()[0] == "glibc" else "-musl", "win32": "-msvc"}
    return f"{system}-{arch}{libc.get(system, '')}"


def run(*words: str | Path, prefix: Sequence[str] = (), **options: object) -> None:
    """Runs a command, and shows what it says. The prefix is a program that runs it."""
    print("$", *words, flush=True)
    if subprocess.run([*prefix, *words], **options).returncode != 0:  # type: ignore[call-overload]
        sys.exit(f"release: {words[0]} failed")


def said(*words: str | Path, **options: object) -> str:
    done = subprocess.run(words, capture_output=True, text=True, encoding="utf-8", **options)  # type: ignore[call-overload]
    if done.returncode != 0:
        sys.exit(f"release: {' '.join(map(str, words))}\n{done.stdout}{done.stderr}")
    return str(done.stdout)


def npm(*words: str | Path) -> tuple[str | Path, ...]:
    """npm is a script on Windows, which has to be run by the shell's name of it."""
    return ("npm.cmd" if sys.platform == "win32" else "npm", *words)
