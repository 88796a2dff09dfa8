// What others put around the methods of the SDKs' classes, as tracing does: it runs around ours as often as around the SDKs' own.
import assert from 'node:assert/strict';
import { readdirSync, readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { dirname, join } from 'node:path';
import { describe } from 'node:test';

import { getRequestListener } from '@hono/node-server';
import { NodeStreamableHTTPServerTransport } from '@modelcontextprotocol/node';
import { StreamableHTTPServerTransport } from '@modelcontextprotocol/sdk/server/streamableHttp.js';
import { WebStandardStreamableHTTPServerTransport as WebV1 } from '@modelcontextprotocol/sdk/server/webStandardStreamableHttp.js';
import { WebStandardStreamableHTTPServerTransport as WebV2 } from '@modelcontextprotocol/server';

import { LabStore } from '../servers/node/stores.mjs';
import { buildServer } from '../servers/node/tools.mjs';
import { acting, classes, listen, newGate, open, packages, serve, webClasses } from '../servers/node/transports.mjs';
import { ACCEPT, counts, lastId, Peer, request, results } from './kit/raw.mjs';
import { LINES, ours, test } from './kit/test.mjs';

const STOCK = { v1: [StreamableHTTPServerTransport, WebV1], v2: [NodeStreamableHTTPServerTransport, WebV2] };
const TYPES = { v1: ['@modelcontextprotocol/sdk/server/streamableHttp.js'], v2: ['@modelcontextprotocol/server'] };

/** What the types of an SDK line keep private. */
function privates(line) {
  const folder = dirname(createRequire(import.meta.url).resolve(TYPES[line][0]));
  const types = readdirSync(folder).filter((file) => /\.d\.c?ts$/.test(file));
  const text = types.map((file) => readFileSync(join(folder, file), 'utf8')).join('\n');
  return new Set([...text.matchAll(/\bprivate (?:readonly )?(\w+)/g)].map(([, name]) => name));
}

/** Puts something around every public method and accessor of these classes, until the test ends: what was called, how often. */
function wrapped(t, line, { isLate = false } = {}) {
  const calls = {};
  const hidden = privates(line);
  for (const { prototype, name: of } of STOCK[line]) {
    const all = Object.entries(Object.getOwnPropertyDescriptors(prototype));
    for (const [name, stock] of all.filter(([name]) => name !== 'constructor' && !hidden.has(name))) {
      const around = (kind, call) =>
        call &&
        function (...args) {
          const key = `${of}.${name}${kind}`;
          calls[key] = (calls[key] ?? 0) + 1;
          const isAsync = isLate && ['handleRequest', 'send', 'start'].includes(name);
          return isAsync ? Promise.resolve().then(() => call.apply(this, args)) : call.apply(this, args);
        };
      const { value, get, set } = stock;
      const changed =
        value === undefined ? { get: around(' get', get), set: around(' set', set) } : { value: around('', value) };
      Object.defineProperty(prototype, name, { ...stock, ...changed });
      t.after(() => Object.defineProperty(prototype, name, stock));
    }
  }
  return calls;
}

/** Everything that a session has: calls, questions, closes, streams, the end. */
async function exchange(port) {
  const peer = await Peer.open(port);
  const before = await (await peer.script('emit 2', 'close', 'emit 1', 'return x')).rest();
  const after = await (await peer.resume(lastId(before))).untilTerminal();
  assert.deepEqual([counts([...before, ...after]), results(after)], [[1, 2, 3], ['x']]);
  const name = newGate();
  const call = await peer.call('act', { name });
  const ctx = await acting(name);
  const listening = await peer.listen();
  await ctx.standalone('hello');
  await listening.some(1);
  assert.deepEqual(results(await (await peer.script('close_standalone', 'return y')).rest()), ['y']);
  await listening.rest();
  open(name);
  assert.deepEqual(results(await call.rest()), [name]);
  assert.equal((await peer.delete()).status, 200);
}

/** What a server is on the SDK's own classes and on ours: each a listener. */
const SERVERS = {
  node: (line, stock) => serve(line, { stock }),
  web: (line, stock) => serve(line, { stock, web: true }),
  'router node': (line, stock) => serve(line, stock ? { stock } : { routed: true }),
  'router fetch': (line, stock) => serve(line, stock ? { stock, web: true } : { routed: true, web: true }),
  'handler node': (line, stock) => (stock ? serve(line, { stock }) : handled((handler) => handler.node)),
  'handler fetch': (line, stock) =>
    stock ? serve(line, { stock, web: true }) : handled((handler) => getRequestListener(handler.fetch)),
};

async function handled(listenerOf) {
  const handler = packages.v2.createResumableMcpHandler(() => buildServer('v2'), { retryInterval: 20 });
  const host = await listen(listenerOf(handler));
  return { port: host.port, close: () => handler.close().then(() => host.close()) };
}

for (const line of LINES) {
  describe(line, () => {
    for (const [name, start] of Object.entries(SERVERS).filter(
      ([name]) => line === 'v2' || !name.includes('handler'),
    )) {
      for (const isLate of [false, true]) {
        const title = `${name}: what is around methods runs as often${isLate ? ', also where it calls them later' : ''}`;
        test(title, ours, async (t) => {
          const calls = wrapped(t, line, { isLate });
          const seen = [];
          for (const stock of [true, false]) {
            const server = await start(line, stock);
            t.after(() => server.close());
            Object.keys(calls).forEach((key) => delete calls[key]);
            await exchange(server.port);
            // Every router of a user looks at the ids of its sessions, too, as often as it likes.
            seen.push(Object.fromEntries(Object.entries(calls).filter(([key]) => !key.endsWith('sessionId get'))));
          }
          assert.ok(Object.keys(seen[0]).length > 5, JSON.stringify(seen[0]));
          assert.deepEqual(seen[1], seen[0]);
        });
      }
    }

    test('what is around a method may do without it', ours, async (t) => {
      for (const web of [false, true]) {
        const Stock = STOCK[line][web ? 1 : 0];
        const { handleRequest, send } = Stock.prototype;
        t.after(() => Object.assign(Stock.prototype, { handleRequest, send }));
        const server = await serve(line, { web });
        t.after(() => server.close());
        const { port } = server;
        const peer = await Peer.open(port);
        Stock.prototype.send = async function (message, options) {
          return message.method === 'notifications/progress' ? undefined : send.call(this, message, options);
        };
        const events = await (await peer.script('emit 2', 'return quiet')).rest();
        assert.deepEqual([counts(events), results(events)], [[], ['quiet']]);
        Stock.prototype.handleRequest = async (_, res) =>
          web ? new Response('busy', { status: 429 }) : res.writeHead(429).end();
        assert.equal((await request(port, 'POST', { accept: ACCEPT })).status, 429);
        Object.assign(Stock.prototype, { handleRequest, send });
      }
    });

    test('what is around a method runs, also where it names what the SDK keeps to itself', ours, async (t) => {
      const [Node, Web] = STOCK[line];
      const seen = [];
      const around = (kept, change) => [
        function (...args) {
          seen.push(typeof this._webStandardTransport, this._requestToStreamMapping?.size);
          return kept.apply(this, change(args));
        },
        // As a member of a class is written.
        {
          send(...args) {
            seen.push(typeof this._webStandardTransport, this._requestToStreamMapping?.size);
            return kept.call(this, ...change(args));
          },
        }.send,
      ];
      const redacted = ([message, ...more]) => [
        message.result?.content ? { ...message, result: { content: [{ type: 'text', text: 'redacted' }] } } : message,
        ...more,
      ];
      for (const Stock of [Node, Web]) {
        const { send } = Stock.prototype;
        t.after(() => Object.assign(Stock.prototype, { send }));
        for (const method of around(send, redacted)) {
          seen.length = 0;
          Stock.prototype.send = method;
          const server = await serve(line, { web: Stock === Web });
          t.after(() => server.close());
          assert.equal(await (await Peer.open(server.port)).ask('return secret'), 'redacted');
          assert.ok(seen.length > 0);
        }
        Object.assign(Stock.prototype, { send });
      }
      const { handleRequest } = Node.prototype;
      t.after(() => Object.assign(Node.prototype, { handleRequest }));
      Node.prototype.handleRequest = function (req, res, body) {
        return this._webStandardTransport.sessionId && req.method === 'GET'
          ? res.writeHead(401).end()
          : handleRequest.call(this, req, res, body);
      };
      const server = await serve(line);
      t.after(() => server.close());
      assert.equal((await (await Peer.open(server.port)).listen()).status, 401);
    });

    test('ours are subclasses of the SDKs, and named alike', ours, () => {
      const [Node, Web] = STOCK[line];
      for (const [Ours, Stock] of [
        [classes[line], Node],
        [webClasses[line], Web],
      ]) {
        assert.ok(new Ours() instanceof Stock && new Ours({ sessionIdGenerator: () => 'x' }) instanceof Stock);
        assert.equal(Ours.name, Stock.name);
      }
    });

    test('sessions of routers have transports of the classes that users import', ours, async (t) => {
      const seen = [];
      for (const routed of [
        { node: (router) => router.node, Of: classes[line] },
        { node: (router) => getRequestListener(router.fetch), Of: webClasses[line] },
      ]) {
        const makeServer = () => {
          const server = buildServer(line);
          const { connect } = server;
          server.connect = (transport) => {
            seen.push([transport instanceof routed.Of, transport.constructor.name === routed.Of.name]);
            return connect.call(server, transport);
          };
          return server;
        };
        const router = packages[line].createSessionRouter(makeServer, { eventStore: new LabStore() });
        const host = await listen(routed.node(router));
        t.after(() => router.close().then(() => host.close()));
        assert.equal(await (await Peer.open(host.port)).ask('return x'), 'x');
      }
      assert.deepEqual(seen, [
        [true, true],
        [true, true],
      ]);
    });
  });
}
