"""Who sends a request, as far as a Python host knows, and the option `principal`. Rules: vectors/principal.json."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
import tailrope
import tailrope.mcp
from asgi import OPEN, Asgi
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from starlette.authentication import BaseUser, SimpleUser, UnauthenticatedUser
from tailrope._runtime import Runtime
from tailrope.mcp import _principal

pytestmark = [pytest.mark.ours, pytest.mark.usefixtures("uninstalled")]


def token(**more: Any) -> AuthenticatedUser:
    return AuthenticatedUser(AccessToken(token="secret", client_id="app", scopes=[], **more))


class Nameless(BaseUser):
    """As Starlette lets users be: its `identity` raises."""

    display_name = "Alice"
    is_authenticated = True


class Odd:
    """Knows nothing of itself."""


@pytest.mark.parametrize(
    ("user", "facts"),
    [
        (None, None),
        (UnauthenticatedUser(), None),
        ("alice", "alice"),
        ({"sub": "alice"}, {"sub": "alice"}),
        (SimpleUser("alice"), {"identity": "alice", "username": "alice", "display_name": "alice"}),
        (Nameless(), {"display_name": "Alice"}),
        (SimpleNamespace(is_authenticated=True, pk=7, username="alice"), {"pk": 7, "username": "alice"}),
        (Odd(), {"type": "Odd"}),
        (token(), {"client_id": "app", "issuer": None, "subject": None}),
        (token(subject="alice", claims={"iss": "i"}), {"client_id": "app", "issuer": "i", "subject": "alice"}),
        (token(claims={"iss": "i", "sub": "alice"}), {"client_id": "app", "issuer": "i", "subject": "alice"}),
    ],
)
def test_i7_what_authentication_left_of_the_user(user: Any, facts: Any) -> None:
    told, named = _principal.asker({"type": "http", "user": user}, Runtime({}))
    assert (None if told is None else json.loads(told)) == facts and named is None


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
