"""Processes that fork with a store open."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from program import python

pytestmark = [pytest.mark.ours, pytest.mark.one_line]


def test_fork_of_a_process_with_an_open_store_opens_its_own(place: str) -> None:
    done = python(
        """
import tailrope.mcp
store = tailrope.open_store(sys.argv[1])
options = lambda: {"engine": {"store": store}}
asyncio.run(serve("parent", options()))
pid = os.fork()
if pid == 0:
    asyncio.run(serve("child", options()))
    tailrope._runtime._at_exit()
    os._exit(0)
asyncio.run(serve("parent again", options()))
wait(pid)
""",
        60,
        place,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.timeout(180)
@pytest.mark.parametrize("rounds", [10, pytest.param(60, marks=pytest.mark.full)])
def test_fork_while_a_store_is_written_leaves_a_child_that_opens_it(place: str, rounds: int) -> None:
    """SQLite has locks of its own, which a thread that is not in the child would never open."""
    done = python(
        """
store = tailrope.open_store(sys.argv[1])
options = lambda: {"engine": {"store": store}}
async def main():
    app = build(FLAVOR, "tailrope", options())
    await Life(app).__aenter__()
    for _ in range(4):
        asyncio.ensure_future(tool(app, await opened(app), "script", steps=["emit 1000000"]))
    await asyncio.sleep(0.05)
    for turn in range(int(sys.argv[2])):
        await asyncio.sleep(0.003)
        await in_child(lambda: tailrope.open_store(sys.argv[1]))
    print("served")
    os._exit(0)
asyncio.run(main())
""",
        120,
        place,
        str(rounds),
    )
    assert done.returncode == 0 and "served" in done.stdout, done.stderr[-3000:]


@pytest.mark.timeout(180)
@pytest.mark.parametrize("rounds", [20, pytest.param(100, marks=pytest.mark.full)])
def test_child_of_a_fork_waits_for_no_thread_of_its_parent(place: str, rounds: int) -> None:
    """What the parent made has locks that a thread of its store may hold while it forks."""
    done = python(
        """
from tailrope import _native
engine = _native.Engine(store=tailrope.open_store(sys.argv[1]))
hooks, waiters = engine.hook_log(), _native.Waiters(lambda: True)
signal = waiters.open_signal(True)
def store():
    return hooks.store(waiters, "scope", "1", "notification", b"{}")
def counted():
    return _native.stats_of([engine])
def refused(pending):
    try: pending.take()
    except tailrope.TailropeError: return
    raise AssertionError("it was taken")
for turn in range(int(sys.argv[2])):
    pendings = [store() for _ in range(100)]
    time.sleep(turn % 10 * 0.0003)
    pid = os.fork()
    if pid == 0:
        engine.mark_forked()
        hooks.drop_scope("scope")
        for pending in (*pendings, store(), hooks.replay(waiters, "scope", "1")): refused(pending)
        waiters.wake(pendings[0].key)
        waiters.resolve()
        signal.resolve()
        signal.close()
        for use in (engine.tick, engine.flush, engine.leave, counted, engine.due_in_ms, engine.is_idle): use()
        os._exit(0)
    wait(pid)
print("served")
os._exit(0)
""",
        120,
        place,
        str(rounds),
    )
    assert done.returncode == 0 and "served" in done.stdout, done.stderr[-3000:]


@pytest.mark.timeout(90)
def test_child_of_a_fork_lets_go_of_a_store_of_its_parent(place: str) -> None:
    """A store that goes away waits for its threads, which the child has not, also where nobody told its engine."""
    done = python(
        """
from tailrope import _native
for turn in range(10):
    held = _native.Engine(store=tailrope.open_store(sys.argv[1]))
    pid = os.fork()
    if pid == 0:
        # New threads come to be where the parent's were.
        own = [_native.Engine(store=tailrope.open_store(sys.argv[1])) for _ in range(3)]
        del held
        own.clear()
        os._exit(0)
    wait(pid)
""",
        60,
        place,
    )
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.timeout(90)
@pytest.mark.parametrize("rounds", [10, pytest.param(40, marks=pytest.mark.full)])
def test_threads_that_fork_at_once_take_turns(tmp_path: Path, rounds: int) -> None:
    """Other hooks run between ours, and let other threads run."""
    done = python(
        """
os.register_at_fork(after_in_parent=lambda: time.sleep(0))
store = tailrope.open_store(sys.argv[1])
sys.setswitchinterval(1e-6)
def forks():
    for _ in range(int(sys.argv[2])):
        pid = os.fork()
        if pid == 0: os._exit(0)
        wait(pid)
    ended.append(1)
ended = []
threads = [threading.Thread(target=forks) for _ in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert len(ended) == len(threads)
asyncio.run(serve("parent", {"engine": {"store": store}}))
""",
        60,
        f"sqlite:{tmp_path / 'events.db'}",
        str(rounds),
    )
    assert done.returncode == 0, done.stderr


def test_what_a_forked_child_stored_stays_when_its_parent_closes_the_file(tmp_path: Path) -> None:
    """Who closes a file last tidies up after everybody. The parent is not the last: the child has locks of its own."""
    done = python(
        """
store = tailrope.open_store(sys.argv[1])
told, closed = os.pipe(), os.pipe()
pid = os.fork()
if pid == 0:
    async def main():
        app = build(FLAVOR, "tailrope", {"engine": {"store": store}})
        async with Life(app):
            for _ in range(50): await opened(app)
            os.write(told[1], b"x")
            assert os.read(closed[0], 1) == b"x"
            for _ in range(50): await opened(app)
            tailrope._runtime._at_exit()
            os._exit(0)
    asyncio.run(main())
assert os.read(told[0], 1) == b"x"
del store
os.write(closed[1], b"x")
wait(pid)
""",
        60,
        f"sqlite:{tmp_path / 'events.db'}",
    )
    assert done.returncode == 0, done.stderr
    with closing(sqlite3.connect(tmp_path / "events.db")) as file:
        assert file.execute("SELECT count(*) FROM session").fetchone() == (100,)
