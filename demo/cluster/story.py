"""What befalls three nodes under the calls of two clients, as it happens, and what became of the calls."""

import asyncio
import collections
import json
import signal
import tempfile
from asyncio.subprocess import Process
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

from notes import Notes
from processes import LANGUAGES, read, start, stop
from timeline import TO_CLIENT

from cluster.fleet import Fleet, Node

# Nothing in the demo takes longer.
PATIENCE_S = 60
# nginx gives each request to the next node: of so many calls one comes to each of two nodes.
MOST_TASKS = 8


@dataclass
class Call:
    """What a call's tools and its client have said of it."""

    nodes: list[str] = field(default_factory=list)
    emitted: list[int] = field(default_factory=list)
    received: list[int] = field(default_factory=list)
    polls: int = 0
    result: str | None = None
    failure: str | None = None

    @property
    def is_over(self) -> bool:
        return self.result is not None or self.failure is not None


class Story(Notes):
    """Draws what the tools and the client's application report, and counts it."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: dict[str, Call] = collections.defaultdict(Call)
        self.changed = asyncio.Event()
        self.adopted = 0
        self._emitting = ""
        # What ran at the node that was killed.
        self.killed: set[str] = set()
        self._open = 0
        # A client has ended.
        self.is_gone = False

    def told_by(self, node: str, fact: dict[str, object]) -> None:
        what, name = fact["what"], str(fact.get("call"))
        if what == "adopt":
            self.adopted += 1
            self.timeline.row(f"{node}: goes on with the session", colour="bold")
        elif what == "start":
            self.calls[name].nodes.append(node)
            self.timeline.row(f"{node}: {name} starts")
        elif is_task(name) and what != "finish":
            # Its client polls, so no connection has what the tool emits.
            return
        elif what == "emit":
            if self._emitting != node:
                self.timeline.flush()
            self._emitting = node
            self.calls[name].emitted.append(int(str(fact["number"])))
            self.timeline.emitted(self.calls[name].emitted[-1], f"{node} emits")
        elif what in ("close", "finish", "ask"):
            does = {"close": "closes, works on", "finish": "ends", "ask": "asks the user"}[str(what)]
            self.timeline.row(f"{node}: {name} {does}")
        self.changed.set()

    def told(self, fact: dict[str, object]) -> None:
        """What the client reports."""
        what, name = fact["what"], str(fact.get("call"))
        if what == "open":
            self._open += 1
            self.timeline.row(right=f"a client speaks {fact['revision']}", colour="cyan")
        elif what == "task":
            self.timeline.row(wire=TO_CLIENT, right=f"{name} is a task", colour="cyan")
        elif what == "poll":
            self.calls[name].polls += 1
        elif what == "call":
            self.timeline.row(right=f"calls {name}", colour="cyan")
        elif what == "progress":
            self.calls[name].received.append(int(str(fact["number"])))
            self.timeline.received(self.calls[name].received[-1], "receives")
        elif what == "asked":
            self.timeline.row(right='is asked, answers "photos"', colour="cyan")
        elif what == "result":
            self.calls[name].result = str(fact["text"])
            self.timeline.row(right=f'{name} returns "{fact["text"]}"', colour="bold")
        elif what == "failure":
            self.calls[name].failure = str(fact["text"])
            self.timeline.row(right=f"{name} fails: {fact['text']}", colour="yellow")
        self.changed.set()

    def happens(self, text: str) -> None:
        self.note(lambda: self.timeline.row(text, colour="red"))

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not condition():
                if self.is_gone:
                    raise SystemExit("the client has ended before its time")
                self.changed.clear()
                await self.changed.wait()

    def ends(self) -> None:
        self.is_gone = True
        self.changed.set()

    async def opened(self) -> None:
        await self.until(lambda: self._open == 2)

    def summary(self) -> bool:
        """Print the closing lines; True when all is as it should be."""
        self.timeline.flush()
        lost = repeated = failed = again = came_twice = 0
        killed = self.killed
        for name, call in self.calls.items():
            twice = len(call.received) - len(set(call.received))
            again += max(0, len(call.nodes) - 1)
            if name in killed and call.failure is not None:
                came_twice += twice
                continue
            repeated += twice
            failed += call.result is None
            lost += len(set(call.emitted) - set(call.received))
        wrong = lost + repeated + failed + again
        paint = self.timeline.paint
        events = sum(len(call.received) for call in self.calls.values())
        tasks = {name: call for name, call in self.calls.items() if is_task(name)}
        calls, polls = len(self.calls) - len(tasks), sum(call.polls for call in tasks.values())
        print(f"\none session, {calls} calls, {events:,} events received; adopted {self.adopted} times")
        print(f"{len(tasks)} calls that became tasks, {polls} polls")
        for name in sorted(killed):
            print(f"{name}, whose node was killed: {self.calls[name].failure or 'ended before the kill'}")
        if came_twice:
            # When a connection breaks, its SDK goes back to where that connection began.
            print(f"  when its connection broke, the client asked for {came_twice} events again")
        print(
            paint(
                f"all others: {lost} lost, {repeated} repeated, {failed} failed, {again} run twice",
                "red" if wrong else "green",
            )
        )
        return not wrong and self.adopted > 0 and any(is_task(name) for name in killed)


async def ask(client: Process, story: Story, tool: str, name: str, **arguments: object) -> None:
    """Let the client make a call, and wait until a node runs it."""
    assert client.stdin is not None  # it is started with a pipe
    order = {"tool": tool, "arguments": {"call": name, **arguments}}
    client.stdin.write(f"{json.dumps(order)}\n".encode())
    await story.until(lambda: bool(story.calls[name].nodes) or story.calls[name].is_over)


Look = Callable[[str, Fleet], Awaitable[None]]
"""Looks at the live page of the fleet, when there is something to be seen that has this name."""


async def act(fleet: Fleet, client: Process, tasks: Process, story: Story, look: Look) -> None:
    for process in (client, tasks):
        assert process.stdin is not None  # it is started with a pipe
        process.stdin.write(f"http://127.0.0.1:{fleet.port}/mcp\n".encode())
    await story.opened()
    await ask(client, story, "index_files", "call 1", files=400, run_s=16)
    await ask(tasks, story, "index_files", "task 1", files=200, run_s=8)
    await story.until(lambda: len(story.calls["call 1"].received) >= 80 and story.calls["task 1"].polls > 0)
    for node in sorted(fleet.nodes, key=lambda node: [runs(node, story, name) for name in ("call 1", "task 1")]):
        story.happens(f"{node.title} is restarted")
        status = await fleet.restart(node)
        # uvicorn ends with the signal that it was told to end with.
        story.happens(f"{node.title} is back" + (f", status {status}" if status not in (0, -signal.SIGTERM) else ""))
    await story.until(lambda: story.calls["call 1"].is_over and story.calls["task 1"].is_over)

    await ask(client, story, "ask_folder", "call 2")
    await story.until(lambda: story.calls["call 2"].is_over)

    await look("begin", fleet)
    await ask(client, story, "index_files", "call 3", files=400, run_s=16)
    victim = next(node for node in fleet.nodes if runs(node, story, "call 3"))
    await story.until(lambda: len(story.calls["call 3"].received) >= 200)
    names = [f"task {number}" for number in range(2, 2 + MOST_TASKS)]
    for count, name in enumerate(names, 1):
        await ask(tasks, story, "index_files", name, files=150, run_s=6)
        # One that is lost and one that is not.
        if len({runs(victim, story, name) for name in names[:count]}) == 2:
            names = names[:count]
            break
    await story.until(lambda: all(story.calls[it].polls for it in names))
    story.killed = {name for name in ("call 3", *names) if runs(victim, story, name)}
    await look("tasks", fleet)
    story.happens(f"{victim.title} is killed (kill -9)")
    await fleet.kill(victim)
    await story.until(lambda: story.calls["call 3"].is_over)

    await ask(client, story, "index_files", "call 4", files=100, run_s=2)
    await story.until(lambda: all(call.is_over for call in story.calls.values()))
    await look("kill", fleet)


def is_task(name: str) -> bool:
    return name.startswith("task")


def runs(node: Node, story: Story, name: str) -> bool:
    return node.name in story.calls[name].nodes


async def look_away(name: str, fleet: Fleet) -> None:
    """Nobody looks."""


async def run_cluster(look: Look = look_away) -> bool:
    story = Story()
    clients = [await start(LANGUAGES["python"], program) for program in ("cluster/client", "tasks/client")]
    readers = [asyncio.create_task(read(client, story)) for client in clients]
    for reader in readers:
        reader.add_done_callback(lambda _: story.ends())
    reporter = asyncio.create_task(story.keep_reporting())
    try:
        with tempfile.TemporaryDirectory(prefix="tailrope-demo-") as folder:
            async with Fleet(Path(folder), story, story.told_by) as fleet:
                kind = fleet.store.partition(":")[0]
                nodes = ", ".join(node.title for node in fleet.nodes)
                story.timeline.begin(f"{nodes} on one store ({kind}), behind nginx without affinity")
                print(f"the live page of the three: http://127.0.0.1:{fleet.port}/live")
                await act(fleet, *clients, story, look)
                await asyncio.gather(*map(stop, clients))
    except TimeoutError:
        story.note(lambda: story.timeline.row(right=f"nothing came for {PATIENCE_S} s", colour="red"))
    finally:
        await asyncio.gather(*map(stop, clients))
        await asyncio.gather(*readers)
        reporter.cancel()
        story.report()
    return story.summary()
