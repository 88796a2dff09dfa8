"""What came on each connection of a call, and whether that is every message once, in order.

Every event knows the one before it from where its client stood: a connection that resumes after an id goes on from the
event that had it. So each connection ends a chain, from the call's first message to the last one there, and a client
that followed it has seen exactly that. The messages came exactly once when no chain says anything else than what the
call sent. Nothing here reads or waits.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from tailrope.testing._errors import NotExactlyOnce

SHOWN = 40
LONGEST = 60

How = Literal["open", "cut", "closed", "broken"]


@dataclass(frozen=True, eq=False)
class Event:
    """One event. `message` is the JSON-RPC message, None for a priming event; `value` its short form."""

    id: str | None
    message: Any
    value: Any
    retry_ms: int | None
    before: Event | None = field(repr=False)

    @property
    def is_response(self) -> bool:
        return isinstance(self.message, dict) and "method" not in self.message


@dataclass
class Connection:
    """One connection of a call. `end` is `open`, `cut` by the test, `closed` by the server in the proper way, or
    `broken`. `after` is the id that a resume named, `gaps` are the losses that the server announced."""

    number: int
    method: Literal["POST", "GET"]
    after: str | None
    status: int
    reads_again: bool
    head: Event | None = field(repr=False)
    events: list[Event] = field(default_factory=list)
    gaps: list[str] = field(default_factory=list)
    end: How = "open"

    @property
    def messages(self) -> list[Event]:
        """The events that carry a message."""
        return [event for event in self.events if event.message is not None]

    def add(self, id: str | None, message: Any, retry_ms: int | None) -> Event:
        self.head = Event(id, message, short(message), retry_ms, self.head)
        self.events.append(self.head)
        return self.head


def short(message: Any) -> Any:
    """A message in a few words: a progress notification's number, a log message's data, a result's text, an error's
    code and message; the method of anything else, and a result that is no text as it is."""
    if not isinstance(message, dict):
        return message
    method, params = message.get("method"), message.get("params") or {}
    if method == "notifications/progress":
        progress = params.get("progress")
        return int(progress) if isinstance(progress, float) and progress.is_integer() else progress
    if method == "notifications/message":
        return params.get("data")
    if method is not None:
        return method
    if "error" in message:
        return {"code": message["error"].get("code"), "message": message["error"].get("message")}
    result = message.get("result")
    content = result.get("content") if isinstance(result, dict) else None
    if isinstance(content, list) and len(content) == 1 and content[0].get("type") == "text":
        return content[0].get("text")
    return result


def chain(head: Event | None) -> list[Event]:
    """The messages up to this event, as a client has them that followed the connections to it."""
    events: list[Event] = []
    while head is not None:
        if head.message is not None:
            events.append(head)
        head = head.before
    return events[::-1]


@dataclass
class Findings:
    """What is wrong, each once however many connections show it: places in what was sent, or events."""

    lost: dict[int, Any] = field(default_factory=dict)
    repeated: dict[int, Any] = field(default_factory=dict)
    out_of_order: dict[int, Any] = field(default_factory=dict)
    foreign: dict[int, Any] = field(default_factory=dict)
    others: list[str] = field(default_factory=list)

    def __bool__(self) -> bool:
        return any((self.lost, self.repeated, self.out_of_order, self.foreign, self.others))


def check(
    what: str, connections: Sequence[Connection], request_id: Hashable, token: Hashable, expected: Sequence[Any] | None
) -> None:
    """Raises NotExactlyOnce unless every chain is what the call sent: `expected`, in the short form, or else what was
    there when the stream was read again from its start."""
    found = Findings()
    again = [each for each in connections if each.reads_again]
    reading = [each for each in connections if not each.reads_again]
    main = chain(reading[-1].head)
    if expected is not None:
        reference = list(expected)
        keys = [_key(value) for value in reference]
    else:
        events = chain(again[-1].head)
        reference = [event.value for event in events]
        keys = [_key(event.message) for event in events]
    for connection in connections:
        complete = connection is reading[-1] or connection.reads_again
        _compare(found, chain(connection.head), reference, keys, complete, expected is not None)
        for event in connection.messages:
            if _is_foreign(event, request_id, token):
                found.foreign[id(event)] = event.value
    responses = [event for event in main if event.is_response]
    if not responses:
        found.others.append("no response came")
    elif len(responses) == 1 and not main[-1].is_response:
        found.others.append("messages came after the response")
    elif len(responses) > 1:
        found.others.append(f"{len(responses)} responses came")
    if found:
        raise _failure(what, found, reference, main, connections)


def _compare(
    found: Findings, events: list[Event], reference: list[Any], keys: list[str], complete: bool, by_value: bool
) -> None:
    """Adds how the events differ from the reference; one that is not complete may stop early."""
    own = [_key(event.value if by_value else event.message) for event in events]
    if own == (keys if complete else keys[: len(own)]):
        return
    places: defaultdict[str, list[int]] = defaultdict(list)
    for place, key in enumerate(keys):
        places[key].append(place)
    seen: Counter[str] = Counter()
    matched: list[tuple[int, Event]] = []
    for key, event in zip(own, events, strict=True):
        if key not in places:
            found.foreign[id(event)] = event.value
        elif seen[key] == len(places[key]):
            found.repeated[id(event)] = event.value
        else:
            matched.append((places[key][seen[key]], event))
            seen[key] += 1
    kept = _rising([place for place, _ in matched])
    for number, (place, event) in enumerate(matched):
        if number not in kept:
            found.out_of_order[place] = event.value
    came = {place for place, _ in matched}
    end = len(keys) if complete else max(came, default=-1) + 1
    for place in range(end):
        if place not in came:
            found.lost[place] = reference[place]


def _rising(places: list[int]) -> set[int]:
    """Which of the numbers make up the longest rising row."""
    tops: list[int] = []
    holders: list[int] = []
    before: list[int] = []
    for number, place in enumerate(places):
        pile = bisect_left(tops, place)
        before.append(holders[pile - 1] if pile else -1)
        if pile == len(tops):
            tops.append(place)
            holders.append(number)
        else:
            tops[pile], holders[pile] = place, number
    kept: set[int] = set()
    number = holders[-1] if holders else -1
    while number >= 0:
        kept.add(number)
        number = before[number]
    return kept


def _is_foreign(event: Event, request_id: Hashable, token: Hashable) -> bool:
    """Whether a message belongs to another call, by what it says itself."""
    message = event.message
    if not isinstance(message, dict):
        return False
    if event.is_response:
        return bool(message.get("id") != request_id)
    is_progress = message.get("method") == "notifications/progress"
    return is_progress and (message.get("params") or {}).get("progressToken") != token


def _key(value: Any) -> str:
    return json.dumps(int(value) if isinstance(value, float) and value.is_integer() else value, sort_keys=True)


def _failure(
    what: str, found: Findings, reference: list[Any], main: list[Event], connections: Sequence[Connection]
) -> NotExactlyOnce:
    lost, out_of_order = ([kind[place] for place in sorted(kind)] for kind in (found.lost, found.out_of_order))
    lists = [lost, list(found.repeated.values()), out_of_order, list(found.foreign.values())]
    lines = [f"{what} did not come exactly once"]
    for name, values in zip(("lost", "repeated", "out of order", "foreign"), lists, strict=True):
        if values:
            lines.append(f"  {name}: {listed(values)}")
    lines += [f"  {text}" for text in found.others]
    lines.append(f"  sent:     {listed(reference)}")
    lines.append(f"  received: {listed([event.value for event in main])}")
    lines += report(connections)
    return NotExactlyOnce("\n".join(lines), *lists)


def report(connections: Sequence[Connection]) -> Iterator[str]:
    """A line for each connection: how it began, what it carried, how it ended."""
    for each in connections:
        begin = each.method if each.after is None else f"{each.method} after {each.after}"
        again = ", to read again" if each.reads_again else ""
        carried = listed([event.value for event in each.messages]) if each.messages else "no message"
        gaps = "".join(f"; {gap}" for gap in each.gaps)
        yield f"  connection {each.number}: {begin}{again}: {each.status}: {carried}{gaps}; {ENDS[each.end]}"


ENDS = {"open": "still open", "cut": "cut by the test", "closed": "closed by the server", "broken": "broken"}


def listed(values: Sequence[Any]) -> str:
    """The values on one line, the middle of a long one left out."""
    words = [json.dumps(value, ensure_ascii=False) for value in values]
    words = [word if len(word) <= LONGEST else f"{word[: LONGEST - 3]}..." for word in words]
    if len(words) > SHOWN:
        half = SHOWN // 2
        words = [*words[:half], f"... {len(words) - 2 * half} more ...", *words[-half:]]
    return ", ".join(words) if words else "nothing"
