"""What the core takes a body for, and what the SDK behind it takes it for. Where the core takes one, the SDK takes it
for the same messages, or refuses it: otherwise calls would hang, and cancellations would be of others (I7, I13)."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

import pytest
from tailrope._native import inspect_body
from tailrope.mcp import _sdk

pytestmark = pytest.mark.ours

VECTORS = json.loads((Path(__file__).parents[1] / "vectors" / "readers.json").read_text("utf-8"))["vectors"]
DEPTH = int(os.environ.get("TAILROPE_DEPTH", "1"))
LINE = f"python-{_sdk.MAJOR}"

Told = dict[str, Any]


def body_of(vector: dict[str, Any]) -> bytes:
    text: str | None = vector.get("body")
    return bytes.fromhex(vector["body_hex"]) if text is None else text.encode()


def ours(body: bytes) -> list[Told] | None:
    read = json.loads(inspect_body(_sdk.MAJOR, body))
    return read if isinstance(read, list) else None


def named(name: object) -> str | None:
    return None if name is None else json.dumps(name, ensure_ascii=False)


def theirs(body: bytes) -> Told | None:
    """What the SDK takes it for; None where it takes it for nothing."""
    try:
        message = _sdk.unwrap(_sdk.parse(body))
    except _sdk.ValidationError:
        return None
    kind = _sdk._KINDS[type(message)]
    return {
        "kind": "answer" if kind == _sdk.RESPONSE else kind,
        "method": getattr(message, "method", None),
        "id": named(getattr(message, "id", None)),
        "cancelled": named(cancelled(message)) if kind == _sdk.NOTIFICATION else None,
        "token": named(token(message)) if kind == _sdk.REQUEST else None,
    }


if _sdk.MAJOR >= 2:
    from mcp.shared.jsonrpc_dispatcher import cancelled_request_id_from_params, progress_token_from_params

    def cancelled(message: Any) -> object:
        is_one = message.method == "notifications/cancelled"
        return cancelled_request_id_from_params(message.params) if is_one else None

    def token(message: Any) -> object:
        return progress_token_from_params(message.params)

else:
    from mcp.types import CancelledNotification, ClientNotification, ClientRequest

    def typed(model: Any, message: Any) -> Any:
        """As the SDK's session makes it; None where it makes nothing of it."""
        try:
            return model.model_validate(message.model_dump(by_alias=True, mode="json", exclude_none=True)).root
        except _sdk.ValidationError:
            return None

    def cancelled(message: Any) -> object:
        notification = typed(ClientNotification, message)
        return notification.params.requestId if isinstance(notification, CancelledNotification) else None

    def token(message: Any) -> object:
        request = typed(ClientRequest, message)
        params = getattr(request, "params", None)
        return None if params is None or params.meta is None else params.meta.progressToken


def check(body: bytes) -> bool:
    """Whether both take the body."""
    read = ours(body)
    if read is None:
        return False
    answer = theirs(body)
    if answer is None:
        return False
    (message,) = read
    # A message that has no meaning for the SDK cancels nothing there, and has no progress.
    for name in ("cancelled", "token"):
        if answer[name] is None:
            message[name] = None
    # The core has ids as it writes them, the SDK as it does.
    for name in ("id", "cancelled", "token"):
        for one in (message, answer):
            one[name] = None if one[name] is None else json.loads(one[name])
    assert message == answer and type(message["id"]) is type(answer["id"]), body
    return True


@pytest.mark.parametrize("vector", VECTORS, ids=[vector["name"] for vector in VECTORS])
def test_i13_a_body_of_the_vectors_is_read_alike(vector: dict[str, Any]) -> None:
    body = body_of(vector)
    is_refused = vector["want"] == "refused" or any(LINE.startswith(line) for line in vector.get("refused_by", ()))
    assert (ours(body) is None) == is_refused
    check(body)


VALUES = [
    "1",
    '"1"',
    "1.0",
    "1e0",
    "-0",
    "0",
    "null",
    "true",
    "[]",
    "{}",
    '""',
    "9007199254740993",
    '"2.0"',
    '"ping"',
    "{",
]
NAMES = ["jsonrpc", "id", "method", "params", "result", "error", "requestId", "_meta", "progressToken", "name", "x"]
PIECES = [
    *VALUES,
    *(f'"{name}":{value},' for name in NAMES for value in VALUES[:12]),
    *(f',"{name}":{value}' for name in NAMES for value in VALUES[:12]),
    '"\\u0069d":2,',
    '"notifications/cancelled"',
    '"initialize"',
    '"params":{"requestId":1},',
    '"params":{"_meta":{"progressToken":1}},',
    ",",
    "}",
    " ",
    "\ufeff",
    "\\ud800",
]


def mutated(rng: random.Random, bodies: list[bytes]) -> bytes:
    """One of the bodies, with a few pieces put in, taken out, or taken from another one."""
    body = rng.choice(bodies)
    for _ in range(rng.randint(1, 3)):
        # Where names and values begin and end: elsewhere it would not be JSON.
        places = [at for at, byte in enumerate(body) if byte in b'{},:"'] or [0]
        start, end = sorted(rng.choices(places, k=2))
        match rng.randrange(4):
            case 0:
                start += rng.randrange(2)
                body = body[:start] + rng.choice(PIECES).encode() + body[start:]
            case 1:
                end = start + body[start:].find(b",") if b"," in body[start:] else end
                body = body[:start] + body[end + 1 :]
            case 2:
                value = rng.choice(VALUES).encode()
                colon = body.find(b":", start)
                ends = [at for at in (body.find(b",", colon), body.find(b"}", colon)) if at >= 0]
                body = body[: colon + 1] + value + body[min(ends, default=len(body)) :]
            case _:
                body = body[:start] + rng.choice(bodies)[start:end] + body[end:]
    return body


def test_i13_bodies_of_any_form_are_read_alike() -> None:
    # Those that are taken: from the others few ways lead back.
    bodies = [body for body in map(body_of, VECTORS) if ours(body) is not None]
    rng = random.Random(int(os.environ.get("TAILROPE_SEED", "1")))
    both = sum(check(mutated(rng, bodies)) for _ in range(20_000 * DEPTH))
    assert both > 1_000 * DEPTH, "they are not all refused"
