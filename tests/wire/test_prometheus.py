"""A real Prometheus reads two processes of each language: the dashboard has data, and the alerts fire.

`tests/services/with prometheus -- ...` has the programs. The alerts that take minutes or an outage are asked of
`promtool`, with the series of tests/wire/alerts.yml.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import re
import subprocess
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from kit.peer import Peer
from kit.raw import request
from kit.servers import ROOT, RUST, SERVERS, Kind, Server, until
from services.common import free_ports
from wire.test_contexts import acting

REFERENCE = (ROOT / "docs/reference/counters.md").read_text()
# The metrics that the reference gives, which tests/wire/test_metrics.py compares with what servers expose.
ROWS = re.findall(r'^\| `\w+` \| `\w+` \| `(tailrope_\w+)(?:{(\w+)="(\w+)"})?` \|', REFERENCE, re.MULTILINE)
OPERATE = ROOT / "docs/operate/prometheus"
PROMETHEUS, PROMTOOL = (os.environ.get(f"TAILROPE_TEST_{name}", "") for name in ("PROMETHEUS", "PROMTOOL"))
needs_prometheus = pytest.mark.skipif(not PROMETHEUS, reason="tests/services/with prometheus has it")
KINDS: list[Kind] = [SERVERS["mcp2"], SERVERS["node-v2"], RUST["tower"]]

pytestmark = pytest.mark.ours


def panels() -> list[str]:
    """What the dashboard asks."""
    read = json.loads((OPERATE / "dashboard.json").read_text())["panels"]
    return [target["expr"] for panel in read for target in panel["targets"]]


def test_the_dashboard_and_the_alerts_name_what_there_is() -> None:
    names = {metric for metric, _, _ in ROWS}
    values: dict[str, set[str]] = {}
    for _, label, value in ROWS:
        values.setdefault(label, set()).add(value)
    alerts = (OPERATE / "alerts.yml").read_text()
    found = set()
    for text in [*panels(), alerts]:
        found |= {name.removesuffix("_bucket") for name in re.findall(r"\btailrope_\w+", text)}
        for label, matched in re.findall(r'\b(outcome|reason)=~?"([^"]+)"', text):
            for one in matched.split("|"):
                assert one in values[label], (one, text)
    assert found - names == {"tailrope_call_duration_seconds"} and len(found) > 25
    page = (ROOT / "docs/operate/metrics.md").read_text()
    explained, tried = (
        re.findall(r"^\| `(Tailrope\w+)` \|", page, re.MULTILINE),
        (ROOT / "tests/wire/alerts.yml").read_text(),
    )
    assert (
        re.findall(r"- alert: (\w+)", alerts)
        == explained
        == list(dict.fromkeys(re.findall(r"alertname: (\w+)", tried)))
    )


class Prometheus:
    def __init__(self, port: int) -> None:
        self.port = port

    async def is_ready(self) -> bool:
        try:
            reply = await request(self.port, "GET", "/-/ready")
        except ConnectionRefusedError:
            return False
        reply.close()
        return reply.status == 200

    async def _get(self, path: str, **query: str) -> Any:
        reply = await request(self.port, "GET", f"/api/v1/{path}?{urlencode(query)}", limit=1 << 20)
        answer = await reply.json()
        reply.close()
        assert answer["status"] == "success", answer
        return answer["data"]

    async def asked(self, expr: str) -> list[float]:
        """The values that a query gives now."""
        expr = expr.replace("$__rate_interval", "10s").replace("$job", ".*")
        return [float(one["value"][1]) for one in (await self._get("query", query=expr))["result"]]

    async def firing(self) -> set[str]:
        alerts = (await self._get("alerts"))["alerts"]
        return {alert["labels"]["alertname"] for alert in alerts if alert["state"] == "firing"}


@asynccontextmanager
async def prometheus(servers: list[Server]) -> AsyncIterator[Prometheus]:
    """One that reads these servers each second."""
    [port] = free_ports(1)
    with tempfile.TemporaryDirectory() as folder:
        targets = [f"127.0.0.1:{server.port}" for server in servers]
        scraped = {"job_name": "tailrope", "metrics_path": "/ctl/metrics", "static_configs": [{"targets": targets}]}
        config = {
            "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(OPERATE / "alerts.yml")],
            "scrape_configs": [scraped],
        }
        # JSON is YAML.
        (Path(folder) / "prometheus.yml").write_text(json.dumps(config))
        with (Path(folder) / "log").open("w") as log:
            process = subprocess.Popen(
                [
                    PROMETHEUS,
                    f"--config.file={folder}/prometheus.yml",
                    f"--storage.tsdb.path={folder}/data",
                    f"--web.listen-address=127.0.0.1:{port}",
                ],
                stdout=log,
                stderr=log,
            )
        try:
            served = Prometheus(port)

            async def reads() -> int:
                assert process.poll() is None, (Path(folder) / "log").read_text()
                return len(await served.asked("tailrope_store_up")) if await served.is_ready() else 0

            await until(reads, lambda found: found == len(servers), 60)
            yield served
        finally:
            process.terminate()
            await asyncio.to_thread(process.wait)


async def call(peer: Peer, text: str = "x") -> None:
    await (await peer.call("echo", {"text": text})).rest()


@pytest.mark.full
@needs_prometheus
async def test_the_dashboard_has_data_and_alerts_fire_in_a_real_prometheus() -> None:
    async with AsyncExitStack() as stack:
        starting = [
            Server.running(kind, {"engine": {"max_requests_per_session": 1}}) for kind in KINDS for _ in range(2)
        ]
        servers = [await stack.enter_async_context(server) for server in starting]
        peers = [await server.peer() for server in servers]
        served = await stack.enter_async_context(prometheus(servers))

        async def empty() -> list[str]:
            # Rates need calls between two scrapes.
            await asyncio.gather(*map(call, peers))
            found = {expr: await served.asked(expr) for expr in panels()}
            return [expr for expr, values in found.items() if not values or not all(map(math.isfinite, values))]

        assert await until(empty, lambda found: not found, 120) == []

        # What Prometheus has is what the processes have counted.
        counted = sum([(await server.stats())["calls_begun"] for server in servers])
        begun = "sum (tailrope_calls_begun_total)"
        assert await until(lambda: served.asked(begun), lambda found: found == [counted], 60) == [counted]
        assert await served.asked("count (count by (instance, process) (tailrope_store_up))") == [len(servers)]
        assert await served.firing() == set()

        async def refused() -> set[str]:
            reply = await peers[0].call("echo", {"text": "x"})
            assert reply.status == 429
            reply.close()
            return await served.firing()

        async with acting(servers[0], peers[0]):
            assert await until(refused, lambda found: found != set(), 60) == {"TailropeRequestsRefused"}


@pytest.mark.full
@needs_prometheus
def test_each_alert_fires_when_its_trouble_is_there_and_only_then() -> None:
    for words in (["check", "rules", OPERATE / "alerts.yml"], ["test", "rules", ROOT / "tests/wire/alerts.yml"]):
        done = subprocess.run([PROMTOOL, *words], capture_output=True, text=True, cwd=ROOT)
        assert done.returncode == 0, done.stdout + done.stderr
