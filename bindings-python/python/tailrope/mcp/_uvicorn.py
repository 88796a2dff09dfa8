"""Draining under uvicorn: before it waits for connections, they are told to end (F-44)."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from tailrope._runtime import _loops, drain_now

if TYPE_CHECKING:
    from types import FrameType

_stock_exit: Any = None


def patch() -> None:
    """Hooks uvicorn's handler of SIGINT and SIGTERM, if uvicorn is there."""
    global _stock_exit
    if _stock_exit is not None:
        return
    try:
        from uvicorn.server import Server
    except ImportError:
        return
    stock_exit = _stock_exit = Server.handle_exit

    def handle_exit(self: Any, sig: int, frame: FrameType | None) -> None:
        stock_exit(self, sig, frame)
        # A signal may arrive in the middle of anything: the drain begins when the loop has time.
        for loop in list(_loops):
            if loop.is_running():
                loop.call_soon_threadsafe(drain_now)
                return

    Server.handle_exit = handle_exit  # type: ignore[method-assign]


def unpatch() -> None:
    """Takes the hook away, unless somebody else has put one on top."""
    global _stock_exit
    module = sys.modules.get("uvicorn.server")
    if _stock_exit is not None and module is not None and module.Server.handle_exit.__module__ == __name__:
        module.Server.handle_exit = _stock_exit
        _stock_exit = None
