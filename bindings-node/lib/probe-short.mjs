// The checks that need no long call. Each says what a correct client would make of what it saw.
import { randomUUID } from 'node:crypto';

import { MADE_UP, NotChecked, fault, like, ok, settled, shown, shownType, warn } from './probe-facts.mjs';
import { NEWEST, OLDER, UNRESUMABLE } from './probe-session.mjs';

export const STANDALONE = 'standalone';
/** A comment that only makes the head leave is not one that keeps a connection alive. */
const HEAD_MS = 200;
/** 4xx that say that it may be otherwise the next time. */
const PASSING = [408, 409, 425, 429];

export async function initialize(facts) {
  const session = await facts.opening();
  await settled(facts.note(`POST initialize, ${NEWEST}`, facts.initialize));
  facts.note('POST notifications/initialized', facts.initialized);
  if (session.id !== undefined && !/^[!-~]*$/.test(session.id)) {
    return fault('the session id has characters outside of visible ASCII');
  }
  if (facts.initialized.status !== 202) {
    return fault(`notifications/initialized is answered ${facts.initialized.status}, not 202`);
  }
  if (session.revision === NEWEST) {
    return session.id === undefined
      ? warn(`${NEWEST}, without a session id: nothing can be resumed`)
      : ok(NEWEST);
  }
  return warn(`${session.revision}: not the revision that this checks`);
}

export async function newerRevision(facts) {
  await facts.opening();
  const client = facts.session('unknown');
  client.revision = UNRESUMABLE;
  const meta = {
    'io.modelcontextprotocol/protocolVersion': UNRESUMABLE,
    'io.modelcontextprotocol/clientCapabilities': {},
    'io.modelcontextprotocol/clientInfo': { name: 'tailrope-probe', version: '1' },
  };
  const asked = await client.request(1, 'server/discover', { _meta: meta });
  const exchange = facts.note(`POST server/discover, ${UNRESUMABLE}`, asked);
  await exchange.until(() => exchange.isOver || exchange.response !== undefined, facts.timeoutMs);
  await settled(exchange);
  return 'result' in (exchange.json ?? {})
    ? warn(`${UNRESUMABLE} is served too: clients that prefer it lose their calls with their connections`)
    : ok(`${UNRESUMABLE} is not served`);
}

export async function ping(facts) {
  const exchange = facts.note('POST ping', await facts.ping());
  return 'result' in (exchange.json ?? {}) ? ok(shownType(exchange)) : fault('no result');
}

export async function priming(facts) {
  const run = await facts.short();
  facts.note(`POST ${await facts.source()}`, run.last);
  if (run.session.revision !== NEWEST) {
    throw new NotChecked(`revision ${run.session.revision} has no priming`);
  }
  const [first] = run.events;
  if (run.events.some((event) => event.id !== undefined && event.data === undefined)) {
    return fault('an id comes without a data line: clients do not count such an event');
  }
  if (run.firstId === undefined) {
    return warn('no event has an id: nothing can be resumed');
  }
  if (!first.isPriming) {
    return fault(
      'the stream does not start with an id and empty data: what is lost before the first message is lost',
    );
  }
  if (first.retryMs === undefined) {
    return warn('no retry: clients do not know how long to wait');
  }
  return ok('an id, a retry and empty data come first');
}

export async function primingOlder(facts) {
  await facts.short();
  const session = await facts.opened('older', OLDER);
  if (session.revision === NEWEST) {
    throw new NotChecked(`${OLDER} is answered with ${NEWEST}`);
  }
  const run = await facts.begin(session, 1);
  const exchange = facts.note(`POST ${await facts.source()}, ${session.revision}`, run.last);
  await exchange.until(() => exchange.isOver || exchange.response !== undefined, facts.patienceMs());
  await settled(exchange);
  if (exchange.events.some((event) => event.data === '')) {
    return fault('an event with empty data: clients of that revision cannot parse it');
  }
  return ok('no event with empty data');
}

export async function answerEnds(facts) {
  const run = await facts.short();
  facts.note(`POST ${await facts.source()}`, run.last);
  if (run.response === undefined) {
    return fault('no response');
  }
  return run.last.state === 'end' ? ok('ends after the response') : fault('the connection stays open');
}

// What was missed.

export async function resumeFinished(facts) {
  const run = await facts.finished();
  facts.note(`POST ${await facts.source()}, cut after the first id`, run.connections[0]);
  facts.note('GET from there', run.last);
  await settled(run.last);
  if (!run.last.isStream) {
    return fault(`the resume is answered ${shownType(run.last)}`);
  }
  if (run.last.response === undefined) {
    return fault('the response is not sent again');
  }
  return ok('the response is sent');
}

async function resumed(facts) {
  const run = await facts.finished();
  if (run.last.response === undefined) {
    throw new NotChecked('no resume brings the response');
  }
  return run;
}

export async function resumeEnds(facts) {
  const run = await resumed(facts);
  await run.last.until(() => run.last.isOver, facts.timeoutMs);
  facts.note('GET from the first id', run.last);
  run.last.cut();
  return run.last.state === 'end' ? ok('ends after the response') : fault('the connection stays open');
}

const messagesOf = (exchange) => exchange.events.filter((event) => event.data).map((event) => event.data);

export async function resumeAgain(facts) {
  const run = await resumed(facts);
  const wanted = messagesOf(run.last);
  const again = await run.session.get(run.firstId, `request ${run.id}`);
  await again.until(() => again.isOver || again.response !== undefined, facts.timeoutMs);
  facts.note('GET from the first id, once more', again);
  await settled(again);
  again.cut();
  if (JSON.stringify(messagesOf(again)) !== JSON.stringify(wanted)) {
    return fault('the second time it does not bring the same');
  }
  return ok('the same is sent again');
}

export async function resumeAtEnd(facts) {
  const run = await resumed(facts);
  const cursor = run.last.response.id;
  if (cursor === undefined) {
    throw new NotChecked('the response has no id');
  }
  const exchange = await run.session.get(cursor, `request ${run.id}`);
  await exchange.until(() => exchange.isOver, facts.timeoutMs);
  facts.note('GET with the id of the response', exchange);
  exchange.cut();
  if (exchange.status === 404) {
    return fault('404: clients take their session for lost');
  }
  if (exchange.isStream && messagesOf(exchange).length > 0) {
    return fault('a message after the last one');
  }
  if (!exchange.isOver) {
    return fault('the connection stays open, though nothing can come');
  }
  if (exchange.isStream) {
    return warn('200 and an end: clients that come back after the response ask again');
  }
  if (exchange.status !== 204 && !(exchange.status >= 400 && exchange.status < 500)) {
    return fault(`answered ${shownType(exchange)}`);
  }
  return ok(`${exchange.status}`);
}

// The standalone stream.

export function theStandalone(facts) {
  return facts.once(STANDALONE, async () => {
    const session = await facts.first();
    const exchange = await session.get(undefined, STANDALONE);
    if (exchange.status === 405) {
      throw new NotChecked('the server has no standalone stream');
    }
    if (exchange.isStream) {
      await exchange.until(() => exchange.isOver || exchange.events.length > 0, facts.timeoutMs);
    }
    return exchange;
  });
}

export const firstId = (exchange) => exchange.events.find((event) => event.id !== undefined)?.id;

export async function standalone(facts) {
  await facts.resumable();
  const session = await facts.first();
  const exchange = facts.note('GET', await theStandalone(facts));
  if (!exchange.isStream) {
    return fault(`GET is answered ${shownType(exchange)}: neither a stream nor 405`);
  }
  if (session.revision !== NEWEST) {
    throw new NotChecked(`revision ${session.revision} has no priming`);
  }
  if (!exchange.events[0]?.isPriming) {
    return fault('it does not start with an id: what comes while it is broken cannot be asked for');
  }
  return ok('an id and empty data come first');
}

async function standaloneId(facts) {
  await facts.resumable();
  const cursor = firstId(await theStandalone(facts));
  if (cursor === undefined) {
    throw new NotChecked('the standalone stream has no id');
  }
  return cursor;
}

export async function takeoverStandalone(facts) {
  const session = await facts.first();
  const first = await theStandalone(facts);
  if (!first.isStream || first.isOver) {
    throw new NotChecked('the standalone stream does not stay open');
  }
  const second = await settled(facts.note('GET, while the first is open', await session.get(undefined, STANDALONE)));
  second.cut();
  if (!second.isStream) {
    return fault(`${second.status} while the first reader is open, be it dead or not`);
  }
  if (second.isOver && second.events.length === 0) {
    return fault('200 and nothing');
  }
  return ok('served while the first is open');
}

// Cursors that name nothing.

/** Whether a client that waits for something sees that nothing will come. */
function judged(exchange) {
  const { status } = exchange;
  if (status === 404) {
    return fault('404: clients take their session for lost');
  }
  if (PASSING.includes(status) || status >= 500) {
    return fault(`${status}: clients take it for something that passes, and ask again`);
  }
  if (status >= 400) {
    return ok(`${status}`);
  }
  if (!exchange.isStream) {
    return fault(`${shownType(exchange)}: no client takes that for the end of its call`);
  }
  if (exchange.response !== undefined) {
    return ok('result' in exchange.json ? '200 and a response' : '200 and a JSON-RPC error');
  }
  if (exchange.isOver) {
    return fault('200 and nothing: clients ask for ever');
  }
  return firstId(exchange) === undefined
    ? fault('200 and silence: clients wait for ever')
    : ok('200 and a stream that goes on');
}

async function unknown(facts, what, cursor) {
  const session = await facts.first();
  const exchange = await settled(facts.note(what, await session.get(cursor)));
  exchange.cut();
  return judged(exchange);
}

export async function madeUpCursor(facts) {
  await facts.resumable();
  return unknown(facts, `GET, Last-Event-ID: ${MADE_UP}`, MADE_UP);
}

export async function lostCursor(facts) {
  const run = await facts.resumable();
  return unknown(facts, "GET with an id of the server's form that it never gave", like(run.firstId));
}

// Two sessions.

/** The same request under the same id in two sessions, both cut, both over, both resumed. */
function neighbours(facts) {
  return facts.once('neighbours', async () => {
    await facts.resumable();
    const one = await facts.first();
    const other = await facts.second();
    const id = facts.nextId();
    const runs = [await facts.missed(one, id), await facts.missed(other, id)];
    for (const run of runs) {
      const exchange = await run.resume();
      await exchange.until(() => exchange.isOver || exchange.response !== undefined, facts.patienceMs());
    }
    // What does not belong there may come after the response.
    await Promise.all(runs.map((run) => settled(run.last)));
    for (const run of runs) {
      run.last.cut();
    }
    return runs;
  });
}

export async function isolation(facts) {
  const runs = await neighbours(facts);
  const source = await facts.source();
  for (const [run, other] of [runs, [...runs].reverse()]) {
    facts.note(`POST ${source} in session ${run.session.name}, cut; GET from its first id`, run.last);
    const { length } = run.last.events.filter((event) => event.isResponse);
    if (length > 1) {
      return fault(`${length} responses to one request: those of another session came too`);
    }
    if (isMarked(run.last, other.session)) {
      return fault('messages of the other session came too');
    }
  }
  return ok('each gets its own');
}

/** Whether there is something in it that belongs to this session. */
const isMarked = (exchange, owner) => exchange.events.some((event) => event.data?.includes(`"probe-${owner.name}-`));

/** A foreign id and one that never was have to look alike. */
export async function same(facts, session, foreign, what, owner) {
  const answers = [];
  const masked = [];
  for (const [cursor, name] of [
    [foreign, what],
    [like(foreign), 'GET with an unknown one'],
  ]) {
    const exchange = await settled(facts.note(name, await session.get(cursor)));
    exchange.cut();
    answers.push(exchange);
    masked.push(visible(exchange, cursor));
  }
  if (answers[0].events.some((event) => event.isResponse && 'result' in event.message)) {
    return fault("another session's response is sent");
  }
  if (isMarked(answers[0], owner)) {
    return fault("another session's messages are sent");
  }
  for (const [index, name] of ['status', 'headers', 'headers', 'body'].entries()) {
    const [one, other] = masked.map((parts) => parts[index]);
    if (JSON.stringify(one) !== JSON.stringify(other)) {
      const was = name === 'status' ? `: ${one}, not ${other}` : '';
      return fault(`a foreign id is told from an unknown one by its ${name}${was}`);
    }
  }
  return ok(`both are answered ${shownType(answers[0])}`);
}

// Values that a proxy makes anew for each answer say nothing.
const COMPARED = ['content-type', 'content-length', 'cache-control', 'www-authenticate', 'allow'];
const ANEW = ['date', 'mcp-session-id', 'x-request-id', 'set-cookie', 'cf-ray', 'server-timing', 'x-response-time'];

/** What another client could compare: the ids and what a proxy adds are left out. */
function visible(exchange, cursor) {
  const { headers } = exchange;
  const names = Object.keys(headers).filter((name) => !ANEW.includes(name));
  const values = COMPARED.filter((name) => name in headers).map((name) => `${name}: ${headers[name]}`);
  const body = exchange.isStream
    ? exchange.events.map(({ id, retryMs, data }) => `${id !== undefined} ${retryMs} ${data}`).join('\n')
    : exchange.body;
  return [exchange.status, names.sort(), values, `${exchange.state} ${body.replaceAll(cursor, '*')}`];
}

export async function foreignCursor(facts) {
  const [one, other] = await neighbours(facts);
  const cursor = one.firstId;
  if (other.session.givenIds().has(cursor)) {
    throw new NotChecked('both sessions were given the same ids');
  }
  return same(facts, other.session, cursor, 'GET in session b with an id of session a', one.session);
}

export async function foreignStandalone(facts) {
  const cursor = await standaloneId(facts);
  const other = await facts.second();
  if (other.givenIds().has(cursor)) {
    throw new NotChecked('both sessions were given the same ids');
  }
  const what = "GET in session b with an id of session a's standalone stream";
  return same(facts, other, cursor, what, await facts.first());
}

// What was seen on the way, and sessions.

export async function uniqueIds(facts) {
  await facts.resumable();
  const session = await facts.first();
  const owners = new Map();
  for (const [stream, exchanges] of session.streams) {
    for (const { id, data = '' } of exchanges.flatMap((exchange) => exchange.events)) {
      if (id === undefined) {
        continue;
      }
      const known = owners.get(id) ?? { stream, data };
      owners.set(id, known);
      if (known.stream !== stream) {
        return fault('one id on two streams of a session');
      }
      if (data && known.data && data !== known.data) {
        return fault('one id on two messages');
      }
    }
  }
  return ok('each id belongs to one stream, and to one message at most');
}

export async function keepAlive(facts) {
  await facts.first();
  const session = await facts.opened('idle');
  const exchange = await session.get(undefined, STANDALONE);
  if (!exchange.isStream) {
    throw new NotChecked(`GET is answered ${shownType(exchange)}`);
  }
  const { idleMs } = facts.options;
  const since = performance.now() + HEAD_MS;
  const keeper = () => exchange.blocks.find((block) => block.at > since);
  await exchange.until(() => exchange.isOver || keeper() !== undefined, idleMs);
  const kept = keeper();
  facts.evidence.push(() => `GET, and nothing for ${idleMs} ms: ${shown(exchange)}`);
  exchange.cut();
  if (kept === undefined) {
    return warn(`${exchange.isOver ? 'it ends' : 'no byte'} within ${idleMs} ms: proxies cut silent connections`);
  }
  if (kept.comment === undefined && kept.id === undefined && !kept.data) {
    return warn('an event without id and data keeps it alive: clients may fail on it');
  }
  return ok(`${kept.comment === undefined ? 'an event' : 'a comment'} comes within ${idleMs} ms`);
}

export async function unknownSession(facts) {
  const session = await facts.first();
  const stranger = facts.session('unknown');
  stranger.id = randomUUID();
  stranger.revision = session.revision;
  const answer = facts.note('POST ping with a made-up session id', await stranger.request(1, 'ping'));
  await settled(answer);
  return answer.status === 404 ? ok('404') : fault(`${answer.status}, not 404: clients do not begin anew`);
}

export async function sessionEnd(facts) {
  const session = await facts.first();
  const answer = await settled(facts.note('DELETE', await session.delete()));
  if (answer.status === 405) {
    throw new NotChecked('clients may not end sessions');
  }
  if (answer.status < 200 || answer.status >= 300) {
    return fault(`DELETE is answered ${answer.status}`);
  }
  const posted = await settled(facts.note('POST ping after it', await session.request(facts.nextId(), 'ping')));
  const got = await settled(facts.note('GET after it', await session.get()));
  for (const exchange of [posted, got]) {
    exchange.cut();
    if (exchange.status !== 404) {
      return fault(`${exchange.status}, not 404, after the end`);
    }
  }
  return ok('404 after the end');
}
