"""Two clients call one tool at two workers. One timeline shows what they and the wire report, and how it ended."""

import asyncio
import collections
import contextlib
import functools
import json
import tempfile
import time
from asyncio.subprocess import Process
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from notes import Notes
from processes import Language, free_port, read, start, stop, wait_for_server
from tap import Event, Exchange, Observer, Tap
from timeline import CUT, TO_CLIENT, TO_SERVER

# Time enough for a worker that lives on a busy machine to be taken for alive.
OWNER_LOST_MS = 2_000
# Nothing in this part takes longer.
PATIENCE_S = 30
# The call of the client of 2025-11-25, and those of the client of 2026-07-28.
STREAM, TASK, LOST = "stream", "task", "task 2"


class Worker:
    """A place for a process, and the process that is there now."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.port = free_port()
        self.process: Process | None = None


@dataclass
class Call:
    """What its tools and its client have said of a call."""

    workers: list[str] = field(default_factory=list)
    result: str | None = None
    failure: str | None = None

    @property
    def is_over(self) -> bool:
        return self.result is not None or self.failure is not None


class TaskStory(Notes):
    """Draws what the tools, the wire and the clients' applications report, and counts it."""

    def __init__(self, workers: list[Worker]) -> None:
        super().__init__()
        self.calls: dict[str, Call] = collections.defaultdict(Call)
        self.progress: list[int] = []
        # Who has answered polls of which call.
        self.polled: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
        self.changed = asyncio.Event()
        self.resumes = 0
        # The requests of the call that is a stream, while they are answered.
        self.connections: set[int] = set()
        self._names = {worker.port: worker.name for worker in workers}
        self._tasks: dict[str, str] = {}
        self._told = ""
        self.killed_at = self.failed_at = 0.0

    def observer(self) -> Observer:
        return Observer(
            lambda exchange: self.note(lambda: self._on_request(exchange)),
            lambda exchange: None,
            lambda exchange, event: self.note(lambda: self._on_event(exchange, event)),
            lambda exchange: self.note(lambda: self._on_end(exchange)),
        )

    # The processes.

    def told_by(self, worker: str, fact: dict[str, object]) -> None:
        name = str(fact["call"])
        if fact["what"] == "start":
            self.calls[name].workers.append(worker)
            self.timeline.row(f"{worker}: tool of {name} starts")
        elif fact["what"] == "finish":
            self.timeline.row(f"{worker}: tool of {name} ends")
        self.changed.set()

    def told(self, fact: dict[str, object]) -> None:
        """What a client reports: the one of 2025-11-25 has one call, and does not name it."""
        what, name = fact["what"], str(fact.get("call", STREAM))
        if what == "progress":
            self.progress.append(int(str(fact["number"])))
            self.timeline.received(self.progress[-1], f"{STREAM}: receives")
        elif what == "result":
            self.calls[name].result = str(fact["text"])
            self.timeline.row(right=f'{name}: returns "{fact["text"]}"', colour="bold")
        elif what == "failure":
            self.calls[name].failure = str(fact["text"])
            self.failed_at = self.timeline.now
            self.timeline.row(right=f"{name}: fails: {fact['text']}", colour="yellow")
        self.changed.set()

    def happens(self, text: str) -> None:
        self.note(lambda: self.timeline.row(text, colour="red"))

    # The wire, as the tap decodes it.

    def _on_request(self, exchange: Exchange) -> None:
        name = self._names[exchange.upstream_port]
        if exchange.method == "GET" and "last-event-id" in exchange.headers:
            self.resumes += 1
            self.connections.add(exchange.number)
            self.timeline.row(wire=TO_SERVER, right=f"{STREAM}: resumes at {name}", colour="cyan")
        elif exchange.method == "POST" and (message := json.loads(exchange.body)).get("method") == "tools/call":
            revision = exchange.headers["mcp-protocol-version"]
            call = message["params"].get("arguments", {}).get("call", STREAM)
            if call == STREAM:
                self.connections.add(exchange.number)
            self.timeline.row(wire=TO_SERVER, right=f"{call}: tools/call at {name} ({revision})", colour="cyan")

    def _on_event(self, exchange: Exchange, event: Event) -> None:
        # An answer that began as a stream may end with the task.
        if event.data and exchange.method == "POST":
            self._on_answer(exchange, event.data)

    def _on_end(self, exchange: Exchange) -> None:
        if exchange.number in self.connections:
            self.connections.discard(exchange.number)
            self.timeline.row(wire=CUT, right=f"{STREAM}: connection closed", colour="dim")
        elif exchange.answer and exchange.method == "POST":
            self._on_answer(exchange, exchange.answer)
        self.changed.set()

    def _on_answer(self, exchange: Exchange, answer: str | bytes) -> None:
        request, result = json.loads(exchange.body), json.loads(answer).get("result", {})
        if request.get("method") == "tools/call" and result.get("resultType") == "task":
            call = self._tasks[result["taskId"]] = request["params"]["arguments"]["call"]
            self.timeline.row(wire=TO_CLIENT, right=f"{call}: the answer is a task", colour="green")
            self.changed.set()
        elif request.get("method") == "tasks/get":
            call, worker = self._tasks[request["params"]["taskId"]], self._names[exchange.upstream_port]
            self.polled[call][worker] += 1
            says = result.get("statusMessage") if result.get("status") == "working" else None
            told = f"{call}: polls {worker}: {result.get('status')}" + (f", {says}" if says else "")
            # Where the same comes again, once is enough.
            if told != self._told:
                self.timeline.row(wire=TO_CLIENT, right=told, colour="green")
            self._told = told

    # The stage.

    def has_task(self, call: str) -> bool:
        return call in self._tasks.values()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not condition():
                self.changed.clear()
                await self.changed.wait()

    def summary(self) -> bool:
        """Print the closing lines; True when all is as it should be."""
        self.timeline.flush()
        stream, task, lost = (self.calls[name] for name in (STREAM, TASK, LOST))
        in_order = self.progress == sorted(set(self.progress))
        twice = sum(max(0, len(call.workers) - 1) for call in self.calls.values())
        good = in_order and stream.result is not None and self.resumes > 0 and task.result is not None
        good = good and len(self.polled[TASK]) == 2 and lost.failure is not None and not twice
        print(
            f"\n{STREAM}: {self.resumes} resumes, {len(self.progress)} events, {'' if in_order else 'not '}each once"
            f"\n{TASK}: a task with {self.polled[TASK].total()} polls, answered by {' and '.join(self.polled[TASK])}"
            f"\n{LOST}: failed {self.failed_at - self.killed_at:.1f} s after its worker was killed"
            f" (owner_lost_ms {OWNER_LOST_MS:,})"
        )
        print(self.timeline.paint(f"calls that ran twice: {twice}", "green" if good else "red"))
        return good


class Stage:
    """The workers and the clients of one language, and the tap between them."""

    def __init__(self, language: Language, folder: str) -> None:
        self.language = language
        self.store = f"sqlite:{Path(folder) / 'events.db'}"
        self.workers = [Worker("A"), Worker("B")]
        self.story = TaskStory(self.workers)
        self._readers: list[asyncio.Task[None]] = []
        self._processes: list[Process] = []

    async def start(self, worker: Worker) -> None:
        arguments = ["--port", str(worker.port), "--store", self.store, "--owner-lost-ms", str(OWNER_LOST_MS)]
        worker.process = await self._run(
            "tasks/worker", *arguments, told=functools.partial(self.story.told_by, worker.name)
        )
        await wait_for_server(worker.process, worker.port)

    async def restart(self, worker: Worker) -> None:
        await self.start(worker)
        self.story.happens(f"{worker.name} is back")

    async def client(self, program: str) -> Process:
        return await self._run(program, told=self.story.told)

    async def _run(self, program: str, *arguments: str, told: Callable[[dict[str, object]], None]) -> Process:
        process = await start(self.language, program, *arguments)
        self._processes.append(process)
        self._readers.append(asyncio.create_task(read(process, self.story, told)))
        return process

    async def kill(self, worker: Worker) -> None:
        assert worker.process is not None
        worker.process.kill()
        self.story.happens(f"{worker.name} is killed (kill -9)")
        self.story.killed_at = time.monotonic()
        await worker.process.wait()

    async def end(self) -> None:
        # The clients first.
        for process in reversed(self._processes):
            await stop(process)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.gather(*self._readers), 5)

    async def play(self) -> None:
        story, (first, second) = self.story, self.workers
        *_, streams, tasks = await asyncio.gather(
            self.start(first), self.start(second), self.client("client"), self.client("tasks/client")
        )
        async with Tap([first.port, second.port], story.observer()) as tap:
            story.timeline.begin(f"{self.language.title}, two workers on one store (sqlite)")
            say(streams, f"http://127.0.0.1:{tap.port}/mcp")
            say(tasks, f"http://127.0.0.1:{tap.port}/mcp")
            say(tasks, order(TASK))
            await story.until(lambda: story.has_task(TASK))
            tap.prefer(second.port)
            # While the client of 2025-11-25 is away: after a cut its SDK reads again what it had.
            await story.until(lambda: story.polled[TASK]["B"] > 1 and bool(story.progress) and not story.connections)
            await self.kill(second)
            again = asyncio.create_task(self.restart(second))
            await story.until(lambda: story.calls[STREAM].is_over and story.calls[TASK].is_over)
            await again
            say(tasks, order(LOST))
            await story.until(lambda: story.has_task(LOST))
            # Whichever runs it is killed.
            owner, other = sorted(self.workers, key=lambda worker: worker.name not in story.calls[LOST].workers)
            tap.prefer(other.port)
            await story.until(lambda: story.polled[LOST][other.name] > 0)
            await self.kill(owner)
            await story.until(lambda: story.calls[LOST].is_over)


def order(call: str) -> str:
    return json.dumps({"tool": "index_files", "arguments": {"call": call}})


def say(process: Process, line: str) -> None:
    assert process.stdin is not None  # it is started with a pipe
    process.stdin.write(f"{line}\n".encode())


async def run_tasks(language: Language) -> bool:
    with tempfile.TemporaryDirectory(prefix="tailrope-demo-") as folder:
        stage = Stage(language, folder)
        story = stage.story
        reporter = asyncio.create_task(story.keep_reporting())
        try:
            await stage.play()
        except TimeoutError:
            story.note(lambda: story.timeline.row(right=f"nothing came for {PATIENCE_S} s", colour="red"))
        finally:
            await stage.end()
            reporter.cancel()
            story.report()
    return story.summary()
