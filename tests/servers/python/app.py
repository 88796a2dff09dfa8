"""Start one test server: python -m servers.python.app --flavor mcp2 --transport tailrope --port 0 [--options JSON].

Prints `READY PORT` when it listens. Options: engine (arguments of tailrope.install), address (of the store), store
(none, lab, example, event-store for one that the SDK is given, absent), way (install, resumable, manager: how the
server is made resumable; manager is for the flavour lowlevel), cap (events per stream of the lab store, or
of all in the example's), retry_ms, late (install() comes after the server was made), around (see around.py), server
(uvicorn, hypercorn), loop (asyncio, uvloop), log (level of the logger `tailrope`), servers (several in one process,
by path, each with the options of its `resumable()`, or none), own_auth (what the header `x-test-user` says in
JSON is what the host's authentication left, and the option `principal` reads `x-test-name`), any_path (it answers
at every path), server_name (of the store for `event-store`), on_adopted (what the option of this name does beside
marking the session: raises_until a gate is open, waits_for one), reuse_port (others may listen at the port of a
front), and those of the builders in flavors.py.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import json
import logging
import os
import socket
import sys
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from .around import AROUND
from .control import CONTROL, App, controlled
from .drift import DRIFTS as _  # noqa: F401  # before anything of the SDK
from .flavors import BUILDERS as LIBRARIES
from .flavors import Ops
from .lowlevel import by_hand, managed

BUILDERS = {**LIBRARIES, "lowlevel": managed, "byhand": by_hand}


def build(flavor: str, transport: str, options: dict[str, Any]) -> App:
    return controlled(bare(flavor, transport, options))


def bare(flavor: str, transport: str, options: dict[str, Any]) -> Any:
    """The app without what tests reach beside it."""
    from .stores import LabStore

    if "log" in options:
        logging.getLogger("tailrope").setLevel(options["log"])
    if "servers" in options:
        return side_by_side(flavor, options)
    store: Any = None
    retry_ms: int | None = options.get("retry_ms", 20)
    kind = options.get("store", "none")
    if transport == "stock":
        # What a user of the stock transport needs to be resumable at all.
        if kind != "absent" and not options.get("stateless_http"):
            store = CONTROL.store = LabStore(options.get("cap"))
    else:
        import tailrope
        import tailrope.mcp

        if kind == "example":
            # It is a server, too, which installs without options; ours come after.
            store = example(options)
        # The address of the example is that of its file.
        place = options.get("address", "memory:") if kind != "example" else "memory:"
        way = options.get("way", "install")
        if kind == "event-store":
            named = {} if "server_name" not in options else {"server_name": options["server_name"]}
            store = tailrope.mcp.EventStore(place, retry_ms=retry_ms, **named)
            # What it is not given with the store would show.
            place, retry_ms = "memory:", None
        if way == "install" and kind != "absent" and flavor != "byhand" and not options.get("late"):
            tailrope.install(**engine(options, place, retry_ms))
        if kind == "lab":
            store = CONTROL.store = LabStore(options.get("cap"))
    ours = transport == "tailrope"
    if ours and way == "manager":
        options = {**options, "manager": engine(options, place, retry_ms)}
    # The SDK's own interval must not be needed for ours to be sent.
    app = BUILDERS[flavor](options, store, None if ours else retry_ms, Ops(ours))
    if ours and way == "resumable" and options.get("around") == "django":
        # Nobody can look into the function that Django is beside.
        app, way = tailrope.mcp.resumable(app, **engine(options, place, retry_ms)), ""
    if options.get("late"):
        tailrope.install(**engine(options, place, retry_ms))
    if options.get("own_auth"):
        app.add_middleware(OwnAuth)
    if options.get("any_path"):
        app.add_middleware(AnyPath)
    if "around" in options:
        app = AROUND[options["around"]](app)
    if ours and way == "resumable":
        app = tailrope.mcp.resumable(app, **engine(options, place, retry_ms))
    return app


async def adopted(session: Any, raises_until: str | None = None, waits_for: str | None = None) -> None:
    CONTROL.mark(f"adopted {session.session_id} {session.server.name}")
    if raises_until is not None and not CONTROL.is_open(raises_until):
        msg = "not yet"
        raise OSError(msg)
    if waits_for is not None:
        await CONTROL.gate(waits_for)


def stated_name(request: Any) -> Any:
    return request.headers.get("x-test-name")


TENANT: ContextVar[str] = ContextVar("tenant_of_request")


class AnyPath:
    """Answers at every path: what a router with parameters does."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self.app({**scope, "path": "/mcp"} if scope["type"] == "http" else scope, receive, send)


class OwnAuth:
    """Authentication of the host's own, which believes every word."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        stated = dict(scope.get("headers", ())).get(b"x-test-user")
        if stated is not None:
            scope["user"] = json.loads(stated)
        held = dict(scope.get("headers", ())).get(b"x-test-state")
        if held is not None:
            scope["state"] = {**scope.get("state", {}), **json.loads(held)}
            TENANT.set(held.decode())
        await self.app(scope, receive, send)


def engine(options: dict[str, Any], place: str, retry_ms: int | None) -> dict[str, Any]:
    """The arguments of each way into Tailrope."""
    named: dict[str, Any] = {"principal": stated_name} if options.get("own_auth") else {}
    if "on_adopted" in options:
        named["on_adopted"] = functools.partial(adopted, **options["on_adopted"])
    paced = {} if retry_ms is None else {"retry_ms": retry_ms}
    own = dict(options.get("engine", {}))
    if "pace" in own:
        import tailrope

        own["pace"] = {tool: tailrope.Pace(**said) for tool, said in own["pace"].items()}
    return {**paced, "store": place, **named, **own}


def example(options: dict[str, Any]) -> Any:
    """The event store of examples/python/own_event_store.py."""
    sys.path.append(str(Path(__file__).parents[3] / "examples" / "python"))
    from own_event_store import SqliteEventStore

    bound = {} if "cap" not in options else {"kept_events": options["cap"]}
    return SqliteEventStore(options["address"], **bound)


def side_by_side(flavor: str, options: dict[str, Any]) -> Any:
    """Several servers in one process, without install()."""
    import tailrope.mcp
    from starlette.applications import Starlette
    from starlette.routing import Mount

    apps = {}
    for path, limits in options["servers"].items():
        app = BUILDERS[flavor](options, None, None, Ops(limits is not None))
        apps[path] = app if limits is None else tailrope.mcp.resumable(app, **limits)

    @asynccontextmanager
    async def lifespan(host: Any) -> Any:
        async with AsyncExitStack() as stack:
            for app in apps.values():
                await stack.enter_async_context(app.router.lifespan_context(app))
            yield

    return Starlette(routes=[Mount(f"/{path}", app) for path, app in apps.items()], lifespan=lifespan)


def serve_uvicorn(app: Any, listener: socket.socket, options: dict[str, Any]) -> None:
    import uvicorn

    class Server(uvicorn.Server):
        async def startup(self, sockets: Any = None) -> None:
            await super().startup(sockets)
            ready(listener)

    config = uvicorn.Config(app, log_level="warning", loop=options.get("loop", "asyncio"), ws="none")
    # uvicorn raises the signal again once it is done; its own `run` takes it as we do here.
    with suppress(KeyboardInterrupt):
        Server(config).run(sockets=[listener])


def serve_front(app: Any, port: int, options: dict[str, Any]) -> None:
    """As `tailrope.serve`. What tests reach beside the app is no part of it, for which nothing would be handed over."""
    from tailrope._serving import server as serving
    from tailrope._serving.workers import Worker

    settings = {"log_level": "warning", "loop": options.get("loop", "asyncio"), "ws": "none"}
    worker = None
    if options.get("reuse_port"):
        # As one of those of `--workers`, whose first process waits for nothing here and never ends.
        worker = Worker(os.pipe()[1], os.pipe()[0])
    server: Any = serving.prepared(app, "127.0.0.1", port, None, settings, None, {}, worker=worker)
    server.config.app = controlled(server.config.app)
    stock = server.startup

    async def startup(sockets: Any = None) -> None:
        await stock(sockets)
        print(f"READY {server.urls[0].rpartition(':')[2].partition('/')[0]}", flush=True)

    server.startup = startup
    serving.run(server)


def serve_hypercorn(app: Any, listener: socket.socket, options: dict[str, Any]) -> None:
    from hypercorn.asyncio import serve
    from hypercorn.config import Config

    config = Config()
    config.bind = [f"fd://{listener.detach()}"]
    config.graceful_timeout = 1.0
    config.errorlog = None

    async def main() -> None:
        async def announce() -> None:
            # Hypercorn has no hook; the socket already queues connections while it starts.
            print(f"READY {options['port']}", flush=True)

        await asyncio.gather(serve(app, config), announce())

    if options.get("loop") == "uvloop":
        import uvloop

        uvloop.run(main())
    else:
        asyncio.run(main())


def ready(listener: socket.socket) -> None:
    print(f"READY {listener.getsockname()[1]}", flush=True)


def parsed(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--flavor", required=True, choices=sorted(BUILDERS))
    parser.add_argument("--transport", default="tailrope", choices=["tailrope", "stock"])
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--options", type=json.loads, default={})
    parser.add_argument("--front", action="store_true", help="as tailrope.serve does")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    args = parsed(argv)
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    if args.front and args.transport == "tailrope":
        serve_front(bare(args.flavor, args.transport, args.options), args.port, args.options)
        return
    # asyncio sets TCP_NODELAY only where the protocol is named; without it each answer waits for a delayed ACK.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", args.port))
    listener.listen(512)
    options = {**args.options, "port": listener.getsockname()[1]}
    app = build(args.flavor, args.transport, args.options)
    if options.get("server") == "hypercorn":
        serve_hypercorn(app, listener, options)
    else:
        serve_uvicorn(app, listener, options)


if __name__ == "__main__":
    main()
