"""Which server a request is for: servers that share a store find no sessions of each other (I7).

Every process of a server has to call it the same, whatever its language: by the option `server_name`, or else by the
path of its endpoint.
"""

from __future__ import annotations

from contextvars import ContextVar
from functools import lru_cache
from typing import TYPE_CHECKING

from tailrope._native import server_name

if TYPE_CHECKING:
    from starlette.types import Scope

    from tailrope._runtime import Runtime

_path: ContextVar[str] = ContextVar("tailrope_path", default="")
"""That of the request which is being served. A session manager makes transports without saying for which."""


def came(scope: Scope) -> None:
    """A session manager serves this request from now on."""
    if scope["type"] == "http":
        _path.set(_path_of(scope))


def of_scope(runtime: Runtime, scope: Scope) -> str:
    """The server that a request is for."""
    return runtime.server_name or _path_of(scope)


def of_new_session(runtime: Runtime) -> str:
    """The server of a session that is about to open. Empty for a transport that users make themselves: there is no path
    yet."""
    return runtime.server_name or _path.get()


_server_name = lru_cache(maxsize=16)(server_name)
"""Most requests of a process are for the same few paths, and each is asked for more than once."""


def _path_of(scope: Scope) -> str:
    raw = scope.get("raw_path")
    # Neither is always there, and not every buffer has a hash.
    return _server_name(None if raw is None else bytes(raw), scope["path"], scope.get("root_path") or "")
