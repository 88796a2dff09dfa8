// Bodies of requests that something in front has looked at, on both SDK lines.
import assert from 'node:assert/strict';
import http from 'node:http';

import { buildServer } from '../servers/node/tools.mjs';
import { classes, connectServer, listen, packages, webClasses } from '../servers/node/transports.mjs';
import { ACCEPT, NEWEST, Peer, request, turns } from './kit/raw.mjs';
import { LINES, ours, test } from './kit/test.mjs';

const HEADERS = { accept: ACCEPT, 'content-type': 'application/json' };
/** Its bytes are more than its characters, and fall apart wherever it is cut. */
const name = 'größer '.repeat(20_000);
const initialize = JSON.stringify({
  jsonrpc: '2.0',
  id: 0,
  method: 'initialize',
  params: { protocolVersion: NEWEST, capabilities: {}, clientInfo: { name, version: '1' } },
});

function withResolvers() {
  const resolvers = {};
  resolvers.promise = new Promise((resolve) => Object.assign(resolvers, { resolve }));
  return resolvers;
}

const bytes = Buffer.byteLength(initialize);

for (const line of LINES) {
  for (const encoding of ['utf8', 'latin1', 'base64', 'hex']) {
    test(`${line} a request that something in front reads as ${encoding} is bytes again`, ours, async (t) => {
      let seen;
      const serve = async (req, res) => {
        const maxRequestBodySize = Number(req.headers['x-limit']);
        const router = packages[line].createSessionRouter(
          () => {
            seen = buildServer(line);
            return seen;
          },
          { maxRequestBodySize },
        );
        const transport = new classes[line]({ sessionIdGenerator: () => 'one', maxRequestBodySize });
        if (req.url === '/transport') {
          seen = buildServer(line);
          await seen.connect(transport);
        }
        t.after(() => Promise.all([router.close(), transport.close()]));
        req.setEncoding(encoding);
        return req.url === '/transport' ? transport.handleRequest(req, res) : router.node(req, res);
      };
      const host = await listen((req, res) => void serve(req, res));
      t.after(() => host.close());
      for (const path of ['/transport', '/router']) {
        const asked = (limit, more) =>
          request(host.port, 'POST', { ...HEADERS, 'x-limit': limit, ...more }, initialize, path);
        const taken = await asked(bytes);
        assert.equal(taken.status, 200, await taken.body());
        assert.equal(seen.server.getClientVersion().name, name);
        // Without `content-length` what comes is counted.
        const refused = await asked(bytes - 1, { 'transfer-encoding': 'chunked' });
        assert.equal(refused.status, 413);
      }
    });
  }

  test(`${line} a body that something in front has read is no JSON`, ours, async (t) => {
    const transport = new webClasses[line]({ sessionIdGenerator: () => 'one' });
    await connectServer(line, transport);
    const router = packages[line].createSessionRouter(() => buildServer(line));
    t.after(() => Promise.all([transport.close(), router.close()]));
    const post = () => new Request('http://localhost/mcp', { method: 'POST', headers: HEADERS, body: initialize });
    const read = {
      async whole(request) {
        await request.text();
      },
      locked: (request) => void request.body.getReader(),
    };
    for (const before of Object.values(read)) {
      for (const serve of [(request) => transport.handleRequest(request), (request) => router.fetch(request)]) {
        const request = post();
        await before(request);
        const response = await serve(request);
        assert.equal(response.status, 400);
        assert.equal((await response.json()).error.code, -32700);
      }
    }
  });

  test(`${line} the SDK is given nothing of a request that is refused`, ours, async (t) => {
    const transport = new webClasses[line]({ sessionIdGenerator: () => 'one' });
    await connectServer(line, transport);
    t.after(() => transport.close());
    let looks = 0;
    // What a parser has made. The engine has its JSON.
    const asked = async (parsedBody, more) => {
      const headers = { ...HEADERS, ...more };
      const body = Object.defineProperty({ ...parsedBody, toJSON: () => parsedBody }, 'jsonrpc', {
        enumerable: true,
        get() {
          looks += 1;
          return '2.0';
        },
      });
      Object.defineProperty(body, 'toJSON', { enumerable: false });
      const request = new Request('http://localhost/mcp', { method: 'POST', headers });
      const response = await transport.handleRequest(request, { parsedBody: body });
      await response.text();
      return response.status;
    };
    assert.equal(await asked(JSON.parse(initialize)), 200);
    assert.ok(looks > 0, 'a request that is served is looked at');
    const refused = {
      accept: ['application/json', 406],
      'mcp-session-id': ['two', 404],
      'content-type': ['text/plain', 415],
    };
    for (const [header, [value, status]] of Object.entries(refused)) {
      looks = 0;
      const call = { jsonrpc: '2.0', id: 1, method: 'tools/list' };
      assert.deepEqual([await asked(call, { 'mcp-session-id': 'one', [header]: value }), looks], [status, 0], header);
    }
  });

  test(`${line} a body whose stream gives text is taken`, ours, async (t) => {
    const router = packages[line].createSessionRouter(() => buildServer(line));
    t.after(() => router.close());
    const body = new ReadableStream({
      start(controller) {
        controller.enqueue(initialize);
        controller.close();
      },
    });
    const init = { method: 'POST', headers: HEADERS, body, duplex: 'half' };
    const response = await router.fetch(new Request('http://localhost/mcp', init));
    assert.equal(response.status, 200);
    assert.match(await response.text(), /"serverInfo"/);
  });

  test(`${line} the bytes that a host has left of a body that it has read are the body`, ours, async (t) => {
    const router = packages[line].createSessionRouter(() => buildServer(line), { maxRequestBodySize: bytes });
    const transport = new classes[line]({ sessionIdGenerator: () => 'one', maxRequestBodySize: bytes });
    await buildServer(line).connect(transport);
    t.after(() => Promise.all([router.close(), transport.close()]));
    const host = await listen(async (req, res) => {
      req.rawBody = Buffer.concat(await req.toArray());
      delete req.headers['content-length'];
      await (req.url === '/transport' ? transport.handleRequest(req, res) : router.node(req, res));
    });
    t.after(() => host.close());
    for (const path of ['/transport', '/router']) {
      const refused = await request(host.port, 'POST', HEADERS, `${initialize} `, path);
      assert.equal(refused.status, 413);
      const taken = await request(host.port, 'POST', HEADERS, initialize, path);
      assert.equal(taken.status, 200, await taken.body());
      assert.match(await taken.body(), /"serverInfo"/);
    }
  });

  for (const encoding of [undefined, 'latin1']) {
    test(`${line} what came whole is served, though its client has left, read as ${encoding}`, ours, async (t) => {
      let calls = 0;
      let served;
      const transport = new classes[line]({ sessionIdGenerator: () => 'one' });
      const server = buildServer(line);
      server.registerTool('pay', {}, () => {
        calls += 1;
        return { content: [] };
      });
      await server.connect(transport);
      const host = await listen((req, res) => {
        if (req.headers['x-leaves'] === undefined) {
          return transport.handleRequest(req, res);
        }
        if (encoding) {
          req.setEncoding(encoding);
        }
        // What authenticates may take so long.
        req.once('close', () => served.resolve(transport.handleRequest(req, res)));
        return undefined;
      });
      t.after(() => transport.close().then(() => host.close()));
      await Peer.open(host.port);
      const call = JSON.stringify({ jsonrpc: '2.0', id: 1, method: 'tools/call', params: { name: 'pay' } });
      const left = async (length) => {
        served = withResolvers();
        const headers = { ...HEADERS, 'content-length': length, 'mcp-session-id': 'one', 'x-leaves': 'yes' };
        const asked = http.request({ port: host.port, method: 'POST', path: '/mcp', headers });
        asked.on('error', () => {});
        asked.write(call, () => asked.destroy());
        await served.promise;
      };
      await left(call.length);
      await turns();
      assert.equal(calls, 1);
      await left(call.length + 1);
      await turns();
      assert.equal(calls, 1);
    });
  }

  test(`${line} a parsed body that cannot be written as JSON is no JSON`, ours, async (t) => {
    const transport = new webClasses[line]({ sessionIdGenerator: () => 'one' });
    await connectServer(line, transport);
    const router = packages[line].createSessionRouter(() => buildServer(line));
    t.after(() => Promise.all([transport.close(), router.close()]));
    const cycle = JSON.parse(initialize);
    cycle.params.cycle = cycle;
    const toJSON = () => {
      throw new Error('not now');
    };
    for (const parsedBody of [{ ...JSON.parse(initialize), big: 1n }, cycle, { ...JSON.parse(initialize), toJSON }]) {
      for (const serve of [(...args) => transport.handleRequest(...args), (...args) => router.fetch(...args)]) {
        const response = await serve(new Request('http://localhost/mcp', { method: 'POST', headers: HEADERS }), {
          parsedBody,
        });
        assert.equal(response.status, 400);
        assert.equal((await response.json()).error.code, -32700);
      }
    }
  });

  test(`${line} no options are none, and what cannot be read of a request is not there`, ours, async (t) => {
    const transport = new webClasses[line]({ sessionIdGenerator: () => 'one', enableJsonResponse: 'true' });
    await connectServer(line, transport);
    const router = packages[line].createSessionRouter(() => buildServer(line), { enableJsonResponse: 'true' });
    t.after(() => Promise.all([transport.close(), router.close()]));
    const post = () => new Request('http://localhost/mcp', { method: 'POST', headers: HEADERS, body: initialize });
    for (const serve of [(...args) => transport.handleRequest(...args), (...args) => router.fetch(...args)]) {
      const response = await serve(post(), null);
      assert.equal(response.status, 200);
      // As by the SDK's own, which looks only whether the option is true-ish.
      assert.equal(response.headers.get('content-type'), 'application/json');
      assert.ok((await response.json()).result.serverInfo);
    }
    const host = await listen((req, res) => {
      for (const name of req.headers['x-unreadable'].split(' ')) {
        Object.defineProperty(req, name, {
          get() {
            throw new Error(`no ${name}`);
          },
        });
      }
      req.auth = req.headers['x-auth'] && { token: 't', clientId: 'alice', scopes: [] };
      return router.node(req, res);
    });
    t.after(() => host.close());
    for (const headers of [
      { 'x-unreadable': 'originalUrl' },
      { 'x-unreadable': 'originalUrl user', 'x-auth': 'yes' },
    ]) {
      assert.equal(await (await Peer.open(host.port, NEWEST, headers)).ask('return x'), 'x');
    }
    const unknown = await request(host.port, 'POST', { ...HEADERS, 'x-unreadable': 'user' }, initialize);
    assert.match((await unknown.json()).error.message, /cannot tell whose request this is/);
  });
}
