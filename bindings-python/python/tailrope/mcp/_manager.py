"""Session managers that make our transports themselves: other servers are served as before."""

from __future__ import annotations

import inspect
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Unpack, cast

from mcp.server.streamable_http_manager import StreamableHTTPSessionManager as StockManager

from tailrope._options import MEMORY, Options, is_disabled
from tailrope.mcp import _adopting, _engage, _hosts, _status
from tailrope.mcp._engage import Way
from tailrope.mcp._front import Fronted
from tailrope.mcp._session_server import SessionServer
from tailrope.mcp._transport import in_place_of_stock

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator

    from mcp.server.streamable_http import EventStore as SdkEventStore
    from mcp.server.transport_security import TransportSecuritySettings

    from tailrope._native import Store


class Managing:
    """What a session manager of ours has before its class of the SDK or of fastmcp."""

    _tailrope_way: Way | None = None

    asgi_app = Fronted(lambda manager: manager._tailrope_way)

    def _admit_session(self, *args: Any, **kwargs: Any) -> Any:
        """The SDK's transport of a new session, which serves on our engine from its first request on."""
        manager = cast("Any", self)
        way = self._tailrope_way
        runtime = None if way is None else way.runtime_for(manager.event_store)
        idle_timeout = manager.session_idle_timeout
        if runtime is not None:
            # When the session is idle is for the engine to say (I11): the SDK's class is to know nothing of it.
            manager.session_idle_timeout = None
        try:
            with _engage.engine_bounds(manager, runtime):
                transport = cast("Any", super())._admit_session(*args, **kwargs)
        finally:
            manager.session_idle_timeout = idle_timeout
        if runtime is None or transport is None:
            return transport
        adoption = _adopting.claim(runtime)
        if adoption is not None:
            _rename(manager, transport, adoption.session_id)
        transport.__class__ = in_place_of_stock(cast("Any", type(transport)))
        transport._tailrope = SessionServer(
            runtime,
            transport.mcp_session_id,
            json_response=manager.json_response,
            security_settings=manager.security_settings,
            retry_ms=manager.retry_interval,
            idle_timeout=idle_timeout,
            adoption=adoption,
        )
        return transport

    async def _discard_session(self, session_id: str, transport: Any) -> None:
        """The SDK's end of a session, however that came."""
        await _adopting.discard(cast("Any", super())._discard_session, self, session_id, transport)

    @asynccontextmanager
    async def run(self) -> AsyncGenerator[None, None]:
        """Runs the manager. Sessions that are open at its end stay in the store, for the next process."""
        async with _hosts.running(self, cast("Any", super()).run()):
            yield


def _rename(manager: Any, transport: Any, session_id: str) -> None:
    """Gives the transport of a new session the id of one that goes on here."""
    for by_id in (manager._server_instances, getattr(manager, "_session_owners", {})):
        if transport.mcp_session_id in by_id:
            by_id[session_id] = by_id.pop(transport.mcp_session_id)
    transport.mcp_session_id = session_id


class _ManagerOptions(Options, total=False):
    """The arguments of the SDK's class, and our options."""

    app: Any
    event_store: SdkEventStore | None
    json_response: bool
    stateless: bool
    security_settings: TransportSecuritySettings | None
    retry_interval: int | None
    session_idle_timeout: float | None
    max_request_body_size: int


class StreamableHTTPSessionManager(Managing, StockManager):
    """A session manager whose sessions are resumable. Arguments and methods are those of the SDK's class.

    Its sessions have an engine of its own, or that of the `tailrope.mcp.EventStore` that it was given.

    Args:
        args: as the SDK's class takes them.
        store: the event store: an address, see `tailrope.open_store`, or a store that is open.
        prefer_resumable: as `tailrope.install` has it.
        more: the keyword arguments of the SDK's class, and the options of `tailrope.install`. Both know `max_sessions`.

    Raises:
        ValueError: an unknown or wrong option.
        TailropeError: the store cannot be opened (code `store_not_opened`).
    """

    def __init__(
        self,
        *args: Any,
        store: str | Store = MEMORY,
        prefer_resumable: bool = True,
        **more: Unpack[_ManagerOptions],
    ) -> None:
        of_sdk: dict[str, Any] = dict(more)
        options = {name: of_sdk.pop(name) for name in more if name in Options.__optional_keys__}
        if "max_sessions" in options:
            of_sdk["max_sessions"] = options["max_sessions"]
            if options["max_sessions"] is None:
                options["max_sessions"] = UNLIMITED
        super().__init__(*args, **of_sdk)
        if not is_disabled():
            self._tailrope_way = Way(options, store=store, prefer_resumable=prefer_resumable)
            engage(self._tailrope_way)


UNLIMITED = 2**31 - 1


class Holding:
    """An endpoint that holds a session manager. Those of fastmcp get a new one each time when their app starts."""

    _tailrope_way: Way

    @property
    def session_manager(self) -> Any:
        return self.__dict__["session_manager"]

    @session_manager.setter
    def session_manager(self, manager: Any) -> None:
        if isinstance(manager, StockManager):
            convert(manager, self._tailrope_way)
        self.__dict__["session_manager"] = manager


def managers_in(app: Any) -> Iterator[Any]:
    """The session managers in an app, and the endpoints that hold one, or will when the app starts."""
    seen: dict[int, Any] = {}
    to_look_at = [app]
    while to_look_at:
        it = to_look_at.pop()
        if id(it) in seen:
            continue
        seen[id(it)] = it
        attributes = getattr(it, "__dict__", {})
        if isinstance(it, StockManager):
            yield it
        elif inspect.ismethod(it):
            to_look_at.append(it.__self__)
        else:
            if "session_manager" in attributes and isinstance(it.session_manager, StockManager | None):
                yield it
            to_look_at += [attributes[name] for name in ("app", "endpoint", "router") if name in attributes]
            routes = attributes.get("routes")
            to_look_at += routes if isinstance(routes, list | tuple) else ()
            to_look_at += _named_by(it)


def _named_by(app: Any) -> Iterator[Any]:
    """The session managers that a function names, or what is called of an object. What else it names is not below the
    app."""
    function = app if inspect.isfunction(app) else vars(type(app)).get("__call__")
    if not inspect.isfunction(function):
        return
    named = [function.__globals__.get(name) for name in function.__code__.co_names]
    for cell in function.__closure__ or ():
        with suppress(ValueError):
            # It has no value yet.
            named.append(cell.cell_contents)
    yield from (it for it in named if isinstance(it, StockManager))


def convert(found: Any, way: Way) -> None:
    """Makes a session manager, or an endpoint with the one that it holds or is given, one of ours."""
    if isinstance(found, StockManager):
        _engage.check_manager(found)
        found.__class__ = _before(Managing, type(found))
        found._tailrope_way = way  # type: ignore[attr-defined]
    else:
        found.__class__ = _before(Holding, type(found))
        found._tailrope_way = way
        found.session_manager = found.session_manager


def misfit(found: Any) -> str | None:
    """Why a session manager, or an endpoint, cannot become one of ours."""
    theirs = type(found)
    try:
        found.__class__ = _before(Managing if isinstance(found, StockManager) else Holding, theirs)
        found.__class__ = theirs
    except TypeError as error:
        return f"the {theirs.__qualname__} of {theirs.__module__} in this app cannot be made one of ours ({error})"
    return None


def engage(way: Way) -> None:
    """To be called once for each way of single servers."""
    _engage.explicit.add(way)
    _hosts.patch()
    _status.log_explicit(way)


made: dict[tuple[Any, Any], Any] = {}
"""Our classes, by what they have before which class of others."""


def _before(ours: Any, theirs: Any) -> Any:
    """The class with our methods before those of a class that others made."""
    if issubclass(theirs, ours):
        return theirs
    if (ours, theirs) not in made:
        members = {"__module__": theirs.__module__, "__doc__": theirs.__doc__}
        made[ours, theirs] = type(theirs.__name__, (ours, theirs), members)
    return made[ours, theirs]
