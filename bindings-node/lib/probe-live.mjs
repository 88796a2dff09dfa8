// The checks that disturb a call while it runs.
import { setTimeout as sleep } from 'node:timers/promises';

import { NotChecked, fault, ok, settled, shown, shownType, warn } from './probe-facts.mjs';
import { STANDALONE, firstId, same, theStandalone } from './probe-short.mjs';

const RESUMES = 5;
/** A reader that another one has replaced may still get what was on its way. */
const ON_ITS_WAY_MS = 250;

export async function earlyClose(facts) {
  await facts.resumable();
  const [, run, problem] = await facts.polled();
  const first = run.connections[0];
  if (first.response !== undefined || !first.isOver) {
    throw new NotChecked('the server closed no connection of the call before its response');
  }
  facts.note('POST tools/call', first);
  if (!first.events.some((event) => event.id !== undefined)) {
    return fault('the server closed the connection before the client had an id');
  }
  if (problem !== undefined) {
    return fault(problem);
  }
  if (!first.events.some((event) => event.retryMs !== undefined)) {
    return warn('closed without a retry: clients do not know how long to wait');
  }
  return ok('closed after an id and a retry; polling brings the response');
}

/** On the standalone stream, which is quiet; on a call where that has no id. */
export async function resumeEmpty(facts) {
  await facts.resumable();
  const session = await facts.first();
  const first = await theStandalone(facts);
  const cursor = firstId(first);
  let exchange;
  if (cursor !== undefined) {
    first.cut();
    exchange = await session.get(cursor, STANDALONE);
    await exchange.until(() => exchange.isOver || exchange.events.length > 0, facts.timeoutMs);
    facts.note('GET of the standalone stream from its first id', exchange);
  } else {
    await facts.long();
    const run = await begun(facts);
    run.last.cut();
    exchange = await settled(await run.resume());
    facts.note('GET of the call from its first id', exchange);
    if (exchange.events[0]?.data) {
      exchange.cut();
      throw new NotChecked('no resume is empty: the call sends at once, and the standalone stream has no id');
    }
  }
  exchange.cut();
  if (!exchange.isStream) {
    return fault(`the resume is answered ${shownType(exchange)}`);
  }
  if (firstId(exchange) === undefined) {
    return fault('no id: some clients forget where they were');
  }
  return ok('an id comes first');
}

/** A call that is cut as soon as it has an id, and resumed later: the exchange is its resume. */
function cutCall(facts) {
  return facts.once('cut call', async () => {
    const [durationMs] = await facts.long();
    const run = await begun(facts);
    run.last.cut();
    // So that there is something to be sent again, and something that is yet to come.
    await sleep(durationMs / 3);
    const exchange = await run.resume();
    return [run, exchange, await run.finish(facts.patienceMs())];
  });
}

async function begun(facts) {
  const run = await facts.call(await facts.first(), facts.nextId());
  if (!(await run.hasId())) {
    throw new NotChecked('no event has an id');
  }
  return run;
}

const nameOf = (event) => `${event.id} ${event.data}`;
const count = (number) => `${number} message${number === 1 ? '' : 's'}`;

/** What came on all connections against what the server has, which a last resume from the first id tells. */
async function compare(facts, run, got) {
  const log = await run.session.get(run.firstId, `request ${run.id}`);
  await log.until(() => log.isOver || log.response !== undefined, facts.timeoutMs);
  log.cut();
  if (log.response === undefined) {
    // Nothing to compare with; that the response came is all there is to know.
    return ok('the response comes');
  }
  const names = got.map(nameOf);
  const wanted = log.events.filter((event) => event.data).map(nameOf);
  const seen = new Set(names);
  const lost = wanted.filter((name) => !seen.has(name));
  if (lost.length > 0) {
    return fault(`${count(lost.length)} of ${wanted.length} never came`);
  }
  if (seen.size < names.length) {
    return fault(`${count(names.length - seen.size)} came more than once`);
  }
  if (names.some((name, index) => name !== wanted[index])) {
    return fault('messages came in another order than that of their ids');
  }
  const [, undisturbed] = await facts.long();
  const { length } = undisturbed.messages;
  if (length > wanted.length) {
    return warn(`a call without cuts had ${count(length)}, this one ${wanted.length}`);
  }
  return ok(`${count(wanted.length)}, each once, in order`);
}

export async function resumeLive(facts) {
  const [run, exchange, problem] = await cutCall(facts);
  await settled(facts.note('GET from the first id, while the call runs', exchange));
  if (problem !== undefined) {
    return fault(problem);
  }
  return compare(facts, run, run.messages);
}

export async function resumeLiveEnds(facts) {
  const [run, , problem] = await cutCall(facts);
  if (problem !== undefined) {
    throw new NotChecked('no resume brings the response');
  }
  await run.last.until(() => run.last.isOver, facts.timeoutMs);
  run.last.cut();
  return run.last.state === 'end' ? ok('ends after the response') : fault('the connection stays open');
}

export async function resumeOften(facts) {
  const [durationMs] = await facts.long();
  const run = await begun(facts);
  for (let left = RESUMES; left > 0; left--) {
    const exchange = run.last;
    // After a message, because that is when most happens; after a while where there is none.
    const hasMessage = () => exchange.isOver || exchange.events.some((event) => event.data);
    await exchange.until(hasMessage, durationMs / (RESUMES - 1));
    if (run.response !== undefined) {
      break;
    }
    exchange.cut();
    await run.resume();
  }
  const problem = await run.finish(facts.patienceMs());
  run.last.cut();
  if (problem !== undefined) {
    facts.evidence.push(() => `POST tools/call and ${RESUMES} resumes, the last: ${shown(run.last)}`);
    return fault(problem);
  }
  facts.evidence.push(() => `POST tools/call and up to ${RESUMES} resumes while it runs`);
  return compare(facts, run, run.messages);
}

export async function takeoverCall(facts) {
  await facts.long();
  return taken(facts, await begun(facts));
}

export async function takeoverResumed(facts) {
  await facts.long();
  const run = await begun(facts);
  run.last.cut();
  const first = await run.resume();
  await first.until(() => first.isOver || first.events.length > 0, ON_ITS_WAY_MS);
  return taken(facts, run);
}

/** The newest reader gets what is left, the one before nothing more. */
async function taken(facts, run) {
  const old = run.last;
  if (!old.isStream) {
    await settled(facts.note('GET after the first connection was cut', old));
    return fault(`${shownType(old)} after the first connection was cut`);
  }
  if (old.isOver && run.connections.length > 1 && !old.events.some((event) => event.id !== undefined || event.data)) {
    return fault('200 and nothing after the first connection was cut');
  }
  if (old.isOver) {
    throw new NotChecked('the server closed the first connection by itself');
  }
  const newer = facts.note('GET from the last id, while the first reader is open', await run.resume());
  const since = performance.now() + ON_ITS_WAY_MS;
  if (!newer.isStream) {
    await settled(newer);
    return fault(`${shownType(newer)} while the first reader is open, be it dead or not`);
  }
  const hasAnswer = () => newer.isOver || newer.response !== undefined || old.response !== undefined;
  await Promise.race([newer.until(hasAnswer, facts.patienceMs()), old.until(hasAnswer, facts.patienceMs())]);
  if (newer.isOver && !newer.events.some((event) => event.id !== undefined || event.data)) {
    return fault('200 and nothing; the events go to the first reader');
  }
  if (newer.response === undefined && old.response !== undefined) {
    await settled(newer);
  }
  const late = old.events.some((event) => event.data && event.at > since);
  if (late) {
    return fault(newer.response === undefined ? 'the events go to the first reader' : 'both readers get the events');
  }
  const problem = await run.finish(facts.patienceMs());
  await settled(newer);
  for (const exchange of [old, newer]) {
    exchange.cut();
  }
  return problem === undefined ? ok('served at once, and the first gets nothing more') : fault(problem);
}

export async function foreignRunning(facts) {
  await facts.long();
  const other = await facts.second();
  const run = await begun(facts);
  const cursor = run.lastId;
  if (other.givenIds().has(cursor)) {
    throw new NotChecked('both sessions were given the same ids');
  }
  const what = "GET in session b with an id of session a's running call";
  const outcome = await same(facts, other, cursor, what, run.session);
  const problem = await run.finish(facts.patienceMs());
  if (outcome.kind === 'ok' && problem !== undefined) {
    return fault(`the call is disturbed: ${problem}`);
  }
  return outcome;
}
