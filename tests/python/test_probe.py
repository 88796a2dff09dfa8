"""`tailrope probe`: what it finds in a correct server, in one for each fault, in ours, and in the SDKs' own transports.

tests/vectors/probe.json says what that is; tests/node/probe.test.mjs holds the Node package to the same words and to
some of the findings.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Container, Coroutine, Iterable, Iterator
from concurrent.futures import Future, wait
from pathlib import Path
from typing import Any, TypeVar

import pytest
import tailrope.__main__
from kit.servers import ROOT, SERVERS, Kind, Server
from tailrope.probe import Options, Report, probe
from tailrope.probe._cli import main
from tailrope.probe._report import WORDS

# On one worker: the probes begin together.
pytestmark = [pytest.mark.ours, pytest.mark.one_line, pytest.mark.xdist_group("probe"), pytest.mark.timeout(300)]

VECTORS: dict[str, Any] = json.loads((ROOT / "tests/vectors/probe.json").read_text())
FAULTY: list[dict[str, Any]] = VECTORS["servers"]
NAMES = {server["name"] for server in FAULTY}
# With findings of each outcome, from each part of a probe.
SOME = {
    "a correct server",
    "2026-07-28 is served too",
    "answers in JSON",
    "no retry",
    "an answer that does not end",
    "resumes that start without an id",
    "unknown cursors: 404",
    "foreign cursors open the stream",
    "a second reader is refused",
    "a resume swaps events",
    "no tools",
    "sessions do not end",
}
T = TypeVar("T")
AT_ONCE = 4
# What a probe sees of a server that lasts half a second depends on when it is there. A fault that it misses each time,
# and alone, is missed.
TRIES = 3
WAIT_S = 90


class Faulty:
    """The process with all the faulty servers."""

    def __init__(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "raw_server.faulty", *arguments]
        self.process = subprocess.Popen(
            command, cwd=ROOT / "tests/client", stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline().split()[1])

    def url(self, faults: str, name: str, scheme: str = "http") -> str:
        """The server with these faults that is the named test's own."""
        return f"{scheme}://127.0.0.1:{self.port}/{name}/{faults}"

    def stop(self) -> None:
        self.process.communicate("", timeout=10)


@pytest.fixture(scope="module")
def faulty() -> Iterator[Faulty]:
    servers = Faulty()
    yield servers
    servers.stop()


class Ahead:
    """All probes of some servers, begun at once on a loop of their own: they mostly wait."""

    def __init__(self, faulty: Faulty, kinds: Iterable[str], stock: Iterable[str], names: Container[str]) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()
        self._places = asyncio.Semaphore(AT_ONCE)
        self._starting = asyncio.Lock()
        self.servers: list[Server] = []
        self.ours = {name: self._begin(self._ours(SERVERS[name])) for name in kinds}
        self.stock = {name: self._begin(self._stock(SERVERS[name])) for name in stock}
        chosen = [server for server in FAULTY if server["name"] in names]
        self.faulty = [(server, self._begin(self._faulty(faulty, server))) for server in chosen]

    def _begin(self, run: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(run, self.loop)

    async def _start(self, kind: Kind, transport: str, **options: Any) -> str:
        def start() -> Server:
            # Known before anybody can stop to wait for it.
            self.servers.append(Server(kind, options, transport))
            return self.servers[-1]

        # One at a time: a start is work, not a wait.
        async with self._starting:
            server = await asyncio.to_thread(start)
        return f"http://127.0.0.1:{server.port}/mcp"

    async def _ours(self, kind: Kind) -> list[Report]:
        url = await self._start(kind, "tailrope", engine={"keep_alive_ms": 200})
        call = {**VECTORS["call"], **VECTORS["ours"]}
        polled = {**call, "arguments": {"steps": ["sleep 100", "close", "sleep 300", "return x"]}}
        early = Options(url, {}, **polled, only=("early-close",))
        return list(await asyncio.gather(probe(Options(url, {}, **call)), probe(early)))

    async def _stock(self, kind: Kind) -> Report:
        url = await self._start(kind, "stock")
        return await probe(Options(url, {}, **VECTORS["call"], skip=("keep-alive",)))

    async def _faulty(self, faulty: Faulty, server: dict[str, Any], name: str = "python") -> Report:
        async with self._places:
            url = faulty.url(server["faults"], name)
            return await probe(Options(url, {}, only=tuple(server["findings"]), **VECTORS["options"]))

    def again(self, faulty: Faulty, server: dict[str, Any], number: int) -> Report:
        """Probe one faulty server once more, when all the others are done."""
        return self._alone(self._faulty(faulty, server, f"python-{number}"))

    def stock_again(self, name: str) -> Report:
        """The same for a stock server, in a process of its own."""
        return self._alone(self._stock(SERVERS[name]))

    def _alone(self, run: Coroutine[Any, Any, Report]) -> Report:
        wait([*self.ours.values(), *self.stock.values(), *(run for _, run in self.faulty)], WAIT_S)
        return self._begin(run).result(WAIT_S)

    async def _cancel(self) -> None:
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        await self.loop.shutdown_default_executor()

    def stop(self) -> None:
        # What is left of a test that failed must not end in the loop of another one.
        asyncio.run_coroutine_threadsafe(self._cancel(), self.loop).result(30)
        for server in self.servers:
            server.kill()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(10)
        self.loop.close()


@pytest.fixture(scope="module", params=["some", pytest.param("all", marks=pytest.mark.full)])
def ahead(request: pytest.FixtureRequest, faulty: Faulty) -> Iterator[Ahead]:
    # Stock servers never answer some of what they are asked, which takes half a minute to know.
    is_all = request.param == "all"
    probes = Ahead(faulty, SERVERS, VECTORS["stock"], NAMES) if is_all else Ahead(faulty, ["mcp2", "node-v2"], (), SOME)
    yield probes
    probes.stop()


def found(report: Report) -> dict[str, dict[str, Any]]:
    keys = ("outcome", "reason", "evidence")
    return {finding.name: {key: getattr(finding, key) for key in keys} for finding in report.checks}


def failing(report: Report) -> set[str]:
    return {finding.name for finding in report.checks if finding.outcome == "fault"}


def run(*words: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tailrope", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=40, env={**os.environ, **(env or {})})


Said = tuple[int, str, str]


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Callable[..., Said]:
    """Run the command in this process: its exit status, and what it prints."""

    def command(*words: str) -> Said:
        status = main(list(words))
        return status, *capsys.readouterr()

    return command


def test_the_package_has_the_command() -> None:
    (script,) = importlib.metadata.entry_points(group="console_scripts", name="tailrope")
    assert script.load() is tailrope.__main__.main


def test_both_packages_have_the_words_of_the_vectors() -> None:
    shared = {key: VECTORS[key] for key in ("usage", "checks")}
    assert shared == WORDS
    assert json.loads((ROOT / "bindings-node/lib/probe.json").read_text()) == shared
    assert len(NAMES) == len(FAULTY) and SOME <= NAMES


def test_every_fault_of_the_faulty_servers_is_in_the_vectors() -> None:
    code = "from raw_server.faulty import names; print(*names())"
    known = subprocess.run([sys.executable, "-c", code], cwd=ROOT / "tests/client", capture_output=True, text=True)
    used = {fault for server in FAULTY for fault in server["faults"].split("+") if fault}
    assert used == {*known.stdout.split()} - {"guarded", "no-mcp"}


def test_every_check_fails_somewhere_in_the_vectors() -> None:
    judged = {
        name for server in FAULTY for name, said in server["findings"].items() if said["outcome"] in ("fault", "warn")
    }
    assert judged == {check["name"] for check in WORDS["checks"]}


def test_each_faulty_server_is_found_out(ahead: Ahead, faulty: Faulty) -> None:
    for server, run in ahead.faulty:
        report = run.result(WAIT_S)
        for number in range(1, TRIES):
            if found(report) != server["findings"]:
                report = ahead.again(faulty, server, number)
        assert found(report) == server["findings"], server["name"]


def test_our_servers_have_no_fault(ahead: Ahead) -> None:
    for name, run in ahead.ours.items():
        whole, early = run.result(WAIT_S)
        assert failing(whole) == set(), (name, whole.as_text())
        skipped = {finding.name for finding in whole.checks if finding.outcome != "ok"}
        assert skipped == {"early-close"}, (name, whole.as_text())
        assert found(early)["early-close"]["outcome"] == "ok", (name, early.as_text())


@pytest.mark.full
def test_stock_servers_have_the_faults_that_are_known_of_them(ahead: Ahead) -> None:
    if not ahead.stock:
        pytest.skip("with all the others")
    for name, run in ahead.stock.items():
        report = run.result(WAIT_S)
        # Races: an event falls between replay and live delivery, a resume comes before the server has seen the cut.
        known_of = VECTORS["stock"][name]
        for _ in range(1, TRIES):
            if failing(report) - set(known_of["races"]) != set(known_of["faults"]):
                report = ahead.stock_again(name)
        assert failing(report) - set(known_of["races"]) == set(known_of["faults"]), (name, report.as_text())
        table = table_of("docs/stock-faults.md", f"stock {name}")
        for finding in report.checks:
            if finding.outcome == "fault" and finding.name not in known_of["races"]:
                known = re.findall(r"F-\d\d", finding.requirement)
                assert any(table.get(fault, "").startswith("**fails**") for fault in known), (name, finding)


def table_of(path: str, column: str) -> dict[str, str]:
    """What a table of faults says in one column, by fault."""
    rows = [[cell.strip() for cell in line.strip("|\n").split("|")] for line in (ROOT / path).open() if line[0] == "|"]
    place = rows[0].index(column)
    return {row[0]: row[place] for row in rows[2:]}


def test_json_says_all_and_the_exit_status_is_1_where_there_are_faults(faulty: Faulty) -> None:
    done = run("probe", faulty.url("unknown-404", "json"), "--json", "--only", "ping,made-up-cursor")
    report = json.loads(done.stdout)
    assert (done.returncode, done.stderr, report["exit"]) == (1, "", 1)
    assert list(report) == ["url", "server", "revision", "checks", "sessions", "calls", "counts", "exit"]
    assert report["counts"] == {"ok": 1, "warn": 0, "fault": 1, "skipped": 0}
    for check in report["checks"]:
        assert list(check) == ["name", "title", "requirement", "outcome", "reason", "evidence"]


def test_text_shows_faults_with_what_was_seen(faulty: Faulty, said: Callable[..., Said]) -> None:
    status, out, _ = said("probe", faulty.url("unknown-404", "text"), "--only=ping", "--only=made-up-cursor")
    assert status == 1
    assert out.splitlines()[1:] == VECTORS["text"]


def test_exit_status_is_0_without_faults_and_headers_are_sent_but_never_printed(
    faulty: Faulty, said: Callable[..., Said]
) -> None:
    # Without the header this server answers 401.
    url = faulty.url("guarded", "headers") + "?key=hunter2"
    for more in ([], ["--json"]):
        words = ("--header", "Authorization: Bearer hunter2", "--only", "initialize,ping", *more)
        status, out, err = said("probe", url, *words)
        assert (status, err) == (0, "")
        assert "hunter2" not in out
    status, out, err = said("probe", url)
    assert (status, out) == (2, "") and "answered 401" in err


def test_wrong_usage_is_told_with_exit_status_2(said: Callable[..., Said]) -> None:
    for case in VECTORS["misuse"]:
        status, out, err = said(*case["words"])
        assert (status, out) == (2, ""), case
        assert err.splitlines() == [f"tailrope: {case['told']}", "", *WORDS["usage"]]


def test_what_is_no_mcp_server_is_told_with_exit_status_2(faulty: Faulty, said: Callable[..., Said]) -> None:
    status, out, err = said("probe", "http://127.0.0.1:1/mcp")
    assert (status, out) == (2, "") and "not reachable" in err
    told = "no MCP server for us: initialize is answered 404 application/json, error -32000"
    assert said("probe", faulty.url("no-mcp", "other")) == (2, "", f"tailrope: {told}\n")


def test_tls(tmp_path: Path, said: Callable[..., Said]) -> None:
    certificate = tmp_path / "both.pem"
    new = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
        "-days",
        "2",
        "-subj",
        "/CN=localhost",
    ]
    new += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(certificate), "-out", str(tmp_path / "cert.pem")]
    subprocess.run(new, check=True, capture_output=True)
    certificate.write_text(certificate.read_text() + (tmp_path / "cert.pem").read_text())
    servers = Faulty(str(certificate))
    try:
        words = ("probe", servers.url("", "tls", "https"), "--only", "priming,resume-finished,takeover-standalone")
        trusted = run(*words, env={"SSL_CERT_FILE": str(tmp_path / "cert.pem")})
        assert trusted.returncode == 0, trusted.stdout + trusted.stderr
        status, _, err = said(*words)
        assert status == 2 and "not reachable" in err
    finally:
        servers.stop()
