"""Runs the vectors of tests/vectors/admission.json for this SDK line over HTTP.

Once against a transport made by hand, which nothing stands in front of: there every vector holds to the letter. And
once against each library, whose session manager and middleware answer some requests before the transport sees them.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from kit.stock import LINE
from conftest import Farm, Server
from kit.peer import Peer
from kit.raw import Reply, request

pytestmark = pytest.mark.ours

FILE = json.loads((Path(__file__).parents[1] / "vectors" / "admission.json").read_text())
VECTORS = [vector for vector in FILE["vectors"] if f"mcp-python-{LINE}" in vector["given"]["dialects"]]
FIELDS = {"name", "about", "requirements", "given", "want", "differs_from_stock"}
HEADERS = {
    "accept": "Accept",
    "content_type": "Content-Type",
    "protocol_version": "Mcp-Protocol-Version",
    "session_id": "Mcp-Session-Id",
    "last_event_id": "Last-Event-ID",
}
GIVEN = {"dialects", "method", "json_response", "body", "body_hex", *HEADERS}
WANT = [{"operation"}, {"status", "code", "message"}, {"status", "code", "message", "allow"}]
UNRESUMABLE = "Bad Request: the stream of this Last-Event-ID cannot be resumed"
NO_ID = "server-error" if LINE == 1 else None

# What answers before the transport, which the vectors are about: who, with which words, and which vectors.
HTTP_SERVER = ("400 b'Invalid HTTP request received.'", {"the-method-post-in-small-letters-is-not-allowed"})
MIDDLEWARE = (
    "400 b'Invalid Content-Type header'",
    {"a-post-without-a-content-type", "a-post-with-another-content-type"},
)
MANAGER = (
    "Session not found",
    {
        "initialize-with-an-empty-session-id",
        "initialize-with-the-id-of-another-session",
        "a-malformed-message-is-checked-before-the-session",
        "a-post-with-an-empty-session-id",
        "a-post-to-another-session",
        "session-ids-are-compared-exactly",
        "a-get-of-another-session",
        "the-session-of-a-get-is-checked-before-its-cursor",
        "a-delete-of-another-session",
    },
)
SESSION_FIRST = {"the-session-is-checked-before-the-version"}
if LINE == 1:
    MANAGER = (MANAGER[0], MANAGER[1] | SESSION_FIRST)
    MODERN: tuple[str, set[str]] = ("", set())
else:
    # Every revision that is not one with sessions goes to the SDK's entry for 2026-07-28.
    MODERN = (
        "params._meta must be an object",
        {
            "initialize-is-not-refused-for-its-version-header",
            "an-unknown-version-was-routed-away-before-the-second-python-sdk",
            *SESSION_FIRST,
        },
    )


def in_front(*who: tuple[str, set[str]]) -> dict[str, str]:
    return {name: words for words, names in who for name in names}


BEFORE_A_TRANSPORT = in_front(HTTP_SERVER, MIDDLEWARE)
BEFORE_A_LIBRARY = in_front(HTTP_SERVER, MIDDLEWARE, MANAGER, MODERN)


def check(name: str, found: str | None, expected: dict[str, str]) -> None:
    """The vector holds, or somebody in front of us answered in the words that are known."""
    if name in expected:
        assert found is not None, f"{name} reached us; take it out of the list"
        assert expected[name] in found and re.search(r"\b4\d\d\b", found), (name, found)
    else:
        assert found is None, (name, found)


def test_every_vector_is_run() -> None:
    names = {vector["name"] for vector in VECTORS}
    assert len(names) == len(VECTORS) >= 60
    assert BEFORE_A_LIBRARY.keys() | BEFORE_A_TRANSPORT.keys() <= names
    for vector in VECTORS:
        assert vector.keys() <= FIELDS and vector["given"].keys() <= GIVEN, vector
        assert vector["want"].keys() in WANT, vector


async def ask(server: Server, path: str, current: str, given: dict[str, Any]) -> Reply:
    headers = {HEADERS[name]: value for name, value in given.items() if name in HEADERS}
    if (session := headers.get("Mcp-Session-Id")) in ("current", "Current"):
        headers["Mcp-Session-Id"] = current if session == "current" else current.upper()
    body = bytes.fromhex(given["body_hex"]) if "body_hex" in given else given.get("body", "").encode()
    return await request(server.port, given["method"], path, headers, body if given["method"] == "POST" else None)


async def difference(reply: Reply, given: dict[str, Any], want: dict[str, Any]) -> str | None:
    """How an answer is not the wanted one."""
    if given["method"] == "HEAD":
        # Has no body, whatever its content length says.
        got: Any = (reply.status, reply.headers.get("allow"))
        return None if got == (want["status"], want.get("allow")) else f"{got}"
    operation = want.get("operation")
    if operation == "listen":
        return None if (reply.status, reply.is_sse) == (200, True) else f"{reply.status} {await reply.body()!r}"
    if operation in ("post", "delete"):
        message = json.loads(given["body"]) if "body" in given else {"id": 0, "method": ""}
        status = 200 if "method" in message and "id" in message else 202
        return None if reply.status == status else f"{reply.status} {await reply.body()!r}"
    if operation is not None:
        # Admitted, and then found to name nothing.
        assert operation.keys() == {"resume"} and operation["resume"] == given["last_event_id"]
        want = {"status": 400, "code": -32600, "message": UNRESUMABLE}
    try:
        answer = await reply.json()
    except ValueError:
        return f"{reply.status} {bytes(reply.raw)!r}"
    fault = answer.get("error", {})
    message = str(fault.get("message"))
    if want["message"].endswith("*") and message.startswith(want["message"][:-1]):
        message = want["message"]
    got = {"status": reply.status, "code": fault.get("code"), "message": message}
    if "allow" in reply.headers:
        got["allow"] = reply.headers["allow"]
    if got != want or answer.get("id", "absent") != NO_ID or answer.get("jsonrpc") != "2.0":
        return f"{got} {answer}"
    return None


@pytest.fixture(scope="module")
def transports() -> Any:
    servers = [Server("byhand", {"store": "absent", "json_response": mode}) for mode in (False, True)]
    yield servers
    for server in servers:
        server.kill()


@pytest.mark.parametrize("vector", VECTORS, ids=[vector["name"] for vector in VECTORS])
async def test_transport(transports: list[Server], vector: dict[str, Any]) -> None:
    given = vector["given"]
    server = transports[given.get("json_response", False)]
    await (await request(server.port, "GET", "/new")).body()
    opening = Peer(server.port, "/current")
    opening.extra["Mcp-Session-Id"] = "current"
    await opening.initialize()
    reply = await ask(server, "/current", "current", given)
    check(vector["name"], await difference(reply, given, vector["want"]), BEFORE_A_TRANSPORT)


async def test_library(farm: Farm) -> None:
    for vector in VECTORS:
        given = vector["given"]
        server = farm.get(json_response=True) if given.get("json_response") else farm.get()
        peer = await server.peer()
        assert peer.session is not None
        reply = await ask(server, "/mcp", peer.session, given)
        check(vector["name"], await difference(reply, given, vector["want"]), BEFORE_A_LIBRARY)
        reply.drop()
