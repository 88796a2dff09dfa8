// What fails inside, in the host's functions or in ours: each request has its answer, and the process goes on. Nobody waits here for
// what serves, as nobody does in the SDKs' own examples.
import assert from 'node:assert/strict';
import { describe } from 'node:test';

import { getRequestListener } from '@hono/node-server';
import { Engine } from '../../bindings-node/lib/native.mjs';
import { runtimeOf } from '../../bindings-node/lib/runtime.mjs';
import { buildServer } from '../servers/node/tools.mjs';
import { classes, listen, logged, packages, webClasses } from '../servers/node/transports.mjs';
import { ACCEPT, NEWEST, Peer, request, turns, until } from './kit/raw.mjs';
import { LINES, ours, test } from './kit/test.mjs';

const HEADERS = { accept: ACCEPT, 'content-type': 'application/json' };
const initialize = {
  jsonrpc: '2.0',
  id: 'first',
  method: 'initialize',
  params: { protocolVersion: NEWEST, capabilities: {}, clientInfo: { name: 'x', version: '1' } },
};

/** What would have ended the process. */
const uncaught = [];
for (const event of ['unhandledRejection', 'uncaughtException']) {
  process.on(event, (error) => uncaught.push(`${event}: ${error?.stack ?? error}`));
}

const node = (serve) => (req, res) => void serve(req, res);
const fetching = (serve) => getRequestListener((request) => serve(request), { overrideGlobalObjects: false });

/** What serves, and how. `before` is what stands in front of it, which may give it more arguments. */
const WAYS = {
  async transport({ line, build, options, onerror, before }) {
    const transport = new classes[line]({ sessionIdGenerator: () => 'one', ...options });
    transport.onerror = onerror;
    await build().connect(transport);
    return node((req, res) => transport.handleRequest(req, res, ...(before(req, res) ?? [])));
  },
  async web({ line, build, options, onerror, before }) {
    const transport = new webClasses[line]({ sessionIdGenerator: () => 'one', ...options });
    transport.onerror = onerror;
    await build().connect(transport);
    return fetching((request) => transport.handleRequest(request, ...(before(request) ?? [])));
  },
  async router({ line, build, options, onerror, before }) {
    const router = packages[line].createSessionRouter(build, { ...options, onerror });
    return node((req, res) => router.node(req, res, ...(before(req, res) ?? [])));
  },
  async 'router fetch'({ line, build, options, onerror, before }) {
    const router = packages[line].createSessionRouter(build, { ...options, onerror });
    return fetching((request) => router.fetch(request, ...(before(request) ?? [])));
  },
  async handler({ build, options, onerror, before }) {
    const handler = packages.v2.createResumableMcpHandler(build, { ...options, onerror });
    return node((req, res) => handler.node(req, res, ...(before(req, res) ?? [])));
  },
  async 'handler fetch'({ build, options, onerror, before }) {
    const handler = packages.v2.createResumableMcpHandler(build, { ...options, onerror });
    return fetching((request) => handler.fetch(request, ...(before(request) ?? [])));
  },
};
const ON_NODE = ['transport', 'router', 'handler'];

/**
 * `fails()` throws while the fault is on, which it is for the request that `of` names. `options` are those of what serves, `wire`
 * gets each transport when its server is connected, `before` each request with its response.
 */
const FAULTS = {
  'a principal that throws': { of: 'initialize', options: (fails) => ({ principal: fails }), status: 500 },
  'a principal that gives a promise, which rejects': {
    of: 'initialize',
    options: (fails) => ({ principal: () => rejecting(fails) }),
    status: 500,
  },
  'a generator of session ids that throws': {
    of: 'initialize',
    options: (fails) => ({ sessionIdGenerator: fails }),
    status: 500,
  },
  'a session id that no header takes': {
    of: 'initialize',
    options: () => ({ sessionIdGenerator: () => 'one\ntwo' }),
    status: 500,
  },
  'an onsessioninitialized that throws': {
    of: 'initialize',
    options: (fails) => ({ onsessioninitialized: fails }),
    status: 400,
  },
  'an onsessioninitialized that rejects': {
    of: 'initialize',
    options: (fails) => ({ onsessioninitialized: async () => fails() }),
    status: 400,
  },
  'an onsessionclosed that throws': { of: 'delete', options: (fails) => ({ onsessionclosed: fails }), status: 500 },
  'an onsessionclosed that rejects': {
    of: 'delete',
    options: (fails) => ({ onsessionclosed: async () => fails() }),
    status: 500,
  },
  'authentication that cannot be read': {
    of: 'call',
    before: (fails, req, res) =>
      res === undefined
        ? [Object.defineProperty({}, 'authInfo', { get: fails, enumerable: true })]
        : void Object.defineProperty(req, 'auth', { get: fails }),
    status: 404,
    // Who cannot be read is nobody, which is said once in a process.
    lines: [0, 1],
  },
  'a body that a parser has made, and that cannot be read': {
    of: 'initialize',
    before(fails, _, res) {
      const parsedBody = { jsonrpc: '2.0', id: 1, method: 'tools/list', params: { toJSON: fails } };
      return [res === undefined ? { parsedBody } : parsedBody];
    },
    status: 400,
    lines: [0],
  },
  'an engine that opens no session': {
    of: 'initialize',
    engine: 'openSession',
    status: 500,
  },
  'an engine that admits nothing': { of: 'initialize', engine: 'admit', status: 500 },
  'an onmessage that throws': {
    of: 'call',
    wire: (fails, transport) => wrap(transport, 'onmessage', fails),
    status: 200,
  },
  'an onmessage that rejects': {
    of: 'call',
    wire: (fails, transport) => wrap(transport, 'onmessage', async () => fails()),
    status: 200,
  },
  'an onclose that throws': {
    of: 'delete',
    wire: (fails, transport) => wrap(transport, 'onclose', fails),
    status: 200,
  },
  'a close that rejects': {
    of: 'delete',
    // That of the web platform, also behind node:http: as in the SDK, it ends the session.
    wire: (fails, transport) => wrap(transport._webStandardTransport ?? transport, 'close', async () => fails()),
    status: 200,
  },
  'an onerror that throws too': {
    of: 'initialize',
    options: (fails) => ({ principal: fails }),
    onerror: (fails) => fails(),
    status: 500,
  },
  // What a transport was given before it was connected, the SDK calls.
  'an onerror that rejects': {
    of: 'initialize',
    ways: ['router', 'router fetch', 'handler', 'handler fetch'],
    options: (fails) => ({ principal: fails }),
    onerror: async (fails) => fails(),
    status: 500,
  },
  'something in front that has answered': {
    of: 'initialize',
    ways: ON_NODE,
    before: (_, __, res) => void res.end('{"error":"in front"}'),
    status: 200,
  },
  'something in front that answers meanwhile': {
    of: 'initialize',
    ways: ON_NODE,
    before(_, req, res) {
      req.once('end', () => setImmediate(() => res.end('{"error":"in front"}')));
    },
    options: () => ({ onsessioninitialized: async () => turns() }),
    status: 200,
  },
  // A refusal, which is the client's affair: no line of the log.
  'something in front that answers while a body that is too large comes': {
    of: 'initialize',
    ways: ON_NODE,
    before(_, req, res) {
      req.prependListener('data', () => res.headersSent || res.end('{"error":"in front"}'));
      req.pause();
    },
    options: () => ({ maxRequestBodySize: 10 }),
    headers: { 'transfer-encoding': 'chunked' },
    status: 200,
    lines: [0],
  },
};

async function rejecting(fails) {
  fails();
}

/** Calls `first` before what is there. */
function wrap(object, name, first) {
  const wrapped = object[name];
  object[name] = (...args) => {
    const failed = first();
    const done = wrapped?.apply(object, args);
    return failed ?? done;
  };
}

for (const line of LINES) {
  for (const [way, make] of Object.entries(WAYS)) {
    if (line === 'v1' && way.startsWith('handler')) {
      continue;
    }
    describe(`${line} ${way}`, () => {
      for (const [name, fault] of Object.entries(FAULTS)) {
        if (fault.ways !== undefined && !fault.ways.includes(way)) {
          continue;
        }
        test(name, ours, async (t) => {
          const before = packages[line].stats().sessions;
          const errors = [];
          let isOn = false;
          const fails = () => {
            if (isOn) {
              throw new Error('out of order');
            }
          };
          const build = () => {
            const server = buildServer(line);
            const connect = server.connect.bind(server);
            server.connect = async (transport) => {
              await connect(transport);
              fault.wire?.(fails, transport);
            };
            return server;
          };
          const onerror = (error) => {
            errors.push(error);
            return fault.onerror?.(fails);
          };
          const options = { retryInterval: 20, ...fault.options?.(fails) };
          const host = await listen(
            await make({
              line,
              build,
              options,
              onerror,
              before: (...args) => (isOn ? fault.before?.(fails, ...args) : undefined),
            }),
          );
          t.after(() => host.close());
          if (fault.engine !== undefined) {
            const native = Engine.prototype[fault.engine];
            t.mock.method(Engine.prototype, fault.engine, function (...args) {
              fails();
              return native.apply(this, args);
            });
          }

          const peer = fault.of === 'initialize' ? undefined : await Peer.open(host.port);
          const lines = logged.length;
          errors.length = 0;
          isOn = true;
          const reply =
            fault.of === 'initialize'
              ? await request(host.port, 'POST', { ...HEADERS, ...fault.headers }, JSON.stringify(initialize))
              : await (fault.of === 'call' ? peer.script('return x') : peer.delete());
          const body = await reply.body();
          assert.equal(reply.status, fault.status, body);
          if (fault.of !== 'delete' || fault.status !== 200) {
            assert.match(body, /"error":/);
          }
          isOn = false;
          await until(() => errors.length > 0);
          await turns();
          assert.deepEqual(uncaught.splice(0), []);
          assert.equal(errors.length, 1, errors.map((error) => error.message).join());
          const said = logged.slice(lines).filter((text) => text.startsWith('error '));
          assert.ok((fault.lines ?? [1]).includes(said.length), said.join('\n'));
          if (fault.of !== 'call') {
            assert.equal(packages[line].stats().sessions, before);
          }
        });
      }
    });
  }
}

/** Opens a session, and leaves it. */
async function opens(port) {
  const reply = await request(port, 'POST', HEADERS, JSON.stringify(initialize));
  await reply.body();
  assert.equal(reply.status, 200);
}

/** What a host's `close` may be. */
const CLOSES = {
  'gives no promise': () => undefined,
  throws() {
    throw new Error('out of order');
  },
  rejects: async () => {
    throw new Error('out of order');
  },
  'gives what only looks like a promise': () => ({
    // biome-ignore lint/suspicious/noThenProperty: that is what is tested.
    then(_, reject) {
      reject(new Error('out of order'));
    },
  }),
};

const sessionsOf = (eventStore) => Engine.statsOf([eventStore[runtimeOf].engine]).sessions;

for (const line of LINES) {
  for (const [name, close] of Object.entries(CLOSES)) {
    test(`${line} one session whose close ${name} stops no other from ending`, ours, async (t) => {
      const { EventStore, createSessionRouter } = packages[line];
      const eventStore = new EventStore('memory:', { sessionIdleMs: 300 });
      let isFirst = true;
      const transports = [];
      const build = () => {
        const server = buildServer(line);
        const connect = server.connect.bind(server);
        if (isFirst) {
          server.close = close;
          server.connect = (transport) => {
            transports.push(transport);
            (transport._webStandardTransport ?? transport).close = close;
            return connect(transport);
          };
        }
        isFirst = false;
        return server;
      };
      const router = createSessionRouter(build, { eventStore });
      const host = await listen(node((req, res) => router.node(req, res)));
      t.after(() => host.close());
      for (let opened = 0; opened < 3; opened++) {
        await opens(host.port);
      }
      await until(() => sessionsOf(eventStore) === 0);
      isFirst = true;
      await opens(host.port);
      await router.close();
      await turns();
      assert.deepEqual(uncaught.splice(0), []);
    });
  }

  test(`${line} an engine that fails at a tick is ticked again`, ours, async (t) => {
    const { EventStore, createSessionRouter } = packages[line];
    const eventStore = new EventStore('memory:', { sessionIdleMs: 300 });
    const router = createSessionRouter(() => buildServer(line), { eventStore });
    const host = await listen(node((req, res) => router.node(req, res)));
    t.after(() => host.close());
    const { tick } = Engine.prototype;
    let ticks = 0;
    t.mock.method(Engine.prototype, 'tick', function () {
      ticks += 1;
      if (ticks === 1) {
        throw new Error('out of order');
      }
      return tick.call(this);
    });
    await opens(host.port);
    await until(() => sessionsOf(eventStore) === 0);
    assert.deepEqual(uncaught.splice(0), []);
  });
}

test('a log whose function rejects ends nothing', ours, async (t) => {
  const { configure, setLog } = packages.v2;
  let written = 0;
  // biome-ignore lint/nursery/noMisusedPromises: that is what is tested.
  setLog((level, text) => {
    written += 1;
    logged.push(`${level} ${text}`);
    return Promise.reject(new Error('out of order'));
  }, 'debug');
  t.after(() => setLog((level, text) => logged.push(`${level} ${text}`), 'debug'));
  configure();
  await turns();
  assert.ok(written > 0);
  assert.deepEqual(uncaught.splice(0), []);
});
