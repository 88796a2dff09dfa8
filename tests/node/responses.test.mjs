// Requests and responses that are not node's own: what people put between a transport and their platform. Each answers as with
// the SDK's transport in our place.
import assert from 'node:assert/strict';
import { EventEmitter } from 'node:events';

import { toFetchResponse, toReqRes } from 'fetch-to-node';
import inject from 'light-my-request';
import mocks from 'node-mocks-http';
import serverless from 'serverless-http';
import { buildServer } from '../servers/node/tools.mjs';
import {
  classes,
  listen,
  logged,
  newGate,
  open,
  packages,
  stockClasses,
  webClasses,
} from '../servers/node/transports.mjs';
import { ACCEPT, NEWEST, Peer, parseEvents, results, turns, until, within } from './kit/raw.mjs';
import { LINES, ours, test } from './kit/test.mjs';

const JSON_HEADERS = { accept: ACCEPT, 'content-type': 'application/json', host: 'localhost' };
const initialize = {
  jsonrpc: '2.0',
  id: 0,
  method: 'initialize',
  params: { protocolVersion: NEWEST, capabilities: {}, clientInfo: { name: 'x', version: '1' } },
};
const initialized = { jsonrpc: '2.0', method: 'notifications/initialized' };
const call = (...steps) => ({
  jsonrpc: '2.0',
  id: 1,
  method: 'tools/call',
  params: { name: 'script', arguments: { steps }, _meta: { progressToken: 1 } },
});

/** How each host asks a handler of node:http: it resolves to status, headers and body. */
const HOSTS = {
  async 'fetch-to-node'(handle, { method, headers, body }) {
    const { req, res } = toReqRes(new Request('http://localhost/mcp', { method, headers, body }));
    void handle(req, res);
    const response = await toFetchResponse(res);
    return [response.status, Object.fromEntries(response.headers), await response.text()];
  },
  async 'light-my-request'(handle, { method, headers, body }) {
    const {
      statusCode,
      headers: answered,
      payload,
    } = await inject(handle, { method, url: '/mcp', headers, payload: body });
    return [statusCode, answered, payload];
  },
  async 'serverless-http'(handle, { method, headers, body }) {
    const event = {
      version: '2.0',
      requestContext: { http: { method } },
      rawPath: '/mcp',
      rawQueryString: '',
      headers,
    };
    const answer = await serverless((req, res) => void handle(req, res))({ ...event, body: body ?? '' }, {});
    return [answer.statusCode, answer.headers, answer.body];
  },
  async 'node-mocks-http'(handle, { method, headers, body }) {
    const rawHeaders = Object.entries(headers).flat();
    const req = mocks.createRequest({ method, url: '/mcp', headers, rawHeaders, eventEmitter: EventEmitter });
    Object.assign(req, { rawHeaders, httpVersionMajor: 1 });
    const res = mocks.createResponse({ eventEmitter: EventEmitter });
    void handle(req, res, body && JSON.parse(body));
    await until(() => res.writableEnded);
    const text = res._getData() + String(res._getBuffer());
    return [res.statusCode, res.getHeaders(), text];
  },
  /** What our transport, and the SDK's, use of a response; without `req`, and its `write` says nothing. */
  async 'a response that has little'(handle, { method, headers, body }) {
    const req = mocks.createRequest({ method, url: '/mcp', headers, eventEmitter: EventEmitter });
    Object.assign(req, { rawHeaders: Object.entries(headers).flat(), httpVersionMajor: 1 });
    const chunks = [];
    const res = Object.assign(new EventEmitter(), {
      headersSent: false,
      writeHead(status, answered) {
        Object.assign(res, { status, answered, headersSent: true });
      },
      write: (chunk) => void chunks.push(chunk),
      end(chunk) {
        chunks.push(chunk ?? '');
        res.writableEnded = true;
      },
      destroy() {
        res.writableEnded = true;
      },
    });
    void handle(req, res, body && JSON.parse(body));
    await until(() => res.writableEnded);
    const answered = Object.entries(res.answered ?? {}).map(([name, value]) => [name.toLowerCase(), value]);
    return [res.status, Object.fromEntries(answered), chunks.map((chunk) => Buffer.from(chunk)).join('')];
  },
};

const uncaught = [];
for (const event of ['unhandledRejection', 'uncaughtException']) {
  process.on(event, (error) => uncaught.push(`${event}: ${error?.stack ?? error}`));
}

const messagesOf = (text) =>
  text.startsWith('{') ? [JSON.parse(text)] : parseEvents(text).flatMap(({ message }) => message ?? []);

/** A session from its beginning to its end, as statuses and what is answered. */
async function lived(Transport, line, host) {
  const transport = new Transport({ sessionIdGenerator: () => 'one' });
  await buildServer(line).connect(transport);
  const handle = (...args) => transport.handleRequest(...args);
  const seen = [];
  let session = {};
  const ask = async (method, message, headers = JSON_HEADERS) => {
    const body = message === undefined ? undefined : JSON.stringify(message);
    const [status, answered, text] = await within(host(handle, { method, headers: { ...headers, ...session }, body }));
    seen.push([method, status, text === '' ? [] : messagesOf(text)]);
    return answered;
  };
  const answered = await ask('POST', initialize);
  session = { 'mcp-session-id': answered['mcp-session-id'], 'mcp-protocol-version': NEWEST };
  await ask('POST', initialized);
  await ask('POST', call('emit 3', 'return x'));
  await ask('POST', call('return x'), { ...JSON_HEADERS, accept: 'text/html' });
  await ask('GET', undefined, { accept: 'application/json', host: 'localhost' });
  await ask('DELETE', undefined, { host: 'localhost' });
  await ask('POST', call('return x'));
  return seen;
}

for (const line of LINES) {
  for (const [name, host] of Object.entries(HOSTS)) {
    test(`${line} ${name} answers as with the SDK's transport`, ours, async () => {
      const mine = await lived(classes[line], line, host);
      await turns();
      assert.deepEqual(uncaught.splice(0), []);
      // The SDK's own serves this host on both lines; some of the others it does not.
      assert.deepEqual(mine, await lived(stockClasses[line], line, HOSTS['light-my-request']));
    });
  }

  test(`${line} a response whose reader has left in silence costs nothing but itself`, ours, async (t) => {
    const { EventStore } = packages[line];
    const eventStore = new EventStore('memory:', { keepAliveMs: 20 });
    const transport = new classes[line]({ sessionIdGenerator: () => 'one', eventStore });
    const errors = [];
    await buildServer(line).connect(transport);
    transport.onerror = (error) => errors.push(error);
    const ask = async (method, message, headers) => {
      const body = message === undefined ? undefined : JSON.stringify(message);
      const request = new Request('http://localhost/mcp', { method, headers: { ...JSON_HEADERS, ...headers }, body });
      const { req, res } = toReqRes(request);
      const served = transport.handleRequest(req, res);
      return { served, response: await within(toFetchResponse(res)) };
    };
    const opened = await ask('POST', initialize);
    await opened.response.text();
    const session = { 'mcp-session-id': 'one', 'mcp-protocol-version': NEWEST };
    for (const left of [
      await ask('GET', undefined, session),
      await ask('POST', call('emit 1', 'gate never'), session),
    ]) {
      const reader = left.response.body.getReader();
      await reader.read();
      await reader.cancel();
      // The next comment finds nobody.
      await within(left.served);
    }
    const listening = await ask('GET', undefined, session);
    await listening.response.body.cancel();
    const ended = await ask('DELETE', undefined, session);
    assert.equal(ended.response.status, 200);
    await within(ended.served);
    await turns();
    assert.deepEqual([uncaught.splice(0), errors], [[], []]);
    t.after(() => transport.close());
  });

  /** A session on a server whose responses `change` changes, once it is open. */
  async function changedResponses(t, change, options) {
    const transport = new classes[line]({ sessionIdGenerator: () => 'one', ...options });
    await buildServer(line).connect(transport);
    let isOpen = false;
    const host = await listen((req, res) => {
      if (isOpen) {
        change(res);
      }
      void transport.handleRequest(req, res);
    });
    t.after(() => transport.close().then(() => host.close()));
    const peer = await Peer.open(host.port);
    isOpen = true;
    return peer;
  }

  for (const enableJsonResponse of [false, true]) {
    test(`${line} what collects an answer is given bytes, JSON ${enableJsonResponse}`, ours, async (t) => {
      const collected = [];
      const collecting = (res) => {
        const { write, end } = res;
        const chunks = [];
        res.write = (chunk, ...args) => {
          chunks.push(chunk);
          return write.call(res, chunk, ...args);
        };
        res.end = (chunk, ...args) => {
          if (chunk) {
            chunks.push(chunk);
          }
          collected.push(Buffer.concat(chunks).toString());
          return end.call(res, chunk, ...args);
        };
      };
      const peer = await changedResponses(t, collecting, { enableJsonResponse });
      const reply = await peer.script('emit 2', 'return größer');
      assert.equal(await reply.body(), collected[0]);
      assert.match(collected[0], /größer/);
      assert.equal((await peer.notify('notifications/initialized')).status, 202);
      assert.equal(collected[1], '');
    });
  }

  for (const name of ['writeHead', 'write', 'end']) {
    test(`${line} a response whose ${name} throws ends, and is told of once`, ours, async (t) => {
      const peer = await changedResponses(t, (res) => {
        res[name] = () => {
          throw new Error(`no ${name} of ${line}`);
        };
      });
      for (let time = 0; time < 2; time++) {
        const steps = name === 'write' ? ['emit 1', `gate ${newGate()}`] : ['emit 1', 'return x'];
        const answered = peer.script(...steps).then((reply) => reply.body());
        await assert.rejects(within(answered), (error) => error.code === 'ECONNRESET');
      }
      assert.equal(
        logged.filter((told) => told.includes(`no ${name} of ${line}`) && told.startsWith('warn')).length,
        1,
      );
      assert.deepEqual(uncaught.splice(0), []);
    });
  }

  test(`${line} a response that has no way to take listeners away is answered`, ours, async (t) => {
    const peer = await changedResponses(t, (res) => Object.assign(res, { off: undefined, removeListener: undefined }));
    const [left, answered] = [newGate(), newGate()];
    const leaving = await peer.script('emit 1', `gate ${left}`);
    await leaving.some(1);
    leaving.close();
    const staying = await peer.script('emit 1', `gate ${answered}`, 'return x');
    await staying.some(1);
    open(answered);
    assert.deepEqual(results(await staying.rest()), ['x']);
    await turns();
    assert.deepEqual(uncaught.splice(0), []);
  });

  test(`${line} a request of the web platform whose signal cannot be read is served`, ours, async (t) => {
    const transport = new webClasses[line]({ sessionIdGenerator: () => 'one' });
    await buildServer(line).connect(transport);
    t.after(() => transport.close());
    const asked = (message, headers) =>
      new Request('http://localhost/mcp', {
        method: 'POST',
        headers: { ...JSON_HEADERS, ...headers },
        body: JSON.stringify(message),
      });
    await (await transport.handleRequest(asked(initialize))).text();
    const gate = newGate();
    const request = asked(call('emit 1', `gate ${gate}`, 'return x'), { 'mcp-session-id': 'one' });
    Object.defineProperty(request, 'signal', {
      get() {
        throw new Error('no signal');
      },
    });
    const response = await within(transport.handleRequest(request));
    open(gate);
    assert.match(await within(response.text()), /"text":"x"/);
  });
}
