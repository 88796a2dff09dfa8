// Events in a SQLite file, for @modelcontextprotocol/server 2.x: clients get what they missed from the next process, or
// from another one that serves beside this. Run it with `node durable.mjs`; `STORE` names another store.
import http from 'node:http';
import { setTimeout as sleep } from 'node:timers/promises';

import { McpServer } from '@modelcontextprotocol/server';
import { configure, createSessionRouter, drain, openStore } from 'tailrope/mcp';
import * as z from 'zod';

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

// Makes a server for each session and finds it again. Requests for sessions of other processes are relayed to these; of
// those that are gone it reads the store.
const router = createSessionRouter(buildServer);

const server = http.createServer(router.node);

process.once('SIGTERM', async () => {
  // Clients are told to come back. What is stored stays for them, for it was drained before the end.
  await drain();
  process.exit(0);
});

server.listen(Number(process.env.PORT ?? 3000), '127.0.0.1', () => {
  console.log(`http://127.0.0.1:${server.address().port}/mcp`);
});
