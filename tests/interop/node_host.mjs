// A Tailrope server of the Node package as a user writes it, on raw node:http: node node_host.mjs LINE [STORE JSON].
// Prints `READY PORT`. STORE holds the options of an event store of the server's own; `stock` instead of it makes a
// server of the SDK's own transport, with an event store in memory for each session (v2).
//
// Its tool `script` runs steps and its control paths are called as those of the Python servers (tests/python/servers),
// so that one test speaks to both.
import { randomUUID } from 'node:crypto';
import http from 'node:http';

import * as z from 'zod';

const RETRY_MS = 50;
const info = { name: 'interop', version: '1' };
const capabilities = { capabilities: { logging: {} } };

const lines = {
  async v1() {
    const { McpServer } = await import('@modelcontextprotocol/sdk/server/mcp.js');
    const { StreamableHTTPServerTransport: Transport, ...rest } = await import('tailrope/mcp-v1');
    const connect = (transport) => {
      const server = new McpServer(info, capabilities);
      server.registerTool('script', { inputSchema: { steps: z.array(z.string()) } }, ({ steps }, extra) =>
        script(steps, {
          progress: (progress) => extra.sendNotification(progressed(extra._meta, progress)),
          close: (options) => extra.closeSSEStream(options),
          closeStandalone: () => extra.closeStandaloneSSEStream(),
          standalone: (data) => server.sendLoggingMessage({ level: 'info', data }),
        }),
      );
      return server.connect(transport);
    };
    return { Transport, connect, ...rest };
  },
  async v2() {
    const { McpServer } = await import('@modelcontextprotocol/server');
    const { NodeStreamableHTTPServerTransport: Transport, ...rest } = await import('tailrope/mcp');
    const connect = (transport) => {
      const server = new McpServer(info, capabilities);
      server.registerTool('script', { inputSchema: z.object({ steps: z.array(z.string()) }) }, ({ steps }, ctx) =>
        script(steps, {
          progress: (progress) => ctx.mcpReq.notify(progressed(ctx.mcpReq._meta, progress)),
          close: (options) => ctx.http.closeSSE(options),
          closeStandalone: () => ctx.http.closeStandaloneSSE(),
          standalone: (data) => server.server.notification(logged(data)),
        }),
      );
      return server.connect(transport);
    };
    return { Transport, connect, ...rest };
  },
};

const progressed = (meta, progress) => ({
  method: 'notifications/progress',
  params: { progressToken: meta.progressToken, progress },
});

const logged = (data) => ({ method: 'notifications/message', params: { level: 'info', data } });

const gates = new Map();

/** A promise of the gate's opening, whether a tool or a test comes first. */
function gate(name) {
  if (!gates.has(name)) {
    let open;
    const opened = new Promise((resolve) => (open = resolve));
    gates.set(name, { opened, open });
  }
  return gates.get(name);
}

/** emit N, close [retry=MS] [hold=MS], gate NAME, close_standalone, standalone TEXT, return TEXT. */
async function script(steps, call) {
  let sent = 0;
  let text = 'done';
  for (const step of steps) {
    const [word, ...rest] = step.split(' ');
    if (word === 'emit') {
      for (let left = Number(rest[0]); left > 0; left--) {
        await call.progress(++sent);
      }
    } else if (word === 'close') {
      const { retry, hold } = Object.fromEntries(rest.map((part) => part.split('=')));
      call.close({ retryMs: retry && Number(retry), holdMs: hold && Number(hold) });
    } else if (word === 'gate') {
      await gate(rest[0]).opened;
    } else if (word === 'close_standalone') {
      call.closeStandalone();
    } else if (word === 'standalone') {
      await call.standalone(rest.join(' '));
    } else if (word === 'return') {
      text = rest.join(' ');
    } else {
      throw new Error(`no step ${word}`);
    }
  }
  return { content: [{ type: 'text', text }] };
}

const [line, store] = process.argv.slice(2);
const isStock = store === 'stock';
const { Transport: Ours, connect, EventStore, stats } = await lines[line]();
const Transport = isStock ? (await import('@modelcontextprotocol/node')).NodeStreamableHTTPServerTransport : Ours;
const LabStore = isStock ? (await import('../node/kit/stores.mjs')).LabStore : undefined;
const eventStore = store && !isStock ? new EventStore('memory:', JSON.parse(store)) : undefined;
const transports = new Map();

function control(url) {
  if (url.pathname === '/ctl/open') {
    gate(url.searchParams.get('gate')).open();
    return {};
  }
  return stats();
}

async function handle(req, res) {
  const url = new URL(req.url, 'http://localhost');
  if (url.pathname.startsWith('/ctl/')) {
    res.setHeader('content-type', 'application/json').end(JSON.stringify(control(url)));
    return;
  }
  const id = req.headers['mcp-session-id'];
  let transport = transports.get(id);
  if (transport === undefined && id !== undefined) {
    res.writeHead(404).end();
    return;
  }
  if (transport === undefined) {
    transport = new Transport({
      sessionIdGenerator: () => randomUUID(),
      retryInterval: RETRY_MS,
      onsessioninitialized: (opened) => transports.set(opened, transport),
      onsessionclosed: (closed) => transports.delete(closed),
      eventStore: isStock ? new LabStore() : eventStore,
    });
    await connect(transport);
  }
  await transport.handleRequest(req, res);
}

const server = http.createServer((req, res) => {
  handle(req, res).catch((error) => {
    console.error(error);
    res.destroy();
  });
});
server.listen(0, '127.0.0.1', () => console.log(`READY ${server.address().port}`));
