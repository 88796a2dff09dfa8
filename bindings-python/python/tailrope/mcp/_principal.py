"""What the host knows of a request's sender. The engine makes the principal of it: docs/security.md."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from starlette.requests import Request

if TYPE_CHECKING:
    from starlette.types import Scope

    from tailrope._runtime import Runtime

Asker = tuple[str | None, str | None]
"""What authentication left of the user, as JSON, and the name that the option `principal` gives them."""

_NAMING = ("identity", "pk", "id", "sub", "subject", "user_id", "username", "email", "display_name")
"""Attributes that frameworks give to the object that stands for a user."""


def asker(scope: Scope, runtime: Runtime) -> Asker:
    """Who sends a request.

    Raises:
        TypeError: the option's function returned something else than a str or None.
    """
    named = None
    if runtime.principal is not None:
        named = runtime.principal(Request(scope))
        if named is not None and not isinstance(named, str):
            msg = f"principal() returned {type(named).__name__}, not a str that names the user or None"
            raise TypeError(msg)
    user = scope.get("user")
    return (None if user is None else _facts(user)), named


def _facts(user: Any) -> str | None:
    token = getattr(user, "access_token", None)
    if (client_id := getattr(token, "client_id", None)) is not None:
        # The SDK's. fastmcp has the subject among the claims.
        claims = getattr(token, "claims", None) or {}
        subject = getattr(token, "subject", None) or claims.get("sub")
        return json.dumps({"client_id": client_id, "issuer": claims.get("iss"), "subject": subject}, default=str)
    if isinstance(user, str | int | dict):
        return json.dumps(user, default=str)
    if getattr(user, "is_authenticated", True) is False:
        return None
    facts = {name: value for name in _NAMING if isinstance(value := _attribute(user, name), str | int)}
    # It is somebody, although it has no name.
    return json.dumps(facts or {"type": type(user).__qualname__}, default=str)


def _attribute(user: Any, name: str) -> Any:
    try:
        return getattr(user, name, None)
    except NotImplementedError:
        # Starlette's SimpleUser has no identity.
        return None
