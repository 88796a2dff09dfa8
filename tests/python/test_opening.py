"""A store that has to be opened again, as in the child of a fork, holds up nobody. No sockets."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path
from typing import Any

import pytest
import tailrope
from tailrope import _runtime

pytestmark = [pytest.mark.ours, pytest.mark.one_line, pytest.mark.usefixtures("uninstalled")]


class Slow:
    """A store of the parent, whose server takes its time."""

    is_open_here = False

    def __init__(self) -> None:
        self.opening, self.may_open = threading.Event(), threading.Event()
        self.opened = 0

    def open_here(self) -> None:
        self.opening.set()
        assert self.may_open.wait(20)
        self.opened += not self.is_open_here
        self.is_open_here = True


async def test_a_store_opens_off_the_loop_and_under_no_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    runtime, slow = _runtime.Runtime({}), Slow()
    runtime.store = slow  # type: ignore[assignment]

    def engine(*_given: Any, **_options: Any) -> Any:
        made.append(object())
        return made[-1]

    monkeypatch.setattr(_runtime, "Engine", engine)
    asking = [asyncio.create_task(runtime.ready()) for _ in range(3)]
    async with asyncio.timeout(20):
        while not slow.opening.is_set():
            await asyncio.sleep(0)
        # The loop turns, and what takes the lock of the process is not held up.
        assert runtime in _runtime.runtimes() and not any(task.done() for task in asking)
        slow.may_open.set()
        await asyncio.gather(*asking)
    assert (len(made), slow.opened) == (1, 1)
    runtime._engine = None


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no forks here")
def test_child_of_a_fork_opens_its_store_before_it_serves(tmp_path: Path) -> None:
    store = tailrope.open_store(f"sqlite:{tmp_path / 'events.db'}")
    runtime = _runtime.Runtime({}, store=store)
    assert store.is_open_here and runtime.engine is not None
    child = os.fork()
    if child == 0:
        was_open = store.is_open_here
        asyncio.run(runtime.ready())
        os._exit(0 if not was_open and runtime._engine is not None and store.is_open_here else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
