// What a request is answered with. (the table of answers, W-011 to W-017, W-080 to W-094)
import assert from 'node:assert/strict';
import { after, before, describe, test } from 'node:test';

import { Peer, counts, lastId, logs, results } from './kit/raw.mjs';
import { LINES, marked, newGate, open, serve } from './kit/servers.mjs';

async function refusal(reply) {
  const { error, id } = JSON.parse(await reply.body());
  assert.equal(id, null);
  return [reply.status, error.code, error.message];
}

for (const line of LINES) {
  describe(line, () => {
    let server;
    before(async () => {
      server = await serve(line);
    });
    after(() => server.close());

    test('f16 result stays readable from every cursor', async () => {
      const peer = await Peer.open(server.port);
      const events = await (await peer.script('emit 3', 'return x')).rest();
      for (const [seen, event] of events.slice(0, -1).entries()) {
        const rest = await (await peer.resume(event.id)).rest();
        assert.deepEqual([counts(rest), results(rest)], [[1, 2, 3].slice(seen), ['x']]);
      }
    });

    test('cursor at the terminal is 204', async () => {
      const peer = await Peer.open(server.port);
      const events = await (await peer.script('return x')).rest();
      const reply = await peer.resume(lastId(events));
      assert.deepEqual([reply.status, await reply.body()], [204, '']);
    });

    test('f23 resumed connection ends after the response', async () => {
      const peer = await Peer.open(server.port);
      const gate = newGate();
      const events = await (await peer.script('close', `gate ${gate}`, 'return x')).rest();
      const resumed = await peer.resume(lastId(events));
      assert.ok((await resumed.event()).isPriming);
      open(gate);
      assert.deepEqual(results(await resumed.rest()), ['x']);
    });

    test('f26 resume that delivers nothing gives a new id and retry', async () => {
      const peer = await Peer.open(server.port);
      const gate = newGate();
      const events = await (await peer.script('close', `gate ${gate}`)).rest();
      const resumed = await peer.resume(lastId(events));
      const echo = await resumed.event();
      assert.ok(echo.isPriming && echo.retry === 20 && echo.id !== lastId(events));
      resumed.drop();
      open(gate);
    });

    test('f19 lost stream fails the request it names', async () => {
      const peer = await Peer.open(server.port);
      const other = await Peer.open(server.port);
      const events = await (await other.script('emit 1', 'return secret')).rest();
      const reply = await peer.resume(events[0].id);
      const [tombstone] = await reply.rest();
      assert.equal(reply.status, 200);
      assert.ok(tombstone.id.startsWith('z') && tombstone.message.error.code < 0);
      assert.equal(tombstone.message.id, 1);
      assert.equal((await peer.resume(tombstone.id)).status, 204);
    });

    test('f19 unknown cursor without a request is refused', async () => {
      const peer = await Peer.open(server.port);
      const reply = await peer.resume('no-cursor-of-ours');
      assert.equal(reply.status, 400);
      assert.ok(JSON.parse(await reply.body()).error.code < 0);
    });

    test('unknown session is 404 and missing session is 400', async () => {
      const peer = await Peer.open(server.port);
      const transport = server.transports.get(peer.sessionId);
      // Straight to the transport of another session, which the test server's own routing would refuse.
      server.transports.set('gone', transport);
      server.transports.set(undefined, transport);
      peer.sessionId = 'gone';
      assert.deepEqual(await refusal(await peer.listen()), [404, -32001, 'Session not found']);
      peer.sessionId = undefined;
      const missing = [400, -32000, 'Bad Request: Mcp-Session-Id header is required'];
      assert.deepEqual(await refusal(await peer.listen()), missing);
      server.transports.delete(undefined);
      const uninitialized = [400, -32000, 'Bad Request: Server not initialized'];
      assert.deepEqual(await refusal(await peer.listen()), uninitialized);
    });

    test('f08 duplicate id in flight is refused and the first is untouched', async () => {
      const peer = await Peer.open(server.port);
      const gate = newGate();
      const first = await peer.call('script', { steps: [`gate ${gate}`, 'return first'] }, 7);
      await marked(`at ${gate}`);
      const again = await peer.call('script', { steps: ['return again'] }, 7);
      const [status, code] = await refusal(again);
      assert.deepEqual([status, code], [400, -32600]);
      open(gate);
      assert.deepEqual(results(await first.rest()), ['first']);
    });

    test('f08 number and text ids are two requests', async () => {
      const peer = await Peer.open(server.port);
      const gate = newGate();
      const one = await peer.call('script', { steps: [`gate ${gate}`, 'return number'] }, 5);
      const two = await peer.call('script', { steps: [`gate ${gate}`, 'return text'] }, '5');
      open(gate);
      assert.deepEqual([results(await one.rest()), results(await two.rest())], [['number'], ['text']]);
    });

    test('f09 request id cannot name the standalone stream', async () => {
      const peer = await Peer.open(server.port);
      const stream = await peer.listen();
      const reply = await peer.call('script', { steps: ['standalone note', 'return x'] }, '_GET_stream');
      assert.deepEqual(logs(await stream.some(1)), ['note']);
      assert.deepEqual(results(await reply.rest()), ['x']);
      stream.drop();
    });

    test('close and progress work for the id zero', async () => {
      const peer = await Peer.open(server.port);
      const events = await (await peer.call('script', { steps: ['emit 1', 'close', 'emit 1', 'return x'] }, 0)).rest();
      const rest = await (await peer.resume(lastId(events))).rest();
      assert.deepEqual([counts(events), counts(rest), results(rest)], [[1], [2], ['x']]);
    });

    test('malformed requests are refused', async () => {
      const peer = await Peer.open(server.port);
      const refused = async (body, headers) => refusal(await peer.post(body, headers));
      const call = { jsonrpc: '2.0', id: 1, method: 'ping' };
      assert.deepEqual(await refused('{"a":'), [400, -32700, 'Parse error: Invalid JSON']);
      const invalid = [400, -32700, 'Parse error: Invalid JSON-RPC message'];
      for (const body of [
        { jsonrpc: '1.0', id: 1, method: 'ping' },
        { ...call, id: null },
        { ...call, id: 1.5 },
        { ...call, id: true },
        { ...call, extra: 1 },
        '{"jsonrpc":"2.0","id":9007199254740993,"method":"ping"}',
        '{"jsonrpc":"2.0","id":1,"id":2,"method":"ping"}',
        '[]',
        '5',
      ]) {
        assert.deepEqual(await refused(body), invalid, JSON.stringify(body));
      }
      const both = 'Not Acceptable: Client must accept both application/json and text/event-stream';
      assert.deepEqual(await refused(call, { accept: 'application/json' }), [406, -32000, both]);
      const type = 'Unsupported Media Type: Content-Type must be application/json';
      assert.deepEqual(await refused(call, { 'content-type': 'text/plain' }), [415, -32000, type]);
      const [status, code, message] = await refused(call, { 'mcp-protocol-version': '1999-01-01' });
      assert.deepEqual([status, code], [400, -32000]);
      assert.match(message, /^Bad Request: Unsupported protocol version: 1999-01-01 \(supported versions: 2025-11-25, /);
      const initialize = { jsonrpc: '2.0', id: 2, method: 'initialize', params: {} };
      assert.deepEqual(await refused(initialize), [400, -32600, 'Invalid Request: Server already initialized']);
      const many = Array.from({ length: 101 }, (_, id) => ({ ...call, id }));
      assert.deepEqual(await refused(many), [400, -32600, 'Invalid Request: Batch must not exceed 100 messages']);
      assert.equal(await peer.ask('return x'), 'x', 'and the session is as before');
    });

    test('sse headers are those of the sdk', async () => {
      const peer = await Peer.open(server.port);
      const reply = await peer.script('sleep 10', 'return x');
      assert.equal(reply.headers['content-type'], 'text/event-stream');
      assert.equal(reply.headers['cache-control'], 'no-cache, no-transform');
      assert.equal(reply.headers['x-accel-buffering'], 'no');
      assert.equal(reply.headers['mcp-session-id'], peer.sessionId);
      await reply.rest();
    });

    test('deleted session is 404 for every method', async () => {
      const peer = await Peer.open(server.port);
      const transport = server.transports.get(peer.sessionId);
      const stream = await peer.listen();
      await stream.event();
      const gate = newGate();
      const running = await peer.script('emit 1', `gate ${gate}`);
      await running.some(1);
      assert.equal((await peer.delete()).status, 200);
      assert.deepEqual(await stream.rest(), []);
      assert.ok(results(await running.rest())[0].code < 0, 'the running call gets its end');
      server.transports.set(peer.sessionId, transport);
      for (const reply of [await peer.listen(), await peer.script('return x'), await peer.delete()]) {
        assert.deepEqual(await refusal(reply), [404, -32001, 'Session not found']);
      }
      open(gate);
    });
  });
}
