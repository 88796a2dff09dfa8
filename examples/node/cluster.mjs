// A server in a cluster, for @modelcontextprotocol/server 2.x: every worker takes every request, whichever of them has the
// session, for they share an event store. Run it with `node cluster.mjs`; `STORE` names another store.
import cluster from 'node:cluster';
import http from 'node:http';
import { setTimeout as sleep } from 'node:timers/promises';

import { McpServer } from '@modelcontextprotocol/server';
import { configure, createSessionRouter, drain, openStore } from 'tailrope/mcp';
import * as z from 'zod';

const WORKERS = 3;

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
        // The client comes back by itself, here after half a second, and is sent what it missed by any worker.
        ctx.http.closeSSE?.({ retryMs: 500 });
      }
    }
    return { content: [{ type: 'text', text: `${pages} pages` }] };
  });
  return server;
}

async function work() {
  configure({ store: await openStore(process.env.STORE ?? 'sqlite:events.db') });
  // Makes a server for each session that is opened here. A request for a session of another worker is relayed to that one; when
  // that one is gone, the session goes on here with a server of its own.
  const router = createSessionRouter(buildServer);
  process.once('SIGTERM', async () => {
    await drain();
    process.exit(0);
  });
  http.createServer(router.node).listen(Number(process.env.PORT ?? 3000), '127.0.0.1');
}

function supervise() {
  process.once('SIGTERM', () => {
    for (const worker of Object.values(cluster.workers)) {
      worker.process.kill('SIGTERM');
    }
  });
  cluster.once('listening', (_, { port }) => console.log(`http://127.0.0.1:${port}/mcp`));
  for (let worker = 0; worker < WORKERS; worker++) {
    cluster.fork();
  }
}

if (cluster.isPrimary) {
  supervise();
} else {
  await work();
}
