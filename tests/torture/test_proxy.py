"""The proxy does to bytes what it says, and nothing else."""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from torture.proxy import DRIP, PLAIN, SHAPES, SPLIT, Link, Proxy, Shape, any_shape

WAIT_S = 20
Pipe = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def bounded(test: Callable[[], Awaitable[None]]) -> Callable[[], None]:
    """An `async def` test with a deadline."""

    def run() -> None:
        async def within() -> None:
            async with asyncio.timeout(WAIT_S):
                await test()

        asyncio.run(within())

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


@asynccontextmanager
async def lab(shapes: Any = None, seed: str = "7") -> AsyncIterator[tuple[Proxy, Any]]:
    """A server behind a proxy, and a way to connect: (client, server, link)."""
    came: asyncio.Queue[Pipe] = asyncio.Queue()
    writers: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        came.put_nowait((reader, writer))

    server = await asyncio.start_server(serve, "127.0.0.1", 0)

    async def connect() -> tuple[Pipe, Pipe, Link]:
        client = await asyncio.open_connection("127.0.0.1", proxy.port)
        writers.append(client[1])
        link = await proxy.link(client[1].get_extra_info("sockname")[1])
        return client, await came.get(), link

    async with Proxy(server.sockets[0].getsockname()[1], seed, shapes or (lambda _: (PLAIN, PLAIN))) as proxy:
        yield proxy, connect
    for writer in writers:
        writer.transport.abort()
    server.close()


async def silent(reader: asyncio.StreamReader, for_s: float = 0.15) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(for_s):
            raise AssertionError(f"came: {await reader.read(100)!r}")


@pytest.mark.parametrize("shape", SHAPES)
def test_bytes_arrive_as_they_were_sent(shape: Shape) -> None:
    @bounded
    async def run() -> None:
        data = random.Random(1).randbytes(20_000)
        async with lab(lambda _: (shape, shape)) as (_, connect):
            client, server, _ = await connect()

            async def send(writer: asyncio.StreamWriter) -> None:
                for at in range(0, len(data), 777):
                    writer.write(data[at : at + 777])
                    await writer.drain()
                writer.write_eof()

            sending = asyncio.gather(send(client[1]), send(server[1]))
            for reader, _ in (client, server):
                assert hashlib.sha256(await reader.read(-1)).digest() == hashlib.sha256(data).digest()
            await sending

    run()


@bounded
async def test_pieces_are_pieces_and_a_seed_makes_them_again() -> None:
    async def sizes(seed: str, shape: Shape) -> list[int]:
        found = []
        async with lab(lambda _: (PLAIN, shape), seed) as (_, connect):
            client, server, link = await connect()
            pump = link.pumps["down"]
            found = [len(piece) for piece in pump._pieces(b"x" * 1000)]
            server[1].write(b"x" * 1000)
            assert await client[0].readexactly(1000) == b"x" * 1000
        return found

    first = await sizes("a", SPLIT)
    assert max(first) <= 40 and len(first) > 20
    assert first == await sizes("a", SPLIT) != await sizes("b", SPLIT)


@bounded
async def test_drip_is_slow_and_merge_is_one_chunk() -> None:
    loop = asyncio.get_running_loop()
    async with lab(lambda _: (PLAIN, Shape(piece_bytes=(10, 10), pause_ms=(5, 5)))) as (_, connect):
        client, server, _ = await connect()
        started = loop.time()
        server[1].write(b"x" * 100)
        await client[0].readexactly(100)
        assert loop.time() - started > 0.04
    async with lab(lambda _: (PLAIN, Shape(merge_ms=1_500))) as (_, connect):
        client, server, _ = await connect()
        for _ in range(5):
            server[1].write(b"12345")
            await server[1].drain()
            await asyncio.sleep(0.005)
        assert len(await client[0].read(100)) > 5


@bounded
async def test_black_hole_tells_nobody_and_gives_all_when_it_is_revived() -> None:
    async with lab() as (_, connect):
        client, server, link = await connect()
        client[1].write(b"a")
        assert await server[0].read(10) == b"a"
        link.black_hole()
        server[1].write(b"one ")
        client[1].write(b"two")
        await asyncio.gather(silent(client[0]), silent(server[0]))
        server[1].write(b"more")
        server[1].write_eof()
        await silent(client[0])
        link.revive()
        assert await client[0].read(-1) == b"one more"
        assert await server[0].readexactly(3) == b"two"


@bounded
async def test_black_hole_fills_the_buffers_of_who_writes() -> None:
    async with lab() as (_, connect):
        _client, server, link = await connect()
        link.black_hole("down")
        server[1].transport.set_write_buffer_limits(high=1)
        written = 0
        with pytest.raises(TimeoutError):
            while written < 1 << 30:
                server[1].write(b"x" * (1 << 20))
                written += 1 << 20
                async with asyncio.timeout(0.5):
                    await server[1].drain()
        assert written < 1 << 28


@bounded
async def test_reset_reaches_both_sides() -> None:
    async with lab() as (_, connect):
        client, server, link = await connect()
        link.reset()
        for reader, _ in (client, server):
            with pytest.raises(ConnectionResetError):
                await reader.read(1)


@bounded
async def test_half_close_ends_one_direction_alone() -> None:
    async with lab() as (_, connect):
        client, server, link = await connect()
        link.half_close("up")
        assert await server[0].read(1) == b""
        server[1].write(b"still")
        assert await client[0].readexactly(5) == b"still"
        # The one who sends into the closed half is not told.
        client[1].write(b"lost")
        await client[1].drain()
        await silent(client[0])


@pytest.mark.parametrize("how", ["reset", "end", "half", "hole"])
def test_faults_happen_after_their_bytes(how: Any) -> None:
    @bounded
    async def run() -> None:
        async with lab(any_shape) as (_, connect):
            client, server, link = await connect()
            link.after(700, how)
            server[1].write(b"x" * 5000)
            got = b""
            # A reset may overtake what was sent before it.
            with suppress(ConnectionResetError, TimeoutError):
                while True:
                    async with asyncio.timeout(2):
                        chunk = await client[0].read(100)
                    if not chunk:
                        break
                    got += chunk
            assert len(got) == 700 if how != "reset" else len(got) <= 700

    run()


@bounded
async def test_whole_server_can_be_cut_silenced_and_refused() -> None:
    async with lab(lambda _: (PLAIN, DRIP)) as (proxy, connect):
        client, server, _ = await connect()
        proxy.cut()
        with pytest.raises(ConnectionResetError):
            await server[0].read(1)
        client, server, _ = await connect()
        proxy.silence()
        client[1].write(b"x")
        later = await asyncio.open_connection("127.0.0.1", proxy.port)
        later[1].write(b"y")
        await silent(server[0])
        proxy.heal()
        assert await server[0].read(1) == b"x"
        proxy.refuse()
        with pytest.raises(ConnectionResetError):
            await client[0].read(1)
        with pytest.raises(ConnectionResetError):
            reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
            writer.write(b"z")
            await reader.read(1)
            raise ConnectionAbortedError("an end is no reset")
        later[1].transport.abort()
        writer.transport.abort()
