"""The official clients with Tailrope's half in place: what test_client_faults.py shows of them does not happen."""

from __future__ import annotations

import pytest
from kit.servers import RUST, SERVERS
from kit.tap import CUTS, END, RESET

from interop.driver import LINED, Hosts, end_session, gates, meet, pairs
from interop.test_client_faults import cut_often
from interop.test_matrix import up_to

# In every run each client meets the server that is not written in its own language.
QUICK = {"mcp1+line": "node-v2", "mcp2+line": "node-v2", "ts1+line": "mcp2", "ts2+line": "mcp2"}
every_pair = pairs(LINED, ("mcp2", "node-v2"), QUICK)


@pairs(LINED, (*SERVERS, *RUST), QUICK)
async def test_f74_call_survives_any_number_of_cuts(hosts: Hosts, client: str, server: str) -> None:
    """Ten in one call; every event comes once, and in order (F-70)."""
    async with meet(hosts, client, await hosts.remembering(server)) as at:
        await cut_often(at, 10, CUTS)
        await at.over()
        assert at.driver.results() == ["x"], at.story()
        assert at.driver.progress() == up_to(22), at.story()
        assert at.tap.resumes() >= 10
        await at.close()


@every_pair
@pytest.mark.parametrize("how", CUTS)
async def test_f74_listener_survives_any_number_of_cuts(hosts: Hosts, client: str, server: str, how: str) -> None:
    names = gates(4)
    async with meet(hosts, client, await hosts.remembering(server)) as at:
        await at.listening()
        steps = [step for number, gate in enumerate(names) for step in (f"standalone {number}", f"gate {gate}")]
        await at.driver.call(*steps, "standalone 4", "return x")
        for number, gate in enumerate(names):
            await at.until(lambda number=number: len(at.driver.logs) > number)
            at.tap.cut(rf'"data": ?"{number}"', how)
            await at.host.open(gate)
        await at.over()
        await at.until(lambda: len(at.driver.logs) >= 5)
        assert at.driver.logs == ["0", "1", "2", "3", "4"], at.story()
        await at.close()


@every_pair
async def test_f70_cursor_outlives_a_connection_that_brings_no_id(hosts: Hosts, client: str, server: str) -> None:
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
        await at.over()
        assert at.driver.results() == ["x"], at.story()
        assert at.tap.gets()[1].cursor == at.tap.gets()[2].cursor is not None
        await at.close()


@every_pair
async def test_f73_error_answer_is_the_end_of_its_call(hosts: Hosts, client: str, server: str) -> None:
    async with meet(hosts, client, await hosts.remembering(server)) as at:
        await at.listening()
        await at.driver.order(call="call", method="no/such")
        await at.over()
        polls = await at.poll()
        assert len(at.tap.gets()) == 1 + polls, at.story()
        await at.close()


@every_pair
async def test_f79_call_of_a_session_that_is_lost_fails_at_once(hosts: Hosts, client: str, server: str) -> None:
    (gate,) = gates(1)
    async with meet(hosts, client, await hosts.remembering(server)) as at:
        await at.listening()
        at.tap.hold()
        await at.driver.call("emit 1", f"gate {gate}", "return x")
        await at.until(lambda: at.driver.progress() == [1])
        at.tap.cut(r'"progress": ?1\b', RESET)
        await at.until(lambda: len(at.tap.gets()) == 2)
        await end_session(at.host, at.tap.session)
        at.tap.release()
        await at.over()
        assert "session" in at.driver.errors()[0], at.story()
        assert at.tap.gets()[1].status == 404
        await at.host.open(gate)
        await at.close()
