"""A client that comes back when its connections are cut, and says so."""

from __future__ import annotations

from kit.peer import Peer, last_id
from kit.raw import Event, Truncated
from kit.servers import Server, gate


async def is_cut(server: Server, port: int) -> bool:
    """Whether the connection of a call is cut, in place of closed. Then its client comes back for the end."""
    peer = await Peer.open(port)
    name = gate()
    try:
        reply = await peer.call("script", {"steps": [f"gate {name}", "return x"]})
    except ConnectionError:
        # Before its answer began, so there is nothing to come back for.
        await server.open(name)
        return True
    events: list[Event] = []
    was_cut = False
    try:
        async for block in reply.blocks():
            events.append(block)
    except (Truncated, ConnectionError):
        was_cut = True
    resumed = await peer.resume(last_id(events))
    await resumed.event()
    await server.open(name)
    assert (await resumed.until_terminal())[-1].is_terminal
    resumed.close()
    await peer.delete()
    return was_cut
