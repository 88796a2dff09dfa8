"""Checks what is in dist/: that it is whole, of one version, small, with its licences, and loads on old systems."""

import hashlib
import json
import re
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import natives
from build import LINK
from places import CRATES, DIST, PLATFORMS, ROOT, VERSION, Platform, npm, run

# The most bytes that each may have.
MB = 1_000_000
BOUNDS = {
    "*.whl": 6 * MB,
    "*.tar.gz": 1 * MB,
    "tailrope-*-*-*.tgz": 6 * MB,
    "tailrope-*.tgz": 0.5 * MB,
    "*.crate": 0.7 * MB,
}
LICENCES = ["LICENSE-APACHE", "LICENSE-MIT"]
# Are the types wrong?
ATTW = "@arethetypeswrong/cli@0.18.5"
NATIVE = re.compile(r"(tailrope\.node|_native[.\w-]*\.(so|pyd))$")


def contents(path: Path) -> dict[str, bytes]:
    """The files of an archive, without the folder that is around all of them."""
    if path.suffix == ".whl":
        with zipfile.ZipFile(path) as wheel:
            return {name: wheel.read(name) for name in wheel.namelist()}
    with tarfile.open(path) as archive:
        files = [(member.name, archive.extractfile(member)) for member in archive]
        return {name.partition("/")[2]: file.read() for name, file in files if file is not None}


def licensed(files: dict[str, bytes], *more: str) -> list[str]:
    ends = {Path(name).name for name in files}
    return [f"no {name}" for name in [*LICENCES, *more] if name not in ends]


def readable(page: str) -> list[str]:
    return [f"its page has the link {target}" for _, target in LINK.findall(page)]


def same_version(found: object) -> list[str]:
    return [] if found == VERSION else [f"its version is {found}"]


def of_wheel(path: Path, files: dict[str, bytes]) -> list[str]:
    text = files[f"tailrope-{VERSION}.dist-info/METADATA"].decode()
    platform = next(each for each in PLATFORMS.values() if path.stem.endswith(each.wheel))
    problems = same_version(re.search(r"(?m)^Version: (.*)$", text)[1])  # type: ignore[index]
    problems += licensed(files, "THIRD-PARTY-LICENSES.txt") + readable(text)
    problems += [] if any(".dist-info/sboms/" in name for name in files) else ["no SBOM"]
    return problems + native(files, platform)


def native(files: dict[str, bytes], platform: Platform) -> list[str]:
    halves = [name for name in files if NATIVE.search(name)]
    found = [problem for name in halves for problem in natives.problems(name, files[name], platform)]
    return found if len(halves) == 1 else [f"{len(halves)} native halves"]


def of_sdist(path: Path, files: dict[str, bytes]) -> list[str]:
    needed = [".cargo/config.toml", "Cargo.lock", "pyproject.toml"]
    text = files["PKG-INFO"].decode()
    problems = [f"no {name}" for name in needed if name not in files]
    return problems + same_version(re.search(r"(?m)^Version: (.*)$", text)[1]) + licensed(files) + readable(text)  # type: ignore[index]


def of_npm(path: Path, files: dict[str, bytes]) -> list[str]:
    manifest = json.loads(files["package.json"])
    problems = same_version(manifest["version"])
    if manifest["name"] != "tailrope":
        problems += licensed(files, "THIRD-PARTY-LICENSES.txt", "sbom.cdx.json")
        return problems + native(files, PLATFORMS[manifest["name"].partition("/")[2]])
    asked = manifest["optionalDependencies"]
    if asked != {f"@tailrope/{name}": VERSION for name in PLATFORMS}:
        problems.append(f"it asks for {asked}")
    if "scripts" in manifest or manifest.get("private"):
        problems.append("it has scripts, or is private")
    return problems + licensed(files) + readable(files["README.md"].decode())


def of_crate(path: Path, files: dict[str, bytes]) -> list[str]:
    package = tomllib.loads(files["Cargo.toml"].decode())["package"]
    needed = ("description", "repository", "homepage", "keywords", "categories", "license", "rust-version")
    problems = [f"no {name} in its manifest" for name in needed if not package.get(name)]
    return problems + same_version(package["version"]) + licensed(files) + readable(files["README.md"].decode())


KINDS = {"*.whl": of_wheel, "*.tar.gz": of_sdist, "*.tgz": of_npm, "*.crate": of_crate}


def expected(platforms: list[str]) -> list[str]:
    """What has to be there. Wheels for interpreters without a global lock come on top."""
    names = [f"python/tailrope-{VERSION}.tar.gz", f"npm/tailrope-{VERSION}.tgz"]
    names += [f"crates/{crate}-{VERSION}.crate" for crate in CRATES]
    for name in platforms:
        names.append(f"npm/tailrope-{name}-{VERSION}.tgz")
        names.append(f"python/tailrope-{VERSION}-cp311-abi3-{PLATFORMS[name].wheel}.whl")
    return names


def check(platforms: list[str], is_complete: bool) -> None:
    there = sorted(path for path in DIST.glob("*/*") if path.parent.name in ("python", "npm", "crates"))
    names = {path.relative_to(DIST).as_posix() for path in there}
    problems = [f"{name} is missing" for name in expected(platforms) if name not in names]
    for path in there:
        kind = next(pattern for pattern in KINDS if path.match(pattern))
        found = KINDS[kind](path, contents(path))
        bound = next(most for pattern, most in BOUNDS.items() if path.match(pattern))
        size = path.stat().st_size
        if size > bound:
            found.append(f"it has {size / MB:.2f} MB, more than {bound / MB:g}")
        print(f"{size / MB:6.2f} MB  {path.relative_to(DIST)}")
        problems += [f"{path.name}: {problem}" for problem in found]
    if is_complete and (others := sorted(name for name in names - set(expected(platforms)) if "cp3" not in name)):
        problems.append(f"nobody asked for {', '.join(others)}")
    if problems:
        sys.exit("\n".join(f"check: {problem}" for problem in problems))
    by_tools(there)
    sums = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.relative_to(DIST).as_posix()}\n" for path in there]
    (DIST / "SHA256SUMS").write_text("".join(sums), newline="\n")
    print(f"check: {len(there)} files, version {VERSION}")


def by_tools(there: list[Path]) -> None:
    """What the tools of each registry say."""
    pythons = [path for path in there if path.parent.name == "python"]
    wheels = [path for path in pythons if path.suffix == ".whl"]
    tools = Path(sys.executable).parent
    run(tools / "twine", "check", "--strict", *pythons)
    for wheel in wheels:
        run(tools / "check-wheel-contents", wheel)
        if "abi3" in wheel.name:
            run(tools / "abi3audit", "--strict", wheel)
    packages = [path for path in there if path.parent.name == "npm"]
    for package in packages:
        run(*npm("exec", "--", "publint", "--strict", package), cwd=ROOT)
    main = DIST / "npm" / f"tailrope-{VERSION}.tgz"
    # The types are of the main package alone. Old resolution of modules knows no entries beside the first.
    run(
        *npm("exec", "--yes", "--package", ATTW, "--", "attw", "--profile", "node16", "--format", "ascii", main),
        cwd=ROOT,
    )
