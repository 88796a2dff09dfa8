"""Opening a store, what may be said of it, and what uses it besides the installed transport."""

from __future__ import annotations

from pathlib import Path

import pytest
from kit.elsewhere import WAIT_S, at, dense
from kit.peer import ids, results
from kit.servers import Farm
from program import python

pytestmark = pytest.mark.ours

SECRET = "hunter2"
WRONG = [
    "floppy:",
    "sqlite:/no/such/directory/events.db",
    "sqlite:/",
    f"redis://user:{SECRET}@127.0.0.1:1/0",
    f"rediss://user:{SECRET}@127.0.0.1:1/0?option={SECRET}",
    f"postgres://user:{SECRET}@127.0.0.1:1/events",
]


@pytest.mark.one_line
def test_store_that_cannot_be_opened_is_refused_at_once() -> None:
    done = python(
        """
import logging, tailrope.mcp
import mcp.server.streamable_http_manager as manager
from concurrent.futures import ThreadPoolExecutor
logging.basicConfig(level=1)
ways = (lambda address: tailrope.install(store=address), tailrope.open_store, tailrope.mcp.EventStore)
def refused(way, address):
    try: way(address)
    except tailrope.TailropeError as error:
        assert error.code == "store_not_opened" and address.split(":")[0] in str(error), error
        return f"{error!r} {error} {error.__cause__} {error.__context__} {vars(error)}"
    raise AssertionError(f"{address} is opened")
# Some are tried for a while.
with ThreadPoolExecutor(18) as pool:
    for told in [pool.submit(refused, way, address) for address in sys.argv[1:] for way in ways]: print(told.result())
# Nothing was changed.
assert manager.StreamableHTTPServerTransport.__module__ == "mcp.server.streamable_http"
""",
        50,
        *WRONG,
    )
    assert done.returncode == 0, done.stderr
    # What is secret is nowhere.
    assert "store_not_opened" in done.stdout and SECRET not in done.stdout + done.stderr


@pytest.mark.one_line
def test_store_is_named_without_what_is_secret(tmp_path: Path) -> None:
    done = python(
        """
address = f"sqlite:{sys.argv[1]}?key=hunter2"
store = tailrope.open_store(address.split("?")[0], durability="power", max_bytes=1 << 20, owner_lost_ms=2_000)
print(repr(store), store.address)
assert store.address == address.split("?")[0]
""",
        20,
        str(tmp_path / "events.db"),
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("<tailrope.Store sqlite:"), done.stdout


@pytest.mark.one_line
def test_options_of_a_store_that_is_open_are_refused_elsewhere(tmp_path: Path) -> None:
    done = python(
        """
import tailrope.mcp
store = tailrope.open_store(sys.argv[1], max_events_per_stream=7)
for options in ({"max_bytes": 1}, {"durability": "power"}, {"owner_lost_ms": 1}):
    for use in (tailrope.install, tailrope.mcp.EventStore):
        try: use(store=store, **options)
        except ValueError as error: assert next(iter(options)) in str(error) and "open_store" in str(error), error
        else: raise SystemExit(f"{options} are taken")
for options in ({"durability": "always"}, {"durability": 1}, {"retry_ms": 1}, {"max_bytes": 0}, {"nonsense": 1},
                {"encryption_keys": "ab" * 32}, {"encryption_keys": []}, {"encryption_keys": ["secret"]}):
    try: tailrope.open_store(sys.argv[1], **options)
    except ValueError as error: assert next(iter(options)) in str(error) and "secret" not in str(error), error
    else: raise SystemExit(f"{options} are taken")
tailrope.install(store=store, retry_ms=5)
assert tailrope.mcp._engage.installed.runtime.engine.options()["max_events_per_stream"] == 7
tailrope.install(store=sys.argv[1], durability="power", owner_lost_ms=50, retry_ms=5)
assert tailrope.mcp._engage.installed.runtime.engine.options()["owner_lost_ms"] == 50
""",
        20,
        f"sqlite:{tmp_path / 'events.db'}",
    )
    assert done.returncode == 0, done.stderr


async def test_event_store_of_one_server_may_be_shared_by_processes(farm: Farm, tmp_path: Path) -> None:
    options = {"store": "event-store", "address": f"sqlite:{tmp_path / 'events.db'}"}
    here, there = farm.fresh(**options), farm.fresh(**options)
    try:
        peer = await here.peer()
        done = await (await peer.call("script", {"steps": ["emit 3", "return x"]})).rest()
        events = await (await at(peer, there).resume(ids(done)[0])).rest(WAIT_S)
        dense(events, 1, 3)
        assert results(events) == ["x"]
    finally:
        here.stop()
        there.stop()


def test_stock_transports_find_their_events_after_a_restart(place: str) -> None:
    code = """
import tailrope.mcp
import mcp.server.streamable_http_manager as manager
from tailrope.mcp import _sdk
def message(number): return _sdk.parse(json.dumps({"jsonrpc": "2.0", "method": "m", "params": {"n": number}}).encode())
async def main(address, last):
    store = tailrope.mcp.EventStore(address)
    assert manager.StreamableHTTPServerTransport.__module__ == "mcp.server.streamable_http"
    one, two = store.scoped("one"), store.scoped("two")
    if not last:
        first = await one.store_event("7", None)
        for number in range(5): await one.store_event("7", message(number))
        await two.store_event("7", message(99))
        print(first)
        return
    found = []
    async def collect(event): found.append(json.loads(_sdk.dump(event.message))["params"]["n"])
    assert await one.replay_events_after(last[0], collect) == "7" and found == [0, 1, 2, 3, 4], found
    assert await two.replay_events_after(last[0], collect) is None and len(found) == 5
    assert await store.replay_events_after(last[0], collect) is None
    one.drop()
    assert await one.replay_events_after(last[0], collect) is None and len(found) == 5
asyncio.run(main(sys.argv[1], sys.argv[2:]))
"""
    first = python(code, 30, place)
    assert first.returncode == 0, first.stderr
    second = python(code, 30, place, first.stdout.strip())
    assert second.returncode == 0, second.stderr
