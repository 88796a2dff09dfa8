"""Who sends a request, as far as a Python host knows, and the option `principal`. Rules: vectors/principal.json."""

from __future__ import annotations

import json
import uuid
from enum import Enum
from types import MappingProxyType
from typing import Any

import pytest
import tailrope
import tailrope.mcp
from asgi import OPEN, Asgi
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from starlette.authentication import BaseUser, SimpleUser, UnauthenticatedUser
from tailrope._native import Engine, Refusal
from tailrope._runtime import Runtime
from tailrope.mcp import _principal

pytestmark = [pytest.mark.ours, pytest.mark.usefixtures("uninstalled")]


def token(secret: str = "secret", kind: type[AuthenticatedUser] = AuthenticatedUser, **more: Any) -> AuthenticatedUser:
    return kind(AccessToken(token=secret, client_id="app", scopes=[], **more))


def of(user: Any) -> str | None:
    facts, named = _principal.requester({"type": "http", "user": user}, Runtime({}))
    assert named is None
    return facts


def finds(owner: Any, requester: Any) -> bool:
    """Whether a session of the one user is found by the other."""
    session = Engine().open_session("s", "", 2, None, None, None)
    head = [(b"accept", b"application/json, text/event-stream"), (b"content-type", b"application/json")]
    opened, asked = (
        session.admit("POST", head, INITIALIZE, False, "", of(user), None, None) for user in (owner, requester)
    )
    if isinstance(opened, Refusal):
        assert opened.status == 500 and "cannot tell whose request" in opened.message
        return False
    assert not isinstance(asked, Refusal) or asked.status == 404
    return not isinstance(asked, Refusal)


INITIALIZE = json.dumps(
    {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "initialize",
        "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}},
    }
).encode()


class Nameless(BaseUser):
    """As Starlette lets users be: its `identity` raises."""

    display_name = "Alice"
    is_authenticated = True


class Row:
    """As an object-relational mapper has them: a relation is an object, and some of its members fail."""

    def __init__(self, **members: Any) -> None:
        vars(self).update(members)

    @property
    def lazy(self) -> Any:
        msg = "it is not loaded"
        raise LookupError(msg)


class Private:
    __slots__ = ("__id", "credits")

    def __init__(self, id: Any, credits: int) -> None:
        self.__id, self.credits = id, credits

    @property
    def id(self) -> Any:
        return self.__id


class Hidden:
    __slots__ = ("__name",)

    def __init__(self, name: str) -> None:
        self.__name = name

    def __repr__(self) -> str:
        return "a user"


class Failing(Private):
    @property
    def email(self) -> Any:
        msg = "no database"
        raise OSError(msg)


class Lazy:
    """Stands for another object."""

    def __init__(self, of: Any) -> None:
        self.of = of

    def __getattr__(self, name: str) -> Any:
        return getattr(self.of, name)

    def __dir__(self) -> Any:
        return dir(self.of)


class Own(AuthenticatedUser):
    pass


def own(tenant: str, **more: Any) -> AuthenticatedUser:
    user = token(kind=Own, **more)
    user.tenant = tenant  # type: ignore[attr-defined]
    return user


class Text:
    def __init__(self, text: str) -> None:
        self.text = text

    def __str__(self) -> str:
        return self.text


class Plan(Enum):
    PRO = 1


def cycle(**more: Any) -> dict[str, Any]:
    user: dict[str, Any] = dict(more)
    user["self"] = user
    return user


UU, VV = uuid.UUID(int=1), uuid.UUID(int=2)

SAME: dict[str, tuple[Any, Any]] = {
    "uuid": (Row(id=UU, credits=3), Row(id=UU, credits=2)),
    "uuid and its text": (Row(uid=UU), {"uid": str(UU)}),
    "bytes and their digits": (Row(oid=b"\x01\xff"), {"oid": "01ff"}),
    "a big integer": (Row(pk=2**90), {"pk": str(2**90)}),
    "a subclass of int": (Row(id=True + 6), {"id": "7"}),
    "an id with a text of its own": (Row(_id=Text("507f")), Row(_id=Text("507f"))),
    "slots and a property": (Private("a", 1), Private("a", 2)),
    "a property that fails": (Failing("a", 1), Failing("a", 1)),
    "a stand-in": (Lazy(Row(id=7)), Row(id=7)),
    "a mapping that is no dict": (MappingProxyType({"sub": "a", "exp": 1}), {"sub": "a", "exp": 2}),
    "a relation": (Row(id=1, tenant=Row(id="t", seats=1)), Row(id=1, tenant=Row(id="t", seats=2))),
    "a plain user of Starlette": (SimpleUser("alice"), SimpleUser("alice")),
    "an SDK token and that of Node": (
        token(subject="alice", claims={"iss": "i", "iat": 5}, expires_at=9),
        {"token": "other", "clientId": "app", "scopes": ["x"], "extra": {"sub": "alice", "iss": "i"}},
    ),
    "fastmcp's token": (token("t1", claims={"iss": "i", "sub": "a"}), token("t2", claims={"iss": "i", "sub": "a"})),
    "a subclass of the SDK's user": (own("t", subject="a"), own("t", subject="a")),
    "a cycle beside a name": (cycle(id=1), {"id": 1}),
    "a client alone with the same token": (token("t"), token("t")),
    "facts that name nobody": ({"plan": "pro", "account": UU}, {"account": UU, "plan": "pro"}),
    "a private slot": (Hidden("a"), Hidden("a")),
    "nobody": (None, UnauthenticatedUser()),
}
OTHER: dict[str, tuple[Any, Any]] = {
    "uuid": (Row(id=UU), Row(id=VV)),
    "uuid of a login": (Row(login=UU), Row(login=VV)),
    "bytes": (Row(uid=b"\x01"), Row(uid=b"\x02")),
    "a big integer": (Row(id=2**90), Row(id=2**90 + 1)),
    "an id with a text of its own": (Row(_id=Text("507f")), Row(_id=Text("507e"))),
    "an id without any text": (Row(id=Row()), Row(id=Row())),
    "slots and a property": (Private("a", 1), Private("b", 1)),
    "a stand-in": (Lazy(Row(id=7)), Lazy(Row(id=8))),
    "another tenant": (Row(id=1, tenant="t"), Row(id=1, tenant="u")),
    "another relation": (Row(id=1, tenant=Row(id="t")), Row(id=1, tenant=Row(id="u"))),
    "a plain user of Starlette": (SimpleUser("alice"), SimpleUser("bob")),
    "another subject": (token(subject="alice"), token(subject="bob")),
    "a subclass of the SDK's user in another tenant": (own("t", subject="a"), own("u", subject="a")),
    "a client alone with another token": (token("t1"), token("t2")),
    "a subclass of the SDK's user without a subject": (own("t", claims={"x": 1}), own("t", claims={"x": 2})),
    "an enumeration alone": ({"plan": Plan.PRO}, {"plan": "pro"}),
    # Nobody can tell whose requests these are: they are refused, and equal not even themselves.
    "an object without facts": (Row(), Row()),
    "a plain object": (object(), object()),
    "a property alone": (Nameless(), Nameless()),
    "a function": (len, len),
    "an object within": ({"plan": "pro", "profile": object()}, {"plan": "pro", "profile": object()}),
    "a cycle": (cycle(plan="pro"), cycle(plan="pro")),
    "an empty dict": ({}, {}),
    "an empty text": ("", ""),
    "truth values": ({"is_admin": True}, {"is_admin": True}),
    "a private slot": (Hidden("a"), Hidden("b")),
    "somebody and nobody": (Row(id=UU), None),
}


@pytest.mark.parametrize("case", SAME)
def test_i7_the_same_user_finds_the_session(case: str) -> None:
    assert finds(*SAME[case])
    assert finds(*reversed(SAME[case]))


@pytest.mark.parametrize("case", OTHER)
def test_i7_another_user_does_not_find_the_session(case: str) -> None:
    assert not finds(*OTHER[case])
    assert not finds(*reversed(OTHER[case]))


async def asked(_request: Any) -> str:
    return "alice"


@pytest.mark.parametrize("wrong", ["alice", asked, 1])
def test_principal_must_be_a_plain_function(wrong: Any) -> None:
    with pytest.raises(ValueError, match="plain function"):
        tailrope.install(principal=wrong)


@pytest.mark.parametrize(
    ("principal", "error"), [(lambda _request: 5, TypeError), (lambda request: request.headers["absent"], KeyError)]
)
async def test_a_request_whose_user_cannot_be_named_fails(principal: Any, error: type[Exception]) -> None:
    tailrope.install(principal=principal)
    made = tailrope.mcp.StreamableHTTPServerTransport("s1")
    async with made.connect():
        opening = Asgi(made, "POST", OPEN)
        with pytest.raises(error):
            await opening.task
        assert opening.sent == []
