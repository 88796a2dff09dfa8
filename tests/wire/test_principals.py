"""Whose session is it? (I7) Runs tests/vectors/principal.json end to end: docs/security.md says the same in words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from kit.elsewhere import at, pair_on
from kit.peer import NEWEST, Peer, results
from kit.raw import Reply
from kit.servers import Farm, Kind, Server

pytestmark = pytest.mark.ours

ALL = json.loads((Path(__file__).parents[1] / "vectors" / "principal.json").read_text())["vectors"]
VECTORS = [vector for vector in ALL if "user_json" not in vector["opens"]]
"""Those whose users the servers under test can read from a header without losing anything."""

# rmcp's own service answers every DELETE alike.
DELETED = {"rmcp": 202}


def headers_of(request: dict[str, Any]) -> dict[str, str]:
    """A request of the vectors, as the servers with the option `own_auth` read it."""
    user = {"x-test-user": json.dumps(request["user"])} if "user" in request else {}
    return {**request.get("headers", {}), **user, **({"x-test-name": request["named"]} if "named" in request else {})}


async def seen(reply: Reply) -> tuple[int, dict[str, str], bytes]:
    """What a client is told, but for the time and the length of the answer's session id."""
    headers = {name: value for name, value in reply.headers.items() if name != "date"}
    return reply.status, headers, await reply.body()


async def answers(port: int, session: str | None, headers: dict[str, str]) -> list[Any]:
    """What somebody gets who asks for a session in every way there is."""
    peer = Peer(port, headers=headers)
    peer.revision, peer.session = NEWEST, session
    replies = [await peer.call("echo", {"text": "x"}), await peer.get(), await peer.resume("a" * 33)]
    return [await seen(reply) for reply in [*replies, await peer.delete()]]


async def check(server: Server, vector: dict[str, Any]) -> None:
    """What one vector says."""
    asks = headers_of(vector["asks"])
    if vector.get("refused"):
        # Nobody can tell whose request it is: it opens nothing.
        opening = Peer(server.port, headers=headers_of(vector["opens"]))
        with pytest.raises(AssertionError, match=r"500.*cannot tell whose request"):
            await opening.initialize()
        return
    owner = await server.peer(headers=headers_of(vector["opens"]))
    if vector["finds"]:
        owner.extra = asks
        assert await owner.ask("echo", {"text": "mine"}) == "mine"
    else:
        before = (await server.stats())["requests_foreign"]
        asked = await answers(server.port, owner.session, asks)
        assert [status for status, _, _ in asked] == [*[404] * 3, DELETED.get(server.kind.name, 404)]
        assert asked == await answers(server.port, "0" * 32, asks), "as if there were no such session"
        assert (await server.stats())["requests_foreign"] == before + 4
    # Whoever asked, its owner still has it, with all that is in it.
    owner.extra = headers_of(vector["opens"])
    reply = await owner.call("script", {"steps": ["emit 1", "return private"]})
    cursor = (await reply.rest())[0].id
    assert results(await (await owner.resume(cursor)).until_terminal()) == ["private"]
    assert (await owner.delete()).status == DELETED.get(server.kind.name, 200)


@pytest.mark.one_language("it is refused in the words of the SDK of the process that is asked")
@pytest.mark.first
async def test_i7_a_session_is_found_by_its_own_user_alone(farm: Farm) -> None:
    server = farm.get(own_auth=True)
    failed = []
    for vector in VECTORS:
        try:
            await check(server, vector)
        except AssertionError as error:
            failed.append(f"{vector['name']}: {error}")
    assert failed == []


async def test_i7_who_asks_for_another_users_session_is_told_to_the_operator(farm: Farm) -> None:
    server = farm.get(own_auth=True)
    owner = await server.peer(headers={"authorization": "Bearer secret-1"})
    await answers(server.port, owner.session, {"authorization": "Bearer secret-2"})
    log = await server.logged("opened by another user")
    assert "`principal`" in log and "secret" not in log


async def test_i7_a_session_of_another_process_is_found_by_its_own_user_alone(kind: Kind, tmp_path: Path) -> None:
    with pair_on(kind, f"sqlite:{tmp_path / 'events.db'}", own_auth=True) as (here, there):
        alice = {"authorization": "Bearer secret-1"}
        owner = await here.peer(headers=alice)
        cursor = (await (await owner.call("script", {"steps": ["emit 1", "return private"]})).rest())[0].id
        stranger = Peer(there.port, headers={"authorization": "Bearer secret-2"})
        stranger.revision = NEWEST
        asked = []
        for session in (owner.session, "0" * 32):
            stranger.session = session
            asked.append([await seen(reply) for reply in (await stranger.resume(cursor), await stranger.get())])
        assert asked[0] == asked[1] and asked[0][0][0] == 404
        assert results(await (await at(owner, there).resume(cursor)).until_terminal()) == ["private"]
