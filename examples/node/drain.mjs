// Draining on SIGTERM, for @modelcontextprotocol/server 2.x: every connection is closed with a `retry` that covers the
// restart, and the process ends. Run it with `node drain.mjs`.
import { once } from 'node:events';
import http from 'node:http';
import { setTimeout as sleep } from 'node:timers/promises';

import { McpServer } from '@modelcontextprotocol/server';
import { createSessionRouter, drain } from 'tailrope/mcp';
import * as z from 'zod';

/** How long the next process takes until it listens. */
const RESTART_MS = 5_000;

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

// Makes a server for each session, and finds it again.
const router = createSessionRouter(buildServer);
let isStopping = false;

const server = http.createServer((req, res) => {
  if (isStopping && req.headers['mcp-session-id'] === undefined) {
    res.writeHead(503, { 'retry-after': RESTART_MS / 1_000, connection: 'close' }).end();
  } else if (req.url === '/mcp') {
    void router.node(req, res);
  } else {
    res.writeHead(404).end();
  }
});

async function stop() {
  isStopping = true;
  // The server still listens: clients that come back meanwhile are told the same and are not refused.
  await drain({ retryMs: RESTART_MS });
  server.close();
  // What is in the sockets still leaves. A tool that works on does not keep the process: its events end with it.
  await Promise.race([once(server, 'close'), sleep(1_000)]);
  // Calls that came at the last moment.
  await drain();
  process.exit(0);
}

process.once('SIGTERM', stop);
process.once('SIGINT', stop);

server.listen(Number(process.env.PORT ?? 3000), '127.0.0.1', () => {
  console.log(`http://127.0.0.1:${server.address().port}/mcp`);
});
