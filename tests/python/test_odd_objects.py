"""Objects of a host that can less than most: no weak reference, no hash, an equality that raises. No sockets."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
import tailrope
import tailrope.mcp
from asgi import OPEN, Asgi, end, outgoing, running_call
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.lowlevel import Server as SdkServer
from mcp.server.streamable_http import EventStore
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.shared.message import ServerMessageMetadata, SessionMessage
from tailrope.mcp import _principal, _sdk, _sender

pytestmark = [pytest.mark.ours, pytest.mark.usefixtures("uninstalled")]


class Odd:
    """Has no hash, is not true, and cannot be compared."""

    def __eq__(self, other: object) -> bool:
        raise ArithmeticError

    def __bool__(self) -> bool:
        raise ArithmeticError

    __hash__ = None  # type: ignore[assignment]


class Plain:
    """A store as the SDK only needs it to be: two methods, and nothing besides."""

    __slots__ = ("rows",)

    def __init__(self) -> None:
        self.rows: list[Any] = []

    async def store_event(self, stream_id: str, message: Any) -> str:
        self.rows.append(message)
        return str(len(self.rows))

    async def replay_events_after(self, last_event_id: str, send_callback: Any) -> None:
        return None


class OddStore(Odd, Plain, EventStore):
    """One of the SDK's own kind."""


class OddManager(Odd, StreamableHTTPSessionManager):
    """A session manager that somebody has made a data class of, for one."""


@pytest.mark.parametrize("kind", [Plain, OddStore])
async def test_a_store_needs_no_more_than_its_two_methods(kind: Any) -> None:
    store = kind()
    async with running_call(store) as (_, outbox, call):
        await end(call, outbox)
    assert len(store.rows) > 2


async def test_a_session_manager_and_its_headers_may_be_of_any_kind() -> None:
    tailrope.install()
    manager = OddManager(SdkServer("x"))
    async with manager.run():
        opening = Asgi(manager, "POST", OPEN, session=None, raw_path=bytearray(b"/mcp"), root_path=None)
        opening.scope["headers"] = iter(opening.scope["headers"])
        await opening.task
        assert opening.status == 200 and b'"result"' in opening.body


@pytest.mark.parametrize("kind", [bytearray, memoryview])
@pytest.mark.parametrize("is_managed", [True, False])
async def test_headers_may_be_any_buffers_and_none(kind: Any, is_managed: bool) -> None:
    tailrope.install()
    manager = OddManager(SdkServer("x"))
    made = tailrope.mcp.StreamableHTTPServerTransport("s1")
    async with manager.run(), made.connect() as (inbox, outbox):
        opening = Asgi(manager if is_managed else made, "POST", OPEN, session=None, raw_path="/mcp")
        headers = [(kind(name), kind(value)) for name, value in opening.scope["headers"]]
        opening.scope["headers"] = [(b"x-none", None), (b"x-number", 5), ("x-text", "text"), *headers]
        if not is_managed:
            await inbox.receive()
            await outbox.send(outgoing({"jsonrpc": "2.0", "id": 0, "result": {}}))
        await opening.task
        assert opening.status == 200 and b'"result"' in opening.body


def test_a_server_of_uvicorn_may_be_of_any_kind() -> None:
    code = """
import asyncio, uvicorn, tailrope
tailrope.install()
class Odd(uvicorn.Server):
    __hash__ = None
async def serve():
    server = Odd(uvicorn.Config(lambda *_: None, port=0, lifespan="off", log_level="error"))
    server.should_exit = True
    await server.serve()
asyncio.run(serve())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


class User(Odd):
    __slots__ = ("id",)

    def __init__(self, name: str) -> None:
        self.id = name


def test_i7_a_user_may_be_of_any_kind() -> None:
    assert _principal._user_json(User("alice")) == json.dumps({"id": "alice"})
    # Its token is none: nobody can tell whose request it is.
    assert _principal._user_json(AuthenticatedUser.__new__(AuthenticatedUser)) == _principal.UNREADABLE


async def test_messages_may_be_of_derived_classes() -> None:
    class Derived(ServerMessageMetadata):
        pass

    async with running_call() as (_, outbox, call):
        item = outgoing({"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": 1}})
        message = derived(_sdk.unwrap(item.message))
        await outbox.send(SessionMessage(wrapped(message), metadata=Derived(related_request_id=1)))
        answer = derived(_sdk.unwrap(outgoing({"jsonrpc": "2.0", "id": 1, "result": {}}).message))
        await outbox.send(SessionMessage(wrapped(answer)))
        await call.task
    assert b"notifications/message" in call.body and b'"result"' in call.body


def derived(message: Any) -> Any:
    own = type("Own", (type(message),), {"__module__": __name__})
    return own.model_validate(message.model_dump(exclude_none=True))


def wrapped(message: Any) -> Any:
    if _sdk.MAJOR >= 2:
        return message
    from mcp.types import JSONRPCMessage

    return JSONRPCMessage.model_construct(root=message)


class Scopes:
    scopes = None


@pytest.mark.parametrize("scope", [{"state": object(), "auth": Scopes()}, {"state": None, "auth": 1}, {"state": Odd()}])
def test_what_middleware_leaves_may_be_of_any_kind(scope: dict[str, Any]) -> None:
    assert _sender.written({"type": "http", "user": None, **scope}, ["tenant"])[0] is None
