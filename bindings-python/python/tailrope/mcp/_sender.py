"""What handlers may know of a request that another process relays, beside its headers: the SDK's user, without the
token, and the members of the request's state that the option `relayed_state` names."""

from __future__ import annotations

import contextvars
import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from starlette.authentication import AuthCredentials, SimpleUser, UnauthenticatedUser

if TYPE_CHECKING:
    from starlette.types import Scope

_at_start = contextvars.copy_context()
"""What context variables are before there is a request."""
_KNOWN_VARIABLES = frozenset(
    {"auth_context", "context", "current_context", "docket", "http_request", "request_clock", "request_ctx", "server"}
    | {"sniffio_async_library", "transport", "worker"}
)
"""Context variables of the SDKs and their libraries: these are set for a relayed request too, or mean nothing to its
handler."""


def written(scope: Scope, state_names: Iterable[str]) -> tuple[str | None, list[str]]:
    """The sender of a request, for `read` in the process that has the session, and what of it is not relayed. The
    engine removes credentials."""
    sender, dropped = _user(scope)
    state: dict[str, Any] = {}
    given = scope.get("state")
    if not isinstance(given, Mapping):
        given = {}
    for name in given:
        text = _json(given[name]) if name in state_names else None
        if text is None:
            dropped.append(f"state {name}")
        else:
            state[name] = json.loads(text)
    if state:
        sender["state"] = state
    dropped += sorted(f"context variable {name}" for name in _variables())
    return (json.dumps(sender, default=str) if sender else None), dropped


def _user(scope: Scope) -> tuple[dict[str, Any], list[str]]:
    user = scope.get("user")
    sender: dict[str, Any] = {}
    if isinstance(user, AuthenticatedUser):
        # Classes of others may have fields with further credentials. The token tells the engine what to remove.
        facts = user.access_token.model_dump(include=set(AccessToken.model_fields), exclude_none=True)
        sender["access_token"] = facts
    elif type(user) is SimpleUser:
        sender["username"] = user.username
    elif user is not None and not isinstance(user, UnauthenticatedUser):
        return sender, ["user"]
    scopes = getattr(scope.get("auth"), "scopes", None)
    if isinstance(scopes, Iterable) and sender:
        sender["scopes"] = list(scopes)
    return sender, []


def _variables() -> set[str]:
    """The context variables that something in front of the endpoint has set for the request."""
    return {
        variable.name
        for variable, value in contextvars.copy_context().items()
        if _at_start.get(variable, _at_start) is not value
        and variable.name not in _KNOWN_VARIABLES
        and not variable.name.startswith(("tailrope_", "fastmcp_", "_"))
    }


def _json(value: Any) -> str | None:
    try:
        return json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return None


def read(sender_json: str | None) -> dict[str, Any]:
    """What authentication and middleware would have put into the scope of the request."""
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
    if (state := sender.get("state")) is not None:
        scope["state"] = state
    return scope
