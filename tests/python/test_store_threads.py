"""A store that answers on threads of its own: nobody sleeps through its answers, on any loop, in any process."""

from __future__ import annotations

import asyncio
import signal
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from conftest import KIND
from kit.peer import counts, ids, last_id, logs, results
from kit.raw import Reply
from kit.servers import Farm, Kind, Server, gate
from kit.stock import stock_client
from program import python

pytestmark = [pytest.mark.ours, pytest.mark.one_line]

STORE = "test-threaded:?delay_ms=2"
SECRETS = (b"hunter2", b"10.0.0.7", b"redis")


def clean(*replies: Reply) -> None:
    """No detail of the store reaches a client."""
    for reply in replies:
        assert not any(secret in bytes(reply.raw) for secret in SECRETS), bytes(reply.raw)


LOOPS = ["asyncio", "uvloop"]


@pytest.fixture(scope="session", params=[KIND], ids=[KIND.name])
def kind(request: pytest.FixtureRequest) -> Kind:
    """One library of the SDK line: what a store wakes is the SDK's transport, which they share."""
    return request.param


@pytest.fixture(params=LOOPS)
def threaded(farm: Farm, request: pytest.FixtureRequest) -> Server:
    return farm.get(loop=request.param, engine={"store": STORE})


async def test_i3_closes_polls_and_cuts_lose_nothing(threaded: Server) -> None:
    peer = await threaded.peer()
    name = gate()
    steps = ["emit 3", "close retry=20 hold=0", "emit 20", f"gate {name}", "emit 2", "return x"]
    events = await (await peer.call("script", {"steps": steps})).rest()
    assert events[0].is_priming
    polls = 0
    while not results(events):
        reply = await peer.resume(last_id(events))
        assert reply.status == 200
        events += await reply.rest()
        polls += 1
        if polls == 5:
            await threaded.open(name)
    assert counts(events) == list(range(1, 26)) and results(events) == ["x"]
    for _ in range(10):
        name = gate()
        reply = await peer.call("script", {"steps": [f"until {name}"]})
        events = await reply.some(3)
        reply.drop()
        resumed = await peer.resume(last_id(events))
        events += await resumed.some(3)
        await threaded.open(name)
        events += await resumed.until_terminal()
        assert counts(events) == list(range(1, len(counts(events)) + 1))


async def test_i2_many_senders_at_once_keep_their_order(threaded: Server) -> None:
    peer = await threaded.peer()
    replies = [await peer.call("script", {"steps": ["burst 50", f"return {number}"]}) for number in range(8)]
    for number, reply in enumerate(replies):
        events = await reply.rest()
        assert counts(events) == list(range(1, 51)) and results(events) == [str(number)]
        assert len(set(ids(events))) == len(ids(events))


async def test_i4_standalone_stream_moves_to_its_newest_reader(threaded: Server) -> None:
    peer = await threaded.peer()
    first = await peer.listen()
    await peer.ask("script", {"steps": ["standalone one", "return x"]})
    events = await first.some(1)
    second = await peer.resume(last_id(events))
    await peer.ask("script", {"steps": ["standalone two", "return x"]})
    assert logs(await second.some(1)) == ["two"]
    await first.quiet(0.2)


async def test_stock_client_is_served(threaded: Server) -> None:
    async with stock_client(threaded.port) as client, asyncio.timeout(60):
        assert await client.script(*["emit 2", "close", "emit 1"] * 5, "return x") == "x"
        assert client.progress == list(range(1, 16))


async def test_f58_fault_is_raised_in_the_handler_and_harms_nothing_else(threaded: Server) -> None:
    peer = await threaded.peer()
    # A later message is told, as soon as the store has said it.
    steps = ["try log one", "try log store-fails", "try until never", "try log two"]
    events = await (reply := await peer.call("script", {"steps": steps})).rest()
    (outcomes,) = results(events)
    assert outcomes.startswith('["ok", "ok", "raised') and outcomes.endswith('"ok"]'), outcomes
    assert logs(events) == ["one", "two"]
    clean(reply)


async def test_f59_response_that_is_not_stored_goes_to_its_reader_once(threaded: Server) -> None:
    peer = await threaded.peer()
    reply = await peer.call("script", {"steps": ["emit 1", "return store-fails"]}, id=9)
    events = await reply.rest()
    assert (counts(events), results(events), events[-1].message["id"]) == ([1], ["store-fails"], 9)
    clean(reply)
    assert await peer.ask("echo", {"text": "after"}) == "after"


# What the store does answer may take as long on a busy machine. So they wait together.
GIVEN_UP = {"store": STORE, "store_timeout_ms": 3_000, "store_wait_ms": 2_000}


async def test_i9_store_that_does_not_answer_is_asked_again_in_time(farm: Farm) -> None:
    async def asked_again(server: Server) -> None:
        peer = await server.peer()
        reply = await peer.call("script", {"steps": ["try log store-hangs", "return x"]})
        # Nothing else happens in the process that could wake anybody.
        events = await reply.rest()
        assert logs(events) == ["store-hangs"] and len(results(events)) == 1, events

    await asyncio.gather(*(asked_again(farm.get(loop=loop, engine=GIVEN_UP)) for loop in LOOPS))


async def test_i8_log_that_cannot_be_read_ends_the_connection_cleanly(farm: Farm) -> None:
    async def unread(server: Server, fault: str) -> None:
        peer = await server.peer()
        # More than a page holds, so that it is read back.
        reply = await peer.call("script", {"steps": [f"log {fault}{'.' * 300_000}", "return x"]})
        events = await reply.rest()
        assert events[0].is_priming and not results(events)
        clean(reply)
        assert await peer.ask("echo", {"text": "after"}) == "after"

    servers = [farm.get(loop=loop, engine=GIVEN_UP) for loop in LOOPS]
    faults = ("store-unreadable", "store-stalls")
    await asyncio.gather(*(unread(server, fault) for server in servers for fault in faults))


async def test_f44_sigterm_under_load_ends_the_process(farm: Farm) -> None:
    server = farm.fresh(engine={"store": STORE})
    try:
        peer = await server.peer()
        replies = [await peer.call("script", {"steps": ["emit 100000"]}) for _ in range(5)]
        for reply in replies:
            await reply.some(3)
        server.process.send_signal(signal.SIGTERM)
        code = await asyncio.to_thread(server.exit_code, 40)
        assert code in (0, -signal.SIGTERM, 128 + signal.SIGTERM), server.log()
        assert "panicked" not in server.log() and "Fatal" not in server.log(), server.log()
    finally:
        server.kill()


SIGNALS = """
def signals():
    names = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if fd not in ("0", "1", "2")
             and os.path.exists(f"/proc/self/fd/{fd}")]
    return sum("eventfd" in name for name in names), len(names)
STORE = {"engine": {"store": "test-threaded:?delay_ms=1"}}
"""


def test_descriptor_is_opened_only_where_it_is_needed_and_closed_with_its_loop() -> None:
    done = python(
        SIGNALS
        + """
async def both(options):
    await serve("x", options)
    await serve("y", options)
    return signals()[0]
MEMORY = {"engine": {"store": "memory:"}}
assert asyncio.run(both(MEMORY)) == 0
before = signals()
for _ in range(3):
    assert asyncio.run(both(STORE)) == 1
assert signals() == before, (before, signals())
import uvloop
plain = uvloop.run(both(MEMORY))
before = signals()
for _ in range(3):
    assert uvloop.run(both(STORE)) == plain + 1
assert signals() == before, (before, signals())
"""
    )
    assert done.returncode == 0, done.stderr


def test_one_store_serves_several_loops_at_once() -> None:
    done = python(
        """
import tailrope.mcp
from servers.python.app import BUILDERS, Ops, controlled
store = tailrope.mcp.EventStore("test-threaded:?delay_ms=1")
faults = []
async def run(number):
    app = controlled(BUILDERS[FLAVOR]({}, store, None, Ops(True)))
    async with Life(app):
        keys = await opened(app)
        for turn in range(5):
            body = await asyncio.wait_for(tool(app, keys, "script", steps=["emit 5", f"return {number}-{turn}"]), 20)
            assert body.count(b"notifications/progress") == 5 and f"{number}-{turn}".encode() in body, body
def start(number):
    try:
        for _ in range(2): asyncio.run(run(number))
    except BaseException as fault:
        import traceback; traceback.print_exc()
        faults.append(fault)
threads = [threading.Thread(target=start, args=(number,)) for number in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert not faults, faults
""",
        60,
    )
    assert done.returncode == 0, done.stderr


def test_loops_that_watch_no_descriptors_are_woken_by_a_thread() -> None:
    done = python(
        SIGNALS
        + """
class Loop(asyncio.SelectorEventLoop):
    def add_reader(self, *args): raise NotImplementedError
for turn in range(3):
    with asyncio.Runner(loop_factory=Loop) as runner:
        runner.run(serve(f"turn {turn}", STORE))
        assert [thread.name for thread in threading.enumerate()].count("tailrope-signal") == 1
asyncio.run(serve("last", STORE))
assert not [thread for thread in threading.enumerate() if thread.name == "tailrope-signal"]
runner = asyncio.Runner(loop_factory=Loop)
runner.run(serve("left open", STORE))
print("served")
"""
    )
    assert done.returncode == 0 and "served" in done.stdout, done.stderr
    assert "Fatal" not in done.stderr and "panicked" not in done.stderr, done.stderr


def test_loop_that_watches_no_descriptors_is_called_once_however_busy_it_is() -> None:
    done = python(
        SIGNALS
        + """
class Loop(asyncio.SelectorEventLoop):
    calls = 0
    def add_reader(self, *args): raise NotImplementedError
    def call_soon_threadsafe(self, callback, *args, **kwargs):
        # A busy loop comes for nothing; whoever does not wait for it shows here.
        self.calls += threading.current_thread().name == "tailrope-signal"
        return super().call_soon_threadsafe(callback, *args, **kwargs)
async def main():
    loop = asyncio.get_running_loop()
    async def busy():
        while True:
            before = loop.calls
            time.sleep(0.02)
            most.append(loop.calls - before)
            await asyncio.sleep(0)
    most = []
    task = asyncio.create_task(busy())
    # A loop that comes by itself in time needs no call.
    for turn in range(50):
        await serve(f"turn {turn}", STORE)
        if loop.calls:
            break
    task.cancel()
    # The thread saw no signal, or told the loop of one.
    assert loop.calls and max(most) <= 1, (loop.calls, most)
with asyncio.Runner(loop_factory=Loop) as runner:
    runner.run(main())
"""
    )
    assert done.returncode == 0, done.stderr


LOAD = (
    SIGNALS
    + """
async def loaded():
    app = build(FLAVOR, "tailrope", STORE)
    life = Life(app)
    await life.__aenter__()
    tasks = []
    for _ in range(8):
        keys = await opened(app)
        tasks.append(asyncio.ensure_future(tool(app, keys, "script", steps=["emit 1000000"])))
    await asyncio.sleep(0.05)
    return tasks
"""
)


@pytest.mark.timeout(180)
def test_fork_under_load_leaves_a_child_that_serves() -> None:
    code = (
        LOAD
        + """
import gc
async def main():
    tasks = await loaded()
    for turn in range(5):
        await asyncio.sleep(0.005)
        await in_child(serves)
    print("served")
    os._exit(0)
def serves():
    # What the parent held is let go of here, and touches no lock that the parent's threads have.
    gc.collect()
    asyncio.run(serve("child", STORE))
asyncio.run(main())
"""
    )
    done = python(code, 120)
    assert done.returncode == 0 and "served" in done.stdout, done.stderr[-3000:]


@pytest.mark.timeout(240)
@pytest.mark.parametrize("rounds", [4, pytest.param(24, marks=pytest.mark.full)])
def test_interpreter_exit_under_load_is_clean(rounds: int) -> None:
    code = (
        LOAD
        + """
async def main():
    tasks = await loaded()
    if MODE == "exit": sys.exit(0)
asyncio.run(main())
"""
    )
    thread = """
class Loop(asyncio.SelectorEventLoop):
    def add_reader(self, *args): raise NotImplementedError
"""

    def once(number: int) -> Any:
        mode = ("return", "exit")[number % 2]
        program = code
        if number % 4 > 1:
            program = thread + code.replace("asyncio.run(main())", "asyncio.Runner(loop_factory=Loop).run(main())")
        return python(f"MODE = {mode!r}\n{program}", 60)

    with ThreadPoolExecutor(2) as pool:
        runs = list(pool.map(once, range(rounds)))
    for number, done in enumerate(runs):
        assert done.returncode == 0, (number, done.returncode, done.stderr[-2000:])
        assert "panicked" not in done.stderr and "Fatal Python error" not in done.stderr, done.stderr
