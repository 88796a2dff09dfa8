"""Serving and ending on what Python has: servers, loops, forks, exits of interpreters. (F-44, D9, D11)"""

from __future__ import annotations

import json
import signal
import subprocess
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from kit.ending import ended, opened
from kit.peer import counts, last_id, results
from kit.servers import Farm, gate
from program import python

pytestmark = pytest.mark.one_line


async def test_f44_sigterm_on_uvloop_with_open_streams_ends_the_process(farm: Farm) -> None:
    server = farm.fresh(loop="uvloop")
    try:
        _, replies = await opened(server)
        await ended(server, replies, signal.SIGTERM)
    finally:
        server.kill()


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
async def test_hypercorn_serves(farm: Farm, loop: str) -> None:
    server = farm.fresh(server="hypercorn", loop=loop)
    try:
        peer = await server.peer()
        reply = await peer.call("script", {"steps": ["emit 3", "close", "emit 2", "return x"]})
        events = await reply.rest()
        rest = await (await peer.resume(last_id(events))).until_terminal()
        assert counts(events + rest) == [1, 2, 3, 4, 5] and results(rest) == ["x"]
        _, replies = await opened(server)
        await ended(server, replies, signal.SIGTERM)
    finally:
        server.kill()


async def test_uvloop_serves(farm: Farm) -> None:
    server = farm.get(loop="uvloop")
    name = gate()
    call = await (await server.session()).call("script", {"steps": [f"until {name}"]})
    for _ in range(5):
        await call.read(5)
        await call.resume()
    await server.open(name)
    result = (await call.collect())[-1]
    call.assert_exactly_once([*range(1, int(result) + 1), result])


@pytest.mark.ours
def test_a_tick_that_is_due_at_once_is_armed_again_on_uvloop() -> None:
    done = python(
        """
import uvloop
from tailrope._runtime import Runtime, current_loop
async def main():
    runtime = Runtime({})
    here = current_loop()
    # uvloop's handle of a call that is due already is not the one of a timer.
    for wait_ms in (0, 0, 5, 0): here.arm(runtime, wait_ms)
    await asyncio.sleep(0.05)
uvloop.run(main())
"""
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.ours
def test_several_event_loops_in_threads() -> None:
    done = python(
        """
faults = []
def run(number):
    try:
        for turn in range(3): asyncio.run(serve(f"loop-{number}-{turn}"))
    except BaseException as fault:
        faults.append(fault)
threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert not faults, faults
print("served")
"""
    )
    assert done.returncode == 0 and "served" in done.stdout, done.stderr


@pytest.mark.ours
def test_fork_before_use_works() -> None:
    done = python(
        """
tailrope.install()
children = []
for number in range(3):
    pid = os.fork()
    if pid == 0:
        try:
            asyncio.run(serve(f"child-{number}"))
        except BaseException:
            import traceback; traceback.print_exc(); os._exit(1)
        os._exit(0)
    children.append(pid)
for pid in children: wait(pid)
asyncio.run(serve("parent"))
"""
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.ours
def test_use_after_a_fork_is_refused_or_works_but_never_hangs() -> None:
    done = python(
        """
asyncio.run(serve("parent first"))
pid = os.fork()
if pid == 0:
    try:
        asyncio.run(serve("child after use"))
    except Exception as fault:
        print("refused:", fault)
        sys.stdout.flush()
    os._exit(0)
wait(pid)
asyncio.run(serve("parent again"))
"""
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.ours
@pytest.mark.timeout(300)
@pytest.mark.parametrize("exits", [4, pytest.param(20, marks=pytest.mark.full)])
def test_interpreter_exit_with_an_open_engine_is_clean(exits: int) -> None:
    # Each exit is a new interpreter's: a crash there is a matter of timing, so it takes many.
    code = """
async def leave():
    app = build(FLAVOR, "tailrope", {})
    life = Life(app)
    await life.__aenter__()
    sent = await call(app, "POST", OPEN)
    session = dict(sent[0]["headers"])[b"mcp-session-id"]
    keys = [(b"mcp-session-id", session), (b"mcp-protocol-version", b"2025-11-25")]
    parked = asyncio.ensure_future(call(app, "GET", None, keys))
    await asyncio.sleep(0.01)
    if MODE == "exit": sys.exit(0)
"""

    def once(number: int) -> subprocess.CompletedProcess[str]:
        mode = ("return", "exit")[number % 2]
        return python(f"MODE = {mode!r}\n{code}\nasyncio.run(leave())\n", 40)

    with ThreadPoolExecutor(2) as pool:
        runs = list(pool.map(once, range(exits)))
    for number, done in enumerate(runs):
        assert done.returncode == 0, (number, done.returncode, done.stderr[-2000:])
        assert "panicked" not in done.stderr and "Fatal Python error" not in done.stderr


@pytest.mark.ours
def test_stats_and_import_cost_nothing_before_use() -> None:
    done = python("print(json.dumps(tailrope.stats()))")
    assert done.returncode == 0, done.stderr
    stats: dict[str, Any] = json.loads(done.stdout)
    assert stats["sessions"] == stats["streams"] == stats["connections"] == 0
