"""Tests of a server of your own, here of the examples beside this file. Run them with `pytest test_my_server.py`.

The calls are cut, closed and resumed by the test, and the server is killed; `tailrope.testing` then says whether each
message came once, in order. `pytest.mark.anyio` comes with the SDK; any plugin that runs `async def` tests will do.
"""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tailrope.testing import Server, serve

HERE = Path(__file__).parent
pytestmark = pytest.mark.anyio

REPORT = [1, 2, 3, 4, 5, 6, "6 pages"]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    """A process of its own, which can be killed; PORT tells it where to listen."""
    store = f"sqlite:{tmp_path / 'events.db'}"
    async with serve(str(HERE / "durable_sqlite.py"), env={"STORE": store}) as server:
        yield server


async def test_a_cut_connection_loses_nothing(server: Server) -> None:
    session = await server.session()
    call = await session.call("build_report", {"pages": 6})
    await call.cut(after=2)
    await call.resume()
    await call.cut(after=1)
    # Back from further behind: what follows that id comes again, and nothing else.
    await call.resume(after=call.ids[1])
    await call.collect()
    call.assert_exactly_once(REPORT)


async def test_a_killed_server_still_has_what_was_sent(server: Server) -> None:
    session = await server.session()
    call = await session.call("build_report", {"pages": 6})
    await call.read(3)
    cursor = call.ids[-1]
    await call.until_closed()
    await server.restart()
    await call.resume(after=cursor)
    await call.collect()
    call.assert_exactly_once(REPORT)


async def test_the_close_in_the_middle_of_a_call_loses_nothing() -> None:
    from server_mcp2 import mcp

    # In this process, where the test can reach into the server.
    async with serve(mcp) as server:
        session = await server.session()
        call = await session.call("build_report", {"pages": 6})
        assert await call.until_closed() == [1, 2, 3]
        assert not call.is_answered
        await call.collect()
        call.assert_exactly_once(REPORT)
