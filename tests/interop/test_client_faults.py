"""Faults of published clients that no server can make good, each as the client shows it today.

They bound what test_matrix.py asks of a client. A test here that fails is good news: the client was mended, and the
matrix can ask for more.
"""

from __future__ import annotations

import pytest
from kit.tap import END, RESET

from interop.driver import PYTHON, RUST, TYPESCRIPT, Hosts, Meeting, end_session, gates, meet
from interop.test_matrix import up_to

pytestmark = pytest.mark.full
# What a client does by itself does not depend on much of the server; one of each package is enough.
two_servers = pytest.mark.parametrize("server", ("mcp2", "node-v2"))


async def cut_often(at: Meeting, count: int, ways: tuple[str, ...] = (RESET,)) -> None:
    """Make a call and cut its connection so often, each time when the client has seen two more events."""
    names = gates(count)
    await at.driver.call("emit 2", *(step for gate in names for step in (f"gate {gate}", "emit 2")), "return x")
    for lost, gate in enumerate(names, 1):
        await at.until(lambda lost=lost: 2 * lost in at.driver.progress())
        at.tap.cut(rf'"progress": ?{2 * lost + 1}\b', ways[lost % len(ways)])
        await at.host.open(gate)
    await at.until(lambda: at.tap.cuts == count)


@two_servers
@pytest.mark.parametrize("client", PYTHON)
async def test_python_client_shows_events_again_after_a_second_cut(hosts: Hosts, client: str, server: str) -> None:
    """A resumed connection that is cut leaves the cursor where it was before: what came on it is asked for again."""
    async with meet(hosts, client, await hosts.remembering(server)) as at:
        await cut_often(at, 2)
        await at.over()
        assert at.driver.results() == ["x"], at.story()
        assert at.driver.progress() == [1, 2, 3, 4, 3, 4, 5, 6]
        cursors = [get.cursor for get in at.tap.gets() if get.cursor is not None]
        assert len(cursors) == 2 and cursors[0] == cursors[1]
        await at.close()


@two_servers
@pytest.mark.parametrize("client", PYTHON)
async def test_f74_python_client_gives_up_at_the_third_cut(hosts: Hosts, client: str, server: str) -> None:
    """It counts cuts, whatever came in between. Line 2.x fails the call then, line 1.x leaves its caller waiting."""
    async with meet(hosts, client, await hosts.remembering(server)) as at:
        await cut_often(at, 3)
        if client == "mcp1":
            polls = await at.poll()
            assert not at.driver.is_over(), at.story()
        else:
            polls = 0
            await at.over()
            assert "exhausted" in at.driver.errors()[0]
        assert at.tap.resumes() == 2 + polls


@two_servers
@pytest.mark.parametrize("client", PYTHON)
async def test_f74_python_client_stops_listening_at_the_second_cut(hosts: Hosts, client: str, server: str) -> None:
    """As for calls, but nobody is told: what is sent on the standalone stream from then on is not seen."""
    names = gates(2)
    async with meet(hosts, client, await hosts.remembering(server)) as at:
        await at.listening()
        await at.driver.call("standalone 0", f"gate {names[0]}", "standalone 1", f"gate {names[1]}", "standalone 2")
        for number, gate in enumerate(names, 1):
            await at.until(lambda number=number: len(at.driver.logs) >= number)
            at.tap.cut(rf'"data": ?"{number}"', RESET)
            await at.host.open(gate)
        await at.over()
        polls = await at.poll()
        assert at.driver.logs == ["0", "1"], at.story()
        assert at.tap.resumes() == 1 + polls
        await at.close()


@two_servers
@pytest.mark.parametrize("client", TYPESCRIPT)
async def test_f70_typescript_client_forgets_its_cursor_when_a_resumed_connection_brings_no_id(
    hosts: Hosts, client: str, server: str
) -> None:
    """Each connection begins without a cursor. Cut before the priming event, it opens the standalone stream instead.

    A server of ours sends an id first on every connection, so only a cut in that very moment does this. The call is
    never answered.
    """
    (gate,) = gates(1)
    async with meet(hosts, client, await hosts.remembering(server)) as at:
        await at.listening()
        at.tap.hold()
        await at.driver.call("emit 1", "close", f"gate {gate}", "return x")
        await at.until(lambda: len(at.tap.gets()) == 2)
        # Behind the head of the answer.
        at.tap.cut(r"text/event-stream[^\0]*?\r\n\r\n", END)
        at.tap.release()
        await at.until(lambda: len(at.tap.gets()) == 3)
        await at.host.open(gate)
        await at.poll()
        assert at.tap.gets()[1].cursor is not None and at.tap.gets()[2].cursor is None
        assert not at.driver.is_over(), at.story()


@two_servers
@pytest.mark.parametrize("client", TYPESCRIPT[:1])
async def test_f73_typescript_client_v1_asks_again_for_what_ended_with_an_error(
    hosts: Hosts, client: str, server: str
) -> None:
    """It takes only a result for the end of a request. An answer without a stream stops it."""
    async with meet(hosts, client, await hosts.remembering(server)) as at:
        await at.listening()
        await at.driver.order(call="call", method="no/such")
        await at.over()
        await at.until(lambda: len(at.tap.gets()) == 2 and at.tap.gets()[1].status is not None)
        assert at.tap.gets()[1].status == 204, at.story()
        await at.close()


@two_servers
@pytest.mark.parametrize("client", RUST)
async def test_f73_rust_client_asks_for_ever_for_a_session_that_has_ended(
    hosts: Hosts, client: str, server: str
) -> None:
    """It takes a 404 on a GET for a passing fault, and only doubles its pauses: 2 s, 4 s and so on."""
    async with meet(hosts, client, await hosts.remembering(server)) as at:
        await at.listening()
        await end_session(at.host, at.tap.session)
        # The Python and TypeScript clients end after two tries.
        await at.until(lambda: [get.status for get in at.tap.gets()[1:]] == [404, 404, 404])
        # The next request of the user's opens a session, and with it everything works again.
        await at.driver.call("emit 2", "standalone 0", "close", "emit 1", "return x")
        await at.over()
        await at.until(lambda: at.driver.logs == ["0"])
        assert (at.driver.results(), at.driver.progress()) == (["x"], up_to(3)), at.story()
        await at.close()
