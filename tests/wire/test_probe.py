"""What `tailrope probe` finds in every server of ours, and in the SDKs' own transports.

Each server is asked by the command of its language's package.
tests/rust/probe.rs asks a correct server and one for each fault.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from kit.fleet import servers_of
from kit.servers import ROOT, SERVERS, Farm, Kind, Server

pytestmark = [pytest.mark.ours, pytest.mark.first, pytest.mark.timeout(300)]

VECTORS: dict[str, Any] = json.loads((ROOT / "tests/vectors/probe.json").read_text())
CALL: dict[str, Any] = VECTORS["call"]
RULES: dict[str, list[str]] = {
    check["name"]: check["rules"] for check in json.loads((ROOT / "probe/probe.json").read_text())["checks"]
}
TRIES = 3
TASKS = {name for name in RULES if name.startswith("task")}
# Those that serve 2026-07-28.
TASKED = {"mcp2", "fastmcp4", "tower", "tower-front", "mcp2-front", "node-v2-front"}


def command(kind: Kind) -> list[str]:
    (*_, kind) = servers_of(kind)
    if kind.language == "node":
        return ["node", str(ROOT / "bindings-node/lib/cli/tailrope.mjs")]
    # Rust has no package with a command.
    return [(SERVERS["mcp2"] if kind.language == "rust" else kind).python, "-m", "tailrope"]


async def probe(server: Server, *words: str, **options: Any) -> dict[str, Any]:
    """The report, once the exit status is what it says."""
    given = {**CALL, **options}
    told = ["--tool", given["tool"], "--arguments", json.dumps(given["arguments"])]
    told += ["--timeout-ms", str(given["timeout_ms"]), "--idle-ms", str(given["idle_ms"]), "--json", *words]
    process = await asyncio.create_subprocess_exec(
        *command(server.kind),
        "probe",
        f"http://127.0.0.1:{server.port}/mcp",
        *told,
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    assert not err, err.decode()
    report: dict[str, Any] = json.loads(out)
    assert report["exit"] == process.returncode
    return report


def ended(report: dict[str, Any], *outcomes: str) -> set[str]:
    return {check["name"] for check in report["checks"] if check["outcome"] in outcomes}


async def test_our_server_is_resumable(farm: Farm) -> None:
    server = farm.get(engine={"keep_alive_ms": 200, "task_after_ms": 100})
    polled = {"steps": ["sleep 100", "close", "sleep 300", "return x"]}
    tasked = {kind.name in TASKED for kind in servers_of(server.kind)}
    # Where only some of a fleet make tasks, no client can rely on them.
    words = ["--skip", ",".join(TASKS)] if len(tasked) == 2 else []
    whole, early = await asyncio.gather(
        probe(server, "--require", "resumable", *words, **VECTORS["ours"]),
        probe(server, "--only", "early-close", arguments=polled, idle_ms=VECTORS["ours"]["idle_ms"]),
    )
    assert whole["exit"] == 0 and whole["verdict"] == {"resumable": "yes", "because": [], "not_live": None}, whole
    assert ended(whole, "warn", "fault", "skipped") - TASKS == {"early-close"}, whole
    assert ended(whole, "ok") & TASKS == (TASKS if tasked == {True} else set()), whole
    assert ended(early, "ok") == {"early-close"}, early


@pytest.mark.full
@pytest.mark.parametrize("kind", [SERVERS[name] for name in VECTORS["stock"]], ids=list(VECTORS["stock"]))
async def test_a_stock_server_has_the_faults_that_are_known_of_it(kind: Kind) -> None:
    known_of = VECTORS["stock"][kind.name]
    # An event falls between replay and live delivery, a resume comes before the server has seen the cut.
    races = set(known_of["races"])
    for _ in range(TRIES):
        async with Server.running(kind, transport="stock") as server:
            report = await probe(server, "--skip", "keep-alive")
        if ended(report, "fault") - races == set(known_of["faults"]):
            break
    assert ended(report, "fault") - races == set(known_of["faults"]), report
    assert report["verdict"]["resumable"] == "no"
    table = table_of("docs/evidence/stock-faults.md", f"stock {kind.name}")
    for name in ended(report, "fault") - races:
        faults = [rule for rule in RULES[name] if rule.startswith("F-")]
        assert any(table.get(fault, "").startswith("**fails**") for fault in faults), (kind.name, name)


def table_of(path: str, column: str) -> dict[str, str]:
    """What a table of faults says in one column, by fault."""
    rows = [[cell.strip() for cell in line.strip("|\n").split("|")] for line in (ROOT / path).open() if line[0] == "|"]
    place = rows[0].index(column)
    return {row[0]: row[place] for row in rows[2:]}
