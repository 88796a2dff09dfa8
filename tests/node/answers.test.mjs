// Every row of the table of answers: status, body and what a client may conclude. (W-011 to W-017, W-080 to W-094,
// I5, I7, I8)
import assert from 'node:assert/strict';
import { after, before } from 'node:test';

import { Peer, counts, ids, lastId, logs, refusal, request, results, seen, unknownLike, upTo } from './kit/raw.mjs';
import { at, newGate, open, packages, serve, serveFor } from '../servers/node/transports.mjs';
import { onEachLine, ours, test } from './kit/test.mjs';

/** Runs a script to its end; gives the ids of its stream: priming, events, terminal. */
async function finished(peer, id, ...steps) {
  return ids(await (await peer.call('script', { steps }, id)).rest());
}

/** The first event of a resume: the client's own position under a new id, retry, empty data. */
async function echoed(reply, cursor) {
  assert.ok(reply.status === 200 && reply.isStream);
  const first = await reply.block();
  assert.ok(first.isPriming && first.retry !== undefined && first.id !== cursor);
  return first.id;
}

onEachLine(serve, (line, server) => {
  let stock;
  before(async () => {
    stock = await serve(line, { stock: true });
  });
  after(() => stock.close());

  test('resume of a live stream', async () => {
    const peer = await Peer.open(server().port);
    const name = newGate();
    const call = await peer.script('emit 3', `gate ${name}`, 'emit 1', 'return x');
    const first = (await call.some(3)).find(({ message }) => message !== undefined);
    call.drop();
    const resumed = await peer.resume(first.id);
    await echoed(resumed, first.id);
    assert.deepEqual(counts(await resumed.some(2)), [2, 3]);
    open(name);
    const rest = await resumed.rest();
    assert.deepEqual([counts(rest), results(rest)], [[4], ['x']]);
  });

  test('resume of a finished stream', async () => {
    const peer = await Peer.open(server().port);
    const stream = await finished(peer, 1, 'emit 2', 'return x');
    for (const [position, cursor] of stream.slice(0, -1).entries()) {
      const resumed = await peer.resume(cursor);
      await echoed(resumed, cursor);
      const rest = await resumed.rest();
      assert.deepEqual([counts(rest), results(rest)], [[1, 2].slice(position), ['x']]);
      // Message ids are the same for every reader.
      assert.deepEqual(ids(rest), stream.slice(position + 1));
    }
  });

  test('the echo is a cursor of the same position', async () => {
    const peer = await Peer.open(server().port);
    let cursor = (await finished(peer, 1, 'emit 3', 'return x'))[2];
    for (let visit = 0; visit < 4; visit++) {
      const resumed = await peer.resume(cursor);
      cursor = await echoed(resumed, cursor);
      resumed.drop();
    }
    const rest = await (await peer.resume(cursor)).rest();
    assert.deepEqual([counts(rest), results(rest)], [[3], ['x']]);
  });

  test('cursor at the terminal is 204', async () => {
    const peer = await Peer.open(server().port);
    const stream = await finished(peer, 1, 'emit 2', 'return x');
    for (let visit = 0; visit < 2; visit++) {
      const reply = await peer.resume(stream.at(-1));
      assert.deepEqual([reply.status, await reply.body(), reply.headers['content-type']], [204, '', undefined]);
    }
  });

  test('trimmed cursor is a gap and is counted', ours, async (t) => {
    const { stats } = packages[line];
    const small = await serveFor(t, line, { engine: { maxEventsPerStream: 10 } });
    const peer = await Peer.open(small.port);
    const stream = await finished(peer, 1, 'emit 40', 'return x');
    // The live reader may have fallen behind ten events too, and was told so.
    const before = stats().gaps;
    const resumed = await peer.resume(stream[0]);
    await echoed(resumed, stream[0]);
    const blocks = await resumed.blocks();
    const [, first, missing] = /^gap (\d+) (\d+)$/.exec(blocks[0].comment).map(Number);
    assert.equal(first, 1);
    assert.deepEqual([counts(blocks), results(blocks)], [upTo(40, 1 + missing), ['x']]);
    assert.ok(resumed.raw.includes(`: ${blocks[0].comment}\n\n`));
    assert.equal(stats().gaps, before + 1);
    // A cursor inside what is retained meets no gap.
    const clean = await (await peer.resume(stream.at(-3))).rest();
    assert.deepEqual([counts(clean), results(clean), stats().gaps], [[40], ['x'], before + 1]);
  });

  for (const id of [5, 0, 'five', '', 'ü', '5', -7]) {
    test(`lost stream of a named request is a tombstone, ${JSON.stringify(id)}`, async () => {
      const peer = await Peer.open(server().port);
      const stream = await finished(peer, id, 'return x');
      const reply = await peer.resume(unknownLike(stream[0]));
      assert.ok(reply.status === 200 && reply.isStream);
      const events = await reply.rest();
      const [answer, ...more] = events.map(({ message }) => message).filter((message) => message !== undefined);
      assert.deepEqual([answer.id, answer.result, more], [id, undefined, []]);
      assert.ok(answer.error.code < 0);
      const tombstone = events.at(-1).id;
      assert.match(tombstone, /^[\x21-\x2b\x2d-\x7e]{1,120}$/);
      // No look-up: any session gets the same.
      for (const asking of [peer, await Peer.open(server().port)]) {
        const again = await asking.resume(tombstone);
        assert.deepEqual([again.status, await again.body()], [204, '']);
      }
    });
  }

  test('lost stream without a named request is 400', async () => {
    const peer = await Peer.open(server().port);
    // Tag and id take more than the bytes that an event id has for them.
    const stream = await finished(peer, 'r'.repeat(80), 'return x');
    assert.ok(stream.every((cursor) => cursor.length <= 120));
    assert.deepEqual(results(await (await peer.resume(stream[0])).rest()), ['x'], 'it is resumed like any other');
    assert.equal((await refusal(await peer.resume(unknownLike(stream[0]))))[0], 400);
  });

  test('unknown standalone cursor gives the own stream from its low mark', async () => {
    const peer = await Peer.open(server().port);
    const stream = await peer.listen();
    await peer.ask('standalone one', 'standalone two');
    const events = await stream.some(2);
    stream.drop();
    const reply = await peer.resume(unknownLike(lastId(events)));
    assert.equal(reply.status, 200);
    const found = [...(await reply.some(3)), ...(await reply.settle())];
    assert.deepEqual(logs(found), ['one', 'two']);
    // What the client knows of the server may be old: this server declares that its tools may change.
    const methods = found.map(({ message }) => message?.method).filter((method) => method?.endsWith('list_changed'));
    assert.deepEqual(methods, ['notifications/tools/list_changed']);
    reply.drop();
  });

  for (const cursor of ['x', '1_1', 'a', 'a'.repeat(34), `${'a'.repeat(33)}.`, `b${'A'.repeat(32)}`, 'z', 'a;b']) {
    test(`cursor not of our form is 400, ${cursor}`, async () => {
      const peer = await Peer.open(server().port);
      assert.equal((await refusal(await peer.resume(cursor)))[0], 400);
    });
  }

  test('standalone get without cursor starts after what was handed over', async () => {
    const peer = await Peer.open(server().port);
    await peer.ask('standalone one', 'standalone two');
    const first = await peer.listen();
    // Nobody has had anything yet: from the low mark.
    assert.deepEqual(logs(await first.some(2)), ['one', 'two']);
    first.drop();
    await peer.ask('standalone three');
    const second = await peer.listen();
    const found = logs(await second.settle());
    assert.ok(!found.includes('one') && !found.includes('two'));
    second.drop();
  });

  test('foreign equals unknown in status body and headers', async () => {
    const [alice, bob] = [await Peer.open(server().port), await Peer.open(server().port)];
    const name = newGate();
    const done = await finished(alice, 1, 'emit 2', `return ${name}`);
    const unnamed = await finished(alice, 'q'.repeat(90), `return ${name}`);
    const listening = await alice.listen();
    await alice.ask(`standalone ${name}`);
    const standalone = lastId(await listening.some(1));
    listening.drop();
    for (const cursor of [done[0], done[1], done.at(-1), unnamed[0], unnamed.at(-1), standalone]) {
      const foreign = await seen(await bob.resume(cursor));
      assert.deepEqual(foreign, await seen(await bob.resume(unknownLike(cursor))));
      assert.ok(!foreign[2].includes(name));
    }
    // Nor does bob's asking change anything for alice.
    assert.deepEqual(results(await (await alice.resume(done[0])).rest()), [name]);
  });

  test('duplicate id in flight', async () => {
    const peer = await Peer.open(server().port);
    const name = newGate();
    const first = await peer.call('script', { steps: [`gate ${name}`, 'return x'] }, 'same');
    await at(name);
    const [status, code] = await refusal(await peer.call('script', { steps: ['return y'] }, 'same'));
    assert.deepEqual([status, code], [400, -32600]);
    open(name);
    assert.deepEqual(results(await first.rest()), ['x']);
  });

  test('unknown session is 404 and missing session is 400', async () => {
    const peer = await Peer.open(server().port);
    const [cursor] = await finished(peer, 1, 'return x');
    const { transports } = server();
    // Straight to the transport of another session, which the test server's own routing would refuse.
    const transport = transports.get(peer.sessionId);
    transports.set('gone', transport);
    transports.set(undefined, transport);
    const ask = async () => {
      const replies = [await peer.script('return x'), await peer.get(), await peer.resume(cursor), await peer.delete()];
      return Promise.all(replies.map(refusal));
    };
    peer.sessionId = 'gone';
    const unknown = [404, -32001, 'Session not found'];
    assert.deepEqual(await ask(), [unknown, unknown, unknown, unknown]);
    peer.sessionId = undefined;
    const missing = [400, -32000, 'Bad Request: Mcp-Session-Id header is required'];
    assert.deepEqual(await ask(), [missing, missing, missing, missing]);
    transports.delete('gone');
    transports.delete(undefined);
    const uninitialized = [400, -32000, 'Bad Request: Server not initialized'];
    assert.deepEqual(await refusal(await peer.listen()), uninitialized);
  });

  for (const id of [null, 1.5, true, false, [], {}, [1]]) {
    test(`request id that json rpc forbids is 400, ${JSON.stringify(id)}`, async () => {
      const peer = await Peer.open(server().port);
      assert.equal((await refusal(await peer.post({ jsonrpc: '2.0', id, method: 'ping' })))[0], 400);
    });
  }

  for (const id of [0, -1, Number.MAX_SAFE_INTEGER, Number.MIN_SAFE_INTEGER]) {
    test(`integer ids keep their digits, ${id}`, async () => {
      const peer = await Peer.open(server().port);
      const events = await (await peer.call('script', { steps: ['emit 1', 'return x'] }, id)).rest();
      assert.ok(events.at(-1).data.includes(`"id":${id}`));
      assert.deepEqual([counts(events), results(events)], [[1], ['x']]);
      const again = await (await peer.resume(unknownLike(events[0].id))).rest();
      assert.ok(again.at(-1).data.includes(`"id":${id}`));
    });
  }

  test('integer ids that javascript cannot hold are refused', ours, async () => {
    const peer = await Peer.open(server().port);
    for (const id of ['9007199254740993', '1000000000000000000', '-9007199254740992']) {
      assert.equal((await refusal(await peer.post(`{"jsonrpc":"2.0","id":${id},"method":"ping"}`)))[0], 400);
    }
  });

  test('close and progress work for the id zero', async () => {
    const peer = await Peer.open(server().port);
    const events = await (await peer.call('script', { steps: ['emit 1', 'close', 'emit 1', 'return x'] }, 0)).rest();
    const rest = await (await peer.resume(lastId(events))).rest();
    assert.deepEqual([counts(events), counts(rest), results(rest)], [[1], [2], ['x']]);
  });

  const ping = '{"jsonrpc":"2.0","id":1,"method":"ping"}';
  const hello = '{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"x","version":"1"}}';
  const plain = {
    'no accept': ['POST', { accept: undefined }, ping],
    'json only': ['POST', { accept: 'application/json' }, ping],
    'text body': ['POST', { 'content-type': 'text/plain' }, ping],
    'no type': ['POST', { 'content-type': undefined }, ping],
    put: ['PUT', {}, '{}'],
    patch: ['PATCH', {}, '{}'],
    'get without sse': ['GET', { accept: 'application/json' }],
    'unknown version': ['POST', { 'mcp-protocol-version': '1999-01-01' }, ping],
    'unknown version of a get': ['GET', { 'mcp-protocol-version': '1999-01-01' }],
    'unknown version of a delete': ['DELETE', { 'mcp-protocol-version': '1999-01-01' }],
    'no json': ['POST', {}, '{"jsonrpc"'],
    'no message': ['POST', {}, '{"jsonrpc":"2.0","id":{}}'],
    'another version of json rpc': ['POST', {}, '{"jsonrpc":"1.0","id":1,"method":"ping"}'],
    'a member too many': ['POST', {}, '{"jsonrpc":"2.0","id":1,"method":"ping","extra":1}'],
    'initialize again': ['POST', {}, `{"jsonrpc":"2.0","id":1,"method":"initialize","params":${hello}}`],
    'a batch too long': ['POST', {}, `[${Array(101).fill(ping).join(',')}]`],
  };
  for (const [what, [method, change, body]] of Object.entries(plain)) {
    test(`everything else is answered as the sdk does, ${what}`, ours, async () => {
      const answers = [];
      for (const { port } of [server(), stock]) {
        const peer = await Peer.open(port);
        const headers = {
          accept: 'application/json, text/event-stream',
          ...(body !== undefined && { 'content-type': 'application/json' }),
          'mcp-session-id': peer.sessionId,
          'mcp-protocol-version': peer.revision,
          ...change,
        };
        const sent = Object.entries(headers).filter(([, value]) => value !== undefined);
        const reply = await request(port, method, Object.fromEntries(sent), body);
        const { 'content-type': type, allow, 'mcp-session-id': id } = reply.headers;
        answers.push([reply.status, await reply.json(), type, allow, id !== undefined]);
        assert.equal(await peer.ask('return x'), 'x', 'and the session is as before');
      }
      assert.ok(answers[1][0] >= 400);
      assert.deepEqual(answers[0], answers[1]);
    });
  }

  test('sse headers are those of the sdk', ours, async () => {
    const headers = async ({ port }) => {
      const peer = await Peer.open(port);
      const found = [];
      for (const reply of [await peer.script('sleep 10', 'return x'), await peer.listen()]) {
        assert.equal(reply.headers['mcp-session-id'], peer.sessionId);
        const { date, 'mcp-session-id': _, connection, 'transfer-encoding': __, ...rest } = reply.headers;
        // On a busy machine the answer may be whole before its head goes out.
        delete rest['content-length'];
        found.push(rest);
        reply.drop();
      }
      return found;
    };
    const [mine, theirs] = [await headers(server()), await headers(stock)];
    for (const [index, expected] of theirs.entries()) {
      assert.equal(mine[index]['x-accel-buffering'], 'no');
      assert.deepEqual(mine[index], { ...expected, 'x-accel-buffering': 'no' });
    }
  });
});
