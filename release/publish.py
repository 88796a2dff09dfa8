"""Hands what is in dist/ to the registries. Run again, it goes on where it stopped.

Nothing of ours is secret: the registries trust the workflow, by the identity that GitHub gives it.
"""

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from places import CRATES, DIST, PLATFORMS, ROOT, VERSION, npm, run


def there_is(*words: str | Path) -> bool:
    return subprocess.run(words, capture_output=True).returncode == 0


def pypi(is_dry: bool) -> None:
    files = sorted(path for path in (DIST / "python").iterdir() if path.suffix in (".whl", ".gz"))
    tools = Path(sys.executable).parent
    if is_dry:
        run(
            tools / "uv",
            "publish",
            "--dry-run",
            "--trusted-publishing",
            "never",
            "--username",
            "dry",
            "--password",
            "run",
            *files,
        )
        return
    run(sys.executable, "-m", "pypi_attestations", "sign", *files)
    run(tools / "uv", "publish", "--trusted-publishing", "always", *files)


def packages() -> dict[str, Path]:
    """Those of npm, the main one last: it asks for all the others."""
    names = {f"@tailrope/{name}": f"tailrope-{name}-{VERSION}.tgz" for name in PLATFORMS}
    files = {name: DIST / "npm" / file for name, file in {**names, "tailrope": f"tailrope-{VERSION}.tgz"}.items()}
    return {name: file for name, file in files.items() if file.exists()}


def to_npm(is_dry: bool) -> None:
    how = ["--loglevel=warn", *(["--dry-run", "--provenance=false"] if is_dry else [])]
    tag = ["--tag", "next"] if "-" in VERSION else []
    for name, file in packages().items():
        if not is_dry and there_is(*npm("view", f"{name}@{VERSION}", "version")):
            print(f"{name} {VERSION} is there")
            continue
        run(*npm("publish", *how, *tag, file))


def crates(is_dry: bool) -> None:
    """From the sources at this commit, which have to make the very packages that were tried."""
    words = [word for crate in CRATES for word in ("--package", crate)]
    run("cargo", "package", "--locked", "--no-verify", *words, cwd=ROOT)
    for crate in CRATES:
        file = f"{crate}-{VERSION}.crate"
        if (ROOT / "target" / "package" / file).read_bytes() != (DIST / "crates" / file).read_bytes():
            sys.exit(f"release: {file} is not what these sources make")
    if is_dry:
        run("cargo", "publish", "--dry-run", "--locked", "--no-verify", *words, cwd=ROOT)
        return
    missing = [
        crate
        for crate in CRATES
        if not there_is("cargo", "info", "--quiet", "--registry", "crates-io", f"{crate}@{VERSION}")
    ]
    words = [word for crate in missing for word in ("--package", crate)]
    if words:
        run("cargo", "publish", "--locked", "--no-verify", *words, cwd=ROOT)


def notes() -> str:
    """The part of the changelog about this version."""
    parts = re.split(r"(?m)^## ", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"))
    return next(part.partition("\n")[2].strip() for part in parts if part.startswith(VERSION))


def github(is_dry: bool) -> None:
    tag = f"v{VERSION}"
    files = [*sorted(DIST.glob("*/tailrope*")), DIST / "SHA256SUMS"]
    pre = ["--prerelease"] if "-" in VERSION else []
    words = ["gh", "release", "create", tag, "--verify-tag", "--title", tag, "--notes", notes(), *pre, *map(str, files)]
    if is_dry:
        print("$", *words)
    elif not there_is("gh", "release", "view", tag):
        run(*words, cwd=ROOT)


REGISTRIES: dict[str, Callable[[bool], None]] = {"pypi": pypi, "npm": to_npm, "crates": crates, "github": github}


def publish(names: list[str], is_dry: bool) -> None:
    if unknown := set(names) - set(REGISTRIES):
        sys.exit(f"release: {', '.join(unknown)} is none of {', '.join(REGISTRIES)}")
    for name in names:
        REGISTRIES[name](is_dry)
    print(f"publish: {', '.join(names)} {VERSION}{' would be' if is_dry else ' is'} published")
