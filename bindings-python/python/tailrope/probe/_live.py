"""The checks that disturb a call while it runs."""

from __future__ import annotations

import asyncio

from tailrope.probe._facts import Facts, NotChecked, Outcome, fault, ok, settled, shown, shown_type, warn
from tailrope.probe._http import Exchange
from tailrope.probe._session import Run
from tailrope.probe._short import STANDALONE, first_id, same, the_standalone
from tailrope.probe._sse import Block

RESUMES = 5
# A reader that another one has replaced may still get what was on its way.
ON_ITS_WAY_S = 0.25


async def early_close(facts: Facts) -> Outcome:
    await facts.resumable()
    _, run, problem = await facts.polled()
    first = run.connections[0]
    if first.response is not None or not first.is_over:
        raise NotChecked("the server closed no connection of the call before its response")
    facts.note("POST tools/call", first)
    if not any(event.id for event in first.events):
        return fault("the server closed the connection before the client had an id")
    if problem is not None:
        return fault(problem)
    if not any(event.retry_ms is not None for event in first.events):
        return warn("closed without a retry: clients do not know how long to wait")
    return ok("closed after an id and a retry; polling brings the response")


async def resume_empty(facts: Facts) -> Outcome:
    """On the standalone stream, which is quiet; on a call where that has no id."""
    await facts.resumable()
    session = await facts.first()
    first = await the_standalone(facts)
    cursor = first_id(first)
    if cursor is not None:
        first.cut()
        exchange = await session.get(cursor, STANDALONE)
        await exchange.until(lambda: exchange.is_over or bool(exchange.events), facts.timeout_ms)
        facts.note("GET of the standalone stream from its first id", exchange)
    else:
        await facts.long()
        run = await _begun(facts)
        run.last.cut()
        exchange = await settled(await run.resume())
        facts.note("GET of the call from its first id", exchange)
        if exchange.events and exchange.events[0].data:
            exchange.cut()
            raise NotChecked("no resume is empty: the call sends at once, and the standalone stream has no id")
    exchange.cut()
    if not exchange.is_stream:
        return fault(f"the resume is answered {shown_type(exchange)}")
    if first_id(exchange) is None:
        return fault("no id: some clients forget where they were")
    return ok("an id comes first")


async def _cut_call(facts: Facts) -> tuple[Run, Exchange, str | None]:
    """A call that is cut as soon as it has an id, and resumed later: the exchange is its resume."""

    async def find() -> tuple[Run, Exchange, str | None]:
        duration_ms, _ = await facts.long()
        run = await _begun(facts)
        run.last.cut()
        # So that there is something to be sent again, and something that is yet to come.
        await asyncio.sleep(duration_ms / 3_000)
        exchange = await run.resume()
        return run, exchange, await run.finish(facts.patience_ms())

    found: tuple[Run, Exchange, str | None] = await facts.once("cut call", find)
    return found


async def _begun(facts: Facts) -> Run:
    run = await facts.call(await facts.first(), facts.next_id())
    if not await run.has_id():
        raise NotChecked("no event has an id")
    return run


async def compare(facts: Facts, run: Run, got: list[Block]) -> Outcome:
    """What came on all connections against what the server has, which a last resume from the first id tells."""
    log = await run.session.get(run.first_id, f"request {run.id}")
    await log.until(lambda: log.is_over or log.response is not None, facts.timeout_ms)
    log.cut()
    kept = [event for event in log.events if event.data]
    if log.response is None:
        # Nothing to compare with; that the response came is all there is to know.
        return ok("the response comes")
    names, wanted = [_name(event) for event in got], [_name(event) for event in kept]
    lost = [name for name in wanted if name not in names]
    if lost:
        return fault(f"{_count(len(lost))} of {len(wanted)} never came")
    if len(set(names)) < len(names):
        return fault(f"{_count(len(names) - len(set(names)))} came more than once")
    if names != wanted:
        return fault("messages came in another order than that of their ids")
    _, undisturbed = await facts.long()
    if len(undisturbed.messages) > len(wanted):
        return warn(f"a call without cuts had {_count(len(undisturbed.messages))}, this one {len(wanted)}")
    return ok(f"{_count(len(wanted))}, each once, in order")


def _name(event: Block) -> str:
    return f"{event.id} {event.data}"


def _count(number: int) -> str:
    return f"{number} message{'' if number == 1 else 's'}"


async def resume_live(facts: Facts) -> Outcome:
    run, exchange, problem = await _cut_call(facts)
    await settled(facts.note("GET from the first id, while the call runs", exchange))
    if problem is not None:
        return fault(problem)
    return await compare(facts, run, run.messages)


async def resume_live_ends(facts: Facts) -> Outcome:
    run, _, problem = await _cut_call(facts)
    if problem is not None:
        raise NotChecked("no resume brings the response")
    await run.last.until(lambda: run.last.is_over, facts.timeout_ms)
    run.last.cut()
    return ok("ends after the response") if run.last.state == "end" else fault("the connection stays open")


async def resume_often(facts: Facts) -> Outcome:
    duration_ms, _ = await facts.long()
    run = await _begun(facts)
    for _ in range(RESUMES):
        exchange = run.last
        # After a message, because that is when most happens; after a while where there is none.
        await exchange.until(
            lambda e=exchange: e.is_over or any(event.data for event in e.events),  # type: ignore[misc]
            duration_ms / (RESUMES - 1),
        )
        if run.response is not None:
            break
        exchange.cut()
        await run.resume()
    problem = await run.finish(facts.patience_ms())
    run.last.cut()
    if problem is not None:
        facts.evidence.append(lambda: f"POST tools/call and {RESUMES} resumes, the last: {shown(run.last)}")
        return fault(problem)
    facts.evidence.append(lambda: f"POST tools/call and up to {RESUMES} resumes while it runs")
    return await compare(facts, run, run.messages)


async def takeover_call(facts: Facts) -> Outcome:
    await facts.long()
    run = await _begun(facts)
    return await _taken(facts, run)


async def takeover_resumed(facts: Facts) -> Outcome:
    await facts.long()
    run = await _begun(facts)
    run.last.cut()
    first = await run.resume()
    await first.until(lambda: first.is_over or bool(first.events), ON_ITS_WAY_S * 1_000)
    return await _taken(facts, run)


async def _taken(facts: Facts, run: Run) -> Outcome:
    """The newest reader gets what is left, the one before nothing more."""
    old = run.last
    if not old.is_stream:
        await settled(facts.note("GET after the first connection was cut", old))
        return fault(f"{shown_type(old)} after the first connection was cut")
    if old.is_over and len(run.connections) > 1 and not any(event.id or event.data for event in old.events):
        return fault("200 and nothing after the first connection was cut")
    if old.is_over:
        raise NotChecked("the server closed the first connection by itself")
    new = facts.note("GET from the last id, while the first reader is open", await run.resume())
    since = asyncio.get_running_loop().time() + ON_ITS_WAY_S
    if not new.is_stream:
        await settled(new)
        return fault(f"{shown_type(new)} while the first reader is open, be it dead or not")

    def has_answer() -> bool:
        return new.is_over or new.response is not None or old.response is not None

    # Either may get it.
    waits = [asyncio.create_task(reader.until(has_answer, facts.patience_ms())) for reader in (new, old)]
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for wait in waits:
        wait.cancel()
    if new.is_over and not any(event.id or event.data for event in new.events):
        return fault("200 and nothing; the events go to the first reader")
    if new.response is None and old.response is not None:
        await settled(new)
    if any(event.data and event.at > since for event in old.events):
        return fault("the events go to the first reader" if new.response is None else "both readers get the events")
    problem = await run.finish(facts.patience_ms())
    await settled(new)
    for exchange in (old, new):
        exchange.cut()
    return ok("served at once, and the first gets nothing more") if problem is None else fault(problem)


async def foreign_running(facts: Facts) -> Outcome:
    await facts.long()
    other = await facts.second()
    run = await _begun(facts)
    cursor = run.last_id or ""
    if cursor in other.given_ids():
        raise NotChecked("both sessions were given the same ids")
    outcome = await same(facts, other, cursor, "GET in session b with an id of session a's running call", run.session)
    problem = await run.finish(facts.patience_ms())
    if outcome.kind == "ok" and problem is not None:
        return fault(f"the call is disturbed: {problem}")
    return outcome
