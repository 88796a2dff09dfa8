// Compiled, not run: the drop-in classes fit where the SDKs' own do.
import { randomUUID } from 'node:crypto';
import { createServer } from 'node:http';

import { Client, StreamableHTTPClientTransport } from '@modelcontextprotocol/client';
import { Client as ClientV1 } from '@modelcontextprotocol/sdk/client/index.js';
import { StreamableHTTPClientTransport as ClientTransportV1 } from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import { McpServer as McpServerV1 } from '@modelcontextprotocol/sdk/server/mcp.js';
import { McpServer } from '@modelcontextprotocol/server';
import * as tailrope from 'tailrope';
import {
  type HeaderValues,
  type Resume,
  type ResumeOptions,
  resumableFetch,
  stream,
  TailropeError,
  type Where,
} from 'tailrope/client';
import {
  type AdoptedSession,
  type AdoptingOptions,
  closeSSEStream,
  configure,
  createResumableMcpHandler,
  createSessionRouter,
  drain,
  EventStore,
  fetchStoredSession,
  NodeStreamableHTTPServerTransport,
  openStore,
  type Serving,
  serve as serveMcp,
  serveStoredSession,
  setLog,
  stats,
  WebStandardStreamableHTTPServerTransport,
} from 'tailrope/mcp';
import * as v1 from 'tailrope/mcp-v1';
import { type Call, type Handler, NotExactlyOnce, openSession, serve } from 'tailrope/testing';

configure({
  retryMs: 1_000,
  store: 'sqlite:events.db',
  durability: 'power',
  ownerLostMs: 5_000,
  relayedHeaders: ['x-own'],
  serverName: 'lab',
});
const store: tailrope.Store = await openStore('memory:', { maxBytes: 1 << 20, durability: 'process' });
configure({ store });
const eventStore = new EventStore(store);
const scoped = eventStore.scoped('session');
await new McpServer({ name: 'typed', version: '1' }).connect(
  new WebStandardStreamableHTTPServerTransport({ sessionIdGenerator: () => 'session', eventStore: scoped }),
);
scoped.drop();

const transport = new NodeStreamableHTTPServerTransport({
  sessionIdGenerator: () => randomUUID(),
  eventStore: new EventStore('memory:', { maxBytes: 1 << 20, sessionIdleMs: 0 }),
  onsessioninitialized: (id: string) => console.log(id),
});
const server = new McpServer({ name: 'typed', version: '1' });
server.registerTool('poll', {}, (ctx) => {
  const closed: boolean = closeSSEStream(ctx, { retryMs: 1_000, holdMs: 0 });
  return { content: [{ type: 'text', text: String(closed) }] };
});
await server.connect(transport);
createServer((req, res) => void transport.handleRequest(req, res));
createServer(async (req, res) => {
  const served: boolean = await serveStoredSession(req, res, { eventStore, onerror: console.error }, {});
  await v1.serveStoredSession(req, res, { eventStore: new v1.EventStore(store), allowedHosts: [] });
  console.log(served, store.address);
});
const stored: Response | undefined = await fetchStoredSession(new Request('http://localhost/mcp'), {
  eventStore,
  parsedBody: {},
});
console.log(stored?.status);
transport.closeSSEStream(1, { retryMs: 5 });

const web = new WebStandardStreamableHTTPServerTransport({ sessionIdGenerator: () => randomUUID() });
await new McpServer({ name: 'typed', version: '1' }).connect(web);
const response: Response = await web.handleRequest(new Request('http://localhost/mcp'), { parsedBody: {} });

const handler = createResumableMcpHandler(() => new McpServer({ name: 'typed', version: '1' }), {
  preferResumable: true,
  retryInterval: 1_000,
  onerror: (error) => console.log(error.message),
  onAdopted: async ({ sessionId, server }) => console.log(sessionId, server.close),
});
createServer((req, res) => void handler.node(req, res));
const answered: Response = await handler.fetch(new Request('http://localhost/mcp'));
handler.notify.toolsChanged();
console.log(response.status, answered.status);
await handler.close();

const router = createSessionRouter(
  ({ authInfo, requestInfo }) => new McpServer({ name: `${authInfo?.clientId}`, version: `${requestInfo?.url}` }),
  {
    eventStore,
    principal: (request) => ('headers' in request ? 'me' : undefined),
    serverName: 'lab',
    onerror: console.error,
    onAdopted: ({ sessionId, server }: AdoptedSession<McpServer>) => console.log(sessionId, server.isConnected()),
  },
);
createServer((req, res) => void router.node(req, res));
const routed: Response = await router.fetch(new Request('http://localhost/mcp'), { parsedBody: {} });
router.servers().forEach((made) => made.sendToolListChanged());
const routerV1 = v1.createSessionRouter(
  async ({ requestInfo }) => new McpServerV1({ name: `${requestInfo.headers.host}`, version: `${routed.status}` }),
  { onAdopted: ({ server }) => server.sendToolListChanged() },
);
await Promise.all([router.close(), routerV1.close()]);

const transportV1 = new v1.StreamableHTTPServerTransport({ sessionIdGenerator: () => randomUUID() });
const serverV1 = new McpServerV1({ name: 'typed', version: '1' });
serverV1.registerTool('poll', {}, (extra) => {
  v1.closeSSEStream(extra, { holdMs: 0 });
  return { content: [] };
});
await serverV1.connect(transportV1);
const webV1 = new v1.WebStandardStreamableHTTPServerTransport({ eventStore: new v1.EventStore() });
await new McpServerV1({ name: 'typed', version: '1' }).connect(webV1);
const paceOfTools: tailrope.PaceOptions = { retryMs: 5_000, holdMs: 0, heartbeatMs: 20_000, requiresTask: true };
tailrope.configure({ pace: { 'render_*': paceOfTools } });
const inForce: tailrope.Status = tailrope.status();
const notices: string[] = inForce.notices;
console.log(tailrope.stats(), notices, tailrope.closeSSEStream({}), new tailrope.EventStore());

setLog((level, line) => console.log(level, line));
const connections: number | undefined = stats().connections;
const drained: boolean = await drain({ retryMs: 1_000 });
console.log(connections, drained, transport.sessionId, transportV1.sessionId);

const resume: ResumeOptions = { maxAttempts: null, jitter: 0.5, headers: async () => ({ authorization: 'Bearer t' }) };
const resumable = resumableFetch(fetch, { ...resume, onResume: ({ requests }: Resume) => console.log(requests) });
const url = new URL('http://localhost/mcp');
await new Client({ name: 'typed', version: '1' }).connect(new StreamableHTTPClientTransport(url, { fetch: resumable }));
await new ClientV1({ name: 'typed', version: '1' }).connect(new ClientTransportV1(url, { fetch: resumableFetch() }));
const tokens: string[] = resumable.streams.export();
for await (const message of resumable.resume(tokens[0] ?? '', { url, signal: AbortSignal.timeout(1_000) })) {
  console.log(message.result);
}
try {
  for await (const message of stream(url, { message: { jsonrpc: '2.0', id: 1, method: 'ping' }, schedule: setTimer })) {
    console.log(message.result, resumable.streams.size);
  }
} catch (error) {
  console.log(error instanceof TailropeError && error.code === 'session_lost');
}
function setTimer(delayMs: number, wake: () => void) {
  const timer = setTimeout(wake, delayMs);
  return () => clearTimeout(timer);
}

const tested = await serve((req, res) => transport.handleRequest(req, res), { path: '/mcp', waitMs: 1_000 });
const called: Call = await (await tested.session({ capabilities: {} })).call('poll', {});
try {
  await called.cut(1);
  await called.resume(called.ids[0], { at: new URL(tested.url) });
  const received: unknown[] = await called.collect({ readAgain: false });
  called.assertExactlyOnce(received);
  await (await openSession(url)).delete();
  await (await serve(['node', 'server.mjs'], { env: { STORE: 'memory:' }, cwd: '.' })).restart();
} catch (error) {
  const lost: unknown[] = error instanceof NotExactlyOnce ? error.lost : [];
  console.log(
    lost,
    error instanceof TailropeError && error.code === 'refused' && error.status,
    called.connections[0]?.end,
  );
}

// Users' subclasses override what is ours as what it is: methods.
export class OwnNode extends NodeStreamableHTTPServerTransport {
  override closeSSEStream() {}
  override async handleRequest() {}
}
export class OwnWeb extends WebStandardStreamableHTTPServerTransport {
  override closeSSEStream() {}
}
export class OwnNodeV1 extends v1.StreamableHTTPServerTransport {
  override closeSSEStream() {}
}
export class OwnWebV1 extends v1.WebStandardStreamableHTTPServerTransport {
  override closeStandaloneSSEStream() {}
}
// @ts-expect-error: its types are those of the SDK's class, and no `any`.
new v1.StreamableHTTPServerTransport({ sessionIdGenerator: 1 });

// What appears in the signatures has a name that users can import.
export type Named = [
  tailrope.DrainOptions,
  tailrope.ErrorDetails,
  tailrope.OwnOptions,
  tailrope.ReplaySender<unknown>,
  Where,
  HeaderValues,
  Handler,
  AdoptingOptions<McpServer>,
  v1.AdoptingOptions<McpServerV1>,
  v1.OpeningContext,
];

configure({ maxConnectionMs: 'auto', drainRetryMs: 'auto', drainSpreadMs: 1 });

// Options that there are not.
const make = () => new McpServer({ name: 'typed', version: '1' });
// @ts-expect-error: no other word.
configure({ maxConnectionMs: 'never' });
// @ts-expect-error: an option of the engine is none of a drain.
await drain({ drainWithinMs: 1 });
// @ts-expect-error: nor of a router,
createSessionRouter(make, { maxSessions: 1 });
// @ts-expect-error: nor of a handler,
createResumableMcpHandler(make, { maxSessions: 1 });
// @ts-expect-error: nor of a transport,
new NodeStreamableHTTPServerTransport({ maxSessions: 1 });
// @ts-expect-error: of any kind.
new v1.WebStandardStreamableHTTPServerTransport({ maxSessions: 1 });
// @ts-expect-error: the handler's own checks would guard one of two revisions alone.
createResumableMcpHandler(make, { allowedHosts: ['here.example'] });
// @ts-expect-error: an option of a router is none of an engine.
configure({ onAdopted: () => {} });
// @ts-expect-error: nor of a store of its own.
new EventStore('memory:', { retryInterval: 1 });
// @ts-expect-error: an option of an engine is none of a store.
await openStore('memory:', { retryMs: 1 });
// @ts-expect-error: it is written otherwise.
closeSSEStream({}, { retry_ms: 1 });
// @ts-expect-error: it is written otherwise.
resumableFetch(fetch, { maxAttempt: 1 });
// @ts-expect-error: it is written otherwise.
stream(url, { msg: {} });
// @ts-expect-error: it is written otherwise.
await serve(['node', 'server.mjs'], { waitms: 1 });

const serving: Serving = await serveMcp({
  server: ({ requestInfo }) => new McpServer({ name: requestInfo?.url ?? 'typed', version: '1' }),
  port: 0,
  app: (req, res) => void res.end(req.url),
  authenticate: async ({ headers }) =>
    headers.authorization === undefined
      ? new Response(null, { status: 401 })
      : { token: '', clientId: 'x', scopes: [] },
  preferResumable: false,
  retryInterval: 1_000,
});
await serving.drain({ withinMs: 1_000 });
const servingV1 = await v1.serve({
  server: () => new McpServerV1({ name: 'typed', version: '1' }),
  app: { fetch: (request) => Response.json(request.url) },
  onAdopted: ({ server }) => server.sendToolListChanged(),
  allowedOrigins: ['https://app.example'],
});
await servingV1.close();
