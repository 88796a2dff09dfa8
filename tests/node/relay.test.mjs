// Requests for a session of another process: they are relayed to it, at every way in which a server is mounted. (I5, I7, I12)
//
// What relayed requests are on the wire tests/wire says. Two servers on one store are in this process here, each with an
// engine of its own: they do not know of each other.
import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import { describe } from 'node:test';

import { getRequestListener } from '@hono/node-server';
import { McpServer, requireScopes } from '@modelcontextprotocol/server';
import express from 'express';
import Fastify from 'fastify';
import { configure, createResumableMcpHandler, openStore } from 'tailrope/mcp';
import { marks } from '../servers/node/control.mjs';
import { acting, buildServer, connectServer } from '../servers/node/tools.mjs';
import { at as atGate, classes, listen, newGate, open, packages, webClasses } from '../servers/node/transports.mjs';
import { DURABLE } from './kit/addresses.mjs';
import { CLIENTS, connect } from './kit/clients.mjs';
import { counts, lastId, Peer, results, until } from './kit/raw.mjs';
import { LINES, ours, test } from './kit/test.mjs';

const NOT_FOUND = 'no such session';
const withBody = express.json();

/** The same client, at another server. */
function at(peer, { port }) {
  const moved = new Peer(port, peer.revision, peer.headers);
  moved.sessionId = peer.sessionId;
  return moved;
}

/** Closes with the test. */
function hosted(t, host, close) {
  t.after(async () => {
    await close();
    await host.close();
  });
  return host;
}

async function onFastify(serve) {
  const app = Fastify();
  app.all('/mcp', async (request, reply) => {
    reply.hijack();
    await serve(request.raw, reply.raw, request.body);
  });
  await app.listen({ host: '127.0.0.1', port: 0 });
  return {
    port: app.server.address().port,
    close() {
      app.server.closeAllConnections();
      return app.close();
    },
  };
}

const onExpress = (serve) => listen(express().use(withBody).all('/mcp', serve));

/** A server with a router, `listenTo(router)` puts it on a port. */
const routed = (listenTo) => async (t, line, options) => {
  const router = packages[line].createSessionRouter(() => buildServer(line), options);
  return hosted(t, await listenTo(router), () => router.close());
};

/** Transports in a map, as users have them; `listenTo` gets what answers with a transport, and what without. */
function byHand(makeTransports, listenTo) {
  return async (t, line, options) => {
    const Transport = makeTransports[line];
    const transports = new Map();
    const transportOf = async (sessionId, isInitialize) => {
      if (!isInitialize) {
        return transports.get(sessionId);
      }
      const id = randomUUID();
      const transport = new Transport({
        ...options,
        sessionIdGenerator: () => id,
        onsessioninitialized: (id) => void transports.set(id, transport),
      });
      transport.onclose = () => transports.delete(id);
      await connectServer(line, transport);
      return transport;
    };
    const close = () => Promise.all([...transports.values()].map((transport) => transport.close()));
    return hosted(t, await listenTo(packages[line], transportOf, options), close);
  };
}

/** A handler for both eras. */
const handler = (listenTo) => async (t, _, options) => {
  const made = createResumableMcpHandler(() => buildServer('v2'), options);
  return hosted(t, await listenTo(made), () => made.close());
};

const opens = (req) => req.headers['mcp-session-id'] === undefined;

const MOUNTS = {
  'a router on node:http': routed((router) => listen((req, res) => router.node(req, res))),
  'a router on the web platform': routed((router) => listen(getRequestListener((request) => router.fetch(request)))),
  'a router in express': routed((router) => onExpress(router.node)),
  'a router in fastify': routed((router) => onFastify(router.node)),
  'transports of node:http': byHand(classes, ({ serveStoredSession }, transportOf, options) =>
    listen(async (req, res) => {
      const transport = await transportOf(req.headers['mcp-session-id'], opens(req));
      if (transport !== undefined) {
        await transport.handleRequest(req, res);
      } else if (!(await serveStoredSession(req, res, options))) {
        res.writeHead(404).end(NOT_FOUND);
      }
    }),
  ),
  'transports in express': byHand(classes, ({ serveStoredSession }, transportOf, options) =>
    onExpress(async (req, res) => {
      const transport = await transportOf(req.headers['mcp-session-id'], opens(req));
      if (transport !== undefined) {
        await transport.handleRequest(req, res, req.body);
      } else if (!(await serveStoredSession(req, res, options, req.body))) {
        res.writeHead(404).end(NOT_FOUND);
      }
    }),
  ),
  'transports of the web platform': byHand(webClasses, ({ fetchStoredSession }, transportOf, options) =>
    listen(
      getRequestListener(async (request) => {
        const sessionId = request.headers.get('mcp-session-id') ?? undefined;
        const transport = await transportOf(sessionId, sessionId === undefined);
        return transport === undefined
          ? ((await fetchStoredSession(request, options)) ?? new Response(NOT_FOUND, { status: 404 }))
          : transport.handleRequest(request);
      }),
    ),
  ),
  'web transports behind a parser': byHand(webClasses, ({ fetchStoredSession }, transportOf, options) =>
    listen(
      getRequestListener(async (request) => {
        const parsedBody = request.method === 'POST' ? await request.json() : undefined;
        const sessionId = request.headers.get('mcp-session-id') ?? undefined;
        const transport = await transportOf(sessionId, sessionId === undefined);
        return transport === undefined
          ? ((await fetchStoredSession(request, { ...options, parsedBody })) ??
              new Response(NOT_FOUND, { status: 404 }))
          : transport.handleRequest(request, { parsedBody });
      }),
    ),
  ),
  'createResumableMcpHandler on node:http': handler((made) => listen((req, res) => made.node(req, res))),
  'createResumableMcpHandler on the web platform': handler((made) =>
    listen(getRequestListener((request) => made.fetch(request))),
  ),
};

/** Two servers on one store. */
async function pairOf(t, place, mount, line, options) {
  const { EventStore } = packages[line];
  const one = async () => {
    const eventStore = new EventStore(await openStore(place, { ownerLostMs: 600_000 }));
    return mount(t, line, { eventStore, retryInterval: 20, ...options });
  };
  return [await one(), await one()];
}

/** A client that opens its session at one server, and goes on at the other. */
async function wandering(here, there, headers) {
  const peer = at(await Peer.open(here.port, undefined, headers), there);
  assert.equal((await peer.notify('notifications/initialized')).status, 202);
  return peer;
}

/** The server's question among the events of a call. */
async function asked(reply, events) {
  while (events.at(-1)?.message?.method !== 'elicitation/create') {
    events.push(...(await reply.some(1)));
  }
  return events.at(-1).message.id;
}

async function isUnknownAt(peer, ...servers) {
  for (const server of servers) {
    await until(async () => (await at(peer, server).script('return late')).status === 404);
  }
}

for (const [name, mount] of Object.entries(MOUNTS)) {
  for (const line of name.startsWith('createResumableMcpHandler') ? LINES.filter((line) => line === 'v2') : LINES) {
    describe(`${line} ${name}`, () => {
      test('a session goes on at another process', ours, async (t) => {
        const closed = [];
        const [here, there] = await pairOf(t, DURABLE[0].address(t), mount, line, {
          onsessionclosed: (id) => void closed.push(id),
        });
        const peer = await wandering(here, there);
        const listed = await (await peer.post({ jsonrpc: '2.0', id: 'list', method: 'tools/list' })).untilTerminal();
        assert.ok(listed.at(-1).message.result.tools.some((tool) => tool.name === 'echo'));

        const ran = `ran ${peer.sessionId}`;
        const events = await (await peer.script(`mark ${ran}`, 'emit 2', 'close', 'emit 1', 'return x')).rest();
        // The close reaches a reader elsewhere with the log: what the log has by then goes out before it.
        if (results(events).length === 0) {
          events.push(...(await (await peer.resume(lastId(events))).untilTerminal()));
        }
        assert.deepEqual([counts(events), results(events), marks()[ran]], [[1, 2, 3], ['x'], 1]);

        for (const [calls, answers] of [
          [here, there],
          [there, here],
          [there, there],
        ]) {
          const reply = await at(peer, calls).script('elicit hm');
          const told = [];
          const content = { name: 'yes' };
          const answered = await at(peer, answers).respond(await asked(reply, told), { action: 'accept', content });
          assert.equal(answered.status, 202);
          assert.deepEqual(results(await reply.untilTerminal()), [JSON.stringify(content)]);
        }

        const gate = newGate();
        const waiting = await peer.call('script', { steps: ['emit 1', `gate ${gate}`] }, 77);
        await atGate(gate);
        assert.equal((await peer.cancel(77)).status, 202);
        const [end] = results(await waiting.untilTerminal());
        assert.ok(Number.isInteger(end.code), JSON.stringify(end));

        assert.equal((await peer.delete()).status, 200);
        assert.deepEqual(closed, [peer.sessionId]);
        await isUnknownAt(peer, here, there);
      });
    });
  }
}

for (const { kind, address } of DURABLE) {
  for (const line of LINES) {
    describe(`${kind} ${line}`, () => {
      test('i5 a call runs once, at the process of its session, whoever has it meanwhile', ours, async (t) => {
        const [here, there] = await pairOf(t, address(t), MOUNTS['a router on node:http'], line);
        const peer = await wandering(here, there);
        const gate = newGate();
        const ran = `ran ${gate}`;
        const reply = await peer.call('script', { steps: [`mark ${ran}`, 'emit 1', `gate ${gate}`, 'emit 1'] }, 5);
        const events = await reply.some(1);
        const again = await (await peer.call('script', { steps: [`mark ${ran}`, 'return again'] }, 5)).untilTerminal();
        assert.match(again.at(-1).message.error.message, /already in flight/);
        reply.drop();
        open(gate);
        events.push(...(await (await at(peer, here).resume(lastId(events))).untilTerminal()));
        assert.deepEqual([counts(events), results(events), marks()[ran]], [[1, 2], ['done'], 1]);
      });
    });
  }
}

/** Where each request of an official client lands, in turn. */
const PLACES = '01101000101110010111';

for (const { kind, address } of DURABLE) {
  for (const which of CLIENTS) {
    for (const line of LINES) {
      test(`${kind}: ${which} meets any process of ${line} at each request`, ours, async (t) => {
        const servers = await pairOf(t, address(t), MOUNTS['a router on node:http'], line);
        let asked = 0;
        const route = () => servers[Number(PLACES[asked++ % PLACES.length])].port;
        for (let session = 0; session < 3; session++) {
          const face = await connect(which, servers[0].port, '/mcp', route);
          assert.equal(await face.script('emit 2', 'close', 'emit 1', 'close', 'emit 1', 'return x'), 'x');
          assert.deepEqual(face.progress, [1, 2, 3, 4]);
          assert.equal(await face.script('elicit hm'), '{"name":"re: hm"}');
          const words = ['a', 'b', 'c', 'd', 'e'];
          assert.deepEqual(await Promise.all(words.map((word) => face.script(`return ${word}`))), words);
          await face.close();
        }
      });
    }
  }
}

/** What somebody's authentication leaves. */
const AUTH = {
  token: 'secret-token',
  clientId: 'alice',
  scopes: ['use'],
  expiresAt: 4_000_000_000,
  resource: new URL('https://api.example/mcp'),
  extra: { roles: ['admin'] },
};

/** A router behind authentication that leaves `auth`. */
const guarded = (auth) => ({
  node: routed((router) => listen((req, res) => router.node(Object.assign(req, { auth }), res))),
  fetch: routed((router) => listen(getRequestListener((request) => router.fetch(request, { authInfo: auth })))),
});

/** What the handler of a relayed call sees: the SDK's auth object, the headers and the URL. */
async function seenBy(peer) {
  const name = `act ${randomUUID()}`;
  const reply = await peer.call('act', { name });
  const { extra } = await acting(name);
  open(name);
  await reply.untilTerminal();
  const { authInfo } = extra.http ?? extra;
  const { headers, url } = extra.http?.req ?? extra.requestInfo;
  return { authInfo, headers: Object.fromEntries(new Headers(headers)), url: String(url) };
}

for (const line of LINES) {
  for (const face of ['node', 'fetch']) {
    describe(`${line} ${face}`, () => {
      test('i7 handlers of a relayed call see what may travel, and no credential', ours, async (t) => {
        const place = DURABLE[0].address(t);
        const { EventStore } = packages[line];
        const servers = [];
        for (const relayedHeaders of [undefined, ['X-Own', 'Authorization', 'cookie']]) {
          const eventStore = new EventStore(await openStore(place), { relayedHeaders });
          servers.push(await guarded(AUTH)[face](t, line, { eventStore }));
        }
        const peer = await wandering(...servers, {
          authorization: 'Bearer secret-token',
          cookie: 'id=secret-cookie',
          'x-api-key': 'secret-key',
          'x-own': 'own',
          'x-other': 'other',
          'user-agent': 'test',
          'x-request-id': 'r-1',
        });
        const { authInfo, headers, url } = await seenBy(peer);
        assert.deepEqual(authInfo, { ...AUTH, token: '' });
        assert.ok(authInfo.resource instanceof URL);
        assert.deepEqual(headers, {
          accept: 'application/json, text/event-stream',
          'content-type': 'application/json',
          'mcp-protocol-version': peer.revision,
          'mcp-session-id': peer.sessionId,
          'user-agent': 'test',
          'x-own': 'own',
          'x-request-id': 'r-1',
        });
        assert.equal(url, `http://127.0.0.1:${servers[0].port}/mcp`);
        // From there to here nobody named further ones.
        const back = await wandering(servers[1], servers[0], { 'x-own': 'own', 'user-agent': 'test' });
        assert.equal((await seenBy(back)).headers['x-own'], undefined);
      });
    });
  }

  for (const [what, auth, expected] of [
    ['a token alone', 'secret-token', undefined],
    ['nothing', undefined, undefined],
    [
      'no JSON',
      { token: 'secret-token', clientId: 'alice', scopes: ['use'], big: 1n, extra: { big: 1n }, toString() {} },
      { token: '', clientId: 'alice', scopes: ['use'] },
    ],
  ]) {
    test(`${line}: authentication that leaves ${what} is no obstacle`, ours, async (t) => {
      const peer = await wandering(...(await pairOf(t, DURABLE[0].address(t), guarded(auth).node, line)));
      assert.deepEqual((await seenBy(peer)).authInfo, expected);
    });
  }

  test(`${line}: a message that the SDK does not take is refused where the session lives`, ours, async (t) => {
    const errors = [];
    const [here, there] = await pairOf(t, DURABLE[0].address(t), MOUNTS['a router on node:http'], line, {
      onerror: (error) => errors.push(error.message),
    });
    const peer = await wandering(here, there);
    const params = { _meta: { 'io.modelcontextprotocol/related-task': 5 } };
    const wrong = { jsonrpc: '2.0', id: 5, method: 'tools/call', params };
    const direct = await (await at(peer, here).post(wrong)).json();
    const events = await (await peer.post(wrong)).untilTerminal();
    const { id, error } = events.at(-1).message;
    assert.deepEqual([id, error], [5, direct.error]);
    // One without an answer was taken by the store; it reaches nobody.
    assert.equal((await peer.post({ jsonrpc: '2.0', method: 'notifications/progress', params })).status, 202);
    assert.equal(await peer.ask('return still'), 'still');
    assert.equal(errors.length, 3, errors.join());
  });

  test(
    `${line}: with enableJsonResponse a relayed call is answered with JSON, and cannot be polled`,
    ours,
    async (t) => {
      const options = { enableJsonResponse: true };
      const pair = await pairOf(t, DURABLE[0].address(t), MOUNTS['a router on node:http'], line, options);
      const peer = await Peer.open(pair[0].port);
      const answers = [];
      for (const server of pair) {
        let reply;
        // The first answer leaves before the store knows of the session.
        await until(async () => {
          reply = await at(peer, server).call('script', { steps: ['emit 1', 'try close', 'emit 1'] }, 5);
          return reply.status !== 404;
        });
        answers.push([reply.status, reply.headers['content-type'], await reply.json()]);
      }
      assert.deepEqual(answers[0], answers[1]);
      assert.equal(answers[0][1], 'application/json');
    },
  );

  test(`${line}: a session ends where the user's function for that fails`, ours, async (t) => {
    const errors = [];
    const [here, there] = await pairOf(t, DURABLE[0].address(t), MOUNTS['a router on node:http'], line, {
      onsessionclosed: () => Promise.reject(new Error('no database')),
      onerror: (error) => errors.push(error.message),
    });
    const peer = await wandering(here, there);
    assert.equal((await peer.delete()).status, 200);
    await isUnknownAt(peer, here, there);
    assert.ok(errors.includes('no database'));
  });
}

test('a relayed call that lacks a scope does not run', { skip: !LINES.includes('v2') || ours.skip }, async (t) => {
  let ran = 0;
  const errors = [];
  const makeServer = () => {
    const mcp = new McpServer({ name: 'x', version: '1' });
    mcp.registerTool('free', {}, () => ({ content: [{ type: 'text', text: 'free' }] }));
    mcp.registerTool('guarded', { scopeChallenge: requireScopes('write') }, () => {
      ran += 1;
      return { content: [] };
    });
    return mcp;
  };
  const mount = async (t, _, options) => {
    const router = packages.v2.createSessionRouter(makeServer, options);
    const auth = { token: 't', clientId: 'c', scopes: ['read'] };
    const host = await listen((req, res) => router.node(Object.assign(req, { auth }), res));
    return hosted(t, host, () => router.close());
  };
  const options = { onerror: (error) => errors.push(error.message) };
  const peer = await wandering(...(await pairOf(t, DURABLE[0].address(t), mount, 'v2', options)));
  const answerOf = async (name) => results(await (await peer.call(name, {})).untilTerminal())[0];
  assert.equal((await answerOf('guarded')).code, -32603);
  assert.equal(await answerOf('free'), 'free');
  assert.equal(ran, 0);
  assert.ok(errors.some((error) => /lacks scopes/.test(error)));
});

/** Two servers of one process on one store, each with an engine of its own or both with one, as `mounts` says. */
async function mounted(t, line, { isShared, at = ['/admin', '/public'], ...options }) {
  const { EventStore } = packages[line];
  const place = DURABLE[0].address(t);
  const stores = [new EventStore(await openStore(place))];
  stores.push(isShared ? stores[0] : new EventStore(await openStore(place)));
  const app = express();
  for (const [index, path] of at.entries()) {
    const own = { eventStore: stores[index], retryInterval: 20, ...options };
    const router = packages[line].createSessionRouter(() => buildServer(line), own);
    t.after(() => router.close());
    app.use(path, router.node);
  }
  return hosted(t, await listen(app), async () => {});
}

/** The statuses of everything that a client may ask for another server's session. */
async function statusesAt(path, peer, cursor) {
  const other = at(peer, peer);
  other.path = path;
  const replies = [await other.script('return x'), await other.get(), await other.resume(cursor)];
  replies.push(await other.notify('notifications/initialized'), await other.delete());
  return replies.map(({ status }) => status);
}

for (const line of LINES) {
  for (const isShared of [false, true]) {
    const name = isShared ? 'one engine' : 'one store';
    test(`o7 ${line} servers over ${name} find no session of each other`, ours, async (t) => {
      const { port } = await mounted(t, line, { isShared });
      const peer = await Peer.open(port, undefined, {}, '/admin');
      const cursor = lastId(await (await peer.script('emit 1', 'return secret')).untilTerminal());
      assert.deepEqual(await statusesAt('/public', peer, cursor), [404, 404, 404, 404, 404]);
      assert.equal(await peer.ask('return mine'), 'mine');
    });
  }

  test(`o7 ${line} what has one name is one server, wherever it is mounted`, ours, async (t) => {
    const { port } = await mounted(t, line, { isShared: false, serverName: 'lab' });
    const peer = await Peer.open(port, undefined, {}, '/admin');
    const other = at(peer, peer);
    other.path = '/public/';
    assert.equal(await other.ask('return x'), 'x');
    assert.equal((await other.delete()).status, 200);
  });
}

test('o7 the name of a server is a text', ours, () => {
  for (const serverName of ['', 5, ['lab']]) {
    assert.throws(() => configure({ serverName }), {
      code: 'invalid_argument',
      message: /^serverName must be a string/,
    });
    const options = { serverName, sessionIdGenerator: () => 'x' };
    assert.throws(() => new packages.v2.NodeStreamableHTTPServerTransport(options), { code: 'invalid_argument' });
  }
});

test('the headers that travel are names', ours, () => {
  for (const relayedHeaders of ['x-own', [1], {}]) {
    assert.throws(() => configure({ relayedHeaders }), { code: 'invalid_argument' });
  }
});
