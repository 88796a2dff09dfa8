// Closing connections on purpose, and coming back: nothing lost, nothing repeated, by anybody. (W-041 to W-047)
import assert from 'node:assert/strict';

import { connectLine } from './kit/clients.mjs';
import { OLD, Peer, counts, ids, lastId, logs, results, sleep, until, upTo } from './kit/raw.mjs';
import { at, marked, newGate, open, serve, serveFor } from '../servers/node/transports.mjs';
import { onEachLine, ours, test } from './kit/test.mjs';

/** Resumes whenever the connection ends, until the response is there. */
async function poll(peer, cursor) {
  const found = { progress: [], resumes: 0 };
  while (found.results === undefined) {
    const reply = await peer.resume(cursor);
    assert.equal(reply.status, 200);
    const events = await reply.rest();
    found.resumes += 1;
    found.progress.push(...counts(events));
    cursor = lastId(events);
    if (results(events).length > 0) {
      found.results = results(events);
    }
  }
  return found;
}

onEachLine(serve, (line, server) => {
  const opened = (revision) => Peer.open(server().port, revision);

  test('twenty live resumes lose nothing', async () => {
    const peer = await opened();
    for (let round = 0; round < 20; round++) {
      const name = newGate();
      const reply = await peer.script(`until ${name}`);
      const events = await reply.some(3);
      const got = counts(events);
      // Half of them while the old connection is still there, half after a cut.
      if (round % 2) {
        reply.drop();
      }
      const resumed = await peer.resume(lastId(events));
      got.push(...counts(await resumed.some(5)));
      open(name);
      const rest = await resumed.untilTerminal();
      got.push(...counts(rest));
      assert.deepEqual(got, upTo(got.length), `round ${round}`);
      assert.deepEqual(results(rest), [String(got.length)]);
    }
  });

  test('stock client loses nothing in twenty polls', async (t) => {
    const client = await connectLine(t, line, server().port);
    assert.equal(client.revision, '2025-11-25');
    const steps = Array.from({ length: 20 }, () => ['emit 3', 'close', 'emit 2']).flat();
    assert.equal(await client.script(...steps, 'return x'), 'x');
    assert.deepEqual(client.progress, upTo(100));
  });

  test('stock client survives ten closes that deliver nothing', async (t) => {
    const client = await connectLine(t, line, server().port);
    const name = newGate();
    // Closed, and closed again each time the client is back, with nothing in between.
    const before = client.gets;
    const call = client.script('close hold=0', `gate ${name}`, 'emit 2', `return ${name}`);
    await until(() => client.gets >= before + 10);
    open(name);
    assert.equal(await call, name);
    assert.deepEqual(client.progress, [1, 2]);
  });

  test('ten closes that deliver nothing are survived', async () => {
    const peer = await opened();
    const gates = upTo(10).map(newGate);
    const steps = gates.flatMap((name) => [`gate ${name}`, 'close', `mark closed ${name}`]);
    let reply = await peer.script(...steps, 'emit 1', 'return x');
    const seen = [];
    for (const name of gates) {
      const first = await reply.event();
      assert.ok(first.isPriming);
      await at(name);
      open(name);
      assert.deepEqual(await reply.rest(), [], 'an id and nothing else');
      await marked(`closed ${name}`);
      seen.push(first.id);
      if (name !== gates.at(-1)) {
        reply = await peer.resume(first.id);
      }
    }
    assert.equal(new Set(seen).size, 10, 'each connection gave a new id');
    const { progress, results: found } = await poll(peer, seen.at(-1));
    assert.deepEqual([progress, found], [[1], ['x']]);
  });

  test('close cuts the stream in two and loses nothing', async () => {
    const peer = await opened();
    const events = await (await peer.script('emit 5', 'close', 'emit 5', 'return x')).rest();
    const before = counts(events);
    assert.deepEqual(before, upTo(before.length));
    assert.ok(before.length <= 5, 'nothing that came after the close');
    assert.equal(events[0].retry, 20);
    const { progress, results: found, resumes } = await poll(peer, lastId(events));
    assert.deepEqual([[...before, ...progress], found, resumes], [upTo(10), ['x'], 1]);
  });

  test('three streams cut at once are resumed at once', async () => {
    const peer = await opened();
    const name = newGate();
    const stream = await peer.listen();
    const one = await peer.call('script', { steps: ['emit 2', `gate ${name}`, 'emit 3', 'return one'] }, 1);
    const steps = ['emit 4', `gate ${name}`, 'emit 1', 'standalone late', `return two ${name}`];
    const two = await peer.call('script', { steps }, '1');
    await (await peer.call('script', { steps: ['standalone early'] }, 9)).untilTerminal();
    const cursors = [lastId(await stream.some(1)), lastId(await one.some(2)), lastId(await two.some(4))];
    for (const reply of [stream, one, two]) {
      reply.drop();
    }
    await at(name, 2);
    open(name);
    const resumed = await Promise.all(cursors.map((cursor) => peer.resume(cursor)));
    assert.deepEqual(logs(await resumed[0].some(1)), ['late']);
    const [first, second] = [await resumed[1].rest(), await resumed[2].rest()];
    assert.deepEqual([counts(first), results(first)], [[3, 4, 5], ['one']]);
    assert.deepEqual([counts(second), results(second)], [[5], [`two ${name}`]]);
    const all = [...ids(first), ...ids(second)];
    assert.equal(new Set(all).size, all.length, 'an id is unique in its session');
    await resumed[0].quiet(100);
    resumed[0].drop();
  });

  test('closing the standalone stream keeps it', async () => {
    const peer = await opened();
    const stream = await peer.listen();
    await peer.ask('standalone one', 'close_standalone', 'standalone two');
    const events = await stream.rest();
    const again = await peer.resume(lastId(events));
    const first = await again.event();
    assert.ok(first.isPriming && first.retry === 20);
    // The close may overtake "one" on its way out; it is then in the log.
    const left = 2 - logs(events).length;
    assert.deepEqual([...logs(events), ...logs(await again.some(left))], ['one', 'two']);
    await again.quiet(100);
    again.drop();
  });

  test('hold of zero is pure polling', ours, async () => {
    const peer = await opened();
    const name = newGate();
    let events = await (await peer.script('close hold=0', `gate ${name}`, 'emit 2', `return ${name}`)).rest();
    for (let visit = 0; visit < 6; visit++) {
      events = await (await peer.resume(lastId(events))).rest();
      assert.deepEqual(events.map(({ data }) => data), ['']);
    }
    open(name);
    await marked(`finished return ${name}`);
    const { progress, results: found } = await poll(peer, lastId(events));
    assert.deepEqual([progress, found], [[1, 2], [name]]);
  });

  test('hold keeps a resumed connection that long', ours, async () => {
    const peer = await opened();
    const name = newGate();
    const first = await (await peer.script('close hold=1500', `gate ${name}`, `return ${name}`)).rest();
    const started = performance.now();
    const events = await (await peer.resume(lastId(first))).rest();
    const held = performance.now() - started;
    assert.ok(held > 1_400 && held < 10_000, `${held} ms`);
    // A result that arrives while the connection is held is sent at once.
    const again = newGate();
    const long = await (await peer.script('close hold=600000', `gate ${again}`, `return ${again}`)).rest();
    const resumed = await peer.resume(lastId(long));
    open(again);
    assert.deepEqual(results(await resumed.rest()), [again]);
    open(name);
    assert.deepEqual((await poll(peer, lastId(events))).results, [name]);
  });

  test('close for polling is remembered while nobody is connected', ours, async () => {
    const peer = await opened();
    const [name, end] = [newGate(), newGate()];
    const reply = await peer.script(`gate ${name}`, 'close hold=0', `mark ${name}`, `gate ${end}`, 'return x');
    const { id } = await reply.event();
    reply.drop();
    await sleep(100);
    open(name);
    await marked(name);
    const events = await (await peer.resume(id)).rest();
    assert.deepEqual(events.map(({ data }) => data), ['']);
  });

  test('plain close while nobody is connected is not remembered', ours, async () => {
    const peer = await opened();
    const [name, end] = [newGate(), newGate()];
    const steps = ['close', `gate ${name}`, 'close', `mark ${name}`, `gate ${end}`, 'return x'];
    const events = await (await peer.script(...steps)).rest();
    open(name);
    await marked(name);
    const resumed = await peer.resume(lastId(events));
    assert.ok((await resumed.event()).isPriming);
    await resumed.quiet(200);
    open(end);
    assert.deepEqual(results(await resumed.untilTerminal()), ['x']);
  });

  test('retry of one stream is repeated on its resumes only', ours, async () => {
    const peer = await opened();
    const name = newGate();
    const events = await (await peer.script('close retry=777', `gate ${name}`, `return ${name}`)).rest();
    // The value that counts for the wait is the last one before the close.
    assert.equal(events.findLast(({ retry }) => retry !== undefined).retry, 777);
    let cursor = lastId(events);
    for (let visit = 0; visit < 3; visit++) {
      const resumed = await peer.resume(cursor);
      const first = await resumed.event();
      assert.equal(first.retry, 777);
      cursor = first.id;
      resumed.drop();
    }
    const other = await peer.script('return other');
    assert.equal((await other.event()).retry, 20);
    open(name);
    assert.deepEqual(results(await (await peer.resume(cursor)).rest()), [name]);
  });

  for (const revision of OLD) {
    test(`old sessions get no priming and no early close, ${revision}`, async () => {
      const peer = await opened(revision);
      assert.equal(peer.revision, revision);
      assert.ok(peer.opening.every(({ data }) => data), 'the stream of initialize is not primed either');
      const name = newGate();
      const reply = await peer.script('emit 1', 'close', `gate ${name}`, 'emit 2', `return ${name}`);
      assert.deepEqual(counts([await reply.event()]), [1]);
      await at(name);
      await reply.quiet(200);
      open(name);
      const events = await reply.rest();
      assert.deepEqual([counts(events), results(events)], [[2, 3], [name]]);
      const stream = await peer.listen();
      await peer.ask('standalone x');
      assert.deepEqual(logs([await stream.event()]), ['x']);
      stream.drop();
    });

    test(`old sessions still resume, ${revision}`, async () => {
      const peer = await opened(revision);
      const name = newGate();
      const reply = await peer.script('emit 2', `gate ${name}`, 'emit 2', `return ${name}`);
      const events = await reply.some(1);
      reply.drop();
      const resumed = await peer.resume(lastId(events));
      assert.deepEqual(counts(await resumed.some(1)), [2]);
      open(name);
      const rest = await resumed.rest();
      assert.deepEqual([counts(rest), results(rest)], [[3, 4], [name]]);
      assert.ok(rest.every(({ data }) => data));
    });

    test(`the sessions revision decides not the requests header, ${revision}`, async () => {
      const peer = await opened(revision);
      const newer = { 'mcp-protocol-version': '2025-11-25' };
      const reply = await peer.call('script', { steps: ['close', 'return x'] }, undefined, newer);
      const events = await reply.rest();
      assert.ok(events.every(({ data }) => data));
      assert.deepEqual(results(events), ['x']);
    });
  }

  test('question travels on the calls own stream across a poll', async () => {
    const peer = await opened();
    const stream = await peer.listen();
    const events = await (await peer.script('close', 'elicit who')).rest();
    const resumed = await peer.resume(lastId(events));
    const { message } = (await resumed.some(1)).at(-1);
    assert.deepEqual([message.method, message.params.message], ['elicitation/create', 'who']);
    await peer.respond(message.id, { action: 'accept', content: { name: 'Ada' } });
    assert.deepEqual(results(await resumed.untilTerminal()), ['Ada']);
    assert.deepEqual((await stream.settle(50)).filter(({ message }) => message !== undefined), []);
    stream.drop();
  });

  test('stock client answers a question between two polls', async (t) => {
    const client = await connectLine(t, line, server().port);
    assert.equal(await client.script('emit 1', 'close', 'elicit name please', 'close', 'emit 1'), 're: name please');
    assert.deepEqual(client.progress, [1, 2]);
  });

  test('engine closes by itself after max connection ms', ours, async (t) => {
    const brief = await serveFor(t, line, { engine: { maxConnectionMs: 1_500 } });
    const peer = await Peer.open(brief.port);
    const name = newGate();
    const events = await (await peer.script('emit 1', `gate ${name}`, `return ${name}`)).rest();
    assert.deepEqual([counts(events), results(events)], [[1], []]);
    assert.ok(events.some(({ retry }) => retry !== undefined));
    const resumed = await peer.resume(lastId(events));
    open(name);
    assert.deepEqual(results(await resumed.rest()), [name]);
    const old = await Peer.open(brief.port, '2025-06-18');
    const other = newGate();
    const reply = await old.script('emit 1', `gate ${other}`, `return ${other}`);
    await reply.some(1);
    await reply.quiet(2_000);
    open(other);
    assert.deepEqual(results(await reply.rest()), [other]);
  });

  test('engine closes by itself after max connection bytes', ours, async (t) => {
    const brief = await serveFor(t, line, { engine: { maxConnectionBytes: 20_000 } });
    const peer = await Peer.open(brief.port);
    const events = await (await peer.script('emit 400 1000', 'return x')).rest();
    // A write of events that were ready together may go over the mark; 400 KB in one connection may not.
    const before = counts(events);
    assert.ok(before.length > 0 && before.length < 200, `${before.length}`);
    const { progress, results: found, resumes } = await poll(peer, lastId(events));
    assert.deepEqual([[...before, ...progress], found], [upTo(400), ['x']]);
    assert.ok(resumes >= 2);
  });

  test('keep alives are comments', ours, async (t) => {
    const brisk = await serveFor(t, line, { keepAliveMs: 50 });
    const peer = await Peer.open(brisk.port);
    const stream = await peer.listen();
    assert.ok((await stream.block()).isPriming);
    for (let comment = 0; comment < 3; comment++) {
      const block = await stream.block();
      assert.match(block.comment, /^keep-?alive$/);
      assert.deepEqual([block.id, block.data, block.event], [undefined, undefined, undefined]);
    }
    stream.drop();
  });
});
