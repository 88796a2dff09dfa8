"""A crowd at the front, in its short form: crowd.py says what is done. (I2, I3, F-44)"""

from __future__ import annotations

import asyncio
import json
import resource
from typing import Any

import pytest
from kit.raw import Event

from torture.crowd import PARTS, SERVERS, crowd, too_few_descriptors
from torture.crowd_client import PROGRESS, Line, judge
from torture.part import SPARE

CLIENTS = 20


@pytest.mark.parametrize("server", SERVERS)
def test_a_small_crowd_loses_nothing_and_ends_in_order(server: str) -> None:
    async def all_parts() -> list[Any]:
        return await asyncio.gather(*(crowd(server, name, CLIENTS) for name in PARTS))

    parts = asyncio.run(all_parts())
    assert not any(part.faults for part in parts), parts
    assert all(part.figures for part in parts), parts


def progress(number: int, token: str = "c1") -> Event:
    params = {"progressToken": token, "progress": number}
    return Event(id=f"a{number}", data=json.dumps({"jsonrpc": "2.0", "method": PROGRESS, "params": params}))


def end(**said: Any) -> Event:
    return Event(id="z", data=json.dumps({"jsonrpc": "2.0", "id": 1, **said}))


RESULT = end(result={"content": [{"type": "text", "text": "c1"}]})
ERROR = end(error={"code": -32603, "message": "gone"})


@pytest.mark.parametrize(
    ("blocks", "is_failed", "found"),
    [
        ([progress(3), progress(4), RESULT], False, {}),
        ([Event(id="p", data="", retry=20), progress(3), Event(comment="x"), progress(4), ERROR], True, {}),
        ([progress(4), RESULT], False, {"lost": 1}),
        ([progress(3), progress(3), progress(4), RESULT], False, {"repeated": 1}),
        # From before the cursor.
        ([progress(2), progress(3), progress(4), RESULT], False, {"repeated": 1}),
        ([progress(4), progress(3), RESULT], False, {"out of order": 1}),
        ([progress(3), RESULT, progress(4)], False, {"out of order": 1}),
        ([progress(3), progress(4, "c2"), RESULT], False, {"lost": 1, "foreign": 1}),
        ([progress(3), progress(4)], False, {"wrong ends": 1}),
        ([progress(3), progress(4), RESULT, RESULT], False, {"wrong ends": 1}),
        ([progress(3), progress(4), ERROR], False, {"wrong ends": 1}),
        ([progress(3), progress(4), RESULT], True, {"wrong ends": 1}),
        ([progress(3), progress(4), end(result={"content": [{"type": "text", "text": "c2"}]})], False, {"foreign": 1}),
    ],
)
def test_judge_sees_what_is_wrong_with_the_events_of_a_call(
    blocks: list[Event], is_failed: bool, found: dict[str, int]
) -> None:
    assert judge("c1", blocks, 2, 4, is_failed) == found


def test_an_answer_is_whole_only_behind_its_last_chunk() -> None:
    head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ncontent-type: text/event-stream\r\n\r\n"
    raw = head + b"d\r\nid: a\ndata: \n\r\n1\r\n\n\r\n0\r\n\r\n"
    line = Line()
    for at in range(len(raw)):
        assert not line.is_whole, at
        line.data_received(raw[at : at + 1])
    assert line.is_whole and line.blocks == [Event(id="a", data="")]


def test_too_few_descriptors_are_named() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY:
        pytest.skip("there is no limit")
    told = too_few_descriptors(hard)
    assert told is not None and str(hard * 4 // 3 + SPARE) in told
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (soft, hard)
