"""What the log says of connections: enough to follow one call, and nothing that was in it."""

from __future__ import annotations

import re

import pytest
from kit.peer import last_id
from kit.servers import Farm

pytestmark = pytest.mark.ours


async def test_a_resume_tells_its_request_its_cursor_and_how_much_was_replayed(farm: Farm) -> None:
    server = farm.get(log="DEBUG")
    peer = await server.peer()
    reply = await peer.call("script", {"steps": ["close", "emit 3", "return secret-x"]}, id="the call")
    cursor = last_id(await reply.rest())
    await server.mark("finished return secret-x")
    rest = await (await peer.resume(cursor)).until_terminal()
    assert (await peer.resume(last_id(rest))).status == 204
    unknown = f"{cursor[:10]}{'B' if cursor[10] == 'A' else 'A'}{cursor[11:]}"
    await (await peer.resume(unknown)).rest()
    log = await server.logged("resume not possible")
    of = {name: re.escape(name) for name in (cursor, last_id(rest), unknown)}
    for wanted in (
        rf'DEBUG.*resume .*request="the call" cursor="{of[cursor]}" replayed=4',
        rf'DEBUG.*nothing is left.*request="the call" cursor="{of[last_id(rest)]}"',
        rf'INFO.*resume not possible.*request="the call" cursor="{of[unknown]}"',
    ):
        assert re.search(wanted, log), (wanted, log)
    assert "secret-x" not in log


async def test_a_connection_that_its_client_leaves_is_a_line(farm: Farm) -> None:
    server = farm.get(log="DEBUG")
    peer = await server.peer()
    before = (await server.stats())["connections_lost"]
    reply = await peer.listen()
    reply.drop()
    await server.until_stats(lambda stats: stats["connections_lost"] > before)
    log = await server.logged("connection lost")
    assert re.search(r"DEBUG.*connection lost.*session=\w+ stream=\w+ connection=\d+", log), log
