// What must stay as it was: everything that users have around and beside the stock transports.
import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import http from 'node:http';

import { requireScopes } from '@modelcontextprotocol/server';
import express from 'express';

import { NEWEST, Peer, counts, lastId, logs, refusal, request, results } from './kit/raw.mjs';
import { acting, at, classes, connectServer, listen, marked, newGate, open } from '../servers/node/transports.mjs';
import { packages, serve, serveFor } from '../servers/node/transports.mjs';
import { LabStore } from '../servers/node/stores.mjs';
import { onEachLine, ours, test } from './kit/test.mjs';

const initialize = {
  jsonrpc: '2.0',
  id: 0,
  method: 'initialize',
  params: { protocolVersion: NEWEST, capabilities: {}, clientInfo: { name: 'x', version: '1' } },
};

onEachLine(serve, (line, server) => {
  const { EventStore } = packages[line];
  const opened = (headers) => Peer.open(server().port, undefined, headers);

  test('stateless mode serves without sessions', async (t) => {
    const stateless = await listen(async (req, res) => {
      const transport = new classes[line]({ sessionIdGenerator: undefined });
      await connectServer(line, transport);
      await transport.handleRequest(req, res);
    });
    t.after(() => stateless.close());
    const reply = await new Peer(stateless.port).script('emit 2', 'return x');
    const events = await reply.rest();
    assert.deepEqual([counts(events), results(events)], [[1, 2], ['x']]);
    assert.equal(reply.headers['mcp-session-id'], undefined);
    assert.ok(events.every(({ id }) => id === undefined), 'nothing to resume, so nothing to prime');
  });

  test('json response mode', async (t) => {
    const json = await serveFor(t, line, { enableJsonResponse: true });
    const peer = await Peer.open(json.port);
    const reply = await peer.script('emit 2', 'close', 'log x', 'return done');
    assert.equal(reply.headers['content-type'], 'application/json');
    assert.equal((await reply.json()).result.content[0].text, 'done', 'what belongs to the call has no wire here');
    const stream = await peer.listen();
    await peer.ask('standalone heard');
    assert.deepEqual(logs(await stream.some(1)), ['heard']);
    stream.drop();
    const ping = (id) => ({ jsonrpc: '2.0', id, method: 'ping' });
    const both = await peer.post([ping(1), ping(2), { jsonrpc: '2.0', method: 'notifications/x' }]);
    const pong = (id) => ({ jsonrpc: '2.0', id, result: {} });
    assert.deepEqual(await both.json(), [pong(1), pong(2)]);
  });

  test('json response mode refuses a duplicate id', ours, async (t) => {
    const json = await serveFor(t, line, { enableJsonResponse: true });
    const peer = await Peer.open(json.port);
    const name = newGate();
    const first = peer.call('script', { steps: [`gate ${name}`, 'return x'] }, 4);
    await at(name);
    const ping = (id) => ({ jsonrpc: '2.0', id, method: 'ping' });
    for (const again of [ping(4), [ping(3), ping(4)]]) {
      const [status, code] = await refusal(await peer.post(again));
      assert.deepEqual([status, code], [400, -32600]);
    }
    await peer.cancel(4);
    assert.equal((await (await first).json()).error.code, -32800);
  });

  test('handlers see the http request', async () => {
    const peer = await opened();
    for (const value of ['abc', 'def']) {
      peer.headers['x-trace'] = value;
      const events = await (await peer.call('header', { name: 'x-trace' })).untilTerminal();
      assert.deepEqual(results(events), [`${value} /mcp`]);
    }
  });

  test('contexts have the ids of the wire', async () => {
    const peer = await opened();
    for (const id of [17, '17']) {
      const events = await (await peer.call('request_id', { of: 'x' }, id)).untilTerminal();
      assert.deepEqual(results(events), [JSON.stringify(id)]);
    }
  });

  test('dns rebinding is refused also on resumes', ours, async (t) => {
    const strict = await serveFor(t, line, {
      enableDnsRebindingProtection: true,
      allowedHosts: ['good'],
      allowedOrigins: ['http://good'],
    });
    const peer = await Peer.open(strict.port, undefined, { host: 'good', origin: 'http://good' });
    const events = await (await peer.script('emit 1', 'return x')).rest();
    for (const [header, words] of [
      ['host', 'Invalid Host header: evil'],
      ['origin', 'Invalid Origin header: evil'],
    ]) {
      const good = peer.headers[header];
      peer.headers[header] = 'evil';
      const replies = [await peer.script('x'), await peer.get(), await peer.resume(events[0].id), await peer.delete()];
      for (const reply of replies) {
        const { error } = await reply.json();
        assert.deepEqual([reply.status, error], [403, { code: -32000, message: words }]);
      }
      peer.headers[header] = good;
    }
    assert.equal(await peer.ask('return x'), 'x');
  });

  test('body limit is 413', async (t) => {
    const small = await serveFor(t, line, { maxRequestBodySize: 1_000 });
    const peer = await Peer.open(small.port);
    const reply = await peer.post('x'.repeat(2_000));
    const message = 'Payload Too Large: Request body must not exceed 1000 bytes';
    assert.deepEqual([reply.status, (await reply.json()).error], [413, { code: -32000, message }]);
    assert.equal(await peer.ask('return x'), 'x');
  });

  test('mounted in a host application, express with a body parser', ours, async (t) => {
    const transports = new Map();
    const app = express();
    app.get('/own', (_, res) => res.json({ host: 'express' }));
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
    t.after(() => host.close());
    const peer = await Peer.open(host.port);
    const events = await (await peer.script('emit 1', 'close', 'emit 1', 'return x')).rest();
    const rest = await (await peer.resume(lastId(events))).untilTerminal();
    assert.deepEqual([counts([...events, ...rest]), results(rest)], [[1, 2], ['x']]);
    const stream = await peer.listen();
    assert.equal((await stream.event()).retry, 3_000);
    assert.equal((await peer.delete()).status, 200);
    assert.equal((await fetch(`http://127.0.0.1:${host.port}/own`)).status, 200);
  });

  test('session callbacks run once, and close ends the session', ours, async (t) => {
    const called = [];
    let transport;
    const host = await listen(async (req, res) => {
      if (transport === undefined) {
        transport = new classes[line]({
          sessionIdGenerator: () => 'only',
          onsessioninitialized: async (id) => called.push(`initialized ${id}`),
          onsessionclosed: async (id) => called.push(`closed ${id}`),
        });
        const mcp = await connectServer(line, transport);
        mcp.server.onclose = () => called.push('onclose');
      }
      await transport.handleRequest(req, res);
    });
    t.after(() => host.close());
    const peer = await Peer.open(host.port);
    assert.equal(transport.sessionId, 'only');
    const stream = await peer.listen();
    await stream.event();
    await peer.delete();
    await transport.close();
    assert.deepEqual(await stream.rest(), []);
    assert.deepEqual(called, ['initialized only', 'closed only', 'onclose']);
  });

  test('cancelled request gets its terminal', ours, async () => {
    // I13: the stock transports leave its stream open.
    const peer = await opened();
    const name = newGate();
    const reply = await peer.call('script', { steps: ['emit 1', `gate ${name}`, `return ${name}`] }, 6);
    const events = await reply.some(1);
    await at(name);
    assert.equal((await peer.cancel(6)).status, 202);
    const { message } = (await reply.rest()).at(-1);
    assert.deepEqual([message.id, message.error.code], [6, -32800]);
    await marked(`cancelled return ${name}`);
    // A client that was away learns the same.
    const again = await (await peer.resume(lastId(events))).rest();
    assert.deepEqual(results(again).map(({ code }) => code), [-32800]);
    assert.equal(await peer.ask('return fine'), 'fine');
  });

  test('cancelled request that nobody reads gets its terminal', ours, async () => {
    const peer = await opened();
    const name = newGate();
    const reply = await peer.call('script', { steps: ['close', `gate ${name}`, 'return x'] }, 'c');
    const cursor = lastId(await reply.rest());
    await at(name);
    await peer.cancel('c');
    const events = await (await peer.resume(cursor)).rest();
    assert.deepEqual(results(events).map(({ code }) => code), [-32800]);
  });

  test('cancelling nothing harms nothing', async () => {
    const peer = await opened();
    for (const id of [999, 'nobody', null]) {
      assert.ok([202, 400].includes((await peer.cancel(id)).status));
    }
    assert.equal(await peer.ask('return fine'), 'fine');
  });

  test('lost connection cancels nothing', async () => {
    // I12; the tool's own mark shows that it ran to its end.
    const peer = await opened();
    const name = newGate();
    const reply = await peer.script(`gate ${name}`, `return ${name}`);
    const { id } = await reply.event();
    await at(name);
    reply.drop();
    open(name);
    await marked(`finished return ${name}`);
    assert.deepEqual(results(await (await peer.resume(id)).untilTerminal()), [name]);
  });

  test('sampling and elicitation work over raw http', async () => {
    const peer = await opened();
    const reply = await peer.script('sample hello');
    const { message } = (await reply.some(1)).at(-1);
    assert.equal(message.method, 'sampling/createMessage');
    await peer.respond(message.id, { role: 'assistant', model: 'm', content: { type: 'text', text: 'world' } });
    assert.deepEqual(results(await reply.untilTerminal()), ['world']);
  });

  test('raising tool is an error result', async () => {
    const peer = await opened();
    const events = await (await peer.script('emit 1', 'raise sorry')).rest();
    assert.deepEqual(counts(events), [1]);
    assert.ok(events.at(-1).message.result.isError);
  });

  for (const how of ['tailrope', 'lab']) {
    test(`an event store alone is resumable, ${how}`, ours, async (t) => {
      const eventStore = how === 'lab' ? new LabStore() : new EventStore('memory:', { maxEventsPerStream: 50 });
      const stored = await serveFor(t, line, { eventStore, retryInterval: 33 });
      const peer = await Peer.open(stored.port);
      const events = await (await peer.script('emit 1', 'close', 'emit 1', 'return x')).rest();
      assert.equal(events[0].retry, 33);
      const rest = await (await peer.resume(lastId(events))).rest();
      assert.deepEqual([counts([...events, ...rest]), results(rest)], [[1, 2], ['x']]);
      assert.ok(rest[0].isPriming);
    });
  }

  test('disabled by the environment is stock', ours, async (t) => {
    process.env.TAILROPE_DISABLE = '1';
    t.after(() => delete process.env.TAILROPE_DISABLE);
    const disabled = await serveFor(t, line);
    const peer = await Peer.open(disabled.port);
    const events = await (await peer.script('emit 1', 'return x')).rest();
    assert.deepEqual(events.map(({ id }) => id), [undefined, undefined], 'without a store the SDK sends no ids');
    assert.deepEqual(results(events), ['x']);
  });

  test('the kill switch leaves a server with our store working', ours, async (t) => {
    process.env.TAILROPE_DISABLE = '1';
    t.after(() => delete process.env.TAILROPE_DISABLE);
    const disabled = await serveFor(t, line, { engine: { maxEventsPerStream: 5 } });
    const { sessions } = packages[line].stats();
    const peer = await Peer.open(disabled.port);
    assert.equal(packages[line].stats().sessions, sessions);
    const name = newGate();
    const reply = await peer.script('emit 2', `gate ${name}`, 'emit 1', `return ${name}`);
    const cursor = lastId(await reply.some(2));
    reply.drop();
    open(name);
    await marked(`finished return ${name}`);
    const rest = await (await peer.resume(cursor)).untilTerminal();
    assert.deepEqual([counts(rest), results(rest)], [[3], [name]]);
  });

  test('wrong options are refused at once', ours, () => {
    assert.throws(() => new EventStore('redis:'), { code: 'store_not_opened' });
    for (const wrong of [{ retryMs: -1 }, { retryMs: 'soon' }, { maxSessions: 0 }, { noSuchOption: 1 }]) {
      assert.throws(() => new EventStore('memory:', wrong), new RegExp(Object.keys(wrong)[0]));
    }
  });

  test('i13 a response that cannot be written is answered with an error', ours, async () => {
    const peer = await opened();
    const name = newGate();
    const reply = await peer.call('script', { steps: ['emit 1', `gate ${name}`] }, 1);
    await reply.some(1);
    await server().transports.get(peer.sessionId).send({ jsonrpc: '2.0', id: 1, result: { big: 1n } });
    assert.equal(results(await reply.rest())[0].code, -32603);
  });

  test('a notification that cannot be written raises in its handler', ours, async () => {
    const peer = await opened();
    const name = newGate();
    const reply = await peer.call('act', { name });
    const context = await acting(name);
    await assert.rejects(() => context.log(1n), TypeError);
    open(name);
    assert.deepEqual(results(await reply.rest()), [name]);
  });

  test('the transport closes streams by request id', ours, async () => {
    const peer = await opened();
    const transport = server().transports.get(peer.sessionId);
    const name = newGate();
    const reply = await peer.call('script', { steps: ['emit 1', `gate ${name}`, 'return x'] }, 1);
    const events = await reply.some(1);
    transport.closeSSEStream(1, { retryMs: 77 });
    events.push(...(await reply.rest()));
    const resumed = await peer.resume(lastId(events));
    assert.equal((await resumed.event()).retry, 77);
    open(name);
    assert.deepEqual(results(await resumed.rest()), ['x']);
  });

  test('f22 a client that leaves in its own message is no fault', ours, async (t) => {
    const own = await serveFor(t, line);
    const peer = await Peer.open(own.port);
    const headers = {
      accept: 'application/json, text/event-stream',
      'content-type': 'application/json',
      'content-length': 1_000,
      'mcp-session-id': peer.sessionId,
    };
    for (const body of ['', '{"jsonrpc"']) {
      const half = http.request({ port: own.port, path: '/mcp', method: 'POST', agent: false, headers });
      half.on('error', () => {});
      half.write(body || ' ');
      await new Promise((resolve) => half.on('socket', (socket) => socket.once('connect', resolve)));
      half.destroy();
    }
    assert.equal(await peer.ask('return fine'), 'fine');
    assert.equal((await peer.delete()).status, 200);
    assert.deepEqual(own.errors, []);
  });

  test('a message of a session that has ended is not accepted', ours, async () => {
    const peer = await opened();
    const transport = server().transports.get(peer.sessionId);
    await transport.close();
    server().transports.set(peer.sessionId, transport);
    for (const reply of [await peer.notify('notifications/x'), await peer.script('return x'), await peer.get()]) {
      assert.equal(reply.status, 404);
    }
    server().transports.delete(peer.sessionId);
    await assert.rejects(async () => transport.send({ jsonrpc: '2.0', id: 1, result: {} }));
  });

  test('an initialize that nobody takes opens no session', ours, async () => {
    const { sessions } = packages[line].stats();
    const wrong = { ...initialize, params: { protocolVersion: NEWEST } };
    const reply = await new Peer(server().port).post(wrong);
    assert.ok(reply.status >= 400);
    assert.equal(packages[line].stats().sessions, sessions);
  });
});

test('v2 challenges a scope that is missing before the tool is called', ours, async (t) => {
  let called = 0;
  let transport;
  const host = await listen(async (req, res) => {
    req.auth = { token: 't', clientId: 'c', scopes: [] };
    if (transport === undefined) {
      transport = new classes.v2({ sessionIdGenerator: () => 'one' });
      const mcp = await connectServer('v2', transport);
      mcp.registerTool('guarded', { scopeChallenge: requireScopes('write') }, () => {
        called += 1;
        return { content: [] };
      });
    }
    await transport.handleRequest(req, res);
  });
  t.after(() => host.close());
  const peer = await Peer.open(host.port);
  const reply = await peer.call('guarded', {});
  assert.equal(reply.status, 403);
  assert.match(reply.headers['www-authenticate'], /insufficient_scope.*write/);
  assert.equal(called, 0);
  assert.equal((await request(host.port, 'DELETE', { 'mcp-session-id': peer.sessionId })).status, 200);
});
