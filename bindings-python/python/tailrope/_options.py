"""The options of `install()` and of event stores, in one place."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack

from tailrope._native import Store

if TYPE_CHECKING:
    from starlette.requests import Request


Principal = Callable[["Request"], str | None]
"""A function of a request that names its user: see the option `principal`."""


@dataclass(frozen=True)
class AdoptedSession:
    """A session that goes on in this process, as the one that had it is gone: see the option `on_adopted`."""

    session_id: str
    server: Any
    """The SDK's server that serves it, which is the session manager's `app`."""


class StoreOptions(TypedDict, total=False):
    """Options of an event store. What is not named keeps its default. Durations are in milliseconds.

    A store that several processes use has one set of bounds for all of them: give each the same.
    """

    durability: Literal["process", "power"]
    """What a stored event survives: the end of the `process` (the default), or a `power` failure."""
    encryption_keys: Sequence[str]
    """Payloads are encrypted at rest with the first key and read with any: 64 hexadecimal digits each. Default none."""
    max_events_per_stream: int
    """Events kept for one stream. Default 10,000."""
    max_bytes_per_stream: int
    """Bytes kept for one stream. Default 8 MiB."""
    max_bytes_per_session: int
    """Bytes kept for one session. Default 64 MiB."""
    max_bytes: int
    """Bytes kept in all. Finished streams go first, in the order in which their retention ends. Default 512 MiB."""
    max_event_bytes: int
    """A larger event is not kept. A notification raises; a response is sent once to the connection that is open, or
    becomes an error that names the size. Default 64 MiB."""
    retention_ms: int
    """How long a finished stream stays readable. Default 600,000 (10 minutes)."""
    max_age_ms: int
    """Events older than this are trimmed when their stream is written again. Default 3,600,000 (1 hour)."""
    owner_lost_ms: int
    """A process that has given no sign of life for so long counts as gone: the requests that it ran get an error.
    Default 10,000."""


class PaceOptions(TypedDict, total=False):
    """What a pace can say. What is not named is as the options of the same name say. Durations are in milliseconds."""

    retry_ms: int
    """How long a client waits before it comes back, from the first priming event on."""
    hold_ms: int
    """How long a connection that resumes stays open; 0 is pure polling. Default until the call ends."""
    max_connection_ms: int
    """The engine closes a connection at this age; the client resumes. 0 switches it off."""
    max_connection_bytes: int
    """The engine closes a connection that carried this much; the client resumes. 0 switches it off."""
    heartbeat_ms: int
    """When the handler has sent nothing for so long, a client that asked for progress is sent some. 0 (the default)
    switches it off."""
    retention_ms: int
    """How long the finished stream, or task, stays readable."""
    task_after_ms: int
    """A call that takes longer becomes a task, if its client takes tasks: docs/tasks.md. 0: every call."""
    requires_task: bool
    """Only clients that take tasks may call the tool. Default False."""


class Pace:
    """How the calls of a tool are paced: see the option `pace`, and docs/operate/pace.md.

    Args:
        options: what it says, see `tailrope.PaceOptions`.

    Raises:
        ValueError: an unknown option. The engine that is given the pace checks the values.
    """

    __slots__ = ("options",)

    def __init__(self, **options: Unpack[PaceOptions]) -> None:
        check_names(options, PaceOptions.__optional_keys__, "Pace")
        self.options = options

    def __repr__(self) -> str:
        return f"Pace({', '.join(f'{name}={value!r}' for name, value in self.options.items())})"


class Options(StoreOptions, total=False):
    """Options of an engine, and of its store where that is named by an address. Durations are in milliseconds."""

    principal: Principal
    """A function of the request that names its user; a session is found by its own user alone. Without it
    authentication and credentials name the user: docs/security.md. Default none."""
    log_user: Principal
    """A function of the request that names its user in the log, for the records of calls, and on the live page:
    docs/operate/watching.md. Without it the log uses the name that `principal` gives, if there is one. A name that
    holds a credential is left out.
    Default none."""
    log_calls: bool
    """Every call that ends is logged, not only calls that end badly: docs/operate/watching.md. Default False."""
    server_name: str
    """The name of the server, the same in all its processes. Servers that share an event store find no sessions of each
    other. Without it the path of the endpoint is the name: docs/security.md. Default none."""
    relayed_headers: Sequence[str]
    """Further headers of a request that reach its handler when another process relays it: docs/security.md. Default
    none."""
    relayed_state: Sequence[str]
    """Members of the request's state (`request.state`) that reach its handler when another process relays it, as far as
    they are JSON: docs/security.md. Default none."""
    identity_headers: Sequence[str]
    """Further headers in which a proxy names the user. Clients must not be able to send them: docs/security.md. Default
    none."""
    on_adopted: Callable[[AdoptedSession], Any]
    """Called, and awaited, when a session goes on in this process, before any request of it is served. When it raises,
    or takes more than a minute, the session is left to other processes: docs/deploy/several-processes.md. Default
    none."""
    pace: Mapping[str, Pace]
    """How calls are paced, by the name of their tool. A name that ends in `*` stands for all that begin so; the most
    specific name counts. Default none."""
    retry_ms: int
    """How long a client waits before it comes back. Default 3,000."""
    keep_alive_ms: int
    """A comment is written on a connection that has been silent for so long; 0 switches it off. Default 15,000."""
    max_connection_ms: int | Literal["auto"]
    """The engine closes a connection at this age, with jitter, and the client resumes; a connection whose reader takes
    nothing for so long is cut. 0 switches it off. "auto": where something else cuts connections at an age, they are
    closed shortly before it; where it cuts silent ones, comments are written more often. Default "auto"."""
    max_connection_bytes: int
    """The engine closes a connection that carried this much; the client resumes. 0 (the default) switches it off."""
    warn_event_bytes: int
    """A larger event is logged as a warning: clients with small buffers drop it. Default 1 MiB."""
    max_sessions: int
    """Sessions open at once. For a further one the idlest session of the same user ends; where none is idle, it is
    refused with status 503. Default 10,000."""
    max_sessions_per_principal: int
    """Sessions of one user open at once, likewise. Requests without any credential have no user: only `max_sessions`
    bounds theirs. Default 1,000."""
    max_requests_per_session: int
    """Requests of one session that may run at once; further ones are answered with status 429. Default 1,000."""
    max_detached_ms: int
    """How long requests and tasks may run without any sign of their client. Default 3,600,000 (1 hour)."""
    drain_within_ms: int
    """How long a server that stops waits for calls. After that a call gets an error, unless another process can show
    its end. Default 5,000."""
    drain_retry_ms: int | Literal["auto"]
    """The clients whose connections a drain closes come back after this time, at the earliest. "auto": `retry_ms` if
    the event store knows other processes that live, otherwise 5,000, or `retry_ms` if that is more. Default "auto"."""
    drain_spread_ms: int | Literal["auto"]
    """The return of these clients is spread over this time. "auto": half of `drain_retry_ms`. Default "auto"."""
    task_after_ms: int
    """A call that takes longer becomes a task, if its client takes tasks: docs/tasks.md. 0 is every call. Default
    1,000."""
    store_wait_ms: int
    """How long a resumed connection waits for a store that cannot be read. Default 10,000."""
    store_timeout_ms: int
    """How long a sender waits for the event store. Then its send fails, and the event is stored as soon as the store
    answers. An event store of your own is not waited for longer: the event has failed. Default 30,000."""
    on_store_failure: Literal["raise", "drop_progress"]
    """What becomes of progress and other notifications that the event store does not take: 'raise' tells the handler,
    at this or its next message; 'drop_progress' counts it (`events_unstored`) and logs it. Questions and results are
    not concerned. Default 'raise'."""


STORE_OPTIONS = StoreOptions.__optional_keys__
_ELSEWHERE = {
    "event_store": "a server",
    "json_response": "a server",
    "retry_interval": "a server",
    "session_idle_timeout": "a server",
    "stateless": "a server",
    "stateless_http": "a server",
    "on_unsupported": "install() and resumable()",
    "transport": "install()",
    "prefer_resumable": "install(), resumable() and session managers",
}

MEMORY = "memory:"


def is_disabled() -> bool:
    """The kill switch: with TAILROPE_DISABLE=1 in the environment everything is stock."""
    return os.environ.get("TAILROPE_DISABLE", "") not in ("", "0")


def check_names(options: Iterable[str], known: frozenset[str], of: str | None = None) -> None:
    """Raises ValueError for an option that there is not, with the one that was meant."""
    for name in options:
        if name in known:
            continue
        msg = f"unknown option {name}" if of is None else f"unknown option {name} of {of}"
        close = get_close_matches(re.sub("(?=[A-Z])", "_", name).lower(), known, n=1)
        home = _ELSEWHERE.get(name)
        if name in Options.__optional_keys__:
            home = "install() and tailrope.mcp.EventStore()"
        elif name in PaceOptions.__optional_keys__:
            home = "tailrope.Pace(), which `pace` takes"
        if home is not None:
            msg = f"{name} is an option of {home}: give it there"
        elif close:
            msg += f"; did you mean {close[0]}?"
        else:
            msg += ": docs/reference/options.md has all of them"
        raise ValueError(msg)


def checked_paces(paces: object) -> dict[str, dict[str, Any]]:
    """The option `pace`, as the engine is given it."""
    if not isinstance(paces, Mapping):
        msg = f"pace must be a mapping of names of tools to tailrope.Pace(...), not {paces!r}"
        raise ValueError(msg)
    for pattern, pace in paces.items():
        if not isinstance(pattern, str) or not isinstance(pace, Pace):
            msg = f"pace maps names of tools to tailrope.Pace(...), not {pattern!r} to {pace!r}"
            raise ValueError(msg)
    return {pattern: dict(pace.options) for pattern, pace in paces.items()}


def checked_principal(principal: Any, name: str = "principal") -> Any:
    if principal is not None and (not callable(principal) or iscoroutinefunction(principal)):
        msg = f"{name} must be a plain function that takes a request and returns a str or None, not {principal!r}"
        raise ValueError(msg)
    return principal


def checked_name(name: Any) -> str:
    if name is None:
        return ""
    if not isinstance(name, str) or not name:
        msg = f"server_name must be a str that is not empty, not {name!r}"
        raise ValueError(msg)
    return name


def checked_hook(hook: Any) -> Any:
    if hook is not None and not callable(hook):
        msg = f"on_adopted must be a function that takes an AdoptedSession, not {hook!r}"
        raise ValueError(msg)
    return hook


def checked_list(option: str, of: str, names: Any) -> list[str]:
    is_list = isinstance(names, Sequence) and not isinstance(names, str | bytes)
    if not is_list or not all(isinstance(name, str) for name in names):
        msg = f"{option} must be a list of names of {of}, not {names!r}"
        raise ValueError(msg)
    return list(names)


def check_store(store: object) -> None:
    if not isinstance(store, (str, Store)):
        msg = (
            "a store is an address ('memory:', 'sqlite:PATH', 'redis://HOST', 'postgres://HOST/DATABASE') or what "
            f"tailrope.open_store() returned, not {store!r}"
        )
        raise TypeError(msg)


def check_prefer_resumable(value: object) -> None:
    if not isinstance(value, bool):
        msg = f"prefer_resumable must be True or False, not {value!r}"
        raise ValueError(msg)


def check_log_calls(value: object) -> None:
    if not isinstance(value, bool):
        msg = f"log_calls must be True or False, not {value!r}"
        raise ValueError(msg)


def check_on_unsupported(value: str) -> None:
    if value not in ("raise", "stock"):
        msg = f"on_unsupported must be 'raise' or 'stock', not {value!r}"
        raise ValueError(msg)


def check_transport(transport: str) -> None:
    if transport not in ("tailrope", "stock"):
        msg = f"transport must be 'tailrope' or 'stock', not {transport!r}"
        raise ValueError(msg)
