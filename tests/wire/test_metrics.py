"""What Prometheus reads of every server: its own parser takes it, and it says what the counters say, under the names
that the reference has."""

from __future__ import annotations

import re
from typing import Any

import pytest
from kit.raw import request
from kit.servers import ROOT, Farm, Server, until
from prometheus_client.parser import text_string_to_metric_families

pytestmark = [pytest.mark.ours, pytest.mark.first]

REFERENCE = (ROOT / "docs/reference/counters.md").read_text()
# The counter, and the metric that the reference gives for it.
ROWS = re.findall(r'^\| `(\w+)` \| `\w+` \| `(tailrope_\w+)(?:{(\w+)="(\w+)"})?` \|', REFERENCE, re.MULTILINE)
Sample = tuple[str, frozenset[tuple[str, str]]]


async def scraped(server: Server) -> tuple[dict[str, Any], str]:
    """What the counters say, and the text, from a moment when neither changed."""

    async def asked() -> tuple[Any, str, Any]:
        before = await server.stats()
        reply = await request(server.port, "GET", "/ctl/metrics")
        text = (await reply.body()).decode()
        reply.close()
        assert reply.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
        assert reply.headers["cache-control"] == "no-store"
        return before, text, await server.stats()

    stats, text, _ = await until(asked, lambda found: found[0] == found[2])
    return stats, text


@pytest.mark.one_process("it is the text of one process")
async def test_prometheus_reads_what_the_counters_say(farm: Farm) -> None:
    server = farm.get()
    peer = await server.peer()
    await (await peer.call("echo", {"text": "x"})).rest()
    stats, text = await scraped(server)
    samples: dict[Sample, float] = {}
    processes = set()
    for family in text_string_to_metric_families(text):
        assert family.documentation and family.type in ("gauge", "counter", "histogram")
        for sample in family.samples:
            labels = dict(sample.labels)
            processes.add(labels.pop("process"))
            key = (sample.name, frozenset(labels.items()))
            assert key not in samples
            samples[key] = sample.value
    assert len(processes) == 1 and processes.pop().isdigit()
    wanted: dict[Sample, float] = {}
    for name, metric, label, value in ROWS:
        in_s = 1_000 if name.endswith("_ms") else 1
        wanted[metric, frozenset([(label, value)] if label else [])] = stats[name] / in_s
    assert len(wanted) == len(stats) and stats["calls_result"] >= 2
    assert {key: value for key, value in samples.items() if "duration" not in key[0]} == wanted
