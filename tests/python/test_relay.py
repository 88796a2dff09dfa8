"""Requests that another process relays, as Python's handlers see them, in each way in which a server is mounted."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import pytest
import tailrope
import tailrope.mcp
from asgi import OPEN, Asgi
from conftest import KIND
from kit.elsewhere import CALM, WAIT_S, Wandering, at, pair_on, start
from kit.peer import last_id, results
from kit.servers import LOWLEVEL, Kind, Server
from kit.stock import LINE
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.lowlevel import Server as SdkServer
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from starlette.authentication import AuthCredentials, SimpleUser, UnauthenticatedUser
from tailrope._runtime import Runtime
from tailrope.mcp import _sender, _server

pytestmark = pytest.mark.ours


@pytest.fixture
def address(tmp_path: Path) -> str:
    return f"sqlite:{tmp_path / 'events.db'}"


async def serves(peer: Wandering, there: Server) -> None:
    """Everything that a client does, wherever it lands."""
    assert await peer.ask("echo", {"text": "x"}) == "x"
    events = await (await peer.call("script", {"steps": ["emit 1", "close", "emit 1", "return x"]})).rest(WAIT_S)
    while not results(events):
        events += await (await peer.resume(last_id(events))).rest(WAIT_S)
    assert results(events) == ["x"]
    running = await peer.call("script", {"steps": ["elicit hm"]})
    while (event := await running.event(WAIT_S)) is not None and "method" not in (event.message or {}):
        pass
    assert event is not None
    answered = await peer.respond(event.message["id"], {"action": "accept", "content": {"name": "yes"}})
    assert answered.status == 202
    assert results(await running.until_terminal(WAIT_S)) == ['{"name":"yes"}']
    assert (await peer.delete()).status == 200
    assert (await at(peer, there).call("echo", {"text": "x"})).status == 404


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        *((KIND, {"around": around, "way": "resumable"}) for around in ("base", "cors", "django", "gzip")),
        (KIND, {"way": "resumable"}),
        (KIND, {"store": "event-store"}),
        (LOWLEVEL[f"lowlevel-mcp{LINE}"], {"way": "manager"}),
        (LOWLEVEL[f"lowlevel-mcp{LINE}"], {}),
    ],
    ids=lambda given: "-".join(given.values()) if isinstance(given, dict) else given.name,
)
async def test_every_way_relays(kind: Kind, options: dict[str, Any], address: str) -> None:
    with pair_on(kind, address, **options) as (here, there):
        await serves(await Wandering.opened(here, there), there)


async def test_transport_made_by_hand_takes_what_is_relayed(address: str) -> None:
    # Nobody has said a path when it is made.
    here = start(LOWLEVEL[f"byhand-mcp{LINE}"], address, engine=CALM, store="event-store", server_name="/mcp")
    there = start(LOWLEVEL[f"lowlevel-mcp{LINE}"], address, engine=CALM, way="manager")
    try:
        await serves(await Wandering.opened(here, there), there)
    finally:
        here.stop()
        there.stop()


async def test_two_servers_of_one_process_relay_to_each_other(address: str) -> None:
    # Each has an engine of its own, so for the store it is as if they were two processes.
    limits = {"store": address, "retry_ms": 20, "server_name": "lab"}
    server = Server(KIND, {"servers": {"one": limits, "two": limits}})
    try:
        peer = await server.peer(path="/one/mcp")
        peer.path = "/two/mcp"
        assert await peer.ask("echo", {"text": "x"}) == "x"
    finally:
        server.stop()


async def test_o7_servers_on_one_store_find_no_session_of_each_other(address: str) -> None:
    limits = {"store": address, "retry_ms": 20}
    server = Server(KIND, {"servers": {"admin": limits, "public": limits}})
    try:
        peer = await server.peer(path="/admin/mcp")
        cursor = last_id(
            await (await peer.call("script", {"steps": ["emit 1", "return secret"]})).until_terminal(WAIT_S)
        )
        peer.path = "/public/mcp"
        for asked in (peer.call("echo", {"text": "x"}), peer.get(), peer.resume(cursor), peer.delete()):
            assert (await asked).status == 404
        peer.path = "/admin/mcp"
        assert await peer.ask("echo", {"text": "x"}) == "x"
    finally:
        server.stop()


@pytest.mark.parametrize("name", ["", 5, ["lab"]])
def test_o7_name_of_a_server_is_a_text(name: Any) -> None:
    with pytest.raises(ValueError, match="server_name must be a str that is not empty"):
        tailrope.mcp.EventStore(server_name=name)


@pytest.mark.parametrize(
    ("scope", "server"),
    [
        ({"path": "/mcp"}, "/mcp"),
        ({"path": "/admin/mcp", "root_path": "/admin"}, "/admin/mcp"),
        ({"path": "/mcp", "root_path": "/admin"}, "/admin/mcp"),
    ],
)
def test_o7_path_names_a_server_however_its_host_tells_it(scope: dict[str, Any], server: str) -> None:
    assert _server.of_scope(Runtime({}), scope) == server
    assert _server.of_scope(Runtime({"server_name": "lab"}), scope) == "lab"


@pytest.mark.usefixtures("uninstalled")
async def test_session_managers_of_one_engine_relay_nothing_to_each_other(address: str) -> None:
    tailrope.install(store=address)
    one, two = StreamableHTTPSessionManager(SdkServer("one")), StreamableHTTPSessionManager(SdkServer("two"))
    async with one.run(), two.run():
        opening = Asgi(one, "POST", OPEN, session=None)
        await opening.task
        session_id = dict(opening.sent[0]["headers"])[b"mcp-session-id"].decode()
        listing = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
        for method, body in (("POST", listing), ("DELETE", None)):
            asked = Asgi(two, method, body, session=session_id)
            await asked.task
            assert asked.status == 404, "it is here, and none of this manager's"
        # A stream is read by any manager of the same server, and by none of another one.
        for path, status in (("/other", 404), ("/mcp", 200)):
            asked = Asgi(two, "GET", session=session_id, path=path)
            await asked.got.wait()
            assert asked.status == status, "O7"
            asked.left.set()
            await asked.task


@pytest.fixture
def tenants(kind: Kind, address: str) -> Iterator[tuple[Server, Server]]:
    with pair_on(kind, address, auth=True) as both:
        yield both


async def test_i7_handlers_know_the_sender_and_have_no_token(tenants: tuple[Server, Server]) -> None:
    here, there = tenants
    peer = await Wandering.opened(here, there, headers={"authorization": "Bearer alice-token"})
    direct, relayed = [json.loads(await at(peer, server).ask("sender", token=None)) for server in (here, there)]
    assert direct["tokens"] == ["alice-token", "alice-token"]
    of_request, of_context = relayed.pop("tokens")
    assert of_request == ""
    if here.kind.name == "mcp1":
        # There it is that of the request that opened the session, wherever a request comes.
        assert of_context == "alice-token"
    else:
        assert of_context == ""
    del direct["tokens"]
    assert json.loads(direct.pop("body"))["params"] == json.loads(relayed.pop("body"))["params"]
    assert direct == relayed
    assert (relayed["client_id"], relayed["scopes"]) == ("alice", ["use"])
    # Another token of the same user is as good.
    other = at(peer, there)
    other.extra = {"authorization": "Bearer alice-second-token"}
    assert json.loads(await other.ask("sender"))["tokens"][0] == ""


async def test_i10_state_that_the_operator_names_travels_and_what_is_missed_is_told_once(
    kind: Kind, address: str
) -> None:
    engine = {**CALM, "relayed_headers": ["x-tenant"], "relayed_state": ["user_id"]}
    with pair_on(kind, address, own_auth=True, engine=engine) as (here, there):
        state = json.dumps({"user_id": "alice", "trail": 1})
        headers = {"x-test-state": state, "x-tenant": "blue", "x-missed": "1"}
        peer = await Wandering.opened(here, there, headers=headers)
        for _ in range(10):
            seen = [json.loads(await at(peer, server).ask("sender")) for server in (here, there)]
            assert [each["state"] for each in seen] == ["alice", "alice"]
            tenants = [await at(peer, server).ask("header", {"name": "x-tenant"}) for server in (here, there)]
            assert tenants == ["blue", "blue"]
        log = await there.logged("handlers cannot read all of it")
        lines = [line for line in log.splitlines() if "handlers cannot read all of it" in line]
        assert len(lines) == 1
        for missed in ("state trail", "header x-missed", "context variable tenant_of_request", "relayed_state"):
            assert missed in lines[0]
        assert "x-tenant" not in lines[0] and "user_id" not in lines[0]


def test_i7_what_is_said_of_the_sender_is_the_sdks() -> None:
    class Refreshed(AccessToken):
        refresh_token: str = "secret"

    token = Refreshed(token="t", client_id="app", scopes=["a"], subject="alice", claims={"iss": "i"}, expires_at=9)
    written, dropped = _sender.written({"user": AuthenticatedUser(token), "auth": AuthCredentials(["a", "b"])}, ())
    assert written is not None and "secret" not in written and dropped == []
    # The engine takes the token out of it, wherever it is.
    scope = _sender.read(written.replace('"token": "t", ', ""))
    assert type(scope["user"]) is AuthenticatedUser
    assert scope["user"].access_token == AccessToken(**{**token.model_dump(exclude={"refresh_token"}), "token": ""})
    assert scope["auth"].scopes == ["a", "b"]


def test_user_of_starlette_travels() -> None:
    written, dropped = _sender.written({"user": SimpleUser("alice")}, ())
    scope = _sender.read(written)
    assert scope["user"].username == "alice" and scope["user"].is_authenticated and "auth" not in scope
    assert dropped == []


@pytest.mark.parametrize("user", [None, UnauthenticatedUser(), "alice", {"token": "secret"}, object()])
def test_i7_user_of_whom_nothing_is_known_does_not_travel(user: Any) -> None:
    is_missed = user is not None and not isinstance(user, UnauthenticatedUser)
    assert _sender.written({"user": user}, ()) == (None, ["user"] if is_missed else [])
    assert _sender.written({}, ()) == (None, [])


def test_what_the_operator_names_of_the_state_travels() -> None:
    state = {"user_id": "alice", "tenant": {"id": 7}, "db": object(), "other": 1}
    written, dropped = _sender.written({"state": state}, ("user_id", "tenant", "db"))
    assert _sender.read(written) == {"state": {"user_id": "alice", "tenant": {"id": 7}}}
    assert dropped == ["state db", "state other"]


async def test_what_middleware_has_set_is_missed() -> None:
    variable: ContextVar[str] = ContextVar("tenant_of_request")
    variable.set("blue")
    assert _sender.written({}, ())[1] == ["context variable tenant_of_request"]


@pytest.mark.parametrize("names", ["x-own", b"x-own", [1], None, 5])
def test_headers_that_travel_are_a_list_of_names(names: Any) -> None:
    with pytest.raises(ValueError, match="relayed_headers must be a list of names of headers"):
        tailrope.mcp.EventStore(relayed_headers=names)


@pytest.mark.parametrize("written", [None, "null", "[]", '{"clientId": "of another language"}'])
def test_sender_of_whom_nothing_is_said_is_nobody(written: str | None) -> None:
    assert _sender.read(written) == {}
