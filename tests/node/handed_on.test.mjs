// What something around the SDKs' `handleRequest` hands on is what is served, as by the SDKs' own.
import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import { Readable } from 'node:stream';

import { getRequestListener } from '@hono/node-server';
import { WebStandardStreamableHTTPServerTransport as WebV1 } from '@modelcontextprotocol/sdk/server/webStandardStreamableHttp.js';
import { WebStandardStreamableHTTPServerTransport as WebV2 } from '@modelcontextprotocol/server';

import { buildServer } from '../servers/node/tools.mjs';
import { classes, listen, packages, stockClasses, webClasses } from '../servers/node/transports.mjs';
import { Peer, results } from './kit/raw.mjs';
import { LINES, ours, test } from './kit/test.mjs';

const stockWebClasses = { v1: WebV1, v2: WebV2 };
const authInfo = { token: 't', clientId: 'alice', scopes: [] };

async function read(stream) {
  const chunks = [];
  for await (const chunk of stream) {
    chunks.push(chunk);
  }
  return Buffer.concat(chunks);
}

/** The same message, but the tool `alias` is `who`. */
const renamed = (message) =>
  message.params?.name === 'alias' ? { ...message, params: { ...message.params, name: 'who' } } : message;

/** A request of node:http in which some members are others. */
const changed = (req, members) =>
  new Proxy(req, {
    get(target, name) {
      const value = Object.hasOwn(members, name) ? members[name] : Reflect.get(target, name);
      return typeof value === 'function' ? value.bind(target) : value;
    },
  });

/** What is around `handleRequest` of a transport of node:http, given the SDK's own: what it hands on. */
const NODE = {
  'a body that it has read': async (req, res, body) => [
    req,
    res,
    req.method === 'POST' ? renamed(body ?? JSON.parse(await read(req))) : body,
  ],
  'a body that it has changed in place': async (req, res, body) => {
    const message = req.method === 'POST' ? (body ?? JSON.parse(await read(req))) : body;
    return [req, res, message && Object.assign(message, renamed(message))];
  },
  'a proxy of the request': async (req, res, body) => [changed(req, { auth: authInfo }), res, body],
  'a request that is another stream': async (req, res, body) => {
    if (req.method !== 'POST' || body !== undefined) {
      return [req, res, body && renamed(body)];
    }
    const stream = Readable.from([Buffer.from(JSON.stringify(renamed(JSON.parse(await read(req)))))]);
    const { method, url, headers, rawHeaders, socket, httpVersionMajor } = req;
    const members = { method, url, headers, rawHeaders, socket, httpVersionMajor };
    return [Object.assign(stream, members, { headers: { ...headers, 'content-length': undefined } }), res, body];
  },
};

/** What is around `handleRequest` of a transport of the web platform: what it hands on. */
const WEB = {
  'a body that it has read': async (request, options) => [
    request,
    request.method === 'POST'
      ? { ...options, parsedBody: renamed(options?.parsedBody ?? (await request.json())) }
      : options,
  ],
  'another request': async (request, options) => [
    new Request(request.url, {
      method: request.method,
      headers: { ...Object.fromEntries(request.headers), 'x-added': 'yes' },
      body: options?.parsedBody === undefined ? request.body : null,
      duplex: 'half',
    }),
    options,
  ],
  'a request with another body': async (request, { parsedBody, ...options } = {}) => {
    if (request.method !== 'POST') {
      return [request, options];
    }
    const body = JSON.stringify(renamed(parsedBody ?? (await request.json())));
    const { 'content-length': _, ...headers } = Object.fromEntries(request.headers);
    return [new Request(request.url, { method: 'POST', headers, body, duplex: 'half' }), options];
  },
  'who it is': async (request, options) => [request, { ...options, authInfo }],
};

/** A server whose tools say what a handler is told of a request. */
function told(line) {
  const server = buildServer(line);
  const tell = (context) => {
    const user = (context.authInfo ?? context.http?.authInfo)?.clientId ?? 'nobody';
    const added = context.requestInfo?.headers['x-added'] ?? context.http?.req.headers.get('x-added') ?? 'nothing';
    return { content: [{ type: 'text', text: `${user} ${added}` }] };
  };
  server.registerTool('who', {}, tell);
  server.registerTool('alias', {}, () => ({ content: [{ type: 'text', text: 'not renamed' }] }));
  return server;
}

/** How a server answers on a transport of a class; the class is one of a listener's kind. */
function bySessions(Transport, line) {
  const transports = new Map();
  return async (sessionId, ...args) => {
    let transport = transports.get(sessionId);
    if (transport === undefined) {
      transport = new Transport({
        sessionIdGenerator: randomUUID,
        onsessioninitialized: (id) => void transports.set(id, transport),
      });
      await told(line).connect(transport);
    }
    return transport.handleRequest(...args);
  };
}

const onNode = (handle) => (req, res) => void handle(req.headers['mcp-session-id'], req, res);
const onWeb = (handle) =>
  getRequestListener((request) => handle(request.headers.get('mcp-session-id') ?? undefined, request), {
    overrideGlobalObjects: false,
  });

const SERVERS = {
  node: (line, stock) => onNode(bySessions((stock ? stockClasses : classes)[line], line)),
  web: (line, stock) => onWeb(bySessions((stock ? stockWebClasses : webClasses)[line], line)),
  'router node': (line, stock) =>
    stock ? SERVERS.node(line, stock) : packages[line].createSessionRouter(() => told(line)).node,
  'router fetch': (line, stock) => {
    if (stock) {
      return SERVERS.web(line, stock);
    }
    const { fetch } = packages[line].createSessionRouter(() => told(line));
    return getRequestListener((request) => fetch(request), { overrideGlobalObjects: false });
  },
};

/** What a client gets in a session. */
async function lived(port) {
  const peer = await Peer.open(port);
  const who = results(await (await peer.call('who', {})).rest());
  const alias = results(await (await peer.call('alias', {})).rest());
  const listening = await peer.listen();
  const ended = await peer.delete();
  return { who, alias, listening: listening.status, ended: ended.status };
}

for (const line of LINES) {
  for (const [kind, start] of Object.entries(SERVERS)) {
    const isWeb = !kind.includes('node') || undefined;
    const around = [
      ...(isWeb ? [] : Object.entries(NODE).map((entry) => [stockClasses[line], ...entry])),
      ...Object.entries(WEB).map((entry) => [stockWebClasses[line], ...entry]),
    ];
    for (const [Stock, what, change] of around) {
      test(`${line} ${kind}: what is around ${Stock.name} hands on ${what}`, ours, async (t) => {
        const { handleRequest } = Stock.prototype;
        t.after(() => Object.assign(Stock.prototype, { handleRequest }));
        Stock.prototype.handleRequest = async function (...args) {
          return handleRequest.call(this, ...(await change(...args)));
        };
        const seen = [];
        for (const stock of [true, false]) {
          const host = await listen(start(line, stock));
          t.after(() => host.close());
          seen.push(await lived(host.port));
        }
        assert.deepEqual(seen[1], seen[0]);
        assert.deepEqual([seen[0].listening, seen[0].ended], [200, 200]);
      });
    }
  }
}
