// Clients as they are shipped must stop, or get on. (F-73, F-77)
import assert from 'node:assert/strict';

import { connectLine } from './kit/clients.mjs';
import { OLD, Peer, lastId, results, sleep, unknownLike, until } from './kit/raw.mjs';
import { marked, newGate, serve, serveFor } from '../servers/node/transports.mjs';
import { onEachLine, test } from './kit/test.mjs';

/** A client that comes back after every 200, as the shipped ones do: the number of its GETs until it is told. */
async function pollsUntilTold(peer, cursor) {
  for (let gets = 1; gets <= 8; gets++) {
    const reply = await peer.resume(cursor);
    if (reply.status !== 200) {
      return gets;
    }
    const events = await reply.settle();
    reply.drop();
    if (events.some(({ isTerminal }) => isTerminal)) {
      return gets;
    }
    cursor = events.findLast(({ id }) => id !== undefined)?.id ?? cursor;
  }
  throw new Error('still polling after 8 GETs');
}

onEachLine(serve, (line, server) => {
  test('f73 client of a lost stream stops within three gets', async () => {
    const peer = await Peer.open(server().port);
    const events = await (await peer.script('return x')).rest();
    assert.ok((await pollsUntilTold(peer, unknownLike(events[0].id))) <= 3);
  });

  test('f73 client of a finished stream stops at once', async () => {
    const peer = await Peer.open(server().port);
    const events = await (await peer.script('return x')).rest();
    assert.equal(await pollsUntilTold(peer, lastId(events)), 1);
  });

  test('f73 stock client does not poll a lost stream for ever', async (t) => {
    const short = await serveFor(t, line, { retryInterval: 1_000, engine: { retentionMs: 50 } });
    const client = await connectLine(t, line, short.port);
    const name = newGate();
    const call = client.script('close', `return ${name}`).then(
      () => 'answered',
      () => 'failed',
    );
    await marked(`finished return ${name}`);
    // The client's standalone stream stays.
    await short.lost(1);
    const outcome = await Promise.race([call, sleep(20_000).then(() => 'waiting')]);
    assert.equal(outcome, 'failed');
    const before = client.gets;
    await sleep(2_000);
    // One is the client's standalone stream, at most; the call's stream is not asked for again.
    assert.ok(client.gets - before <= 1, `${client.gets - before} GETs`);
  });

  test('f73 errors on primed streams leave no requests behind', async (t) => {
    // The 1.32 client takes an error for no answer and comes back for the stream, each time.
    const client = await connectLine(t, line, server().port);
    const before = client.gets;
    for (let round = 0; round < 5; round++) {
      await assert.rejects(client.client.callTool({ name: 'script', arguments: { steps: 'none' } }).then(failed));
    }
    await sleep(1_000);
    assert.ok(client.gets - before <= 6, `${client.gets - before} GETs`);
    const gets = client.gets;
    await sleep(500);
    assert.equal(client.gets, gets, 'and each stops');
  });

  for (const revision of OLD) {
    test(`f77 no empty event reaches a client of an old revision, ${revision}`, async () => {
      const peer = await Peer.open(server().port, revision);
      assert.ok(peer.opening.every(({ data }) => data));
      const events = await (await peer.script('emit 1', 'return x')).rest();
      assert.ok(events.every(({ data }) => data));
      assert.deepEqual(results(events), ['x']);
      assert.ok(events.every(({ id }) => id), 'ids are sent, so that such a client can resume');
    });
  }

  test('f77 initialize is primed by the revision it asks for', async () => {
    assert.ok((await Peer.open(server().port)).opening[0].isPriming);
    // A revision that nobody knows is negotiated down; its initialize stream must be safe for any client.
    for (const unknown of ['1999-01-01', '2099-01-01']) {
      assert.ok((await Peer.open(server().port, unknown)).opening[0].data, unknown);
    }
  });

  test('f77 stock client takes primed streams', async (t) => {
    const client = await connectLine(t, line, server().port);
    assert.equal(await client.script('emit 3', 'return x'), 'x');
    assert.deepEqual(client.progress, [1, 2, 3]);
  });

  test('stock client hears standalone notifications across a close', async (t) => {
    const client = await connectLine(t, line, server().port);
    await until(() => client.gets > 0);
    await client.script('standalone one', 'close_standalone', 'standalone two', 'return x');
    await until(() => client.logs.length >= 2);
    assert.deepEqual(client.logs, ['one', 'two']);
  });
});

function failed(result) {
  if (result.isError) {
    throw new Error(result.content[0].text);
  }
}
