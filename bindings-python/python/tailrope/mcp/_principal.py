"""What the host knows of a request's sender. The engine makes the principal of it: docs/security.md.

Here objects are only read, and handed over as JSON. Which members count is the engine's to say.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Set
from functools import lru_cache
from math import isfinite
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from starlette.requests import Request

from tailrope._native import is_user_member, names_user

if TYPE_CHECKING:
    from collections.abc import Iterable

    from starlette.types import Scope

    from tailrope._runtime import Runtime

logger = logging.getLogger("tailrope")

Requester = tuple[str | None, str | None]
"""What authentication left of the user, as JSON, and the name that the option `principal` gives them."""

MAX_DEPTH = 6
MAX_MEMBERS = 1_000

UNREADABLE = ""
"""Stands for a user that cannot be read: something in it may tell it from another user. It is no JSON, so it identifies
nobody."""


class _Unreadable(Exception):
    """A value that no text stands for."""


def requester(scope: Scope, runtime: Runtime) -> Requester:
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
    return _user_json(scope.get("user")), named


def log_user(scope: Scope, runtime: Runtime) -> str | None:
    """What the log calls the sender of a request, by the option `log_user`. A function that fails names nobody."""
    if runtime.log_user is None:
        return None
    try:
        named = runtime.log_user(Request(scope))
    except Exception:
        logger.exception("log_user failed")
        return None
    return named if isinstance(named, str) else None


def _user_json(user: Any) -> str | None:
    """The user as JSON: what the engine counts of it, or all of it where that names nobody."""
    if user is None or user is False or _member(user, "is_authenticated") is False:
        return None
    try:
        if isinstance(user, AuthenticatedUser):
            # It wraps the token, with the client's name in the place of the user's.
            own = {name: value for name, value in vars(user).items() if name not in _OF_WRAPPING}
            user = {**dict(user.access_token), **own}
        if _has_members(user):
            facts = json.dumps(_counting(user, 0), allow_nan=False)
            if names_user(facts):
                return facts
        return json.dumps(_all(user), allow_nan=False)
    except (_Unreadable, AttributeError, RecursionError, TypeError, ValueError):
        return UNREADABLE


_OF_WRAPPING = ("access_token", "scopes", "username")
_is_user_member = lru_cache(maxsize=4_096)(is_user_member)
_of_classes: WeakKeyDictionary[type, list[str]] = WeakKeyDictionary()


def _names(source: Any) -> Iterable[str]:
    """The names of the members of an object that count."""
    if isinstance(source, Mapping):
        return [name for name in source if isinstance(name, str) and _is_user_member(name)]
    kind = type(source)
    if _is_own(kind, "__dir__") or hasattr(kind, "__getattr__"):
        # A stand-in for another object.
        return [name for name in dir(source) if _is_user_member(name)]
    known = _of_classes.get(kind)
    if known is None:
        known = _of_classes[kind] = [name for name in dir(kind) if _is_user_member(name)]
    own = getattr(source, "__dict__", None)
    return known if not own else {*known, *(name for name in own if isinstance(name, str) and _is_user_member(name))}


def _is_own(kind: type, name: str) -> bool:
    return getattr(kind, name) is not getattr(object, name)


def _has_members(value: Any) -> bool:
    return not isinstance(value, str | int | float | bytes | bytearray | memoryview | list | tuple | Set)


def _member(source: Any, name: str) -> Any:
    """A member of an object; None where it is not there, is a method, or raises."""
    try:
        value = source.get(name) if isinstance(source, Mapping) else getattr(source, name, None)
    except Exception:
        # A property may do anything: Starlette's `identity` raises NotImplementedError.
        return None
    return None if callable(value) else value


def _counting(source: Any, depth: int) -> dict[str, Any]:
    """The members that count, also those that are nested."""
    if depth > MAX_DEPTH:
        raise _Unreadable
    try:
        names = _names(source)
    except Exception:
        raise _Unreadable from None
    members = {name: _member(source, name) for name in names}
    return {name: _value(value, depth + 1) for name, value in members.items() if value is not None}


def _value(value: Any, depth: int) -> Any:
    """A value as JSON. Of an object, the members that count, or its text."""
    if value is None or isinstance(value, bool):
        return value
    if depth > MAX_DEPTH:
        raise _Unreadable
    if isinstance(value, str):
        return str(value)
    if isinstance(value, int):
        # As text: JSON of others does not hold all its digits.
        return str(int(value))
    if isinstance(value, float):
        return float(value) if isfinite(value) else str(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).hex()
    if isinstance(value, list | tuple | Set):
        items = [_value(item, depth + 1) for item in _few(value)]
        return sorted(items, key=repr) if isinstance(value, Set) else items
    if (members := _counting(value, depth)) != {}:
        return members
    if isinstance(value, Mapping):
        return {str(name): _value(item, depth + 1) for name, item in _few(value.items())}
    return _text(value)


def _text(value: Any) -> str:
    """The text of an object that has one of its own."""
    kind = type(value)
    try:
        text = str(value) if _is_own(kind, "__str__") or _is_own(kind, "__repr__") else ""
    except Exception:
        raise _Unreadable from None
    if not text or f"{id(value):x}" in text.lower() or str(id(value)) in text:
        # Another object may have the same address a moment later.
        raise _Unreadable
    return text


def _few(items: Any) -> Any:
    if len(items) > MAX_MEMBERS:
        raise _Unreadable
    return items


def _all(user: Any) -> Any:
    """All that a user is, where nothing names it."""
    if not _has_members(user):
        return _value(user, 0)
    state = user if isinstance(user, Mapping) else {**_slots(user), **getattr(user, "__dict__", {})}
    return {str(name): _value(value, 1) for name, value in _few(state).items() if not callable(value)}


def _slots(user: Any) -> dict[str, Any]:
    slots = {}
    for kind in type(user).__mro__:
        for name in getattr(kind, "__slots__", ()):
            if not name.endswith("__"):
                own = f"_{kind.__name__.lstrip('_')}{name}" if name.startswith("__") else name
                slots[own] = _member(user, own)
    return slots
