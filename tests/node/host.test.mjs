// What must stay as it was: everything that users have around and beside the stock transports.
import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import { once } from 'node:events';
import http2 from 'node:http2';
import net from 'node:net';

import { requireScopes } from '@modelcontextprotocol/server';
import express from 'express';
import {
  acting,
  classes,
  connectServer,
  listen,
  makeServer,
  newGate,
  open,
  packages,
  serve,
  serveFor,
} from '../servers/node/transports.mjs';
import { ACCEPT, counts, lastId, NEWEST, Peer, parseEvents, request, results, until } from './kit/raw.mjs';
import { onEachLine, ours, test } from './kit/test.mjs';

const initialize = {
  jsonrpc: '2.0',
  id: 0,
  method: 'initialize',
  params: { protocolVersion: NEWEST, capabilities: {}, clientInfo: { name: 'x', version: '1' } },
};

onEachLine(serve, (line, server) => {
  const { EventStore } = packages[line];
  const opened = () => Peer.open(server().port);

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

  test('served over HTTP/2, whose requests name their host otherwise', ours, async (t) => {
    const made = makeServer(line, { enableDnsRebindingProtection: true, allowedHosts: ['here.example'] });
    const host = http2.createServer(made.listener);
    await once(host.listen(0, '127.0.0.1'), 'listening');
    const client = http2.connect(`http://127.0.0.1:${host.address().port}`);
    t.after(() => {
      client.destroy();
      host.close();
    });
    const session = { accept: ACCEPT, 'content-type': 'application/json' };
    const asked = async (method, more, message) => {
      const head = { ':method': method, ':path': '/mcp', ':authority': 'here.example', ...session, ...more };
      const stream = client.request(head).end(message && JSON.stringify(message));
      const [headers] = await once(stream, 'response');
      return { headers, status: headers[':status'], body: String(Buffer.concat(await stream.toArray())) };
    };
    assert.equal((await asked('POST', { ':authority': 'evil.example' }, initialize)).status, 403);
    const { status, headers } = await asked('POST', {}, initialize);
    assert.equal(status, 200);
    session['mcp-session-id'] = headers['mcp-session-id'];
    session['mcp-protocol-version'] = NEWEST;
    const steps = ['emit 1', 'close', 'emit 1', 'return x'];
    const params = { name: 'script', arguments: { steps }, _meta: { progressToken: 1 } };
    const events = parseEvents((await asked('POST', {}, { jsonrpc: '2.0', id: 1, method: 'tools/call', params })).body);
    const rest = parseEvents((await asked('GET', { 'last-event-id': lastId(events) })).body);
    assert.deepEqual([counts([...events, ...rest]), results(rest)], [[1, 2], ['x']]);
    assert.equal((await asked('DELETE')).status, 200);
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

  test('handlers see the url of their request', async () => {
    const peer = await opened();
    const name = newGate();
    const reply = await peer.call('act', { name });
    const { extra } = await acting(name);
    const url = new URL(line === 'v1' ? extra.requestInfo.url : extra.http.req.url, 'http://localhost');
    assert.equal(url.pathname, '/mcp');
    if (line === 'v2') {
      assert.equal(new Request(extra.http.req.clone()).headers.get('accept'), ACCEPT);
    }
    open(name);
    assert.deepEqual(results(await reply.rest()), [name]);
  });

  test('wrong options are refused at once', ours, () => {
    assert.throws(() => new EventStore('nowhere:'), { code: 'store_not_opened' });
    for (const wrong of [{ retryMs: -1 }, { retryMs: 'soon' }, { maxSessions: 0 }, { noSuchOption: 1 }]) {
      assert.throws(() => new EventStore('memory:', wrong), new RegExp(Object.keys(wrong)[0]));
    }
  });

  test('without sessions the head of a GET is sent at once', ours, async (t) => {
    const { port } = await serveFor(t, line, { stateless: true });
    const peer = new Peer(port);
    const listening = await peer.get();
    assert.equal(listening.status, 200);
    listening.drop();
  });

  test('i13 a response that cannot be written is answered with an error', ours, async () => {
    const peer = await opened();
    const name = newGate();
    const reply = await peer.call('script', { steps: ['emit 1', `gate ${name}`] }, 1);
    await reply.some(1);
    await server()
      .transports.get(peer.sessionId)
      .send({ jsonrpc: '2.0', id: 1, result: { big: 1n } });
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

  test('a notification that is too large raises our error in its handler', ours, async (t) => {
    const eventStore = new EventStore('memory:', { maxEventBytes: 1_000 });
    const { port } = await serveFor(t, line, { eventStore });
    const name = newGate();
    const reply = await (await Peer.open(port)).call('act', { name });
    const context = await acting(name);
    await assert.rejects(context.log('x'.repeat(1_000)), { name: 'TailropeError', code: 'too_large' });
    open(name);
    assert.deepEqual(results(await reply.rest()), [name]);
  });

  test('a connection ends with its stream where its client asks for that', ours, async (t) => {
    const { port } = await serveFor(t, line);
    const peer = await Peer.open(port);
    const asked = {
      'HTTP/1.1': [
        ['connection: close', 'close'],
        ['x-nothing: asked', 'keep-alive'],
      ],
      // It has no chunks: only the end of the connection ends a stream.
      'HTTP/1.0': [
        ['x-nothing: asked', 'close'],
        ['connection: keep-alive', 'close'],
      ],
    };
    for (const [version, cases] of Object.entries(asked)) {
      for (const [header, want] of cases) {
        const socket = net.connect(port, '127.0.0.1').setEncoding('utf8');
        let text = '';
        socket.on('data', (more) => (text += more));
        const ended = once(socket, 'end');
        const params = { name: 'script', arguments: { steps: ['emit 1', 'return x'] } };
        const body = JSON.stringify({ jsonrpc: '2.0', id: `${version} ${header}`, method: 'tools/call', params });
        const head = [
          `POST /mcp ${version}`,
          'host: localhost',
          `accept: ${ACCEPT}`,
          'content-type: application/json',
          `content-length: ${body.length}`,
          `mcp-session-id: ${peer.sessionId}`,
          `mcp-protocol-version: ${NEWEST}`,
          header,
        ];
        socket.write(`${head.join('\r\n')}\r\n\r\n${body}`);
        await until(() => text.includes('"text":"x"'));
        assert.match(text, /content-type: text\/event-stream/i);
        assert.deepEqual(
          [...text.matchAll(/^connection: (.*?)\r$/gim)].map(([, value]) => value.toLowerCase()),
          [want],
          `${version} ${header}`,
        );
        if (want === 'close') {
          await ended;
        }
        socket.destroy();
      }
    }
  });

  test('functions of the host around the SDK have their stacks', ours, async (t) => {
    for (const when of ['before', 'behind']) {
      const seen = [];
      const transport = new classes[line]({ sessionIdGenerator: () => 'one' });
      const wrap = () => {
        const { onmessage } = transport;
        transport.onmessage = (message, extra) => {
          seen.push([message.method, Error.stackTraceLimit]);
          onmessage?.(message, extra);
        };
      };
      if (when === 'before') {
        wrap();
      }
      await connectServer(line, transport);
      if (when === 'behind') {
        wrap();
      }
      const host = await listen((req, res) => void transport.handleRequest(req, res));
      t.after(() => host.close());
      const peer = await Peer.open(host.port);
      assert.equal(await peer.ask('return x'), 'x');
      assert.deepEqual(
        seen.map(([method]) => method),
        ['initialize', 'notifications/initialized', 'tools/call'],
      );
      assert.ok(seen.every(([, limit]) => limit === Error.stackTraceLimit && limit > 0));
    }
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

  test('who finds no room is told when to come again', ours, async (t) => {
    const { port } = await serveFor(t, line, { engine: { maxSessions: 1 } });
    const first = await Peer.open(port);
    // In use, so that it ends for nobody.
    await first.listen();
    const reply = await new Peer(port).post(initialize);
    assert.deepEqual([reply.status, reply.headers['retry-after']], [503, '1']);
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
