// Closing connections on purpose, and coming back: nothing lost, nothing repeated. (W-041 to W-047)
import assert from 'node:assert/strict';
import { after, before, describe, test } from 'node:test';

import { Peer, counts, ids, lastId, logs, results } from './kit/raw.mjs';
import { LINES, marked, newGate, open, serve } from './kit/servers.mjs';

const upTo = (count) => Array.from({ length: count }, (_, index) => index + 1);

for (const line of LINES) {
  describe(line, () => {
    let server;
    before(async () => {
      server = await serve(line);
    });
    after(() => server.close());

    test('f24 post stream starts with an id', async () => {
      const peer = await Peer.open(server.port);
      const [priming, ...rest] = await (await peer.script('return x')).rest();
      assert.ok(priming.isPriming && priming.retry === 20);
      assert.deepEqual(results(rest), ['x']);
    });

    test('f25 standalone stream starts with an id', async () => {
      const peer = await Peer.open(server.port);
      const stream = await peer.listen();
      const first = await stream.event();
      assert.ok(first.isPriming && first.retry === 20);
      stream.drop();
    });

    test('twenty live resumes lose nothing', async () => {
      const peer = await Peer.open(server.port);
      for (let round = 0; round < 20; round++) {
        const gate = newGate();
        const reply = await peer.script(`until ${gate}`);
        const events = await reply.some(3);
        const got = counts(events);
        // Half of them while the old connection is still there, half after a cut.
        if (round % 2) {
          reply.drop();
        }
        const resumed = await peer.resume(lastId(events));
        got.push(...counts(await resumed.some(5)));
        open(gate);
        const rest = await resumed.rest();
        got.push(...counts(rest));
        assert.deepEqual(got, upTo(got.length), `round ${round}`);
        assert.deepEqual(results(rest), [String(got.length)]);
      }
    });

    test('ten closes that deliver nothing are survived', async () => {
      const peer = await Peer.open(server.port);
      const gates = upTo(10).map(newGate);
      const steps = gates.flatMap((gate) => [`gate ${gate}`, 'close', `mark closed ${gate}`]);
      let reply = await peer.script(...steps, 'emit 1', 'return x');
      const seen = [];
      for (const gate of gates) {
        const first = await reply.event();
        assert.ok(first.isPriming);
        seen.push(first.id);
        await marked(`at ${gate}`);
        open(gate);
        assert.deepEqual(await reply.rest(), [], 'an id and nothing else');
        await marked(`closed ${gate}`);
        if (gate !== gates.at(-1)) {
          reply = await peer.resume(first.id);
        }
      }
      assert.equal(new Set(seen).size, 10, 'each connection gave a new id');
      const events = await (await peer.resume(seen.at(-1))).rest();
      assert.deepEqual([counts(events), results(events)], [[1], ['x']]);
    });

    test('close cuts the stream in two and loses nothing', async () => {
      const peer = await Peer.open(server.port);
      const events = await (await peer.script('emit 5', 'close', 'emit 5', 'return x')).rest();
      assert.deepEqual(counts(events), upTo(5));
      const rest = await (await peer.resume(lastId(events))).rest();
      assert.deepEqual([counts(rest), results(rest)], [[6, 7, 8, 9, 10], ['x']]);
    });

    test('three streams cut at once are resumed at once', async () => {
      const peer = await Peer.open(server.port);
      const gate = newGate();
      const stream = await peer.listen();
      const one = await peer.call('script', { steps: ['emit 2', `gate ${gate}`, 'emit 3', 'return one'] }, 1);
      const steps = ['emit 4', `gate ${gate}`, 'emit 1', 'standalone late', 'return two'];
      const two = await peer.call('script', { steps }, '1');
      await peer.call('script', { steps: ['standalone early'] }, 9);
      const heads = [await stream.some(1), await one.some(2), await two.some(4)];
      for (const reply of [stream, one, two]) {
        reply.drop();
      }
      open(gate);
      const resumed = await Promise.all(heads.map((events) => peer.resume(lastId(events))));
      assert.deepEqual(logs(await resumed[0].some(1)), ['late']);
      const [first, second] = [await resumed[1].rest(), await resumed[2].rest()];
      assert.deepEqual([counts(first), results(first)], [[3, 4, 5], ['one']]);
      assert.deepEqual([counts(second), results(second)], [[5], ['two']]);
      assert.equal(new Set([...ids(first), ...ids(second)]).size, ids(first).length + ids(second).length);
      resumed[0].drop();
    });

    test('closing the standalone stream keeps it', async () => {
      const peer = await Peer.open(server.port);
      const stream = await peer.listen();
      const first = await stream.event();
      await peer.ask('standalone one', 'close_standalone', 'standalone two');
      const events = [first, ...(await stream.rest())];
      const again = await peer.resume(lastId(events));
      const echo = await again.event();
      assert.ok(echo.isPriming && echo.retry === 20);
      const wanted = 2 - logs(events).length;
      assert.deepEqual([...logs(events), ...logs(await again.some(wanted))], ['one', 'two']);
      again.drop();
    });

    test('hold of zero is pure polling', async () => {
      const peer = await Peer.open(server.port);
      const gate = newGate();
      let events = await (await peer.script('close hold=0', `gate ${gate}`, 'return x')).rest();
      for (let poll = 0; poll < 3; poll++) {
        events = await (await peer.resume(lastId(events))).rest();
        assert.ok(events.length === 1 && events[0].isPriming);
      }
      open(gate);
      await new Promise((resolve) => setTimeout(resolve, 20));
      assert.deepEqual(results(await (await peer.resume(lastId(events))).rest()), ['x']);
    });

    test('retry of one stream is repeated on its resumes only', async () => {
      const peer = await Peer.open(server.port);
      const gate = newGate();
      const events = await (await peer.script('close retry=333', `gate ${gate}`, 'return x')).rest();
      assert.equal(events.findLast((event) => event.retry !== undefined).retry, 333);
      const resumed = await peer.resume(lastId(events));
      assert.equal((await resumed.event()).retry, 333);
      open(gate);
      await resumed.rest();
      assert.equal((await (await peer.script('return y')).event()).retry, 20);
    });

    test('question travels on the calls own stream across a poll', async () => {
      const peer = await Peer.open(server.port);
      const stream = await peer.listen();
      await stream.event();
      const events = await (await peer.script('emit 1', 'close hold=0', 'elicit who')).rest();
      let asked = events;
      while (!asked.some(({ message }) => message?.method === 'elicitation/create')) {
        asked = await (await peer.resume(lastId(asked))).rest();
      }
      const { message } = asked.find((event) => event.message?.method === 'elicitation/create');
      assert.equal(message.params.message, 'who');
      const result = { action: 'accept', content: { name: 'Ada' } };
      assert.equal((await peer.post({ jsonrpc: '2.0', id: message.id, result })).status, 202);
      let rest = asked;
      while (results(rest).length === 0) {
        rest = await (await peer.resume(lastId(rest))).rest();
      }
      assert.deepEqual(results(rest), ['Ada']);
      await stream.quiet(10);
      stream.drop();
    });

    test('old sessions get no priming and no early close', async () => {
      for (const revision of ['2025-03-26', '2025-06-18']) {
        const peer = await Peer.open(server.port, revision);
        const events = await (await peer.script('emit 1', 'close', 'emit 1', 'return x')).rest();
        assert.ok(events.every((event) => event.data !== '' && event.retry === undefined));
        assert.deepEqual([counts(events), results(events)], [[1, 2], ['x']]);
      }
    });

    test('old sessions still resume', async () => {
      const peer = await Peer.open(server.port, '2025-03-26');
      const gate = newGate();
      const reply = await peer.script('emit 2', `gate ${gate}`, 'emit 1', 'return x');
      const events = await reply.some(2);
      reply.drop();
      open(gate);
      const rest = await (await peer.resume(lastId(events))).rest();
      assert.deepEqual([counts(rest), results(rest)], [[3], ['x']]);
    });

    test('keep alives are comments', async () => {
      const brisk = await serve(line, { keepAliveMs: 20 });
      const peer = await Peer.open(brisk.port);
      const blocks = await (await peer.script('sleep 100', 'return x')).blocks();
      assert.ok(blocks.filter((block) => block.comment === 'keep-alive').length >= 2);
      assert.deepEqual(results(blocks), ['x']);
      await brisk.close();
    });
  });
}
