"""A process that is asked to end while connections are open. (F-44)"""

from __future__ import annotations

import asyncio

from kit.peer import Peer, last_id
from kit.raw import Reply, Truncated
from kit.servers import Server, gate

ENDS_S = 60.0


async def opened(server: Server) -> tuple[Peer, list[Reply]]:
    """A session with three open streams: the standalone one, a running call, and a resumed one."""
    peer = await server.peer()
    listening = await peer.listen()
    name = gate()
    call = await peer.call("script", {"steps": ["emit 2", f"gate {name}", "return x"]})
    await call.some(2)
    polling = await peer.call("script", {"steps": ["emit 1", "close", f"gate {name}", "return y"]})
    resumed = await peer.resume(last_id(await polling.rest()))
    if server.transport != "stock":
        # What is there to come back with, on stock, are F-25 and F-26.
        await resumed.event()
    return peer, [listening, call, resumed]


async def ended(server: Server, replies: list[Reply], how: int) -> None:
    """Signal the process; it must end by itself, with every connection closed cleanly after a retry and an id."""
    server.process.send_signal(how)
    for reply in replies:
        try:
            while await reply.block(ENDS_S) is not None:
                pass
        except Truncated as cut:
            raise AssertionError("a connection was cut, not closed") from cut
        raw = bytes(reply.raw)
        assert server.transport == "stock" or (b"retry: " in raw and b"id: " in raw), raw
    code = await asyncio.to_thread(server.exit_code, ENDS_S)
    assert code in (0, -how, 128 + how), f"exit code {code}\n{server.log()}"
    assert "Traceback" not in server.log(), server.log()
