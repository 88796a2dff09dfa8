// The Node server that the conformance suite asks: node server.mjs [--transport tailrope|stock] [--front]. Listens on a
// free port of the loopback, prints `READY PORT`, and ends when its standard input does. What it offers is in
// everything.json; here is only what a tool does beyond its fixed result.
import { randomUUID } from 'node:crypto';
import { readFileSync } from 'node:fs';
import http from 'node:http';
import { setTimeout as sleep } from 'node:timers/promises';
import { parseArgs } from 'node:util';

import { ProtocolError, ProtocolErrorCode, Server } from '@modelcontextprotocol/server';

const PAUSE_MS = 50;

const everything = JSON.parse(readFileSync(new URL('everything.json', import.meta.url), 'utf8'));
const tools = new Map(everything.tools.map((entry) => [entry.tool.name, entry]));
const resources = new Map(everything.resources.map((entry) => [entry.resource.uri, entry]));
const prompts = new Map(everything.prompts.map((entry) => [entry.prompt.name, entry]));

const { transport, front } = parseArgs({
  options: { transport: { type: 'string', default: 'tailrope' }, front: { type: 'boolean', default: false } },
}).values;
// By its path: this folder has a package.json of its own, in which the name `tailrope` means nothing.
const { NodeStreamableHTTPServerTransport, serve } = await (transport === 'stock'
  ? import('@modelcontextprotocol/node')
  : import('../../bindings-node/lib/server/mcp.mjs'));

/** What the tool's entry orders. Notifications and questions belong to the call, and go where its answer goes. */
async function act(entry, args, { mcpReq, http }) {
  for (const line of entry.logs ?? []) {
    await mcpReq.log('info', line);
    await sleep(PAUSE_MS);
  }
  for (const progress of entry.progress ?? []) {
    const { progressToken } = mcpReq._meta ?? {};
    if (progressToken !== undefined) {
      await mcpReq.notify({ method: 'notifications/progress', params: { progressToken, progress, total: 100 } });
    }
    await sleep(PAUSE_MS);
  }
  if (entry.closes) {
    http.closeSSE?.();
    await sleep(2 * PAUSE_MS);
  }
  if (entry.samples) {
    const messages = [{ role: 'user', content: { type: 'text', text: args.prompt } }];
    const answer = await mcpReq.send({ method: 'sampling/createMessage', params: { messages, maxTokens: 100 } });
    return `LLM response: ${answer.content.text}`;
  }
  if (entry.elicits) {
    const params = { mode: 'form', message: args.message, ...entry.elicits };
    const { action, content } = await mcpReq.send({ method: 'elicitation/create', params });
    return `User response: action=${action}, content=${JSON.stringify(content)}`;
  }
  return 'done';
}

function known(map, name, code = ProtocolErrorCode.InvalidParams) {
  const entry = map.get(name);
  if (entry === undefined) {
    throw new ProtocolError(code, `no ${name}`);
  }
  return entry;
}

function contentsOf(uri) {
  const [, id] = /^test:\/\/template\/([^/]+)\/data$/.exec(uri) ?? [];
  if (id !== undefined) {
    const data = { id, templateTest: true, data: `Data for ID: ${id}` };
    return { mimeType: 'application/json', text: JSON.stringify(data) };
  }
  const { resource, contents } = known(resources, uri, -32002);
  return { mimeType: resource.mimeType, ...contents };
}

function filled(value, args) {
  if (typeof value === 'string') {
    return Object.entries(args).reduce((text, [name, with_]) => text.replaceAll(`{${name}}`, with_), value);
  }
  return Object.fromEntries(Object.entries(value).map(([key, part]) => [key, filled(part, args)]));
}

function makeServer() {
  const capabilities = { tools: {}, resources: { subscribe: true }, prompts: {}, completions: {}, logging: {} };
  const server = new Server({ name: 'conformance', version: '1' }, { capabilities });
  const list = (map, key) => [...map.values()].map((entry) => entry[key]);
  const handlers = {
    'tools/list': () => ({ tools: list(tools, 'tool') }),
    async 'tools/call'({ params }, ctx) {
      const entry = known(tools, params.name);
      return entry.result ?? { content: [{ type: 'text', text: await act(entry, params.arguments, ctx) }] };
    },
    'resources/list': () => ({ resources: list(resources, 'resource') }),
    'resources/templates/list': () => ({ resourceTemplates: everything.templates }),
    'resources/read': ({ params: { uri } }) => ({ contents: [{ uri, ...contentsOf(uri) }] }),
    'resources/subscribe': () => ({}),
    'resources/unsubscribe': () => ({}),
    'prompts/list': () => ({ prompts: list(prompts, 'prompt') }),
    'prompts/get': ({ params }) => ({
      messages: known(prompts, params.name).messages.map((message) => filled(message, params.arguments ?? {})),
    }),
    'completion/complete'({ params }) {
      const values = everything.completions.filter((value) => value.startsWith(params.argument.value));
      return { completion: { values, total: values.length, hasMore: false } };
    },
  };
  for (const [method, handler] of Object.entries(handlers)) {
    server.setRequestHandler(method, async (request, ctx) => handler(request, ctx));
  }
  return server;
}

const sessions = new Map();

async function handle(req, res) {
  const sessionId = req.headers['mcp-session-id'];
  let session = sessions.get(sessionId);
  if (session === undefined && sessionId !== undefined) {
    res.writeHead(404).end();
    return;
  }
  if (session === undefined) {
    session = new NodeStreamableHTTPServerTransport({
      sessionIdGenerator: randomUUID,
      onsessioninitialized: (id) => sessions.set(id, session),
      onsessionclosed: (id) => sessions.delete(id),
      enableDnsRebindingProtection: true,
      allowedHosts: [`127.0.0.1:${port}`],
      allowedOrigins: [`http://127.0.0.1:${port}`],
    });
    await makeServer().connect(session);
  }
  await session.handleRequest(req, res);
}

/** Listens, and gives the port. */
async function listen() {
  const listener = http.createServer((req, res) => {
    handle(req, res).catch((error) => {
      console.error(error);
      res.destroy();
    });
  });
  await new Promise((resolve) => listener.listen(0, '127.0.0.1', resolve));
  return listener.address();
}

const { port } = await (front ? serve({ server: makeServer, port: 0 }) : listen());
console.log(`READY ${port}`);
process.stdin.resume().on('end', () => process.exit());
