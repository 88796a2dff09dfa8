"""Which server's is it? (I7, O7, S1) Runs tests/vectors/server_name.json end to end, at a server that answers at any
path, as one behind a router with parameters does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from kit.elsewhere import pair_on
from kit.peer import Peer, results
from kit.servers import Farm, Kind

pytestmark = pytest.mark.ours

ALL = json.loads((Path(__file__).parents[1] / "vectors" / "server_name.json").read_text())["vectors"]


def is_sent(request: dict[str, Any]) -> bool:
    """Whether a client can send it: HTTP has no target that is empty or not ASCII."""
    return set(request) == {"target"} and request["target"].isascii() and request["target"] != ""


VECTORS = [vector for vector in ALL if is_sent(vector["opens"]) and is_sent(vector["asks"])]
ADMIN = "/admin/mcp"
OTHERS = ["/%61dmin/mcp", "/admin%2Fmcp", "/admin/mcp/", "//admin/mcp", "/Admin/mcp", "/public/mcp"]


@pytest.mark.one_process("what is asked is whether one process knows its own session")
async def test_o7_a_session_is_found_at_its_own_server_alone(farm: Farm, kind: Kind) -> None:
    assert len(VECTORS) > 20
    server = farm.get(any_path=True)
    failed, refused = [], 0
    for vector in VECTORS:
        if vector["name"] == "dots" and kind.name.startswith("web"):
            # A Request of the web platform has none, so no router sees any.
            continue
        peer = await Peer.open(server.port, path=vector["opens"]["target"])
        peer.path = vector["asks"]["target"]
        statuses = {(await peer.call("echo", {"text": "x"})).status, (await peer.get()).status}
        if statuses == {400}:
            # HTTP servers refuse some targets themselves.
            refused += 1
        elif statuses != {200 if vector["finds"] else 404}:
            failed.append((vector["name"], statuses))
    assert failed == [] and refused <= 3


async def test_s1_no_spelling_of_a_path_gets_round_the_guard_of_a_route(kind: Kind, tmp_path: Path) -> None:
    with pair_on(kind, f"sqlite:{tmp_path / 'events.db'}", any_path=True) as pair:
        admin = await Peer.open(pair[0].port, path=ADMIN)
        cursor = (await (await admin.call("script", {"steps": ["emit 1", "return secret"]})).rest())[0].id
        for server in pair:
            stranger = Peer(server.port)
            stranger.session, stranger.revision = admin.session, admin.revision
            for stranger.path in OTHERS:
                replies = [await stranger.call("echo", {"text": "x"}), await stranger.resume(cursor)]
                replies += [await stranger.get(), await stranger.delete()]
                statuses = [reply.status for reply in replies]
                assert set(statuses) <= {404, 400, 202 if kind.name == "rmcp" else 404}, (stranger.path, statuses)
                assert not any([b"secret" in await reply.body() for reply in replies])
        # It is there all the same, in each process.
        for server in pair:
            admin.port = server.port
            assert results(await (await admin.resume(cursor)).until_terminal()) == ["secret"]
            assert await admin.ask("echo", {"text": "mine"}) == "mine"
