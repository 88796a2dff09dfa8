"""What is refused before it is published, and what follows from the one version."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "release"))

import build  # noqa: E402
import check  # noqa: E402
import places  # noqa: E402

pytestmark = pytest.mark.one_line
PAGE = "[a](docs/a.md#b) ![c](docs/c.svg) [d](https://example.org/d) [e](#e)"


def test_links_of_a_page_lead_to_the_files_of_its_version() -> None:
    blob, raw = (f"{places.REPOSITORY}/{kind}/v{places.VERSION}/docs" for kind in ("blob", "raw"))
    page = build.absolute(PAGE)
    assert page == f"[a]({blob}/a.md#b) ![c]({raw}/c.svg) [d](https://example.org/d) [e](#e)"
    assert len(check.readable(PAGE)) == 2
    assert check.readable(page) == []


def package(**changes: object) -> dict[str, bytes]:
    asked = {f"@tailrope/{name}": places.VERSION for name in places.PLATFORMS}
    manifest = {"name": "tailrope", "version": places.VERSION, "optionalDependencies": asked, **changes}
    files = {"package.json": json.dumps(manifest).encode(), "README.md": b""}
    return {**files, **dict.fromkeys(check.LICENCES, b"")}


@pytest.mark.parametrize(
    ("files", "problems"),
    [
        (package(), []),
        (package(version="0.0.1"), ["its version is 0.0.1"]),
        (package(scripts={"install": "node build.mjs"}), ["it has scripts, or is private"]),
        (package(optionalDependencies={}), ["it asks for {}"]),
        ({**package(), "README.md": b"[a](docs/a.md)"}, ["its page has the link docs/a.md"]),
        ({name: text for name, text in package().items() if name != "LICENSE-MIT"}, ["no LICENSE-MIT"]),
        (
            package(name="@tailrope/darwin-arm64"),
            ["no THIRD-PARTY-LICENSES.txt", "no sbom.cdx.json", "0 native halves"],
        ),
    ],
)
def test_a_package_that_is_not_as_it_should_be_is_refused(files: dict[str, bytes], problems: list[str]) -> None:
    assert check.of_npm(Path("package.tgz"), files) == problems


def test_every_platform_is_built_by_the_workflow() -> None:
    workflow = (ROOT / ".github" / "workflows" / "release.yml").read_text()
    assert set(re.findall(r"platform: ([\w-]+), runner", workflow)) == set(places.PLATFORMS)


def test_a_version_that_differs_somewhere_is_named(tmp_path: Path) -> None:
    needed = ["scripts/version", "Cargo.toml", "Cargo.lock", "package.json", "pyproject.toml", "CHANGELOG.md"]
    needed += [f"tests/{name}/Cargo.lock" for name in ("interop/rmcp-client", "fuzz/libfuzzer")]
    for name in needed:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)

    def complaints() -> str:
        return subprocess.run([tmp_path / "scripts/version", "--check"], capture_output=True, text=True).stderr

    assert complaints() == ""
    manifest = tmp_path / "Cargo.toml"
    manifest.write_text(manifest.read_text().replace(f'version = "{places.VERSION}"', 'version = "9.9.9"', 1))
    assert [line.split()[1] for line in complaints().splitlines()] == [
        "Cargo.toml",
        *(name for name in needed if name.endswith("Cargo.lock")),
        "CHANGELOG.md",
    ]
