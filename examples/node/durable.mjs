// Events in a SQLite file, for @modelcontextprotocol/server 2.x: clients get what they missed from the next process, or
// from another one that serves beside this. Run it with `node durable.mjs`; `STORE` names another store.
import { randomUUID } from 'node:crypto';
import http from 'node:http';
import { setTimeout as sleep } from 'node:timers/promises';

import { McpServer } from '@modelcontextprotocol/server';
import * as z from 'zod';

import { NodeStreamableHTTPServerTransport, configure, drain, openStore, serveStoredSession } from 'tailrope/mcp';

// Fails when the store cannot be opened.
configure({ store: await openStore(process.env.STORE ?? 'sqlite:events.db') });

function buildServer() {
  const server = new McpServer({ name: 'reports', version: '1.0.0' });
  const description = 'Build a report page by page, without keeping a connection open all the while.';
  const inputSchema = z.object({ pages: z.number().int() });
  server.registerTool('build_report', { description, inputSchema }, async ({ pages }, ctx) => {
    const progressToken = ctx.mcpReq._meta?.progressToken;
    for (let page = 1; page <= pages; page++) {
      await sleep(50);
      if (progressToken !== undefined) {
        const params = { progressToken, progress: page, total: pages, message: `page ${page}` };
        await ctx.mcpReq.notify({ method: 'notifications/progress', params });
      }
      if (page === Math.floor(pages / 2)) {
        // The client comes back by itself, here after half a second, and is sent what it missed.
        ctx.http.closeSSE?.({ retryMs: 500 });
      }
    }
    return { content: [{ type: 'text', text: `${pages} pages` }] };
  });
  return server;
}

const transports = new Map();

async function openSession() {
  const transport = new NodeStreamableHTTPServerTransport({
    sessionIdGenerator: () => randomUUID(),
    onsessioninitialized: (id) => transports.set(id, transport),
  });
  transport.onclose = () => transports.delete(transport.sessionId);
  await buildServer().connect(transport);
  return transport;
}

async function serve(req, res) {
  const sessionId = req.headers['mcp-session-id'];
  const transport = sessionId === undefined ? await openSession() : transports.get(sessionId);
  if (transport !== undefined) {
    await transport.handleRequest(req, res);
  } else if (!(await serveStoredSession(req, res))) {
    // No session of this process, nor one whose events can be read here by who asks.
    res.writeHead(404).end();
  }
}

const server = http.createServer((req, res) => {
  serve(req, res).catch((error) => {
    console.error(error);
    res.destroy();
  });
});

process.once('SIGTERM', async () => {
  // Clients are told to come back. What is stored stays for them, for it was drained before the end.
  await drain();
  process.exit(0);
});

server.listen(Number(process.env.PORT ?? 3000), '127.0.0.1', () => {
  console.log(`http://127.0.0.1:${server.address().port}/mcp`);
});
