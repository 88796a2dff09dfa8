"""Runs the vectors of tests/vectors/admission.json over HTTP: which requests a transport takes, and how it refuses.

Once against a transport made by hand, which nothing stands in front of: there every vector of the SDK's line holds to
the letter. And once against each Python library, whose session manager and middleware answer some requests before the
transport sees them. For TypeScript also against the SDK's own transport, which the vectors copy.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kit.peer import Peer
from kit.raw import Reply, request
from kit.servers import LOWLEVEL, Farm, Kind, Server

pytestmark = pytest.mark.ours

VECTORS: list[dict[str, Any]] = json.loads((Path(__file__).parents[1] / "vectors" / "admission.json").read_text())[
    "vectors"
]
FIELDS = {"name", "about", "requirements", "given", "want", "differs_from_stock"}
HEADERS = {
    "accept": "Accept",
    "content_type": "Content-Type",
    "protocol_version": "Mcp-Protocol-Version",
    "session_id": "Mcp-Session-Id",
    "last_event_id": "Last-Event-ID",
}
GIVEN = {"dialects", "method", "opened", "json_response", "body", "body_hex", *HEADERS}
WANT = [{"operation"}, {"status", "code", "message"}, {"status", "code", "message", "allow"}]
# A cursor that is admitted, and then found to name nothing.
UNRESUMABLE = {
    "python": (-32600, "Bad Request: the stream of this Last-Event-ID cannot be resumed"),
    "node": (-32000, "Invalid event ID format"),
}

# What answers before the transport, which the vectors are about: who, with which words, and which vectors.
HTTP_SERVER = ("400 b'Invalid HTTP request received.'", {"the-method-post-in-small-letters-is-not-allowed"})
MIDDLEWARE = (
    "400 b'Invalid Content-Type header'",
    {"a-post-without-a-content-type", "a-post-with-another-content-type"},
)
SESSION_FIRST = "the-session-is-checked-before-the-version"
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
# Every revision that is not one with sessions goes to the entry for 2026-07-28 of the SDK's second line.
MODERN = (
    "params._meta must be an object",
    {
        "initialize-is-not-refused-for-its-version-header",
        "an-unknown-version-was-routed-away-before-the-second-python-sdk",
        SESSION_FIRST,
    },
)


def in_front(*who: tuple[str, set[str]]) -> dict[str, str]:
    return {name: words for words, names in who for name in names}


BEFORE_A_TRANSPORT = {"python": in_front(HTTP_SERVER, MIDDLEWARE), "node": {}}
BEFORE_A_LIBRARY = {
    1: in_front(HTTP_SERVER, MIDDLEWARE, MANAGER, (MANAGER[0], {SESSION_FIRST})),
    2: in_front(HTTP_SERVER, MIDDLEWARE, MANAGER, MODERN),
}


def vectors(kind: Kind) -> list[dict[str, Any]]:
    dialect = f"mcp-{'typescript' if kind.language == 'node' else kind.language}-{kind.major}"
    return [vector for vector in VECTORS if dialect in vector["given"]["dialects"]]


class Faults:
    """What is wrong with the answers to the vectors, where nobody known to stand in front of us gave them."""

    def __init__(self, expected: dict[str, str]) -> None:
        self.expected = expected
        self.found: dict[str, str] = {}

    def note(self, name: str, fault: str | None) -> None:
        if (words := self.expected.get(name)) is None:
            wrong = fault
        elif fault is None:
            wrong = "it reached us; take it out of the list"
        else:
            wrong = None if words in fault and re.search(r"\b4\d\d\b", fault) else fault
        if wrong is not None:
            self.found[name] = wrong

    def __str__(self) -> str:
        return "\n".join(f"{name}: {fault}" for name, fault in self.found.items())


def test_every_vector_is_run(kind: Kind) -> None:
    names = {vector["name"] for vector in vectors(kind)}
    assert len(names) == len(vectors(kind)) >= {"python": 60, "node": 50}[kind.language]
    assert BEFORE_A_TRANSPORT[kind.language].keys() <= names
    if kind.language == "python":
        assert BEFORE_A_LIBRARY[kind.major].keys() <= names
    for vector in vectors(kind):
        assert vector.keys() <= FIELDS and vector["given"].keys() <= GIVEN, vector
        assert vector["want"].keys() in WANT, vector


async def ask(server: Server, path: str, current: str, given: dict[str, Any]) -> Reply:
    headers = {HEADERS[name]: value for name, value in given.items() if name in HEADERS}
    if (session := headers.get("Mcp-Session-Id")) in ("current", "Current"):
        headers["Mcp-Session-Id"] = current if session == "current" else current.upper()
    body = bytes.fromhex(given["body_hex"]) if "body_hex" in given else given.get("body", "").encode()
    return await request(server.port, given["method"], path, headers, body if given["method"] == "POST" else None)


async def difference(kind: Kind, reply: Reply, given: dict[str, Any], want: dict[str, Any]) -> str | None:
    """How an answer is not the wanted one."""
    if given["method"] == "HEAD":
        # Has no body, whatever its content length says.
        got: Any = (reply.status, reply.headers.get("allow"))
        return None if got == (want["status"], want.get("allow")) else f"{got}"
    operation = want.get("operation")
    if operation == "listen":
        return None if (reply.status, reply.is_sse) == (200, True) else f"{reply.status} {await reply.body()!r}"
    if operation in ("post", "delete"):
        body = json.loads(given["body"]) if "body" in given else {"id": 0, "method": ""}
        messages = body if isinstance(body, list) else [body]
        status = 200 if any("method" in message and "id" in message for message in messages) else 202
        return None if reply.status == status else f"{reply.status} {await reply.body()!r}"
    if operation is not None:
        assert operation.keys() == {"resume"} and operation["resume"] == given["last_event_id"]
        code, message = UNRESUMABLE[kind.language]
        want = {"status": 400, "code": code, "message": message}
    try:
        answer = await reply.json()
    except ValueError:
        return f"{reply.status} {bytes(reply.raw)!r}"
    fault = answer.get("error", {})
    got = {"status": reply.status, "code": fault.get("code"), "message": str(fault.get("message"))}
    if is_alike(got["message"], want["message"]):
        got["message"] = want["message"]
    if "allow" in reply.headers:
        got["allow"] = reply.headers["allow"]
    no_id = "server-error" if (kind.language, kind.major) == ("python", 1) else None
    if got != want or answer.get("id", "absent") != no_id or answer.get("jsonrpc") != "2.0":
        return f"{got} {answer}"
    return None


def is_alike(text: str, wanted: str) -> bool:
    """A text that ends in * is a beginning, and what versions an SDK knows is for it to say."""
    if wanted.endswith("*"):
        return text.startswith(wanted[:-1])
    return re.sub(r"(?<=\(supported versions: )[\d, -]+", "2025-11-25, 2024-10-07", text) == wanted


async def renewed(server: Server, given: dict[str, Any]) -> None:
    """A new transport at /current, with an open session where the vector wants one."""
    path = "/new?json_response=true" if given.get("json_response") else "/new"
    assert (await (await request(server.port, "GET", path)).body()) == b""
    if given.get("opened", True):
        opening = Peer(server.port, "/current")
        opening.extra["Mcp-Session-Id"] = "current"
        await opening.initialize()


@pytest.fixture(scope="module")
def hand(kind: Kind, farm: Farm) -> Iterator[Server]:
    """A server with a transport made by hand."""
    if kind.name.startswith("fastmcp"):
        pytest.skip("has the transport of its SDK line, which is tested as that")
    if kind.language == "node":
        # Users of this SDK make all transports by hand.
        yield farm.get()
        return
    server = Server(LOWLEVEL[f"byhand-{kind.line}"], {"store": "absent"})
    yield server
    server.stop()


async def play(server: Server, wanted: list[dict[str, Any]], faults: Faults) -> None:
    for vector in wanted:
        await renewed(server, vector["given"])
        reply = await ask(server, "/current", "current", vector["given"])
        faults.note(vector["name"], await difference(server.kind, reply, vector["given"], vector["want"]))
        reply.drop()
    assert not faults.found, faults


@pytest.mark.one_process("its transport is made by hand, in one process")
async def test_transport(kind: Kind, hand: Server) -> None:
    await play(hand, vectors(kind), Faults(BEFORE_A_TRANSPORT[kind.language]))


@pytest.mark.one_language("it is refused in the words of the SDK of the process that is asked")
async def test_transport_of_the_sdk(kind: Kind, farm: Farm) -> None:
    """What the vectors say of the SDK is so, where they do not say otherwise."""
    if kind.language == "python":
        pytest.skip("made by hand, that of the Python SDK may end its server together with a session")
    # What it makes of a cursor is not admission's to say.
    same = [vector for vector in vectors(kind) if "differs_from_stock" not in vector]
    same = [vector for vector in same if "resume" not in vector["want"].get("operation", "")]
    await play(farm.get(stock=True), same, Faults({}))


@pytest.mark.one_language("it is refused in the words of the SDK of the process that is asked")
async def test_library(kind: Kind, farm: Farm) -> None:
    if kind.language == "node":
        pytest.skip("nothing but the user's own program is in front of a transport")
    faults = Faults(BEFORE_A_LIBRARY[kind.major])
    for vector in vectors(kind):
        given = vector["given"]
        as_json = {"json_response": True} if given.get("json_response") else {}
        # Steering is before admission.
        server = farm.get(engine={"prefer_resumable": False}, **as_json)
        peer = await server.peer()
        assert peer.session is not None
        reply = await ask(server, "/mcp", peer.session, given)
        faults.note(vector["name"], await difference(kind, reply, given, vector["want"]))
        reply.drop()
    assert not faults.found, faults
