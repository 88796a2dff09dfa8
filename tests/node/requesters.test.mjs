// Who sends a request, as far as a Node host knows it, whatever object stands for the user; and which server it is for. The
// rules are vectors/principal.json and vectors/server_name.json, which the core and the servers run.
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import http2 from 'node:http2';
import { describe } from 'node:test';

import { Engine, Refusal, Store } from '../../bindings-node/lib/native.mjs';
import { NodeExchange } from '../../bindings-node/lib/server/node-exchange.mjs';
import { identify } from '../../bindings-node/lib/server/requester.mjs';
import { WebExchange } from '../../bindings-node/lib/server/web-exchange.mjs';
import { head } from './kit/head.mjs';
import { ACCEPT, NEWEST } from './kit/raw.mjs';
import { ours, test } from './kit/test.mjs';

const HEAD = { method: 'POST', accept: ACCEPT, contentType: 'application/json' };
const INITIALIZE = JSON.stringify({
  jsonrpc: '2.0',
  id: 1,
  method: 'initialize',
  params: { protocolVersion: NEWEST, capabilities: {}, clientInfo: { name: 'x', version: '1' } },
});

function requesterOf(user, options = {}) {
  const headersOf = (asked) =>
    Object.entries(options.headers ?? {})
      .filter(([name]) => asked(name))
      .flat();
  const exchange = { user, endpoint: '/mcp', headersOf };
  identify(exchange, { principal: undefined, serverName: undefined, identityHeaders: new Set(), ...options });
  return exchange.requester;
}

/** Whether a session of the one is found by the other. */
function finds(owner, other) {
  const engine = new Engine(new Store('memory:', {}), {}, ...Array(3).fill(() => {}));
  const opened = engine.admit(head(HEAD), owner, INITIALIZE, false, 2, [NEWEST]);
  if (opened instanceof Refusal) {
    assert.equal(opened.status, 500);
    assert.match(opened.message, /cannot tell whose request/);
    return false;
  }
  const session = engine.openSession('s', '/mcp', owner, 2, [NEWEST]);
  const asked = session.admit(
    head({ ...HEAD, sessionId: 's' }),
    undefined,
    other,
    '{"jsonrpc":"2.0","method":"x"}',
    false,
  );
  assert.ok(!(asked instanceof Refusal) || asked.status === 404);
  return !(asked instanceof Refusal);
}

class Hidden {
  #id;
  constructor(id, credits) {
    this.#id = id;
    this.credits = credits;
  }
  get id() {
    return this.#id;
  }
  get broken() {
    throw new Error('no database');
  }
}
class Getter {
  get role() {
    return 'admin';
  }
}
class ObjectId {
  constructor(hex) {
    this.hex = hex;
  }
  toString() {
    return this.hex;
  }
}
class WithJson {
  #facts;
  constructor(facts) {
    this.#facts = facts;
  }
  toJSON() {
    return this.#facts;
  }
}
const cycle = (facts) => Object.assign(facts, { self: facts });
const called = (facts) => Object.assign(() => facts, facts);
const lazily = (of) =>
  new Proxy(
    {},
    {
      get: (_, name) => of[name],
      ownKeys: () => Object.keys(of),
      getOwnPropertyDescriptor: (_, name) => Object.getOwnPropertyDescriptor(of, name),
    },
  );

const SAME = {
  'a big integer and its text': [{ id: 7n }, { id: '7' }],
  'a number and its text': [{ id: 7 }, { id: '7' }],
  'bytes and their digits': [{ oid: new Uint8Array([1, 255]) }, { oid: '01ff' }],
  'a buffer within another': [{ uid: Buffer.from('xab').subarray(1) }, { uid: '6162' }],
  'an id with a text of its own': [{ _id: new ObjectId('507f') }, { _id: new ObjectId('507f') }],
  'a private field': [new Hidden('a', 1), new Hidden('a', 2)],
  'a frozen object': [Object.freeze({ sub: 'a', exp: 1 }), { sub: 'a', exp: 2 }],
  'no prototype': [Object.assign(Object.create(null), { sub: 'a' }), { sub: 'a' }],
  'a cycle beside a name': [cycle({ id: 1 }), { id: 1 }],
  'a map beside a name': [{ id: 1, m: new Map([['a', 1]]) }, { id: 1 }],
  'a function with the name as a member': [called({ userId: 'a' }), { userId: 'a' }],
  'a stand-in': [lazily({ sub: 'a' }), { sub: 'a' }],
  'toJSON alone': [new WithJson({ sub: 'a', iat: 1 }), { sub: 'a' }],
  'an inherited name': [Object.create({ sub: 'a' }), { sub: 'a' }],
  'an organization that is an object': [
    { sub: 'a', org: { id: 1, seats: 1 } },
    { sub: 'a', org: { id: 1, seats: 2 } },
  ],
  'a member that changes': [
    { id: 1, __v: 1, credits: { left: 3 } },
    { id: 1, __v: 2, credits: { left: 2 } },
  ],
  'facts that name nobody': [
    { plan: 'pro', account: 9n },
    { account: '9', plan: 'pro' },
  ],
  nobody: [undefined, null],
  'nobody, as passport says it': [false, undefined],
};
const OTHER = {
  'a big integer': [{ id: 7n }, { id: 8n }],
  'big integers that a number cannot tell apart': [{ id: 2n ** 60n }, { id: 2n ** 60n + 1n }],
  bytes: [{ uid: new Uint8Array([1]) }, { uid: new Uint8Array([2]) }],
  'an id with a text of its own': [{ _id: new ObjectId('507f') }, { _id: new ObjectId('507e') }],
  'an id that is a map': [{ id: new Map() }, { id: new Map() }],
  'an id that is a symbol': [{ id: Symbol.for('a') }, { id: Symbol.for('a') }],
  'a private field': [new Hidden('a', 1), new Hidden('b', 1)],
  'a tenant that is an object': [
    { id: 1, tenant: { id: 1 } },
    { id: 1, tenant: { id: 2 } },
  ],
  'a stand-in': [lazily({ sub: 'a' }), lazily({ sub: 'b' })],
  'toJSON alone': [new WithJson({ sub: 'a' }), new WithJson({ sub: 'b' })],
  'facts that name nobody': [
    { plan: 'pro', account: 1 },
    { plan: 'pro', account: 2 },
  ],
  'somebody and nobody': [{ id: 7n }, undefined],
  // Nobody can tell whose requests these are: they are refused, and equal not even themselves.
  'a map': [new Map([['id', 1]]), new Map([['id', 1]])],
  'a set': [new Set([1]), new Set([1])],
  'a weak map': [new WeakMap(), new WeakMap()],
  'a function': [() => {}, () => {}],
  'a class': [Hidden, Hidden],
  'getters alone': [new Getter(), new Getter()],
  'a cycle': [cycle({ plan: 'pro' }), cycle({ plan: 'pro' })],
  'a map within': [
    { plan: 'pro', more: new Map() },
    { plan: 'pro', more: new Map() },
  ],
  'an empty object': [{}, {}],
  'an empty text': ['', ''],
  'truth values': [{ isAdmin: true }, { isAdmin: true }],
  true: [true, true],
  'a symbol': [Symbol('a'), Symbol('a')],
  'toJSON that says nothing': [{ toJSON() {} }, { toJSON() {} }],
  'toJSON that throws': [{ toJSON: () => assert.fail() }, { toJSON: () => assert.fail() }],
  'a revoked proxy': [revoked(), revoked()],
  'a member that throws': [throwing(), throwing()],
};

function revoked() {
  const { proxy, revoke } = Proxy.revocable({}, {});
  revoke();
  return proxy;
}

function throwing() {
  return Object.defineProperty({ plan: 'pro' }, 'more', { enumerable: true, get: () => assert.fail() });
}

describe('i7 users', () => {
  for (const [name, [owner, other]] of Object.entries(SAME)) {
    test(`the same: ${name}`, ours, () => {
      assert.ok(finds(requesterOf(owner), requesterOf(other)));
      assert.ok(finds(requesterOf(other), requesterOf(owner)));
    });
  }
  for (const [name, [owner, other]] of Object.entries(OTHER)) {
    test(`another: ${name}`, ours, () => {
      assert.ok(!finds(requesterOf(owner), requesterOf(other)));
      assert.ok(!finds(requesterOf(other), requesterOf(owner)));
    });
  }
});

test('i7 a credential does not stand in for a user who cannot be identified', ours, () => {
  const headers = { authorization: 'Bearer shared-by-a-gateway' };
  assert.ok(!finds(requesterOf(new Map(), { headers }), requesterOf(new Map(), { headers })));
});

test('i7 a header of the host’s own names the user', ours, () => {
  const of = (value) =>
    requesterOf(undefined, { headers: { 'x-own-user': value }, identityHeaders: new Set(['x-own-user']) });
  assert.ok(finds(of('a'), of('a')) && !finds(of('a'), of('b')));
});

const vectors = JSON.parse(readFileSync(new URL('../vectors/server_name.json', import.meta.url))).vectors;

describe('i7 o7 servers', () => {
  const node = ({ target, routed }) =>
    new NodeExchange({ url: routed ?? target, originalUrl: target, headers: {} }, {}).endpoint;
  for (const { name, opens, asks, finds: same } of vectors.filter(
    (vector) => !vector.opens.asgi && !vector.asks.asgi,
  )) {
    test(name, ours, () => assert.equal(node(opens) === node(asks), same));
  }

  test('a request of HTTP/2 has its path in a field of its own', ours, async (t) => {
    const names = [];
    const server = http2.createServer((req, res) => {
      names.push(new NodeExchange(req, res).endpoint);
      res.end();
    });
    t.after(() => server.close());
    await once(server.listen(0, '127.0.0.1'), 'listening');
    const client = http2.connect(`http://127.0.0.1:${server.address().port}`);
    for (const path of ['/admin/mcp?x', '/%61dmin/mcp']) {
      await once(client.request({ ':path': path }).resume(), 'end');
    }
    client.close();
    assert.deepEqual(names, ['/admin/mcp', '/%61dmin/mcp']);
  });

  test('a request of the web platform has the path as it came', ours, () => {
    const of = (path) => new WebExchange(new Request(`http://host.example${path}`)).endpoint;
    assert.equal(of('/admin/mcp?x'), '/admin/mcp');
    assert.equal(new Set(['/admin/mcp', '/%61dmin/mcp', '/admin%2Fmcp', '/admin/mcp/', '//admin/mcp'].map(of)).size, 5);
  });
});
