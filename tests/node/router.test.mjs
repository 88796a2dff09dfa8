// createSessionRouter, on both SDK lines and through both of its faces. What its sessions are on the wire tests/wire says:
// the servers there are routed so.
import assert from 'node:assert/strict';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe } from 'node:test';

import { getRequestListener } from '@hono/node-server';
import express from 'express';
import Fastify from 'fastify';
import { buildServer } from '../servers/node/tools.mjs';
import { listen, newGate, packages } from '../servers/node/transports.mjs';
import { counts, lastId, NEWEST, Peer, request, results, until, within } from './kit/raw.mjs';
import { LINES, ours, test } from './kit/test.mjs';

const HEADERS = { accept: 'application/json, text/event-stream', 'content-type': 'application/json' };
const initialize = JSON.stringify({
  jsonrpc: '2.0',
  id: 'first',
  method: 'initialize',
  params: { protocolVersion: NEWEST, capabilities: {}, clientInfo: { name: 'x', version: '1' } },
});
const list = '{"jsonrpc":"2.0","id":7,"method":"tools/list"}';

/** How a face of a router is served: by what people put in front of it. */
const hosts = {
  node: (router) => listen((req, res) => router.node(req, res)),
  fetch: (router) => listen(getRequestListener((request) => router.fetch(request))),
  async express(router) {
    const app = express();
    app.use(express.json());
    app.all('/mcp', router.node);
    return listen(app);
  },
  async fastify(router) {
    const app = Fastify();
    app.all('/mcp', async (request, reply) => {
      reply.hijack();
      await router.node(request.raw, reply.raw, request.body);
    });
    await app.listen({ host: '127.0.0.1', port: 0 });
    return {
      port: app.server.address().port,
      close() {
        app.server.closeAllConnections();
        return app.close();
      },
    };
  },
};

for (const line of LINES) {
  for (const [face, host] of Object.entries(hosts)) {
    /** A router that is served until the test ends. */
    const routed = async (t, makeServer, options) => {
      const router = packages[line].createSessionRouter(makeServer, { retryInterval: 20, ...options });
      const { port, close } = await host(router);
      t.after(async () => {
        await router.close();
        await close();
      });
      return { router, port };
    };

    describe(`${line} ${face}`, () => {
      test('a call goes on behind a close, and sessions end', ours, async (t) => {
        const contexts = [];
        const ended = [];
        const { router, port } = await routed(
          t,
          (context) => {
            contexts.push(context);
            return buildServer(line);
          },
          { onsessionclosed: (id) => void ended.push(id) },
        );
        const peer = await Peer.open(port, undefined, { 'x-seen': 'yes' });
        const before = await (await peer.script('emit 2', 'close', 'emit 1', 'return x')).rest();
        const after = await (await peer.resume(lastId(before))).untilTerminal();
        assert.deepEqual([counts([...before, ...after]), results(after)], [[1, 2, 3], ['x']]);
        assert.equal(contexts.length, 1);
        assert.equal(new Headers(contexts[0].requestInfo.headers).get('x-seen'), 'yes');
        assert.equal(router.servers().length, 1);
        assert.equal((await peer.delete()).status, 200);
        assert.deepEqual([router.servers(), ended], [[], [peer.sessionId]]);
        assert.equal((await peer.script('return late')).status, 404);
      });

      test('only an initialize that is not refused makes a server', ours, async (t) => {
        const errors = [];
        let closed = 0;
        let made = 0;
        const { port, router } = await routed(
          t,
          () => {
            made += 1;
            const server = buildServer(line);
            server.server.onclose = () => void (closed += 1);
            return server;
          },
          {
            onerror: (error) => errors.push(error.message),
            enableDnsRebindingProtection: true,
            allowedOrigins: ['http://here.example'],
          },
        );
        const answered = async (method, headers, body) => {
          const reply = await request(port, method, headers, body);
          return [reply.status, JSON.parse(await reply.body()).error.code];
        };
        const unknown = { ...HEADERS, 'mcp-session-id': 'unknown' };
        assert.deepEqual(await answered('POST', unknown, list), [404, -32001]);
        assert.deepEqual(
          await answered('GET', { accept: 'text/event-stream', 'mcp-session-id': 'unknown' }),
          [404, -32001],
        );
        assert.deepEqual(await answered('DELETE', { 'mcp-session-id': 'unknown' }), [404, -32001]);
        assert.deepEqual(await answered('POST', HEADERS, list), [400, -32000]);
        assert.deepEqual(await answered('GET', { accept: 'text/event-stream' }), [400, -32000]);
        // As the SDKs' transports report it; who asks for a session that is over concerns nobody else.
        assert.deepEqual(errors, ['Bad Request: Server not initialized', 'Bad Request: Server not initialized']);
        assert.equal(made, 0);
        assert.deepEqual(await answered('POST', { ...HEADERS, accept: 'text/html' }, initialize), [406, -32000]);
        const origin = { ...HEADERS, origin: 'http://evil.example' };
        assert.deepEqual(await answered('POST', origin, initialize), [403, -32000]);
        // Nobody needs a server for what is refused.
        assert.deepEqual([made, closed, router.servers()], [0, 0, []]);
      });

      test(
        'a function for servers that fails is answered with 500, and the next session is served',
        ours,
        async (t) => {
          const errors = [];
          const faults = [
            () => {
              throw new Error('no database');
            },
            async () => Promise.reject(new Error('no database')),
            () => ({ connect: async () => Promise.reject(new Error('no database')), close: async () => {} }),
          ];
          const { port } = await routed(t, () => (faults.shift() ?? (() => buildServer(line)))(), {
            onerror: (error) => errors.push(error.message),
          });
          for (const _ of [1, 2, 3]) {
            const reply = await request(port, 'POST', HEADERS, initialize);
            assert.equal(reply.status, 500);
            const { id, error } = JSON.parse(await reply.body());
            assert.deepEqual([id, error.code], ['first', -32603]);
          }
          assert.deepEqual(errors, ['no database', 'no database', 'no database']);
          assert.equal(await (await Peer.open(port)).ask('return x'), 'x');
        },
      );

      test('a session that its user refuses to open leaves nothing behind', ours, async (t) => {
        const { sessions } = packages[line].stats();
        let closed = 0;
        const makeServer = () => {
          const server = buildServer(line);
          server.server.onclose = () => void (closed += 1);
          return server;
        };
        const onsessioninitialized = () => {
          throw new Error('no place');
        };
        const { port, router } = await routed(t, makeServer, { onsessioninitialized });
        for (const _ of [1, 2, 3]) {
          const reply = await request(port, 'POST', HEADERS, initialize);
          assert.equal(reply.status, 400);
          await reply.body();
        }
        await until(() => closed === 3);
        assert.deepEqual([router.servers(), packages[line].stats().sessions], [[], sessions]);
      });

      test(
        'a session whose server is made while the router closes is refused, and its server closed',
        ours,
        async (t) => {
          const { sessions } = packages[line].stats();
          let closed = 0;
          let finish;
          const finished = new Promise((resolve) => (finish = resolve));
          let isMaking = false;
          const { port, router } = await routed(t, async () => {
            isMaking = true;
            await finished;
            const server = buildServer(line);
            server.server.onclose = () => void (closed += 1);
            return server;
          });
          const asked = request(port, 'POST', HEADERS, initialize);
          await until(() => isMaking);
          await router.close();
          finish();
          assert.equal((await asked).status, 404);
          await until(() => closed === 1);
          assert.deepEqual([router.servers(), packages[line].stats().sessions], [[], sessions]);
        },
      );

      test('an onerror that throws changes no answer', ours, async (t) => {
        const onerror = () => {
          throw new Error('no log');
        };
        const { port } = await routed(t, () => buildServer(line), { onerror });
        const peer = await Peer.open(port);
        for (const headers of [{}, { 'mcp-session-id': peer.sessionId, 'mcp-protocol-version': NEWEST }]) {
          const reply = await request(port, 'POST', { ...HEADERS, ...headers, accept: 'text/html' }, list);
          assert.equal(reply.status, 406);
          await reply.body();
        }
        assert.equal(await peer.ask('return x'), 'x');
      });

      test('i7 the options reach the transports', ours, async (t) => {
        const opened = [];
        const { port } = await routed(t, () => buildServer(line), {
          principal: (request) => new Headers(request.headers).get('x-name'),
          sessionIdGenerator: () => `named-${opened.length}`,
          onsessioninitialized: (id) => void opened.push(id),
          maxRequestBodySize: 2_000,
        });
        const owner = await Peer.open(port, undefined, { 'x-name': 'alice' });
        const other = new Peer(port, undefined, { 'x-name': 'bob' });
        other.sessionId = owner.sessionId;
        assert.deepEqual(opened, ['named-0']);
        assert.equal((await other.script('return mine')).status, 404);
        assert.equal(await owner.ask('return mine'), 'mine');
        const padded = { ...JSON.parse(initialize), padding: 'x'.repeat(2_000) };
        if (!['express', 'fastify'].includes(face)) {
          const reply = await request(port, 'POST', HEADERS, JSON.stringify(padded));
          assert.equal(reply.status, 413);
        }
      });

      test('a session of another router is served from the store', ours, async (t) => {
        const { EventStore, openStore } = packages[line];
        const folder = mkdtempSync(join(tmpdir(), 'tailrope-router-'));
        t.after(() => rmSync(folder, { recursive: true, force: true }));
        const path = `sqlite:${join(folder, 'events.db')}`;
        const stores = [new EventStore(await openStore(path)), new EventStore(await openStore(path))];
        const [here, there] = await Promise.all(
          stores.map((eventStore) => routed(t, () => buildServer(line), { eventStore })),
        );
        const peer = await Peer.open(here.port);
        const before = await (await peer.script('emit 2', 'close', 'emit 1', 'return x')).rest();
        const elsewhere = new Peer(there.port);
        elsewhere.sessionId = peer.sessionId;
        const after = await (await elsewhere.resume(lastId(before))).untilTerminal();
        assert.deepEqual([counts([...before, ...after]), results(after)], [[1, 2, 3], ['x']]);
        assert.deepEqual([here.router.servers().length, there.router.servers().length], [1, 0]);
      });

      test('the kill switch leaves the SDKs own transports', ours, async (t) => {
        process.env.TAILROPE_DISABLE = '1';
        t.after(() => delete process.env.TAILROPE_DISABLE);
        const { port, router } = await routed(t, () => buildServer(line));
        const before = packages[line].stats().sessions;
        const peer = await Peer.open(port);
        assert.equal(await peer.ask('return stock'), 'stock');
        assert.equal(packages[line].stats().sessions, before);
        assert.equal(router.servers().length, 1);
        assert.equal((await request(port, 'POST', { ...HEADERS, 'mcp-session-id': 'unknown' }, list)).status, 404);
        assert.equal((await request(port, 'POST', HEADERS, list)).status, 400);
        assert.equal((await peer.delete()).status, 200);
        assert.equal(router.servers().length, 0);
      });
    });
  }
}

for (const line of LINES) {
  test(`${line}: a request that its caller has given up is answered with 499`, ours, async (t) => {
    const router = packages[line].createSessionRouter(() => buildServer(line));
    t.after(() => router.close());
    const asked = (init, options) =>
      within(router.fetch(new Request('http://localhost/mcp', { headers: HEADERS, ...init }), options));
    const opened = await asked({ method: 'POST', body: initialize });
    await opened.text();
    const sessionId = opened.headers.get('mcp-session-id');
    const headers = { ...HEADERS, 'mcp-session-id': sessionId, 'mcp-protocol-version': NEWEST };
    assert.equal((await asked({ headers, signal: AbortSignal.abort() })).status, 499);
    const params = { name: 'script', arguments: { steps: [`gate ${newGate()}`] } };
    const parsedBody = { jsonrpc: '2.0', id: 7, method: 'tools/call', params };
    const caller = new AbortController();
    const { signal } = caller;
    const called = asked({ method: 'POST', headers, signal, body: JSON.stringify(parsedBody) }, { parsedBody });
    caller.abort();
    assert.equal((await called).status, 499);
  });
}

test('a router needs a function', ours, () => {
  for (const line of LINES) {
    assert.throws(() => packages[line].createSessionRouter({}), { code: 'invalid_argument' });
  }
});
