// Every way into Tailrope: createResumableMcpHandler (sessions for the older revisions, the SDK for 2026-07-28, one
// factory for both), a store that engages its server alone, configure().
import assert from 'node:assert/strict';
import { describe } from 'node:test';

import { serve as serveHono } from '@hono/node-server';
import { Client, StreamableHTTPClientTransport } from '@modelcontextprotocol/client';
import { toNodeHandler } from '@modelcontextprotocol/node';
import { createMcpHandler } from '@modelcontextprotocol/server';
import express from 'express';
import { configure, createResumableMcpHandler, stats, status } from 'tailrope/mcp';
import { LabStore } from '../servers/node/stores.mjs';
import { buildServer } from '../servers/node/tools.mjs';
import {
  classes,
  connectServer,
  listen,
  logged,
  packages,
  serveFor,
  serve as serveLine,
  stockClasses,
} from '../servers/node/transports.mjs';
import { counts, ids, lastId, NEWEST, Peer, request, results, until, upTo, within } from './kit/raw.mjs';
import { onEachLine, ours, test } from './kit/test.mjs';

const JSON_BODY = { accept: 'application/json, text/event-stream', 'content-type': 'application/json' };

const initialize = {
  jsonrpc: '2.0',
  id: 'first',
  method: 'initialize',
  params: { protocolVersion: NEWEST, capabilities: {}, clientInfo: { name: 'x', version: '1' } },
};

/** A handler of ours that is served, and what its factory made. */
async function serve(t, face, options) {
  const made = [];
  const factory = (context) => {
    const server = buildServer('v2');
    made.push({ era: context.era, clientId: context.authInfo?.clientId, server });
    return server;
  };
  const handler = createResumableMcpHandler(factory, { retryInterval: 20, ...options });
  return { handler, made, port: await hosted(t, face, handler) };
}

/** The port on which a handler is served, through one of its faces, until the test ends. */
async function hosted(t, face, handler) {
  let host;
  if (face === 'node') {
    host = await listen((req, res) => {
      const user = req.headers['x-user'];
      req.auth = user === undefined ? undefined : { token: user, clientId: user, scopes: [] };
      return handler.node(req, res);
    });
  } else {
    const server = serveHono({
      port: 0,
      hostname: '127.0.0.1',
      fetch(req) {
        const user = req.headers.get('x-user');
        return handler.fetch(req, user ? { authInfo: { token: user, clientId: user, scopes: [] } } : undefined);
      },
    });
    await until(() => server.listening);
    host = {
      port: server.address().port,
      async close() {
        server.closeAllConnections();
        await new Promise((resolve) => server.close(resolve));
      },
    };
  }
  t.after(async () => {
    await handler.close();
    await host.close();
  });
  return host.port;
}

async function connect(t, port, options) {
  const client = new Client({ name: 'client', version: '1' }, options);
  await client.connect(new StreamableHTTPClientTransport(new URL(`http://127.0.0.1:${port}/mcp`)));
  t.after(() => client.close());
  return client;
}

for (const face of ['node', 'fetch']) {
  describe(face, () => {
    test('sessions of the older revisions are resumable', ours, async (t) => {
      const { port, made } = await serve(t, face);
      const peer = await Peer.open(port);
      const first = await peer.script('emit 3', 'close', 'emit 3', 'return done');
      const before = await first.rest();
      const resumed = await peer.resume(before.at(-1).id);
      const after = await resumed.rest();
      assert.deepEqual(counts([...before, ...after]), upTo(6));
      assert.equal(after.at(-1).message.result.content[0].text, 'done');
      assert.equal(new Set(ids([...before, ...after])).size, ids([...before, ...after]).length);
      assert.deepEqual(
        made.map(({ era }) => era),
        ['legacy'],
      );
    });

    test('the newest revision is the SDKs own where that is preferred', ours, async (t) => {
      const { port, made } = await serve(t, face, { preferResumable: false });
      const client = await connect(t, port, { versionNegotiation: { mode: 'auto' } });
      assert.equal(client.getNegotiatedProtocolVersion(), '2026-07-28');
      const result = await client.callTool({ name: 'script', arguments: { steps: ['close', 'return modern'] } });
      assert.equal(result.content[0].text, 'modern');
      assert.ok(made.length > 0 && made.every(({ era }) => era === 'modern'));
    });

    test('clients of both eras are steered to what can be resumed', ours, async (t) => {
      const { port, made } = await serve(t, face);
      const client = await connect(t, port, { versionNegotiation: { mode: 'auto' } });
      assert.equal(client.getNegotiatedProtocolVersion(), '2025-11-25');
      const result = await client.callTool({ name: 'script', arguments: { steps: ['close', 'return resumed'] } });
      assert.equal(result.content[0].text, 'resumed');
      assert.deepEqual(
        made.map(({ era }) => era),
        ['legacy'],
      );
    });

    test('a factory that fails is answered as by the stock handler, and reported', ours, async (t) => {
      let closed = 0;
      const close = async () => void (closed += 1);
      const factories = {
        throws() {
          throw new Error('no database');
        },
        rejects: async () => Promise.reject(new Error('no database')),
        refuses: () => ({ connect: async () => Promise.reject(new Error('no database')), close }),
      };
      for (const [name, factory] of Object.entries(factories)) {
        const answers = [];
        for (const make of [createMcpHandler, createResumableMcpHandler]) {
          const reported = [];
          const handler = make(factory, { onerror: (error) => reported.push(error.message) });
          const port = await hosted(t, face, { node: toNodeHandler(handler), ...handler });
          const reply = await new Peer(port).post(initialize);
          answers.push([reply.status, reply.headers['content-type'], await reply.body(), reported]);
        }
        assert.deepEqual(answers[1], answers[0], name);
        assert.equal(answers[0][0], 500);
        assert.deepEqual(answers[0][3], ['no database']);
      }
      // What was made and could not be connected is closed. (The stock handler leaves it.)
      assert.equal(closed, 1);
    });

    test('answers that concern no session are those of the transports', ours, async (t) => {
      const { port, made } = await serve(t, face);
      const answered = async (method, headers, body) => {
        const reply = await request(port, method, headers, body);
        return [reply.status, JSON.parse(await reply.body()).error.code];
      };
      const list = '{"jsonrpc":"2.0","id":1,"method":"tools/list"}';
      assert.deepEqual(await answered('GET', { accept: 'text/event-stream' }), [400, -32000]);
      assert.deepEqual(await answered('POST', JSON_BODY, list), [400, -32000]);
      assert.deepEqual(await answered('POST', { ...JSON_BODY, 'mcp-session-id': 'unknown' }, list), [404, -32001]);
      const stream = { accept: 'text/event-stream', 'mcp-session-id': 'unknown' };
      assert.deepEqual(await answered('GET', stream), [404, -32001]);
      assert.deepEqual(await answered('POST', { ...JSON_BODY, 'content-type': 'text/plain' }, list), [415, -32000]);
      assert.deepEqual(await answered('POST', JSON_BODY, '{"jsonrpc"'), [400, -32700]);
      assert.deepEqual(await answered('PUT', JSON_BODY, list), [405, -32000]);
      assert.equal(made.length, 0);
    });

    test('an initialize that is refused leaves nothing behind', ours, async (t) => {
      const { port, made } = await serve(t, face);
      const before = stats().sessions;
      const params = { protocolVersion: '2025-11-25', capabilities: {}, clientInfo: { name: 'c', version: '1' } };
      const body = JSON.stringify({ jsonrpc: '2.0', id: 1, method: 'initialize', params });
      const reply = await request(port, 'POST', { ...JSON_BODY, accept: 'text/html' }, body);
      assert.equal(reply.status, 406);
      await reply.body();
      assert.equal(stats().sessions, before);
      assert.deepEqual(made, [], 'no server is made for it');
    });

    test('i7 sessions belong to their principal', ours, async (t) => {
      const { port, made } = await serve(t, face);
      const owner = await Peer.open(port, undefined, { 'x-user': 'alice' });
      assert.equal(made[0].clientId, 'alice');
      const other = new Peer(port, undefined, { 'x-user': 'bob' });
      other.sessionId = owner.sessionId;
      assert.equal((await other.script('return mine')).status, 404);
      const reply = await owner.script('return mine');
      assert.equal((await reply.rest()).at(-1).message.result.content[0].text, 'mine');
    });

    test('i7 the option principal names users', ours, async (t) => {
      const principal = (request) => new Headers(request.headers).get('x-name');
      const { port } = await serve(t, face, { principal });
      const owner = await Peer.open(port, undefined, { 'x-user': 'alice', 'x-name': 'alice' });
      const renewed = new Peer(port, undefined, { 'x-user': 'other', 'x-name': 'alice' });
      const other = new Peer(port, undefined, { 'x-user': 'alice', 'x-name': 'bob' });
      renewed.sessionId = other.sessionId = owner.sessionId;
      assert.equal((await other.script('return mine')).status, 404);
      const reply = await renewed.script('return mine');
      assert.equal((await reply.rest()).at(-1).message.result.content[0].text, 'mine');
    });

    test('a principal that fails, or is no name, fails its request alone', ours, async (t) => {
      const errors = [];
      const answers = {
        thrown: () => {
          throw new Error('who?');
        },
        number: () => 5,
      };
      const principal = (request) => answers[new Headers(request.headers).get('x-name')]?.();
      const { port } = await serve(t, face, { principal, onerror: (error) => errors.push(error.message) });
      for (const name of Object.keys(answers)) {
        const reply = await request(port, 'POST', { ...JSON_BODY, 'x-name': name }, JSON.stringify(initialize));
        assert.equal(reply.status, 500);
        await reply.body();
      }
      assert.equal(errors[0], 'who?');
      assert.match(errors[1], /not a string that names the user/);
      await Peer.open(port);
    });

    test('ended sessions are forgotten', ours, async (t) => {
      const { port } = await serve(t, face);
      const peer = await Peer.open(port);
      assert.equal((await peer.delete()).status, 200);
      assert.equal((await peer.script('return late')).status, 404);
    });

    test('notify reaches sessions and subscriptions', ours, async (t) => {
      const { handler, port } = await serve(t, face);
      const peer = await Peer.open(port);
      const listening = await peer.listen();
      handler.notify.toolsChanged();
      const [event] = (await listening.some(1)).filter(({ message }) => message !== undefined);
      assert.equal(event.message.method, 'notifications/tools/list_changed');
      listening.drop();
    });

    test('close ends sessions and refuses what comes later', ours, async (t) => {
      const { handler, port } = await serve(t, face);
      const before = stats().sessions;
      const peer = await Peer.open(port);
      const listening = await peer.listen();
      await within(handler.close());
      await listening.rest();
      assert.equal(stats().sessions, before);
    });
  });
}

test('the option legacy is refused', ours, () => {
  assert.throws(() => createResumableMcpHandler(() => buildServer('v2'), { legacy: 'stateless' }), {
    code: 'invalid_argument',
  });
});

test('the kill switch leaves the SDKs own handler', ours, async (t) => {
  process.env.TAILROPE_DISABLE = '1';
  t.after(() => delete process.env.TAILROPE_DISABLE);
  const handler = createResumableMcpHandler(() => buildServer('v2'), {});
  assert.deepEqual(
    Object.keys(handler)
      .filter((name) => name !== 'node')
      .sort(),
    Object.keys(createMcpHandler(() => buildServer('v2'))).sort(),
  );
  const host = await listen((req, res) => handler.node(req, res));
  t.after(() => host.close());
  const reply = await request(host.port, 'GET', { accept: 'text/event-stream' });
  assert.equal(reply.status, 405);
});

test('the kill switch leaves a handler its options, and what a parser has made', ours, async (t) => {
  process.env.TAILROPE_DISABLE = '1';
  t.after(() => delete process.env.TAILROPE_DISABLE);
  const errors = [];
  const options = { maxRequestBodySize: 6 << 20, onerror: (error) => errors.push(error.message) };
  const handler = createResumableMcpHandler(() => buildServer('v2'), options);
  const app = express();
  app.use('/parsed', express.json());
  app.all(['/mcp', '/parsed'], handler.node);
  const host = await listen(app);
  t.after(() => host.close());
  const asked = async (body, path) => {
    const reply = await request(host.port, 'POST', JSON_BODY, body, path);
    await reply.body();
    return reply.status;
  };
  const padded = (bytes) =>
    JSON.stringify({ ...initialize, params: { ...initialize.params, _meta: { x: 'x'.repeat(bytes) } } });
  assert.equal(await asked(JSON.stringify(initialize), '/parsed'), 200);
  assert.equal(await asked(padded(5 << 20)), 200);
  assert.deepEqual(errors, []);
  assert.equal(await asked(padded(7 << 20)), 413);
  assert.equal(status().preferResumable, false);
  await handler.close();
});

onEachLine(serveLine, (line) => {
  const { EventStore, configure } = packages[line];

  test('a store engages its server alone', ours, async (t) => {
    const eventStore = new EventStore('memory:', { retryMs: 44 });
    const engaged = await serveFor(t, line, { eventStore, retryInterval: undefined });
    const other = await serveFor(t, line, { stock: true });
    const { sessions } = stats();
    const [mine, theirs] = [await Peer.open(engaged.port), await Peer.open(other.port)];
    assert.equal(stats().sessions, sessions + 1);
    const events = await (await mine.script('emit 1', 'close', 'emit 1', 'return x')).rest();
    assert.equal(events[0].retry, 44);
    const rest = await (await mine.resume(lastId(events))).rest();
    assert.deepEqual([rest[0].isPriming, counts([...events, ...rest]), results(rest)], [true, [1, 2], ['x']]);
    assert.equal(await theirs.ask('emit 1', 'return x'), 'x');
    assert.equal(stats().sessions, sessions + 1);
  });

  test('a store says once that the SDKs own transport serves', ours, async (t) => {
    t.after(() => delete process.env.TAILROPE_DISABLE);
    const told = () => logged.filter((text) => text.startsWith("warn The SDK's own transport serves"));
    const { length } = told();
    const ask = async (Transport, eventStore) => {
      const transport = new Transport({ sessionIdGenerator: () => crypto.randomUUID(), eventStore });
      await connectServer(line, transport);
      const host = await listen((req, res) => transport.handleRequest(req, res));
      t.after(() => host.close());
      assert.equal(await (await Peer.open(host.port)).ask('emit 1', 'return x'), 'x');
    };
    const eventStore = new EventStore('memory:');
    await ask(classes[line], eventStore);
    await ask(stockClasses[line], eventStore.scoped('mine'));
    process.env.TAILROPE_DISABLE = '1';
    await ask(stockClasses[line], new EventStore('memory:'));
    delete process.env.TAILROPE_DISABLE;
    assert.equal(told().length, length);
    await ask(stockClasses[line], eventStore);
    await ask(stockClasses[line], eventStore);
    assert.equal(told().length, length + 1);
    assert.match(told().at(-1), /tailrope\/mcp/);
  });

  test('two stores have bounds of their own', ours, async (t) => {
    const before = stats().sessions;
    const peers = [];
    for (const [engine, most] of [
      [{ maxSessions: 2, maxEventsPerStream: 3 }, 2],
      [{ maxSessions: 4 }, 4],
    ]) {
      const { port } = await serveFor(t, line, { engine });
      for (let number = 0; number < most + 2; number++) {
        const peer = await Peer.open(port).catch(({ message }) => message);
        if (number < most) {
          peers.push(peer);
          // In use, so that it ends for nobody.
          await peer.listen();
        } else {
          assert.match(peer, /503.*Too many open sessions/);
        }
      }
    }
    assert.equal(stats().sessions - before, 6);
    for (const [peer, kept] of [
      [peers[0], [8, 9]],
      [peers[2], upTo(9)],
    ]) {
      const { eventsStored } = stats();
      const reply = await peer.script('close', 'emit 9', 'return x');
      const events = await reply.rest();
      await until(() => stats().eventsStored === eventsStored + 10);
      const rest = await (await peer.resume(lastId(events))).rest();
      assert.deepEqual([counts(rest), results(rest)], [kept, ['x']]);
    }
    // A session that ends makes room, in its own store only.
    await peers[2].delete();
    await assert.rejects(Peer.open(peers[0].port), /503/);
    await Peer.open(peers[2].port);
  });

  test('configure again replaces the options of user stores too', ours, async (t) => {
    t.after(() => configure({}));
    const eventStore = new LabStore();
    for (const [options, retry] of [
      [{ retryMs: 1_111 }, 1_111],
      [{ retryMs: 2_222 }, 2_222],
    ]) {
      configure(options);
      for (const store of [eventStore, undefined]) {
        const { port } = await serveFor(t, line, { eventStore: store, retryInterval: undefined });
        const peer = await Peer.open(port);
        assert.equal(peer.opening[0].retry, retry);
      }
    }
  });

  test('configure with a wrong option changes nothing', ours, async (t) => {
    t.after(() => configure({}));
    configure({ retryMs: 1_234 });
    for (const wrong of [{ retryMs: -1 }, { nonsense: 1 }, { storeTimeoutMs: 0 }, { storeTimeoutMs: '1' }]) {
      assert.throws(() => configure(wrong), new RegExp(Object.keys(wrong)[0]));
    }
    const { port } = await serveFor(t, line, { retryInterval: undefined });
    assert.equal((await Peer.open(port)).opening[0].retry, 1_234);
  });
});

test('i7 passport leaves its user where the SDK does not look', ours, async (t) => {
  const users = { 'Bearer 1': { id: 1 }, 'Bearer 2': { id: 2 } };
  const { NodeStreamableHTTPServerTransport: Transport } = packages.v2;
  const transports = new Map();
  const host = await listen(async (req, res) => {
    req.user = users[req.headers['x-login']];
    const id = req.headers['mcp-session-id'];
    let transport = transports.get(id);
    if (transport === undefined) {
      const onsessioninitialized = (made) => transports.set(made, transport);
      transport = new Transport({ sessionIdGenerator: () => crypto.randomUUID(), onsessioninitialized });
      await buildServer('v2').connect(transport);
    }
    await transport.handleRequest(req, res);
  });
  t.after(() => host.close());
  const owner = await Peer.open(host.port, undefined, { 'x-login': 'Bearer 1' });
  const other = new Peer(host.port, undefined, { 'x-login': 'Bearer 2' });
  other.sessionId = owner.sessionId;
  assert.equal((await other.script('return mine')).status, 404);
  assert.equal((await owner.script('return mine')).status, 200);
});

test('the option principal has to be a plain function', ours, () => {
  for (const principal of ['alice', async () => 'alice', 1]) {
    const wrong = { code: 'invalid_argument', message: /plain function/ };
    assert.throws(() => configure({ principal }), wrong);
    assert.throws(
      () => new packages.v2.NodeStreamableHTTPServerTransport({ principal, sessionIdGenerator: () => 'x' }),
      wrong,
    );
  }
});
