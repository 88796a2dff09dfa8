"""The checks that need no long call. Each says what a correct client would make of what it saw."""

from __future__ import annotations

import asyncio
import uuid

from tailrope.probe._facts import MADE_UP, Facts, NotChecked, Outcome, fault, like, ok, settled, shown, shown_type, warn
from tailrope.probe._http import Exchange
from tailrope.probe._session import NEWEST, OLDER, UNRESUMABLE, Run, Session

STANDALONE = "standalone"
# A comment that only makes the head leave is not one that keeps a connection alive.
HEAD_S = 0.2
# 4xx that say that it may be otherwise the next time.
PASSING = (408, 409, 425, 429)


async def initialize(facts: Facts) -> Outcome:
    session = await facts.opening()
    await settled(facts.note(f"POST initialize, {NEWEST}", facts.initialize))
    facts.note("POST notifications/initialized", facts.initialized)
    if session.id is not None and not all("!" <= char <= "~" for char in session.id):
        return fault("the session id has characters outside of visible ASCII")
    if facts.initialized.status != 202:
        return fault(f"notifications/initialized is answered {facts.initialized.status}, not 202")
    if session.revision == NEWEST:
        return ok(NEWEST) if session.id is not None else warn(f"{NEWEST}, without a session id: nothing can be resumed")
    return warn(f"{session.revision}: not the revision that this checks")


async def newer_revision(facts: Facts) -> Outcome:
    await facts.opening()
    client = facts.session("unknown")
    client.revision = UNRESUMABLE
    meta = {
        "io.modelcontextprotocol/protocolVersion": UNRESUMABLE,
        "io.modelcontextprotocol/clientCapabilities": {},
        "io.modelcontextprotocol/clientInfo": {"name": "tailrope-probe", "version": "1"},
    }
    asked = await client.request(1, "server/discover", {"_meta": meta})
    exchange = facts.note(f"POST server/discover, {UNRESUMABLE}", asked)
    await exchange.until(lambda: exchange.is_over or exchange.response is not None, facts.timeout_ms)
    await settled(exchange)
    if "result" in (exchange.json or {}):
        return warn(f"{UNRESUMABLE} is served too: clients that prefer it lose their calls with their connections")
    return ok(f"{UNRESUMABLE} is not served")


async def ping(facts: Facts) -> Outcome:
    exchange = facts.note("POST ping", await facts.ping())
    message = exchange.json or {}
    return ok(shown_type(exchange)) if "result" in message else fault("no result")


async def priming(facts: Facts) -> Outcome:
    run = await facts.short()
    facts.note(f"POST {await facts.source()}", run.last)
    if run.session.revision != NEWEST:
        raise NotChecked(f"revision {run.session.revision} has no priming")
    first = next(iter(run.events), None)
    if any(event.id and event.data is None for event in run.events):
        return fault("an id comes without a data line: clients do not count such an event")
    if run.first_id is None:
        return warn("no event has an id: nothing can be resumed")
    if first is None or not first.is_priming:
        return fault(
            "the stream does not start with an id and empty data: what is lost before the first message is lost"
        )
    if first.retry_ms is None:
        return warn("no retry: clients do not know how long to wait")
    return ok("an id, a retry and empty data come first")


async def priming_older(facts: Facts) -> Outcome:
    await facts.short()
    session = await facts.opened("older", OLDER)
    if session.revision == NEWEST:
        raise NotChecked(f"{OLDER} is answered with {NEWEST}")
    run = await facts.begin(session, 1)
    exchange = facts.note(f"POST {await facts.source()}, {session.revision}", run.last)
    await exchange.until(lambda: exchange.is_over or exchange.response is not None, facts.patience_ms())
    await settled(exchange)
    if any(event.data == "" for event in exchange.events):
        return fault("an event with empty data: clients of that revision cannot parse it")
    return ok("no event with empty data")


async def answer_ends(facts: Facts) -> Outcome:
    run = await facts.short()
    facts.note(f"POST {await facts.source()}", run.last)
    if run.response is None:
        return fault("no response")
    return ok("ends after the response") if run.last.state == "end" else fault("the connection stays open")


# What was missed.


async def resume_finished(facts: Facts) -> Outcome:
    run = await facts.finished()
    facts.note(f"POST {await facts.source()}, cut after the first id", run.connections[0])
    facts.note("GET from there", run.last)
    await settled(run.last)
    if not run.last.is_stream:
        return fault(f"the resume is answered {shown_type(run.last)}")
    if run.last.response is None:
        return fault("the response is not sent again")
    return ok("the response is sent")


async def _resumed(facts: Facts) -> Run:
    run = await facts.finished()
    if run.last.response is None:
        raise NotChecked("no resume brings the response")
    return run


async def resume_ends(facts: Facts) -> Outcome:
    run = await _resumed(facts)
    await run.last.until(lambda: run.last.is_over, facts.timeout_ms)
    facts.note("GET from the first id", run.last)
    run.last.cut()
    return ok("ends after the response") if run.last.state == "end" else fault("the connection stays open")


async def resume_again(facts: Facts) -> Outcome:
    run = await _resumed(facts)
    wanted = [event.data for event in run.last.events if event.data]
    again = await run.session.get(run.first_id, f"request {run.id}")
    await again.until(lambda: again.is_over or again.response is not None, facts.timeout_ms)
    facts.note("GET from the first id, once more", again)
    await settled(again)
    again.cut()
    if [event.data for event in again.events if event.data] != wanted:
        return fault("the second time it does not bring the same")
    return ok("the same is sent again")


async def resume_at_end(facts: Facts) -> Outcome:
    run = await _resumed(facts)
    cursor = run.last.response.id if run.last.response is not None else None
    if cursor is None:
        raise NotChecked("the response has no id")
    exchange = await run.session.get(cursor, f"request {run.id}")
    await exchange.until(lambda: exchange.is_over, facts.timeout_ms)
    facts.note("GET with the id of the response", exchange)
    exchange.cut()
    if exchange.status == 404:
        return fault("404: clients take their session for lost")
    if exchange.is_stream and any(event.data for event in exchange.events):
        return fault("a message after the last one")
    if not exchange.is_over:
        return fault("the connection stays open, though nothing can come")
    if exchange.is_stream:
        return warn("200 and an end: clients that come back after the response ask again")
    if exchange.status != 204 and not 400 <= exchange.status < 500:
        return fault(f"answered {shown_type(exchange)}")
    return ok(f"{exchange.status}")


# The standalone stream.


async def the_standalone(facts: Facts) -> Exchange:
    async def find() -> Exchange:
        session = await facts.first()
        exchange = await session.get(None, STANDALONE)
        if exchange.status == 405:
            raise NotChecked("the server has no standalone stream")
        if exchange.is_stream:
            await exchange.until(lambda: exchange.is_over or bool(exchange.events), facts.timeout_ms)
        return exchange

    exchange: Exchange = await facts.once(STANDALONE, find)
    return exchange


def first_id(exchange: Exchange) -> str | None:
    return next((event.id for event in exchange.events if event.id), None)


async def standalone(facts: Facts) -> Outcome:
    await facts.resumable()
    session = await facts.first()
    exchange = facts.note("GET", await the_standalone(facts))
    if not exchange.is_stream:
        return fault(f"GET is answered {shown_type(exchange)}: neither a stream nor 405")
    if session.revision != NEWEST:
        raise NotChecked(f"revision {session.revision} has no priming")
    first = next(iter(exchange.events), None)
    if first is None or not first.is_priming:
        return fault("it does not start with an id: what comes while it is broken cannot be asked for")
    return ok("an id and empty data come first")


async def standalone_id(facts: Facts) -> str:
    await facts.resumable()
    cursor = first_id(await the_standalone(facts))
    if cursor is None:
        raise NotChecked("the standalone stream has no id")
    return cursor


async def takeover_standalone(facts: Facts) -> Outcome:
    session = await facts.first()
    first = await the_standalone(facts)
    if not first.is_stream or first.is_over:
        raise NotChecked("the standalone stream does not stay open")
    second = await settled(facts.note("GET, while the first is open", await session.get(None, STANDALONE)))
    second.cut()
    if not second.is_stream:
        return fault(f"{second.status} while the first reader is open, be it dead or not")
    if second.is_over and not second.events:
        return fault("200 and nothing")
    return ok("served while the first is open")


# Cursors that name nothing.


def judged(exchange: Exchange) -> Outcome:
    """Whether a client that waits for something sees that nothing will come."""
    if exchange.status == 404:
        return fault("404: clients take their session for lost")
    if exchange.status in PASSING or exchange.status >= 500:
        return fault(f"{exchange.status}: clients take it for something that passes, and ask again")
    if 400 <= exchange.status < 500:
        return ok(f"{exchange.status}")
    if not exchange.is_stream:
        return fault(f"{shown_type(exchange)}: no client takes that for the end of its call")
    if exchange.response is not None:
        return ok("200 and a response" if exchange.json and "result" in exchange.json else "200 and a JSON-RPC error")
    if exchange.is_over:
        return fault("200 and nothing: clients ask for ever")
    if first_id(exchange) is not None:
        return ok("200 and a stream that goes on")
    return fault("200 and silence: clients wait for ever")


async def _unknown(facts: Facts, what: str, cursor: str) -> Outcome:
    session = await facts.first()
    exchange = await settled(facts.note(what, await session.get(cursor)))
    exchange.cut()
    return judged(exchange)


async def made_up_cursor(facts: Facts) -> Outcome:
    await facts.resumable()
    return await _unknown(facts, f"GET, Last-Event-ID: {MADE_UP}", MADE_UP)


async def lost_cursor(facts: Facts) -> Outcome:
    run = await facts.resumable()
    return await _unknown(facts, "GET with an id of the server's form that it never gave", like(run.first_id or ""))


# Two sessions.


async def _neighbours(facts: Facts) -> tuple[Run, Run]:
    """The same request under the same id in two sessions, both cut, both over, both resumed."""

    async def find() -> tuple[Run, Run]:
        await facts.resumable()
        one, other = await facts.first(), await facts.second()
        id = facts.next_id()
        runs = (await facts.missed(one, id), await facts.missed(other, id))
        for run in runs:
            exchange = await run.resume()
            await exchange.until(lambda e=exchange: e.is_over or e.response is not None, facts.patience_ms())  # type: ignore[misc]
        # What does not belong there may come after the response.
        await asyncio.gather(*(settled(run.last) for run in runs))
        for run in runs:
            run.last.cut()
        return runs

    runs: tuple[Run, Run] = await facts.once("neighbours", find)
    return runs


async def isolation(facts: Facts) -> Outcome:
    runs = await _neighbours(facts)
    source = await facts.source()
    for run, other in (runs, runs[::-1]):
        facts.note(f"POST {source} in session {run.session.name}, cut; GET from its first id", run.last)
        responses = [event for event in run.last.events if event.is_response]
        if len(responses) > 1:
            return fault(f"{len(responses)} responses to one request: those of another session came too")
        if is_marked(run.last, other.session):
            return fault("messages of the other session came too")
    return ok("each gets its own")


def is_marked(exchange: Exchange, owner: Session) -> bool:
    """Whether there is something in it that belongs to this session."""
    return any(f'"probe-{owner.name}-' in (event.data or "") for event in exchange.events)


async def same(facts: Facts, session: Session, foreign: str, what: str, owner: Session) -> Outcome:
    """A foreign id and one that never was have to look alike."""
    answers: list[Exchange] = []
    masked: list[tuple[int, list[str], list[str], str]] = []
    for cursor, name in ((foreign, what), (like(foreign), "GET with an unknown one")):
        exchange = await settled(facts.note(name, await session.get(cursor)))
        exchange.cut()
        answers.append(exchange)
        masked.append(visible(exchange, cursor))
    if any(event.is_response and "result" in (event.message or {}) for event in answers[0].events):
        return fault("another session's response is sent")
    if is_marked(answers[0], owner):
        return fault("another session's messages are sent")
    names = ("status", "headers", "headers", "body")
    for name, one, other in zip(names, *masked, strict=True):
        if one != other:
            was = f": {one}, not {other}" if name == "status" else ""
            return fault(f"a foreign id is told from an unknown one by its {name}{was}")
    return ok(f"both are answered {shown_type(answers[0])}")


# Values that a proxy makes anew for each answer say nothing.
COMPARED = ("content-type", "content-length", "cache-control", "www-authenticate", "allow")
ANEW = ("date", "mcp-session-id", "x-request-id", "set-cookie", "cf-ray", "server-timing", "x-response-time")


def visible(exchange: Exchange, cursor: str) -> tuple[int, list[str], list[str], str]:
    """What another client could compare: the ids and what a proxy adds are left out."""
    names = sorted(name for name in exchange.headers if name not in ANEW)
    values = [f"{name}: {exchange.headers[name]}" for name in COMPARED if name in exchange.headers]
    if exchange.is_stream:
        body = "\n".join(f"{event.id is not None} {event.retry_ms} {event.data}" for event in exchange.events)
    else:
        body = exchange.body.decode("utf-8", "replace")
    return exchange.status, names, values, f"{exchange.state} {body.replace(cursor, '*')}"


async def foreign_cursor(facts: Facts) -> Outcome:
    one, other = await _neighbours(facts)
    cursor = one.first_id or ""
    if cursor in other.session.given_ids():
        raise NotChecked("both sessions were given the same ids")
    return await same(facts, other.session, cursor, "GET in session b with an id of session a", one.session)


async def foreign_standalone(facts: Facts) -> Outcome:
    cursor = await standalone_id(facts)
    other = await facts.second()
    if cursor in other.given_ids():
        raise NotChecked("both sessions were given the same ids")
    what = "GET in session b with an id of session a's standalone stream"
    return await same(facts, other, cursor, what, await facts.first())


# What was seen on the way, and sessions.


async def unique_ids(facts: Facts) -> Outcome:
    await facts.resumable()
    session = await facts.first()
    owners: dict[str, tuple[str, str]] = {}
    for stream, exchanges in session.streams.items():
        for event in (event for exchange in exchanges for event in exchange.events):
            if event.id is None:
                continue
            known_stream, known = owners.setdefault(event.id, (stream, event.data or ""))
            if known_stream != stream:
                return fault("one id on two streams of a session")
            if event.data and known and event.data != known:
                return fault("one id on two messages")
    return ok("each id belongs to one stream, and to one message at most")


async def keep_alive(facts: Facts) -> Outcome:
    await facts.first()
    session = await facts.opened("idle")
    exchange = await session.get(None, STANDALONE)
    if not exchange.is_stream:
        raise NotChecked(f"GET is answered {shown_type(exchange)}")
    since = asyncio.get_running_loop().time() + HEAD_S

    def is_kept() -> bool:
        return any(block.at > since for block in exchange.blocks)

    await exchange.until(lambda: exchange.is_over or is_kept(), facts.options.idle_ms)
    within = f"within {facts.options.idle_ms:.0f} ms"
    kept = next((block for block in exchange.blocks if block.at > since), None)
    facts.evidence.append(lambda: f"GET, and nothing for {facts.options.idle_ms:.0f} ms: {shown(exchange)}")
    exchange.cut()
    if kept is None:
        return warn(f"{'it ends' if exchange.is_over else 'no byte'} {within}: proxies cut silent connections")
    if kept.comment is None and kept.id is None and not kept.data:
        return warn("an event without id and data keeps it alive: clients may fail on it")
    return ok(f"a comment comes {within}" if kept.comment is not None else f"an event comes {within}")


async def unknown_session(facts: Facts) -> Outcome:
    session = await facts.first()
    stranger = facts.session("unknown")
    stranger.id, stranger.revision = str(uuid.uuid4()), session.revision
    answer = facts.note("POST ping with a made-up session id", await stranger.request(1, "ping"))
    await settled(answer)
    return ok("404") if answer.status == 404 else fault(f"{answer.status}, not 404: clients do not begin anew")


async def session_end(facts: Facts) -> Outcome:
    session = await facts.first()
    answer = await settled(facts.note("DELETE", await session.delete()))
    if answer.status == 405:
        raise NotChecked("clients may not end sessions")
    if not 200 <= answer.status < 300:
        return fault(f"DELETE is answered {answer.status}")
    posted = await settled(facts.note("POST ping after it", await session.request(facts.next_id(), "ping")))
    got = await settled(facts.note("GET after it", await session.get()))
    for exchange in (posted, got):
        exchange.cut()
        if exchange.status != 404:
            return fault(f"{exchange.status}, not 404, after the end")
    return ok("404 after the end")
