"""Draining under uvicorn: before it waits for connections, they are told to end (F-44).

And before it ends the process, by the signal that it got, the event stores have written what they were given.
"""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Any

from tailrope._runtime import _loops, drain_now, flush_stores

if TYPE_CHECKING:
    from types import FrameType

_stock_exit: Any = None
_stock_shutdown: Any = None


def patch() -> None:
    """Hooks uvicorn's handler of SIGINT and SIGTERM and its shutdown, if uvicorn is there."""
    global _stock_exit, _stock_shutdown
    if _stock_exit is not None:
        return
    try:
        from uvicorn.server import Server
    except ImportError:
        return
    stock_exit = _stock_exit = Server.handle_exit
    stock_shutdown = _stock_shutdown = Server.shutdown

    def handle_exit(self: Any, sig: int, frame: FrameType | None) -> None:
        stock_exit(self, sig, frame)
        # A signal may arrive in the middle of anything: the drain begins when the loop has time.
        for loop in list(_loops):
            if loop.is_running():
                loop.call_soon_threadsafe(drain_now)
                return

    async def shutdown(self: Any, *args: Any, **kwargs: Any) -> None:
        await stock_shutdown(self, *args, **kwargs)
        # What comes next may be the signal once more, and then nothing runs at exit.
        await asyncio.to_thread(flush_stores)

    Server.handle_exit = handle_exit  # type: ignore[method-assign]
    Server.shutdown = shutdown  # type: ignore[method-assign]


def unpatch() -> None:
    """Takes the hooks away, unless somebody else has put one on top."""
    global _stock_exit, _stock_shutdown
    module = sys.modules.get("uvicorn.server")
    if _stock_exit is None or module is None:
        return
    ours = (module.Server.handle_exit, module.Server.shutdown)
    if all(hook.__module__ == __name__ for hook in ours):
        module.Server.handle_exit = _stock_exit
        module.Server.shutdown = _stock_shutdown
        _stock_exit = _stock_shutdown = None
