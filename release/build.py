"""Builds what is published, from the tracked files alone."""

import os
import re
import shutil
import sys
from pathlib import Path

import third_party
from places import CRATES, DIST, GLIBC, MACOS, PLATFORMS, REPOSITORY, ROOT, STAGE, VERSION, Platform, npm, run, said

LINK = re.compile(r"(\]\()(?![a-z]+:|#)([^)\s]+)")
PICTURES = (".svg", ".png", ".gif")


def absolute(page: str) -> str:
    """A page whose links also lead somewhere where a registry shows it: to the files of this version."""

    def link(match: re.Match[str]) -> str:
        kind = "raw" if match[2].partition("#")[0].endswith(PICTURES) else "blob"
        return f"{match[1]}{REPOSITORY}/{kind}/v{VERSION}/{match[2]}"

    return LINK.sub(link, page)


def stage(package: str) -> None:
    """Lays out the sources: the tracked files, and what is in a package beside them."""
    shutil.rmtree(STAGE, ignore_errors=True)
    for name in said("git", "ls-files", cwd=ROOT).splitlines():
        target = STAGE / name
        target.parent.mkdir(parents=True, exist_ok=True)
        # With its time, so that cargo builds again only what has changed.
        shutil.copy2(ROOT / name, target)
    readme = STAGE / "README.md"
    readme.write_text(absolute(readme.read_text(encoding="utf-8")), encoding="utf-8", newline="\n")
    crates = third_party.crates(package)
    (STAGE / "THIRD-PARTY-LICENSES.txt").write_text(third_party.notices(crates), encoding="utf-8", newline="\n")
    (STAGE / "sbom.cdx.json").write_text(third_party.sbom(package, crates), encoding="utf-8", newline="\n")


def cleared(folder: str, pattern: str) -> Path:
    """The folder for a kind of packages, without old ones."""
    out = DIST / folder
    out.mkdir(parents=True, exist_ok=True)
    for old in out.glob(pattern):
        old.unlink()
    return out


def environment(platform: Platform) -> dict[str, str]:
    """No path of this machine gets into what is built."""
    cargo = Path(os.environ.get("CARGO_HOME", Path.home() / ".cargo"))
    flags = [f"--remap-path-prefix={cargo}=cargo", f"--remap-path-prefix={STAGE}=tailrope"]
    if platform.is_musl:
        # As Node and Python are linked there: with the C library of the system.
        flags.append("-Ctarget-feature=-crt-static")
    values = {"CARGO_ENCODED_RUSTFLAGS": "\x1f".join(flags), "CARGO_TARGET_DIR": str(ROOT / "target")}
    if "apple" in platform.target:
        values["MACOSX_DEPLOYMENT_TARGET"] = MACOS[platform.arch]
    return {**os.environ, **values, "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])}


def wheel(platform: Platform, profile: str, interpreter: str | None) -> None:
    """One for all versions of Python; with an interpreter that has no global lock, one for it alone."""
    kind = "cp*-cp*t" if interpreter else "cp*-abi3"
    out = cleared("python", f"tailrope-*-{kind}-{platform.wheel}.whl")
    words = ["maturin", "build", "--locked", "--profile", profile, "--target", platform.target, "--out", str(out)]
    if platform.is_linux:
        words += ["--zig", "--compatibility", platform.compatibility]
    if interpreter:
        words += ["--interpreter", interpreter]
    words += ["--sbom-include", "sbom.cdx.json"]
    run(*words, cwd=STAGE, env=environment(platform))


def addon(platform: Platform, profile: str) -> None:
    target = f"{platform.target}.{GLIBC}" if platform.is_linux and not platform.is_musl else platform.target
    build = ["cargo", "zigbuild"] if platform.is_linux else ["cargo", "build"]
    words = [*build, "--locked", "--profile", profile, "--target", target, "--package", "tailrope-node"]
    run(*words, cwd=STAGE, env=environment(platform))
    folder = "debug" if profile == "dev" else profile
    packed(f"{platform.name}={ROOT / 'target' / platform.target / folder / platform.library}")


def packed(what: str) -> None:
    """Packs the main package, or PLATFORM=ADDON."""
    layout = STAGE / "npm"
    run("node", "bindings-node/pack.mjs", layout, what, cwd=STAGE)
    name = "tailrope" if what == "main" else f"@tailrope/{what.partition('=')[0]}"
    file = f"{name.removeprefix('@').replace('/', '-')}-{VERSION}.tgz"
    out = cleared("npm", file)
    run(*npm("pack", "--silent", "--pack-destination", out, layout / name), cwd=STAGE)


def native(names: list[str], profile: str, interpreter: str | None) -> None:
    """Wheels and the packages of npm for these platforms."""
    for name in names:
        platform = PLATFORMS[name]
        stage("tailrope-python")
        wheel(platform, profile, interpreter)
        if not interpreter:
            stage("tailrope-node")
            addon(platform, profile)


def source() -> None:
    """What is the same for all platforms: the sdist, the main package of npm, and the crates."""
    stage("tailrope-python")
    out = cleared("python", "*.tar.gz")
    run(
        "maturin",
        "sdist",
        "--out",
        out,
        cwd=STAGE,
        env={**os.environ, "PATH": environment(PLATFORMS["linux-x64-gnu"])["PATH"]},
    )
    run("node", "bindings-node/javascript.mjs", cwd=ROOT)
    stage("tailrope-node")
    for form in ("lib", "cjs"):
        shutil.copytree(ROOT / "bindings-node" / form, STAGE / "bindings-node" / form)
    packed("main")
    # In the order in which they depend on each other, each built from its package alone.
    words = [word for crate in CRATES for word in ("--package", crate)]
    run("cargo", "package", "--locked", *words, cwd=ROOT)
    out = cleared("crates", "*.crate")
    for crate in CRATES:
        shutil.copy(ROOT / "target" / "package" / f"{crate}-{VERSION}.crate", out)
