"""What handlers may know of the sender of a request that another process relays: the SDK's user without the token."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from starlette.authentication import AuthCredentials, SimpleUser

if TYPE_CHECKING:
    from starlette.types import Scope


def written(scope: Scope) -> str | None:
    """The sender of a request, for `read` in the process that has the session. None for a user of another kind than the
    SDK's and Starlette's own: what is in it is not known."""
    user = scope.get("user")
    sender: dict[str, Any]
    if isinstance(user, AuthenticatedUser):
        token = user.access_token
        # Classes of others may have fields with further credentials.
        facts = token.model_dump(include=set(AccessToken.model_fields) - {"token"}, exclude_none=True)
        sender = {"access_token": _without(facts, token.token)}
    elif type(user) is SimpleUser:
        sender = {"username": user.username}
    else:
        return None
    scopes = getattr(scope.get("auth"), "scopes", None)
    return json.dumps(sender if scopes is None else {**sender, "scopes": list(scopes)}, default=str)


def read(sender_json: str | None) -> dict[str, Any]:
    """What authentication would have put into the scope of the request."""
    sender = None if sender_json is None else json.loads(sender_json)
    if not isinstance(sender, dict):
        return {}
    scope: dict[str, Any] = {}
    if (facts := sender.get("access_token")) is not None:
        scope["user"] = AuthenticatedUser(AccessToken.model_validate({**facts, "token": ""}))
    elif (username := sender.get("username")) is not None:
        scope["user"] = SimpleUser(username)
    if (scopes := sender.get("scopes")) is not None:
        scope["auth"] = AuthCredentials(scopes)
    return scope


def _without(value: Any, token: str) -> Any:
    """A verifier may have put the token among the claims, too."""
    if isinstance(value, dict):
        return {name: _without(item, token) for name, item in value.items() if item != token}
    if isinstance(value, list):
        return [_without(item, token) for item in value if item != token]
    return value
