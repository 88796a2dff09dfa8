"""What the native halves are made of: the licences of all crates in them, and the same as a CycloneDX list."""

import json
import re
import uuid
from dataclasses import dataclass
from pathlib import Path

from places import REPOSITORY, ROOT, VERSION, said

LICENCE = re.compile(r"(?i)^(licen[cs]e|copying|copyright|notice|unlicense)")
NOTICE = """Tailrope's native half contains Rust's standard library (MIT OR Apache-2.0), SQLite (public domain) and
these crates. The texts of their licences follow. Not every crate is in every platform's file. Of a choice
between licences Tailrope takes MIT where it can.
"""


@dataclass(frozen=True)
class Crate:
    name: str
    version: str
    licence: str
    url: str
    folder: Path

    def texts(self) -> list[str]:
        files = [path for path in sorted(self.folder.iterdir()) if LICENCE.match(path.name) and path.is_file()]
        # Of a choice between licences one is enough.
        mit = [path for path in files if "mit" in path.name.lower()]
        if mit and "AND" not in self.licence:
            files = mit
        return [path.read_text(encoding="utf-8", errors="replace").strip().replace("\r\n", "\n") for path in files]


def crates(package: str, target: str = "all") -> list[Crate]:
    """All crates in the native half, of every target unless one is named, without those that only build it."""
    tree = said(
        *("cargo", "tree", "--quiet", "--locked", "--package", package, "--edges", "normal,no-proc-macro"),
        *("--target", target, "--prefix", "none", "--format", "{p}"),
        cwd=ROOT,
    )
    wanted = {tuple(line.split()[:2]) for line in tree.splitlines() if line}
    metadata = json.loads(said("cargo", "metadata", "--format-version", "1", "--locked", cwd=ROOT))
    found = [
        Crate(
            each["name"],
            each["version"],
            (each["license"] or "see its files").replace("/", " OR "),
            each["repository"] or "",
            Path(each["manifest_path"]).parent,
        )
        for each in metadata["packages"]
        if (each["name"], f"v{each['version']}") in wanted and each["source"] is not None
    ]
    return sorted(found, key=lambda crate: (crate.name, crate.version))


def notices(found: list[Crate]) -> str:
    """Each text once, below the crates that have it."""
    by_text: dict[str, list[Crate]] = {}
    for crate in found:
        for text in crate.texts() or ["(These have no file with their licence, only its name.)"]:
            by_text.setdefault(text, []).append(crate)
    parts = [NOTICE]
    parts += [f"{crate.name} {crate.version}: {crate.licence}  {crate.url}".rstrip() for crate in found]
    for text, those in by_text.items():
        parts.append(f"\n{'-' * 80}\n{', '.join(f'{crate.name} {crate.version}' for crate in those)}\n\n{text}")
    return "\n".join(parts) + "\n"


def sbom(package: str, found: list[Crate]) -> str:
    """CycloneDX 1.6, without a time: the same sources make the same file."""
    name = {"tailrope-node": "pkg:npm/tailrope", "tailrope-python": "pkg:pypi/tailrope"}[package]
    components = [
        {
            "type": "library",
            "bom-ref": f"pkg:cargo/{crate.name}@{crate.version}",
            "name": crate.name,
            "version": crate.version,
            "purl": f"pkg:cargo/{crate.name}@{crate.version}",
            "licenses": [{"expression": crate.licence}] if crate.licence != "see its files" else [],
        }
        for crate in found
    ]
    root = {
        "type": "library",
        "bom-ref": f"{name}@{VERSION}",
        "name": "tailrope",
        "version": VERSION,
        "purl": f"{name}@{VERSION}",
        "licenses": [{"expression": "MIT OR Apache-2.0"}],
        "externalReferences": [{"type": "vcs", "url": REPOSITORY}],
    }
    whole = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, json.dumps([root, components]))}",
        "version": 1,
        "metadata": {"component": root},
        "components": components,
        "dependencies": [{"ref": root["bom-ref"], "dependsOn": [each["bom-ref"] for each in components]}],
    }
    return json.dumps(whole, indent=1) + "\n"
