"""Requests that nginx and the server behind it may count differently: what nginx refuses must not get to a session in
the body of something else (I7)."""

from __future__ import annotations

import asyncio

import pytest
from kit.peer import Peer
from kit.servers import RUST, SERVERS

from torture.nginx import TUNED, Front, is_there, nginx

pytestmark = [pytest.mark.ours, pytest.mark.full]

KINDS = {**SERVERS, **RUST}
GUARD = TUNED + "if ($request_method = DELETE) { return 403; }"
ANSWERED_S = 5.0


def hidden(session: str) -> bytes:
    """What nginx refuses if it sees it."""
    return f"DELETE /mcp HTTP/1.1\r\nHost: x\r\nMcp-Session-Id: {session}\r\n\r\n".encode()


def disguises(session: str) -> list[bytes]:
    inner = hidden(session)
    length = f"Content-Length: {len(inner)}\r\n".encode()
    chunk = b"%x\r\n%s\r\n0\r\n\r\n" % (len(inner), inner)
    heads = [
        # Two lengths.
        length + b"Transfer-Encoding: chunked\r\n",
        b"Content-Length: 0\r\n" + length,
        length + b"Content-Length: 0\r\n",
        b"Content-Length: 0, %d\r\n" % len(inner),
        # Lengths that are none.
        b"Content-Length: +%d\r\n" % len(inner),
        b"Content-Length: 0x0\r\n",
        b"Content-Length : 0\r\n",
        b"Content-Length:\r\n",
        # Encodings that one takes for chunks, and another for none.
        *(length + b"Transfer-Encoding:" + kind + b"\r\n" for kind in ENCODINGS),
        # Ends of lines.
        b"X: y\nTransfer-Encoding: chunked\r\n" + length,
        b"X: y\rTransfer-Encoding: chunked\r\n" + length,
        b"X: y\r\n Transfer-Encoding: chunked\r\n" + length,
    ]
    found = []
    for method in (b"POST", b"GET", b"PUT"):
        for head in heads:
            start = method + b" /mcp HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n" + head + b"\r\n"
            found += [start + inner, start + b"0\r\n\r\n" + inner, start + chunk]
        # A chunk that ends elsewhere.
        for first in (
            b"0;\n\r\n",
            b"0\n\n",
            b"0 \r\n\r\n",
            b"-0\r\n\r\n",
            b"00000000000000000\r\n\r\n",
            b"1\r\nAA\r\n0\r\n\r\n",
        ):
            start = method + b" /mcp HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
            found.append(start + first + inner)
    return found


ENCODINGS = [
    b" xchunked",
    b"\tchunked",
    b" chunked, identity",
    b" identity, chunked",
    b" Chunked",
    b" chunked;x",
    b"\x0bchunked",
]


async def send(port: int, disguise: bytes) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(disguise)
        await writer.drain()
        writer.write_eof()
        async with asyncio.timeout(ANSWERED_S):
            while await reader.read(1 << 16):
                pass
    except (TimeoutError, OSError):
        # It waits for more, or was cut off.
        pass
    finally:
        writer.close()


async def try_all(name: str) -> None:
    server = KINDS[name].start({})
    try:
        async with nginx(Front(server.port, GUARD)) as front:
            (port,) = front.ports
            peer = await Peer.open(server.port)
            assert peer.session is not None
            # It would end the session if it got there: nginx refuses it.
            refused = Peer(port)
            refused.session, refused.revision = peer.session, peer.revision
            assert (await refused.delete()).status == 403
            for some in batched(disguises(peer.session)):
                await asyncio.gather(*(send(port, disguise) for disguise in some))
                assert await peer.ask("echo", {"text": "still"}) == "still", some
            assert (await peer.delete()).status in (200, 202)
    finally:
        server.kill()


def batched(all_of_them: list[bytes]) -> list[list[bytes]]:
    return [all_of_them[start : start + 16] for start in range(0, len(all_of_them), 16)]


@pytest.mark.parametrize("name", ["mcp2", "node-v2", "tower", "rmcp"])
@pytest.mark.skipif(not is_there(), reason="tests/services/with nginx has not been asked for")
def test_i7_nothing_gets_past_nginx_in_the_body_of_something_else(name: str) -> None:
    asyncio.run(try_all(name))
