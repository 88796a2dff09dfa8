// Who holds a stream? The newest valid reader, at once. (F-30, F-31, F-32, I4)
import assert from 'node:assert/strict';

import { Late, Peer, counts, lastId, logs, results, sleep } from './kit/raw.mjs';
import { newGate, open, packages, serve } from '../servers/node/transports.mjs';
import { onEachLine, ours, test } from './kit/test.mjs';

onEachLine(serve, (line, server) => {
  test('f30 second standalone get takes over without 409', async () => {
    const peer = await Peer.open(server().port);
    const old = await peer.listen();
    await peer.ask('standalone one');
    assert.deepEqual(logs(await old.some(1)), ['one']);
    const newest = await peer.get();
    assert.equal(newest.status, 200);
    await peer.ask('standalone two');
    // What the old connection was handed is not sent again; what follows goes to the new one only.
    assert.deepEqual(logs(await newest.some(1)), ['two']);
    assert.deepEqual(logs(await old.settle(200)), []);
    old.drop();
    newest.drop();
  });

  test('f30 superseded standalone connection is parked and promoted', async () => {
    const peer = await Peer.open(server().port);
    const old = await peer.listen();
    const newest = await peer.listen();
    assert.ok((await newest.event()).isPriming);
    // Parked: no event and no end, so that its client does not come back to evict the other.
    await old.event();
    await old.quiet(200);
    newest.close();
    let promoted;
    for (let number = 0; promoted === undefined; number++) {
      assert.ok(number < 50, 'the parked connection was never promoted');
      // The server needs a moment to see the newest one go; nothing tells the client when it did.
      await peer.ask(`standalone ${number}`);
      promoted = await old.event(100).catch((error) => assert.ok(error instanceof Late));
    }
    old.drop();
  });

  test('f30 resume takes over from a dead socket', async () => {
    const peer = await Peer.open(server().port);
    const [name, second] = [newGate(), newGate()];
    // The first connection is blackholed: open, but nobody reads it and nobody ends it.
    const dead = await peer.script('emit 2', `gate ${name}`, 'emit 2', `gate ${second}`, 'emit 1', 'return x');
    const alive = await peer.resume(lastId(await dead.some(2)));
    assert.equal(alive.status, 200);
    open(name);
    assert.deepEqual(counts(await alive.some(2)), [3, 4]);
    // Fenced: it was ended cleanly and had nothing more.
    assert.deepEqual(counts(await dead.rest()), []);
    open(second);
    const events = await alive.untilTerminal();
    assert.deepEqual([counts(events), results(events)], [[5], ['x']]);
    await alive.ends();
  });

  test('f31 second resume of a live stream takes it over', async () => {
    const peer = await Peer.open(server().port);
    const [name, second] = [newGate(), newGate()];
    const opened = await peer.script('emit 1', `gate ${name}`, 'emit 2', `gate ${second}`, 'emit 1', 'return x');
    const cursor = lastId(await opened.some(1));
    opened.drop();
    const first = await peer.resume(cursor);
    open(name);
    assert.deepEqual(counts(await first.some(2)), [2, 3]);
    const newest = await peer.resume(cursor);
    // The whole suffix after the presented cursor, not what some other connection left over.
    assert.deepEqual(counts(await newest.some(2)), [2, 3]);
    assert.deepEqual(counts(await first.rest()), []);
    open(second);
    const events = await newest.untilTerminal();
    assert.deepEqual([counts(events), results(events)], [[4], ['x']]);
    await newest.ends();
  });

  test('f31 hundred takeovers lose nothing', async () => {
    const peer = await Peer.open(server().port);
    const name = newGate();
    let reply = await peer.script(`until ${name}`);
    const got = [];
    for (let takeover = 0; takeover < 100; takeover++) {
      const events = await reply.some(1);
      got.push(...counts(events));
      const old = reply;
      reply = await peer.resume(lastId(events));
      assert.equal(reply.status, 200);
      // What the old one carried after our cursor comes again on the new one, by the cursor's meaning.
      old.close();
    }
    open(name);
    const events = await reply.untilTerminal();
    got.push(...counts(events));
    assert.deepEqual(got, got.map((_, index) => index + 1));
    assert.deepEqual(results(events), [String(got.length)]);
  });

  test('f32 two standalone readers do not evict each other for ever', async () => {
    const peer = await Peer.open(server().port);
    const gets = [];
    const stopAt = performance.now() + 1_000;
    // A naive EventSource: whenever its standalone connection ends, it opens another.
    const reader = async () => {
      while (performance.now() < stopAt) {
        const reply = await peer.get();
        gets.push(reply.status);
        while (!reply.ended && performance.now() < stopAt) {
          await reply.settle(Math.max(1, stopAt - performance.now()));
        }
        reply.drop();
        await sleep(20);
      }
    };
    await Promise.all([reader(), reader()]);
    assert.deepEqual([...new Set(gets)], [200]);
    assert.ok(gets.length <= 4, `${gets.length} GETs in a second`);
  });

  test('f32 reader of a finished stream is told to stop', async () => {
    const peer = await Peer.open(server().port);
    const events = await (await peer.script('emit 1', 'return x')).rest();
    for (let again = 0; again < 3; again++) {
      const reply = await peer.resume(lastId(events));
      assert.equal(reply.status, 204);
      assert.equal(await reply.body(), '');
    }
  });

  test('takeovers are counted', ours, async () => {
    const { stats } = packages[line];
    const before = stats().takeovers;
    const peer = await Peer.open(server().port);
    const name = newGate();
    const opened = await peer.script('emit 1', `gate ${name}`, 'return x');
    const newest = await peer.resume(lastId(await opened.some(1)));
    await opened.rest();
    assert.equal(stats().takeovers, before + 1);
    open(name);
    await newest.untilTerminal();
  });
});
