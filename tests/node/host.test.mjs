// What the host's side sees: options and methods of the SDKs' classes, on our transport.
import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import http from 'node:http';
import { after, before, describe, test } from 'node:test';

import { requireScopes } from '@modelcontextprotocol/server';
import express from 'express';

import { Peer, counts, request, results, sleep } from './kit/raw.mjs';
import { LINES, classes, connectServer, marked, newGate, open, packages, serve } from './kit/servers.mjs';

const json = async (reply) => JSON.parse(await reply.body());

/** Whatever `handle` does, on a port. */
async function listen(handle) {
  const server = http.createServer(handle);
  await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));
  const close = () => {
    server.closeAllConnections();
    server.close();
  };
  return { port: server.address().port, close };
}

for (const line of LINES) {
  describe(line, () => {
    let server;
    before(async () => {
      server = await serve(line);
    });
    after(() => server.close());

    test('handlers see the http request', async () => {
      const peer = await Peer.open(server.port, undefined, { 'x-mark': 'seen' });
      assert.deepEqual(results(await (await peer.call('header', { name: 'x-mark' })).rest()), ['seen /mcp']);
    });

    test('cancelled request gets its terminal', async () => {
      const peer = await Peer.open(server.port);
      const reply = await peer.script('emit 1', 'wait_cancel');
      await reply.some(1);
      const cancel = { method: 'notifications/cancelled', params: { requestId: 1, reason: 'test' } };
      assert.equal((await peer.post({ jsonrpc: '2.0', ...cancel })).status, 202);
      assert.equal(results(await reply.rest())[0].code, -32800);
    });

    test('cancelling nothing harms nothing', async () => {
      const peer = await Peer.open(server.port);
      const cancel = { method: 'notifications/cancelled', params: { requestId: 77 } };
      assert.equal((await peer.post({ jsonrpc: '2.0', ...cancel })).status, 202);
      assert.equal(await peer.ask('return x'), 'x');
    });

    test('a response that is no json is an error', async () => {
      const peer = await Peer.open(server.port);
      const reply = await peer.script('emit 1', 'wait_cancel');
      await reply.some(1);
      await server.transports.get(peer.sessionId).send({ jsonrpc: '2.0', id: 1, result: { big: 1n } });
      assert.equal(results(await reply.rest())[0].code, -32603);
    });

    test('batches share one stream that is resumed whole', async () => {
      const peer = await Peer.open(server.port, '2025-03-26');
      const gate = newGate();
      const call = (id, ...steps) => ({
        jsonrpc: '2.0',
        id,
        method: 'tools/call',
        params: { name: 'script', arguments: { steps }, _meta: { progressToken: id } },
      });
      const batch = [call(1, 'emit 1', `gate ${gate}`, 'return one'), call(2, `gate ${gate}`, 'return two')];
      const reply = await peer.post(batch);
      const [first] = await reply.some(1);
      reply.drop();
      open(gate);
      const rest = await (await peer.resume(first.id)).rest();
      assert.deepEqual(results(rest).sort(), ['one', 'two']);
    });

    test('json response mode', async () => {
      const json_server = await serve(line, { enableJsonResponse: true });
      const peer = await Peer.open(json_server.port);
      const reply = await peer.script('emit 2', 'close', 'return x');
      assert.equal(reply.headers['content-type'], 'application/json');
      assert.equal((await json(reply)).result.content[0].text, 'x');
      const ping = (id) => ({ jsonrpc: '2.0', id, method: 'ping' });
      const both = await json(await peer.post([ping(1), ping(2), { jsonrpc: '2.0', method: 'notifications/x' }]));
      assert.deepEqual(both, [
        { jsonrpc: '2.0', id: 1, result: {} },
        { jsonrpc: '2.0', id: 2, result: {} },
      ]);
      const running = peer.call('script', { steps: ['wait_cancel'] }, 9);
      await marked('waiting');
      const refused = await json(await peer.post([ping(3), ping(9)]));
      assert.equal(refused.error.code, -32600);
      await peer.post({ jsonrpc: '2.0', method: 'notifications/cancelled', params: { requestId: 9 } });
      assert.equal((await json(await running)).error.code, -32800);
      await json_server.close();
    });

    test('stateless mode serves without sessions', async () => {
      const stateless = await listen(async (req, res) => {
        const transport = new classes[line]({ sessionIdGenerator: undefined });
        await connectServer(line, transport);
        await transport.handleRequest(req, res);
      });
      const reply = await new Peer(stateless.port).script('return x');
      const events = await reply.rest();
      assert.deepEqual(results(events), ['x']);
      assert.deepEqual([events[0].id, reply.headers['mcp-session-id']], [undefined, undefined]);
      stateless.close();
    });

    test('express with a body parser', async () => {
      const transports = new Map();
      const app = express();
      app.use(express.json());
      app.all('/mcp', async (req, res) => {
        let transport = transports.get(req.headers['mcp-session-id']);
        if (transport === undefined) {
          transport = new classes[line]({
            sessionIdGenerator: () => randomUUID(),
            onsessioninitialized: (id) => void transports.set(id, transport),
          });
          await connectServer(line, transport);
        }
        await transport.handleRequest(req, res, req.body);
      });
      const host = await listen(app);
      const peer = await Peer.open(host.port);
      assert.equal(await peer.ask('emit 3', 'return x'), 'x');
      const stream = await peer.listen();
      assert.equal((await stream.event()).retry, 3_000);
      assert.equal((await peer.delete()).status, 200);
      host.close();
    });

    test('dns rebinding is refused also on resumes', async () => {
      const strict = await serve(line, { enableDnsRebindingProtection: true, allowedHosts: ['good'] });
      const peer = await Peer.open(strict.port, undefined, { host: 'good' });
      const events = await (await peer.script('emit 1', 'return x')).rest();
      peer.headers.host = 'evil';
      for (const reply of [await peer.resume(events[0].id), await peer.script('return y')]) {
        assert.deepEqual((await json(reply)).error, { code: -32000, message: 'Invalid Host header: evil' });
        assert.equal(reply.status, 403);
      }
      await strict.close();
    });

    test('body limit is 413', async () => {
      const small = await serve(line, { maxRequestBodySize: 1_000 });
      const peer = await Peer.open(small.port);
      const message = 'Payload Too Large: Request body must not exceed 1000 bytes';
      const reply = await peer.post('x'.repeat(2_000));
      assert.deepEqual([reply.status, (await json(reply)).error], [413, { code: -32000, message }]);
      assert.equal(await peer.ask('return x'), 'x');
      await small.close();
    });

    test('session callbacks run once, and close ends the session', async () => {
      const seen = [];
      let transport;
      const host = await listen(async (req, res) => {
        if (transport === undefined) {
          transport = new classes[line]({
            sessionIdGenerator: () => 'only',
            onsessioninitialized: async (id) => seen.push(`initialized ${id}`),
            onsessionclosed: async (id) => seen.push(`closed ${id}`),
          });
          const mcp = await connectServer(line, transport);
          mcp.server.onclose = () => seen.push('onclose');
        }
        await transport.handleRequest(req, res);
      });
      const peer = await Peer.open(host.port);
      assert.equal(transport.sessionId, 'only');
      const stream = await peer.listen();
      await stream.event();
      await peer.delete();
      await transport.close();
      assert.deepEqual(await stream.rest(), []);
      assert.deepEqual(seen, ['initialized only', 'closed only', 'onclose']);
      host.close();
    });

    test('the transport closes streams by request id', async () => {
      const peer = await Peer.open(server.port);
      const transport = server.transports.get(peer.sessionId);
      const gate = newGate();
      const reply = await peer.script('emit 1', `gate ${gate}`, 'return x');
      const events = await reply.some(1);
      transport.closeSSEStream(1, { retryMs: 77 });
      events.push(...(await reply.rest()));
      const resumed = await peer.resume(events.findLast(({ id }) => id).id);
      assert.equal((await resumed.event()).retry, 77);
      open(gate);
      assert.deepEqual(results(await resumed.rest()), ['x']);
    });

    test('f51 session with a running tool is not idle, one without ends', async () => {
      const { EventStore } = packages[line];
      const idle = await serve(line, { eventStore: new EventStore('memory:', { sessionIdleMs: 60 }) });
      const [busy, done] = [await Peer.open(idle.port), await Peer.open(idle.port)];
      const gate = newGate();
      const reply = await busy.script('emit 1', `gate ${gate}`, 'return x');
      await reply.some(1);
      assert.equal(await done.ask('return y'), 'y');
      const closed = new Set();
      for (const [id, transport] of idle.transports) {
        const before = transport.onclose;
        transport.onclose = () => {
          closed.add(id);
          before?.();
        };
      }
      for (let wait = 0; closed.size === 0 && wait < 300; wait++) {
        await sleep(10);
      }
      assert.deepEqual([...closed], [done.sessionId]);
      open(gate);
      assert.deepEqual(results(await reply.rest()), ['x']);
      await idle.close();
    });

    test('wrong options are refused at once', () => {
      const { EventStore } = packages[line];
      assert.throws(() => new EventStore('redis:'), /unknown event store/);
      assert.throws(() => new EventStore('memory:', { retryms: 1 }), /unknown option retryms/);
      assert.throws(() => new EventStore('memory:', { maxBytes: -1 }), { code: 'invalid_argument' });
    });

    test('event too large fails with its size', async () => {
      const { EventStore } = packages[line];
      const small = await serve(line, { eventStore: new EventStore('memory:', { maxEventBytes: 1_000 }) });
      const peer = await Peer.open(small.port);
      const events = await (await peer.script('emit 1', `return ${'x'.repeat(5_000)}`)).rest();
      assert.deepEqual(counts(events), [1]);
      assert.match(results(events)[0].message, /\b5\d{3}\b/);
      await small.close();
    });
  });
}

test('v2 challenges a scope that is missing before the tool is called', async () => {
  let called = 0;
  const host = await listen(async (req, res) => {
    req.auth = { token: 't', clientId: 'c', scopes: [] };
    transport ??= await make();
    await transport.handleRequest(req, res);
  });
  let transport;
  async function make() {
    const made = new classes.v2({ sessionIdGenerator: () => 'one' });
    const mcp = await connectServer('v2', made);
    mcp.registerTool('guarded', { scopeChallenge: requireScopes('write') }, () => {
      called += 1;
      return { content: [] };
    });
    return made;
  }
  const peer = await Peer.open(host.port);
  const reply = await peer.call('guarded', {});
  assert.equal(reply.status, 403);
  assert.match(reply.headers['www-authenticate'], /insufficient_scope.*write/);
  assert.equal(called, 0);
  host.close();
});

test('a reader that sends half a body blocks nobody', async () => {
  const server = await serve('v2');
  const half = http.request({ port: server.port, path: '/mcp', method: 'POST', agent: false });
  half.on('error', () => {});
  half.write('{"jsonrpc"');
  const peer = await Peer.open(server.port);
  assert.equal(await peer.ask('return x'), 'x');
  half.destroy();
  assert.equal((await request(server.port, 'DELETE', { 'mcp-session-id': peer.sessionId })).status, 200);
  assert.deepEqual(server.errors, []);
  await server.close();
});
