"""Long calls of 2026-07-28 become tasks, whatever handlers do. (T-01 to T-27)"""

from __future__ import annotations

import asyncio
import json
import signal
from typing import Any

import pytest
from conftest import KIND
from kit.elsewhere import pair_on, start
from kit.ending import ended
from kit.modern import STEERED, TASKS, UNDECLARED, UNKNOWN, Modern, text_of
from kit.servers import Farm, gate
from kit.stock import LINE

pytestmark = [pytest.mark.ours, pytest.mark.skipif(LINE == 1, reason="1.x knows no 2026-07-28")]

SOON = {"task_after_ms": 100}
# Calls become tasks where their tool wants it.
LATE = {"task_after_ms": 600_000, "pace": {"echo": {"requires_task": True, "task_after_ms": 0}}}
# No call becomes one.
PLAIN = {"task_after_ms": 600_000, "prefer_resumable": False}


# A server in a process of its own.


async def test_a_long_call_becomes_a_task_and_its_polls_end_with_the_result(farm: Farm) -> None:
    server = farm.get(engine=SOON)
    client, name = Modern(server.port), gate()
    task = await client.begin("script", {"steps": ["emit 1 5", f"gate {name}", "return x"]})
    told = await client.until(task, lambda told: "statusMessage" in told)
    assert (told["status"], told["statusMessage"], told["resultType"]) == ("working", "xxxxx", "complete")
    assert told["pollIntervalMs"] > 0 and told["ttlMs"] is None and "result" not in told
    await server.open(name)
    told = await client.ended(task)
    assert (told["status"], text_of(told["result"])) == ("completed", "x")
    assert told["ttlMs"] > 0
    assert (await server.stats())["tasks_created"] >= 1


async def test_a_quick_call_is_answered_as_by_the_sdk(farm: Farm) -> None:
    """Byte for byte, also where it fails, or is no call that the SDK takes."""
    ours, stock = farm.get(engine=PLAIN), farm.get(stock=True)
    said = []
    for server in (ours, stock):
        client = Modern(server.port)
        replies = [
            await client.call("echo", {"text": "x"}),
            await client.call("echo", {}),
            await client.call("no such tool"),
            await client.post("tools/call", {"name": "echo"}, "another name"),
            await client.post("tools/call", {"arguments": 7}),
            await client.post("tools/list", {}),
        ]
        said.append([(it.status, it.headers.get("content-type"), await it.body()) for it in replies])
    assert said[0] == said[1]


async def test_progress_of_a_quick_call_goes_to_the_client_that_asked_for_it(farm: Farm) -> None:
    client = Modern(farm.get(engine=LATE).port)
    reply = await client.call("script", {"steps": ["emit 2", "return x"]}, progressToken="mine")
    messages = [event.message for event in await reply.rest()]
    assert [it["params"]["progressToken"] for it in messages[:-1]] == ["mine", "mine"]
    assert text_of(messages[-1]["result"]) == "x"
    # Who did not ask gets none, and a body.
    assert text_of(await client.result("script", {"steps": ["emit 2", "return x"]})) == "x"


async def test_a_failed_tool_completes_its_task_and_a_lost_one_is_told_apart(farm: Farm) -> None:
    server = farm.get(engine=SOON)
    client, name = Modern(server.port), gate()
    task = await client.begin("script", {"steps": [f"gate {name}", "raise no"]})
    await server.open(name)
    told = await client.ended(task)
    is_error = told.get("result", {}).get("isError")
    # The lowlevel server makes an error of JSON-RPC of it.
    assert (told["status"], is_error) in (("completed", True), ("failed", None))
    if told["status"] == "failed":
        assert told["error"]["code"] < 0 and told["error"]["message"]


async def test_a_cancellation_reaches_the_handler_and_stays(farm: Farm) -> None:
    server = farm.get(engine=SOON)
    client, name = Modern(server.port), gate()
    task = await client.begin("script", {"steps": [f"gate {name}", f"mark {name}"]})
    for _ in range(2):
        acknowledged = await client.about("cancel", task)
        assert {key: value for key, value in acknowledged["result"].items() if key != "_meta"} == {
            "resultType": "complete"
        }
        assert (await client.get(task))["status"] == "cancelled"
    await server.mark(f"cancelled mark {name}")
    await server.open(name)
    assert (await client.get(task))["status"] == "cancelled"
    assert name not in (await server.state())["marks"]


async def test_a_client_that_leaves_before_the_decision_cancels_its_call(farm: Farm) -> None:
    server = farm.get(engine=LATE)
    client, name = Modern(server.port), gate()
    running = asyncio.create_task(client.call("script", {"steps": [f"gate {name}", f"mark {name}"]}))
    await server.at(name)
    running.cancel()
    await server.mark(f"cancelled mark {name}")
    assert (await server.stats())["tasks"] == 0


async def test_a_client_that_leaves_after_it_does_not(farm: Farm) -> None:
    server = farm.get(engine=SOON)
    name = gate()
    task = await Modern(server.port).begin("script", {"steps": [f"gate {name}", "return x"]})
    await server.open(name)
    assert text_of((await Modern(server.port).ended(task))["result"]) == "x"


async def test_who_takes_no_tasks_is_steered_and_gets_none(farm: Farm) -> None:
    server = farm.get(engine=SOON)
    client, name = Modern(server.port), gate()
    task = await client.begin("script", {"steps": [f"gate {name}"]})
    client.declares = False
    for method in ("get", "update", "cancel"):
        answer = await client.about(method, task, inputResponses={})
        assert answer["error"]["code"] == UNDECLARED
        assert answer["error"]["data"] == {"requiredCapabilities": {"extensions": {TASKS: {}}}}
    for method in ("server/discover", "tools/list"):
        assert (await (await client.post(method, {})).json())["error"]["code"] == STEERED
    assert (await (await client.call("echo", {"text": "x"})).json())["error"]["code"] == STEERED
    client.declares = True
    discovered = await (await client.post("server/discover", {})).json()
    assert discovered["result"]["capabilities"]["extensions"][TASKS] == {}
    await server.open(name)
    await client.ended(task)


async def test_a_tool_that_has_to_be_a_task_is_for_those_that_take_tasks(farm: Farm) -> None:
    client = Modern(farm.get(engine=LATE).port)
    task = await client.begin("echo", {"text": "x"})
    assert text_of((await client.ended(task))["result"]) == "x"
    client.declares = False
    answer = await (await client.call("echo", {"text": "x"})).json()
    assert answer["error"]["code"] == UNDECLARED


async def test_another_users_task_is_as_one_that_is_not_there(farm: Farm) -> None:
    server = farm.get(auth=True, engine=SOON)

    def user(token: str) -> Modern:
        return Modern(server.port, headers={"Authorization": f"Bearer {token}"})

    alice, name = user("alice-token"), gate()
    task = await alice.begin("script", {"steps": [f"gate {name}"]})
    absent = task[:-4] + ("AAAA" if not task.endswith("AAAA") else "BBBB")
    told = []
    for asked in (task, absent):
        bob = user("bob-token")
        for method in ("get", "update", "cancel"):
            reply = await bob.post(f"tasks/{method}", {"taskId": asked, "inputResponses": {}}, asked)
            told.append((reply.status, await reply.body()))
    assert told[:3] == told[3:]
    assert json.loads(told[0][1])["error"]["code"] == UNKNOWN
    # A fresh token of the same user is the same user.
    assert (await user("alice-second-token").get(task))["status"] == "working"
    await server.open(name)
    await alice.ended(task)


async def test_a_handler_asks_as_often_as_it_likes_and_runs_once(farm: Farm) -> None:
    server = farm.get()
    client, name = Modern(server.port), gate()
    task = await client.begin("script", {"steps": [f"mark {name}", "elicit who", "try sample what", "elicit whom"]})
    for number, answer in enumerate(
        [
            {"action": "accept", "content": {"name": "Ann"}},
            {"role": "assistant", "content": {"type": "text", "text": "t"}, "model": "m"},
            {"action": "accept", "content": {"name": "Bob"}},
        ]
    ):
        ((key, question),) = (await client.asked(task)).items()
        assert question["method"] == ("sampling/createMessage" if number == 1 else "elicitation/create")
        assert "result" in await client.update(task, **{key: answer})
        assert key not in (await client.get(task)).get("inputRequests", {})
    assert text_of((await client.ended(task))["result"]) == '{"name":"Bob"}'
    assert (await server.state())["marks"][name] == 1


async def test_a_handler_that_asks_outside_of_tasks_is_refused_as_by_the_sdk(farm: Farm) -> None:
    client = Modern(farm.get(engine=PLAIN).port, declares=False)
    stock = Modern(farm.get(stock=True).port, declares=False)
    said = [await (await it.call("script", {"steps": ["try elicit who"]})).body() for it in (client, stock)]
    assert said[0] == said[1]


async def test_a_server_that_ends_waits_for_the_runs_of_its_tasks_and_leaves_nothing(farm: Farm) -> None:
    server = farm.fresh(engine={**SOON, "drain_within_ms": 300})
    try:
        client = Modern(server.port)
        for _ in range(2):
            await client.begin("script", {"steps": ["gate never"]})
        await ended(server, [], signal.SIGTERM)
        assert "destroyed" not in server.log() and "never retrieved" not in server.log(), server.log()
    finally:
        server.stop()


# Two processes on one store.


async def test_any_process_answers_for_a_task(tmp_path: Any) -> None:
    with pair_on(KIND, f"sqlite:{tmp_path / 'events.db'}", engine=SOON) as (first, second):
        here, there, name = Modern(first.port), Modern(second.port), gate()
        task = await here.begin("script", {"steps": [f"gate {name}", "return x"]})
        assert (await there.get(task))["status"] == "working"
        await first.open(name)
        assert text_of((await there.ended(task))["result"]) == "x"
        assert (await here.get(task))["status"] == "completed"
        shut = gate()
        task = await here.begin("script", {"steps": [f"gate {shut}", f"mark {shut}"]})
        assert "result" in await there.about("cancel", task)
        assert (await here.get(task))["status"] == (await there.get(task))["status"] == "cancelled"
        await first.mark(f"cancelled mark {shut}")
        task = await here.begin("script", {"steps": ["elicit who"]})
        ((key, _),) = (await there.asked(task)).items()
        await there.update(task, **{key: {"action": "accept", "content": {"name": "Ann"}}})
        assert "inputRequests" not in await here.get(task)
        assert text_of((await there.ended(task))["result"]) == '{"name":"Ann"}'


async def test_a_round_runs_whichever_process_has_its_last_answer(tmp_path: Any) -> None:
    if KIND.name != "mcp2":
        pytest.skip("its server has no tool of rounds")
    with pair_on(KIND, f"sqlite:{tmp_path / 'events.db'}", engine=SOON) as (first, second):
        here, there = Modern(first.port), Modern(second.port)
        plan = {"token": "t", "facts": str(tmp_path / "facts"), "ms": 300, "rounds": 2}
        task = await here.begin("tasked", {"plan": plan})
        for client in (there, here):
            ((key, _),) = (await client.asked(task)).items()
            await client.update(task, **{key: {"action": "accept", "content": {"name": "Ann"}}})
        told = await there.ended(task)
        assert told["status"] == "completed", told
        assert text_of(told["result"]) == "t Ann Ann"


async def test_a_task_that_waits_for_its_client_goes_on_elsewhere_while_its_process_stops(
    tmp_path: Any,
) -> None:
    if KIND.name != "mcp2":
        pytest.skip("its server has no tool of rounds")
    with pair_on(KIND, f"sqlite:{tmp_path / 'events.db'}", engine=SOON, log="INFO") as (first, second):
        here, there = Modern(first.port), Modern(second.port)
        facts = tmp_path / "facts"
        plan = {"token": "t", "facts": str(facts), "ms": 300, "rounds": 1}
        task = await here.begin("tasked", {"plan": plan})
        ((key, _),) = (await here.asked(task)).items()
        # Something runs for as long as the process may take to stop.
        await here.begin("script", {"steps": ["gate never"]})
        first.process.send_signal(signal.SIGTERM)
        await first.logged("draining")
        await there.update(task, **{key: {"action": "accept", "content": {"name": "Ann"}}})
        assert text_of((await there.ended(task))["result"]) == "t Ann"
        ran = [json.loads(line) for line in facts.read_text().splitlines()]
        assert [it["process"] for it in ran if it["fact"] == "begin"] == [first.process.pid, second.process.pid]


async def test_a_task_whose_process_is_killed_has_failed(tmp_path: Any) -> None:
    place = f"sqlite:{tmp_path / 'events.db'}"
    engine = {**SOON, "owner_lost_ms": 1_000}
    first, second = start(KIND, place, engine=engine), start(KIND, place, engine=engine)
    try:
        client = Modern(second.port)
        task = await Modern(first.port).begin("script", {"steps": ["gate never"]})
        assert (await client.get(task))["status"] == "working"
        first.kill()
        told = await client.ended(task)
        assert told["status"] == "failed" and told["error"]["code"] == -32603, told
        assert told["error"]["message"] and told["statusMessage"]
    finally:
        first.kill()
        second.kill()
