// A resumable server for @modelcontextprotocol/server 2.x, on node:http. Run it with `node server-v2.mjs`.
import { randomUUID } from 'node:crypto';
import http from 'node:http';
import { setTimeout as sleep } from 'node:timers/promises';

import { McpServer } from '@modelcontextprotocol/server';
// The one line: it used to name '@modelcontextprotocol/node'. Everything below is an ordinary server.
import { NodeStreamableHTTPServerTransport } from 'tailrope/mcp';
import * as z from 'zod';

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

/** The transport of the request's session, or a new one for a client that has none yet. */
async function transportFor(sessionId) {
  if (sessionId !== undefined) {
    return transports.get(sessionId);
  }
  const transport = new NodeStreamableHTTPServerTransport({
    sessionIdGenerator: () => randomUUID(),
    onsessioninitialized: (id) => transports.set(id, transport),
  });
  // Called for a session that its client deletes, and for one that has been idle for too long.
  transport.onclose = () => transports.delete(transport.sessionId);
  await buildServer().connect(transport);
  return transport;
}

async function serve(req, res) {
  const transport = req.url === '/mcp' ? await transportFor(req.headers['mcp-session-id']) : undefined;
  if (transport === undefined) {
    // What tells a client to start a new session.
    res.writeHead(404).end();
    return;
  }
  await transport.handleRequest(req, res);
}

const server = http.createServer((req, res) => {
  serve(req, res).catch((error) => {
    console.error(error);
    res.destroy();
  });
});
server.listen(Number(process.env.PORT ?? 3000), '127.0.0.1', () => {
  console.log(`http://127.0.0.1:${server.address().port}/mcp`);
});
